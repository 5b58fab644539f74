"""Load bodies made of chunk pieces: a JSON array or CSV without a copy of a row, or its compressed form.

The JVM makes the JSON, and Python never touches a single row: a body is a sequence of slices of Arrow buffers. So every
row comes with the separator in front (`,{"a":1}`): the first comma becomes the opening bracket, whereas a trailing one
would stay inside the array. Rows of CSV have the row delimiter in front, in the same way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from starrocks_txn_sink.coordinator.region import SEPARATOR
from starrocks_txn_sink.options.load_properties import CSV_ROW

_CODECS = {"gzip": "gzip", "lz4_frame": "lz4", "zstd": "zstd"}  # our option's value -> pyarrow's name of the codec


@dataclass(frozen=True, slots=True)
class JsonArray:
    """A JSON array over `pieces`, runs of rows that each begin with the separator; can be iterated again."""

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
    """CSV over `pieces`, runs of rows that each begin with CSV_ROW; can be iterated again."""

    pieces: Sequence[memoryview]

    def __len__(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    def __iter__(self) -> Iterator[memoryview | bytes]:
        yield self.pieces[0][len(CSV_ROW) :]
        yield from self.pieces[1:]
        yield CSV_ROW.encode()  # the last row needs it too: the server joins loads (wire contract 5.3)


@dataclass(frozen=True, slots=True)
class Compressed:
    """A compressed body."""

    data: memoryview

    def __len__(self) -> int:
        return self.data.nbytes

    def __iter__(self) -> Iterator[memoryview | bytes]:
        yield self.data


def load_body(pieces: Sequence[memoryview], compression: str, *, csv: bool = False) -> JsonArray | CsvRows | Compressed:
    """The body of a load for one table; `compression` is `none` or the option's name of a codec."""
    rows = CsvRows(pieces) if csv else JsonArray(pieces)
    if compression == "none":
        return rows
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODECS[compression]) as stream:
        for piece in rows:
            stream.write(piece)
    return Compressed(memoryview(sink.getvalue()))
