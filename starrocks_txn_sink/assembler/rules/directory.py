"""The state directory of assembling lanes, on any file system that driver and executors share."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
from pyarrow import fs

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import OptionError, StateNotRead, StateNotWritten

_RENAMES: Final = ("local", "hdfs", "abfs", "py")  # object stores need no rename: a file appears when it is complete
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_ABANDONED_SECONDS = 3600.0
_SHARED: set[tuple[str, str]] = set()


class StateDirectory(Protocol):
    """The state directory on any file system. Names are relative, with `/` between folder and file.

    A write is atomic: readers see the whole file or none. Files never change in place. `names` of a missing folder is
    empty; deleting a missing file is no error.
    """

    @property
    def driver_only(self) -> bool:
        """Whether no lane reaches it, so that the driver relays its files."""

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write the whole file, replacing an older one of this name. Raises StateNotWritten."""

    def open(self, name: str) -> pa.NativeFile:
        """The file for random access, which the caller closes; raises FileNotFoundError and StateNotRead."""

    def names(self, folder: str) -> list[str]:
        """Names of the complete files in `folder`, without the folder, in no order. Raises StateNotRead."""

    def delete(self, name: str) -> None:
        """Delete the file, if it is there."""


@dataclass(slots=True)
class FileDirectory:
    """The directory at `uri` (file:, hdfs:, s3:, gs:, …, or a path). Connects on first use; can be pickled."""

    driver_only: ClassVar[bool] = False
    uri: str
    _made: set[str] = field(default_factory=set, repr=False)
    _connected: tuple[Any, str] | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[type[FileDirectory], tuple[str]]:
        return FileDirectory, (self.uri,)

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write the whole file, replacing an older one. Raises StateNotWritten."""
        system, path = self._path(name)
        folder = path.rsplit("/", 1)[0]
        try:
            if folder not in self._made:
                _make_folder(system, folder)
                _remove_abandoned(system, folder)
                self._made.add(folder)
            target = f"{folder}/.{secrets.token_hex(8)}.tmp" if system.type_name.startswith(_RENAMES) else path
            _write_and_move(system, target, path, content)
        except (OSError, pa.ArrowException) as error:
            raise StateNotWritten(f"The assembling lanes cannot write their state: {_reason(error)}.") from error

    def require_shared(self, marker: str) -> None:
        """Raise OptionError if this host does not see the driver's file `marker`. Looks once per process.

        Without this check a directory that is not shared goes unnoticed, until a source transaction is too large for
        the manifest.
        """
        if (place := (self.uri, marker)) in _SHARED:
            return
        if marker.rpartition("/")[2] not in self.names(marker.rpartition("/")[0]):
            raise OptionError(
                f"The host {platform.node()} does not see the state directory {self.uri} of the driver.",
                hint="Driver and executors must share the checkpoint: put it on a distributed file system or a shared "
                "mount, or set the state_dir of the assembly to a folder there.",
                option="state_dir",
            )
        _SHARED.add(place)

    def open(self, name: str) -> pa.NativeFile:
        """Open the file for random access; raises FileNotFoundError and StateNotRead."""
        system, path = self._path(name)
        with _reading():
            return system.open_input_file(path)

    def names(self, folder: str) -> list[str]:
        """Names of the complete files in `folder`, without the folder, in no order. Raises StateNotRead."""
        system, path = self._path(folder)
        with _reading():
            file_infos = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return [
            file_info.base_name
            for file_info in file_infos
            if file_info.is_file and not file_info.base_name.startswith(".")
        ]

    def delete(self, name: str) -> None:
        """Delete the file, if it is there; raises StateNotWritten."""
        system, path = self._path(name)
        try:
            with contextlib.suppress(FileNotFoundError):
                system.delete_file(path)
        except (OSError, pa.ArrowException) as error:
            raise StateNotWritten(f"The old state cannot be deleted: {_reason(error)}.") from error

    def _path(self, name: str) -> tuple[Any, str]:
        if self._connected is None:
            self._connected = _connect(self.uri)
        system, root = self._connected
        return system, f"{root}/{name}"


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise StateNotRead(f"The assembling lanes cannot read their state: {_reason(error)}.") from error


def _write_and_move(system: Any, target: str, path: str, content: bytes | pa.Buffer) -> None:
    """Write `target`, then move it to `path`. Deletes `target` on failure: otherwise a full disk stays full."""
    try:
        local = isinstance(system, fs.LocalFileSystem)
        with open(target, "xb", opener=_for_owner) if local else system.open_output_stream(target) as stream:
            stream.write(content)
        if target != path:
            system.move(target, path)
    except OSError:
        if target != path:
            with contextlib.suppress(OSError):
                system.delete_file(target)
        raise


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # rows are not for all users


def _make_folder(system: Any, folder: str) -> None:
    """Create the folder and those above it; on a local file system, new ones are for their owner alone."""
    if not isinstance(system, fs.LocalFileSystem):
        system.create_dir(folder, recursive=True)
        return
    path = Path(folder)
    for parent in [*reversed(path.parents), path]:
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)


def _remove_abandoned(system: Any, folder: str) -> None:
    """Delete temporary files that killed tasks left: no write takes _ABANDONED_SECONDS."""
    oldest = SystemClock().wall() - _ABANDONED_SECONDS
    for file_info in system.get_file_info(fs.FileSelector(folder)):
        if (
            _TEMPORARY.fullmatch(file_info.base_name)
            and file_info.mtime is not None
            and file_info.mtime.timestamp() < oldest
        ):
            with contextlib.suppress(OSError):
                system.delete_file(file_info.path)


def _connect(uri: str) -> tuple[Any, str]:
    scheme, colon, tail = uri.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), uri.rstrip("/")
    if scheme == "file":
        return fs.LocalFileSystem(), re.sub("^/+", "/", tail).rstrip("/")
    try:
        system, path = fs.FileSystem.from_uri(re.sub("^s3[an]:", "s3:", uri))  # Hadoop's names for pyarrow's
    except (pa.ArrowException, OSError) as refused:
        system, path = _connect_fsspec(uri, refused)
    return system, path.rstrip("/")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _connect_fsspec(uri: str, refused: Exception) -> tuple[Any, str]:
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]

        file_system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError, OSError) as missing:
        raise OptionError(
            f"The assembling lanes cannot keep their state under {uri.split(':')[0]}: (pyarrow: {_reason(refused)}; "
            f"fsspec: {_reason(missing)}).",
            hint="Python writes this state on driver and executors, and Hadoop's configuration does not reach it. Give "
            "both the access that pyarrow needs, or set the state_dir of the assembly to a folder that they share "
            '(docs/guides/deploy.md, "The checkpoint").',
            option="state_dir",
        ) from refused
    return fs.PyFileSystem(fs.FSSpecHandler(file_system)), path
