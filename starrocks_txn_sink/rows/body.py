"""Request bodies made of chunk pieces: a JSON array or CSV without copying a row, or its compressed form.

Every row comes from the JVM with the separator in front (`,{"a":1}`), because a trailing one would stay inside the JSON
array. The first row's comma becomes the opening bracket. Rows of CSV have what ends a row in front, in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from starrocks_txn_sink.coordinator.region import SEPARATOR
from starrocks_txn_sink.options.load_properties import CSV_ROW

_CODECS = {"gzip": "gzip", "lz4_frame": "lz4", "zstd": "zstd"}  # our option's value -> pyarrow's name of the codec


@dataclass(frozen=True, slots=True)
class JsonArray:
    """A JSON array over `pieces`, each a run of rows that all begin with the separator. Can be iterated again."""

    pieces: Sequence[memoryview]

    def __len__(self) -> int:
        return sum(piece.nbytes for piece in self.pieces) + 1

    def __iter__(self) -> Iterator[memoryview | bytes]:
        yield b"["
        yield self.pieces[0][len(SEPARATOR) :]
        yield from self.pieces[1:]
        yield b"]"


@dataclass(frozen=True, slots=True)
class CsvRows:
    """CSV over `pieces`, each a run of rows that all begin with CSV_ROW. Can be iterated again."""

    pieces: Sequence[memoryview]

    def __len__(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    def __iter__(self) -> Iterator[memoryview | bytes]:
        yield self.pieces[0][len(CSV_ROW) :]
        yield from self.pieces[1:]
        yield CSV_ROW.encode()  # the last row needs it too: the server joins loads (wire contract 5.3)


@dataclass(frozen=True, slots=True)
class Compressed:
    """A body that was compressed whole; `data` is the compressed bytes."""

    data: memoryview

    def __len__(self) -> int:
        return self.data.nbytes

    def __iter__(self) -> Iterator[memoryview | bytes]:
        yield self.data


def load_body(pieces: Sequence[memoryview], compression: str, *, csv: bool = False) -> JsonArray | CsvRows | Compressed:
    """Return the body of a load: rows of one table, compressed as `compression` says (`none` or a codec's name)."""
    rows = CsvRows(pieces) if csv else JsonArray(pieces)
    if compression == "none":
        return rows
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODECS[compression]) as stream:
        for piece in rows:
            stream.write(piece)
    return Compressed(memoryview(sink.getvalue()))
