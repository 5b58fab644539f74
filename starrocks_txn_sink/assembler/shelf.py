"""A shelf: where a task puts the rows of open source transactions, and takes from what earlier tasks have put.

One Arrow IPC file for what is put together, a record batch a blob. A task writes under names of its own, so that
attempts never meet; a small file is not written but handed over, to live inside the manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from starrocks_txn_sink.assembler.carried import Place
from starrocks_txn_sink.assembler.directory import Directory
from starrocks_txn_sink.errors import InputError

INLINE_BYTES: Final = 16 << 10
FOLDER: Final = "rows"


@dataclass(slots=True)
class Shelf:
    """`stem` begins the names of the files written here; `inline` has the content of files that were never written.

    `handed` collects those of this task.
    """

    directory: Directory
    stem: str
    inline: Mapping[str, bytes] = field(default_factory=dict)
    handed: dict[str, bytes] = field(default_factory=dict)
    written: int = 0
    _files: int = 0
    _opened: dict[str, tuple[pa.NativeFile, pa.ipc.RecordBatchFileReader]] = field(default_factory=dict)

    def put(self, blobs: Sequence[pa.Table], *, small: bool = False) -> list[Place]:
        """Put blobs, in one file; with `small` a small one is handed over instead of written."""
        if not blobs:
            return []
        name = f"{self.stem}-{self._files}.arrow"
        self._files += 1
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, blobs[0].schema) as writer:
            for blob in blobs:
                writer.write_batch(_one_batch(blob))
        content = sink.getvalue()
        if small and content.size <= INLINE_BYTES:
            self.handed[name] = content.to_pybytes()
        else:
            self.directory.write(f"{FOLDER}/{name}", content)
            self.written += content.size
        return [Place(name, number) for number in range(len(blobs))]

    def get(self, place: Place) -> pa.Table:
        """The rows at `place`; InputError when the file is not there."""
        if place.file not in self._opened:
            self._opened[place.file] = self._open(place.file)
        return pa.Table.from_batches([self._opened[place.file][1].get_batch(place.number)])

    def close(self) -> None:
        """Let go of the files that were read."""
        for file, _ in self._opened.values():
            with contextlib.suppress(OSError):
                file.close()
        self._opened.clear()

    def _open(self, name: str) -> tuple[pa.NativeFile, pa.ipc.RecordBatchFileReader]:
        content = self.handed.get(name) or self.inline.get(name)
        if content is not None:
            file = pa.BufferReader(content)
        else:
            try:
                file = self.directory.open(f"{FOLDER}/{name}")
            except FileNotFoundError:
                raise InputError(
                    "Rows of an open source transaction are missing from the fused assembler's state.",
                    hint="Restore the checkpoint's folder starrocks_txn_sink from the same copy as the checkpoint, or "
                    "start with a new checkpoint from a position before the open source transactions.",
                    file=name,
                ) from None
        return file, pa.ipc.open_file(file)


def _one_batch(blob: pa.Table) -> pa.RecordBatch:
    batches = blob.combine_chunks().to_batches()
    return batches[0]
