"""Spill storage of assembling lanes: files for the rows of open source transactions, and the state that names them.

The next micro-batch needs the AssemblerState of each source partition, and for each blob the place of its rows: a file
in the state directory and the number of a record batch in it. A Manifest has this for all source partitions after one
micro-batch. Files keep rows out of the manifest, so each row is written once, however long its transaction stays open.
Manifests are JSON; only small files are inside them (`inline`), which saves a file per lane and micro-batch.
"""

from __future__ import annotations

import base64
import contextlib
import os
import platform
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import orjson
import pyarrow as pa
from pyarrow import fs

from starrocks_txn_sink.assembler.rules.model import AssemblerState, Counters
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import InputError, OptionError, StarRocksSinkError, Transient

FORMAT: Final = 1
INLINE_BYTES: Final = 16 << 10
FOLDER: Final = "rows"

_RENAMES: Final = ("local", "hdfs", "abfs", "py")  # object stores need no rename: a file appears when it is complete
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names for pyarrow's


class BlobPlace(NamedTuple):
    """The place of a blob's rows."""

    file: str
    number: int


@dataclass(frozen=True, slots=True)
class CarriedState:
    """One source partition between two micro-batches; `places` has every blob that `state` names."""

    state: AssemblerState = field(default_factory=AssemblerState)
    places: Mapping[int, BlobPlace] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"state": self.state.to_json(), "blobs": [(number, *place) for number, place in self.places.items()]}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> CarriedState:
        places = {number: BlobPlace(file, at) for number, file, at in value["blobs"]}
        return cls(AssemblerState.from_json(value["state"]), places)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All carried-over state after micro-batch `batch` (-1: before the first) of the query run `query`.

    The driver publishes a manifest after all lanes have committed, and micro-batch N reads exactly that of N-1. So a
    replay starts from the same state, and the ledger's positions skip rows that are already committed: carried-over
    state needs no commit protocol of its own.
    """

    batch: int = -1
    query: str = ""
    partitions: Mapping[str, CarriedState] = field(default_factory=dict)
    inline: Mapping[str, bytes] = field(default_factory=dict)

    def files(self) -> set[str]:
        """Names of all files with rows of open source transactions, including inline ones."""
        return {place.file for each in self.partitions.values() for place in each.places.values()}

    def levels(self) -> Counters:
        """The levels of all source partitions; no flows."""
        return sum((Counters().with_levels_of(each.state) for each in self.partitions.values()), Counters())

    def updated(
        self, batch: int, query: str, touched: Mapping[str, CarriedState], inline: Iterable[tuple[str, bytes]]
    ) -> Manifest:
        """The manifest after one more micro-batch; `touched` are the source partitions with events in it."""
        after = Manifest(batch, query, {**self.partitions, **touched})
        files, known = after.files(), {**self.inline, **dict(inline)}
        return replace(after, inline={name: content for name, content in known.items() if name in files})

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "format": FORMAT,
                "batch": self.batch,
                "query": self.query,
                "partitions": {name: each.as_json() for name, each in self.partitions.items()},
                "inline": {name: base64.b64encode(content).decode() for name, content in self.inline.items()},
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """The manifest that `to_json` wrote; InputError when another format wrote it."""
        value = orjson.loads(text)
        if value.get("format") != FORMAT:
            raise InputError(
                "The checkpoint's state of the assembling lanes has another format.",
                hint="Finish the query with the release that started it, then start it with a new checkpoint.",
            )
        return cls(
            value["batch"],
            value["query"],
            {name: CarriedState.of_json(each) for name, each in value["partitions"].items()},
            {name: base64.b64decode(content) for name, content in value["inline"].items()},
        )


class StateNotRead(StarRocksSinkError, Transient):
    """The file system does not serve; a missing file is another error."""

    code = "state_not_read"
    summary = "The open source transactions of earlier micro-batches could not be read."
    hint = (
        "Check that driver and executors may read the checkpoint's folder starrocks_txn_sink (or state_dir): access "
        "keys, network, rights."
    )


class StateNotWritten(StarRocksSinkError, Transient):
    """Spark repeats the micro-batch from the previous manifest."""

    code = "state_not_written"
    summary = "The open source transactions of a micro-batch could not be saved."
    hint = (
        "Check that driver and executors may write the checkpoint's folder starrocks_txn_sink (or state_dir), and that "
        "all of them see the same one."
    )


_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_ABANDONED_SECONDS = 3600.0


class StateDirectory(Protocol):
    """The state directory on any file system. Names are relative, with `/` between folder and file.

    A write is atomic: readers see the whole file or none. Files never change in place. `names` of a missing folder is
    empty; deleting a missing file is no error.
    """

    def write(self, name: str, content: bytes | pa.Buffer) -> None: ...

    def open(self, name: str) -> pa.NativeFile: ...

    def names(self, folder: str) -> list[str]: ...

    def delete(self, name: str) -> None: ...


_SHARED: set[tuple[str, str]] = set()


@dataclass(slots=True)
class FileDirectory:
    """The directory at `uri` (file:, hdfs:, s3:, gs:, …, or a path). Connects on first use; can be pickled."""

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
        """Raises OptionError if the file `marker`, which the driver has written, is not to be seen here.

        Else a folder that driver and executors do not share would pass, until a source transaction is too large for
        the manifest. Looks once in a process.
        """
        if (seen := (self.uri, marker)) in _SHARED:
            return
        if marker.rpartition("/")[2] not in self.names(marker.rpartition("/")[0]):
            raise OptionError(
                f"The host {platform.node()} does not see the state directory {self.uri} of the driver.",
                hint="Driver and executors must share the checkpoint: put it on a distributed file system or a shared "
                "mount, or set state_dir of TransactionAssembly to a folder there.",
                option="state_dir",
            )
        _SHARED.add(seen)

    def open(self, name: str) -> pa.NativeFile:
        """Open the file for random access; raises FileNotFoundError and StateNotRead."""
        system, path = self._path(name)
        with _reading():
            return system.open_input_file(path)

    def names(self, folder: str) -> list[str]:
        """Names of the complete files in `folder`, without the folder, in no order. Raises StateNotRead."""
        system, path = self._path(folder)
        with _reading():
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


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise StateNotRead(f"The assembling lanes cannot read their state: {_reason(error)}.") from error


def _write_and_move(system: Any, target: str, path: str, content: bytes | pa.Buffer) -> None:
    """Write `target`, then give it its name; a failure leaves no temporary file, or a full disk would stay full."""
    try:
        if isinstance(system, fs.LocalFileSystem):
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # rows are not for all users
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        else:
            with system.open_output_stream(target) as stream:
                stream.write(content)
        if target != path:
            system.move(target, path)
    except OSError:
        if target != path:
            with contextlib.suppress(OSError):
                system.delete_file(target)
        raise


def _make_folder(system: Any, folder: str) -> None:
    """Create the folder and those above it; on a local file system, new ones are for their owner alone."""
    if not isinstance(system, fs.LocalFileSystem):
        system.create_dir(folder, recursive=True)
        return
    path = Path(folder)
    for each in [*reversed(path.parents), path]:
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def _remove_abandoned(system: Any, folder: str) -> None:
    """Delete temporary files that killed tasks left: no write takes _ABANDONED_SECONDS."""
    oldest = SystemClock().wall() - _ABANDONED_SECONDS
    for each in system.get_file_info(fs.FileSelector(folder)):
        if _TEMPORARY.fullmatch(each.base_name) and each.mtime is not None and each.mtime.timestamp() < oldest:
            with contextlib.suppress(OSError):
                system.delete_file(each.path)


def _connect(uri: str) -> tuple[Any, str]:
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), uri.rstrip("/")
    if scheme == "file":
        return fs.LocalFileSystem(), re.sub("^/+", "/", rest).rstrip("/")
    known = f"{_SCHEMES.get(scheme, scheme)}:{rest}"
    try:
        system, path = fs.FileSystem.from_uri(known)
    except (pa.ArrowException, OSError) as refused:
        system, path = _connect_fsspec(uri, refused)
    return system, path.rstrip("/")


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__


def _connect_fsspec(uri: str, refused: Exception) -> tuple[Any, str]:
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]

        found, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError, OSError) as missing:
        raise OptionError(
            f"The assembling lanes cannot keep their state under {uri.split(':')[0]}: (pyarrow: {_reason(refused)}; "
            f"fsspec: {_reason(missing)}).",
            hint="Python writes this state on driver and executors, and Hadoop's configuration does not reach it. Give "
            "both the access that pyarrow needs, or set state_dir of TransactionAssembly to a folder that they share "
            "(docs/guides/deploy.md, The checkpoint).",
            option="state_dir",
        ) from refused
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path


def missing_rows(file: str) -> InputError:
    """The error for a `file` of rows that the state names and that is not there."""
    return InputError(
        "Rows of an open source transaction are missing from the state of the assembling lanes.",
        hint="Restore the checkpoint's folder starrocks_txn_sink from the same copy as the checkpoint, or start with a "
        "new checkpoint from a position before the open source transactions.",
        file=file,
    )


@dataclass(slots=True)
class SpillStorage:
    """Writes the rows of open source transactions for one task, and reads rows that earlier tasks have written.

    Blobs that are written together share one Arrow IPC file, one record batch per blob. File names begin with `stem`,
    which is different for each attempt of a task, so two attempts never write the same file. A small file is not
    written: its content goes through `new_inline` into the manifest. `inline` has such files of earlier tasks.
    """

    directory: StateDirectory
    stem: str
    inline: Mapping[str, bytes] = field(default_factory=dict)
    new_inline: dict[str, bytes] = field(default_factory=dict)
    _files: int = 0
    _opened: dict[str, tuple[pa.NativeFile, pa.ipc.RecordBatchFileReader]] = field(default_factory=dict)

    def write(self, blobs: Sequence[pa.Table], *, small: bool = False) -> list[BlobPlace]:
        """Write blobs into one file; with `small`, a file up to INLINE_BYTES goes to `new_inline` instead."""
        if not blobs:
            return []
        name = f"{self.stem}-{self._files}.arrow"
        self._files += 1
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, blobs[0].schema) as writer:
            for blob in blobs:
                writer.write_batch(blob.combine_chunks().to_batches()[0])
        content = sink.getvalue()
        if small and content.size <= INLINE_BYTES:
            self.new_inline[name] = content.to_pybytes()
        else:
            self.directory.write(f"{FOLDER}/{name}", content)
        return [BlobPlace(name, number) for number in range(len(blobs))]

    def read(self, place: BlobPlace) -> pa.Table:
        """The rows at `place`; InputError if the file is missing."""
        if place.file not in self._opened:
            self._opened[place.file] = self._open(place.file)
        return pa.Table.from_batches([self._opened[place.file][1].get_batch(place.number)])

    def contents(self, files: Iterable[str]) -> dict[str, bytes]:
        """The contents of those of `files` that this task has written into the directory."""
        written = set(self.directory.names(FOLDER)).intersection(files)
        found = {}
        for name in written:
            with self.directory.open(f"{FOLDER}/{name}") as file:
                found[name] = file.read()
        return found

    def close(self) -> None:
        """Close all opened files."""
        for file, _ in self._opened.values():
            with contextlib.suppress(OSError):
                file.close()
        self._opened.clear()

    def _open(self, name: str) -> tuple[pa.NativeFile, pa.ipc.RecordBatchFileReader]:
        content = self.new_inline.get(name) or self.inline.get(name)
        if content is not None:
            file = pa.BufferReader(content)
        else:
            try:
                file = self.directory.open(f"{FOLDER}/{name}")
            except FileNotFoundError:
                raise missing_rows(name) from None
        return file, pa.ipc.open_file(file)
