"""The scratch folder of an executor: what lanes have read for their proof, until they load it.

Nothing depends on it: a lane that does not find its files, because another host runs it now, reads Kafka again. The
files are the executor's own, and Spark deletes them with the application; each micro-batch deletes those of the ones
before.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
from pyspark import SparkFiles

from starrocks_txn_sink.assembler.rules.directory import FileDirectory
from starrocks_txn_sink.assembler.rules.spill import FOLDER, BlobPlace, SpillStorage
from starrocks_txn_sink.assembler.verified.texts import Segment
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.writer.worker import Attempt

_NAME: Final = "starrocks_txn_sink"

Schemas = Mapping[str, Sequence[str]]
"""The converter's schemas of the messages of each StarRocks table."""


class _MappedDirectory(FileDirectory):
    """A local folder whose files are mapped into memory: nothing is copied, and the system may drop their pages."""

    def open(self, name: str) -> pa.NativeFile:
        return pa.memory_map(f"{self.uri}/{name}")


@dataclass(frozen=True, slots=True)
class ScratchName:
    """The names of files in scratch folders: those of a micro-batch of `query` have its `token`."""

    query: str
    token: str

    @classmethod
    def of(cls, query: str) -> ScratchName:
        """A new name for a micro-batch of `query`."""
        return cls(hashlib.sha256(query.encode()).hexdigest()[:12], secrets.token_hex(8))


@dataclass(slots=True)
class Scratch:
    """The files of one lane and micro-batch, of any try at the lane."""

    name: ScratchName
    lane: int
    storage: SpillStorage

    @classmethod
    def of(cls, name: ScratchName, attempt: Attempt, folder: Path | None = None) -> Scratch:
        """The files in this executor's scratch folder."""
        directory = _MappedDirectory(str(folder or _folder()))
        stem = f"{name.query}-{name.token}-{attempt.lane}-{attempt.number}"
        return cls(name, attempt.lane, SpillStorage(directory, stem))

    @property
    def _index(self) -> str:
        return f"{FOLDER}/{self.name.query}-{self.name.token}-{self.lane}.json"

    def clear(self) -> None:
        """Delete the files of earlier micro-batches of the query."""
        directory, query = self.storage.directory, f"{self.name.query}-"
        for name in directory.names(FOLDER):
            if name.startswith(query) and not name.startswith(f"{query}{self.name.token}-"):
                directory.delete(f"{FOLDER}/{name}")

    def save(self, segments: Mapping[str, Sequence[Segment]], schemas: Schemas) -> None:
        """Say where the segments are, which the storage has; from now on `load` finds them."""
        places = {
            name: [(*segment.place, segment.rows, segment.bytes) for segment in parts if segment.place is not None]
            for name, parts in segments.items()
        }
        self.storage.directory.write(self._index, orjson.dumps({"segments": places, "schemas": schemas}))

    def load(self) -> tuple[dict[str, list[Segment]], Schemas] | None:
        """The segments and the schemas; None if a file is missing."""
        try:
            with self.storage.directory.open(self._index) as file:
                index = orjson.loads(file.read())
            segments = {
                name: [
                    Segment(rows, size, None, BlobPlace(file, number), storage=self.storage)
                    for file, number, rows, size in parts
                ]
                for name, parts in index["segments"].items()
            }
            for segment in (segment for parts in segments.values() for segment in parts):
                segment.read("")  # opens the file, which then stays readable
        except (FileNotFoundError, InputError):
            return None
        return segments, index["schemas"]


def _folder() -> Path:
    """A folder that is gone with the application, on an executor, or with the driver in local mode."""
    root = SparkFiles.getRootDirectory() if SparkFiles._root_directory or SparkFiles._is_running_on_worker else None
    return Path(root) / _NAME if root else Path(tempfile.gettempdir()) / f"{_NAME}-{os.getuid()}"
