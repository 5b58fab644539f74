"""A directory for the state of the fused assembler, on any file system that pyarrow or fsspec knows.

Names are relative, with `/` between folder and file. A file is written once and whole: readers see all of it or
nothing. Nothing is ever changed in place.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import fs

from starrocks_txn_sink.errors import OptionError, StarRocksSinkError, Transient

_RENAMES: Final = ("local", "hdfs", "abfs", "py")  # elsewhere a file appears only when it is complete
_SAME: Final = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names for what pyarrow calls otherwise


class StateNotWritten(StarRocksSinkError, Transient):
    """The micro-batch is repeated from the state before it."""

    code = "state_not_written"
    summary = "The open source transactions of a micro-batch could not be saved."
    hint = (
        "Check that driver and executors may write the checkpoint's folder starrocks_txn_sink (or state_dir), and that "
        "all of them see the same one."
    )


class Directory(Protocol):
    """Where the state is. `names` of a folder that is not there are none; deleting what is gone is no error."""

    def write(self, name: str, content: bytes | pa.Buffer) -> None: ...

    def open(self, name: str) -> pa.NativeFile: ...

    def names(self, folder: str) -> list[str]: ...

    def delete(self, name: str) -> None: ...


@dataclass(slots=True)
class FileDirectory:
    """The directory at `uri` (file:, hdfs:, s3:, gs:, …, or a path). Connects when it is used; can be pickled."""

    uri: str
    _made: set[str] = field(default_factory=set, repr=False)
    _connected: tuple[Any, str] | None = field(default=None, repr=False)

    def __getstate__(self) -> tuple[str]:
        return (self.uri,)

    def __setstate__(self, state: tuple[str]) -> None:
        self.uri, self._made, self._connected = state[0], set(), None

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write the file whole; an older one of that name is replaced. Raises StateNotWritten."""
        system, path = self._path(name)
        folder = path.rsplit("/", 1)[0]
        try:
            if folder not in self._made:
                system.create_dir(folder, recursive=True)
                self._made.add(folder)
            target = f"{folder}/.{secrets.token_hex(8)}.tmp" if system.type_name.startswith(_RENAMES) else path
            with system.open_output_stream(target) as stream:
                stream.write(content)
            if target != path:
                system.move(target, path)
        except OSError as error:
            raise StateNotWritten(f"The fused assembler's state cannot be written ({type(error).__name__}).") from error

    def open(self, name: str) -> pa.NativeFile:
        """The file for reading anywhere in it; FileNotFoundError."""
        system, path = self._path(name)
        return system.open_input_file(path)

    def names(self, folder: str) -> list[str]:
        """The names of the complete files in `folder`, without the folder's, in no order."""
        system, path = self._path(folder)
        found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return [each.base_name for each in found if each.is_file and not each.base_name.startswith(".")]

    def delete(self, name: str) -> None:
        system, path = self._path(name)
        try:
            system.delete_file(path)
        except FileNotFoundError:
            return

    def _path(self, name: str) -> tuple[Any, str]:
        if self._connected is None:
            self._connected = _connect(self.uri)
        system, root = self._connected
        return system, f"{root}/{name}"


def _connect(uri: str) -> tuple[Any, str]:
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), uri.rstrip("/")
    if scheme == "file":
        return fs.LocalFileSystem(), re.sub("^/+", "/", rest).rstrip("/")
    known = f"{_SAME.get(scheme, scheme)}:{rest}"
    try:
        system, path = fs.FileSystem.from_uri(known)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as refused:
        system, path = _by_fsspec(uri, refused)
    return system, path.rstrip("/")


def _by_fsspec(uri: str, refused: Exception) -> tuple[Any, str]:
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]

        found, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError, OSError) as missing:
        raise OptionError(
            f"The fused assembler cannot keep its state under {uri.split(':')[0]}: ({type(refused).__name__} from "
            f"pyarrow, {type(missing).__name__} from fsspec).",
            hint="Give TransactionAssembly a state_dir on a file system that driver and executors share and that "
            "pyarrow or fsspec can write (file, hdfs, s3, gs, abfss, …).",
            option="state_dir",
        ) from refused
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path
