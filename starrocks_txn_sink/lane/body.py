"""Request bodies made of chunk pieces: a JSON array without copying a row, or its compressed form.

Every row comes from the JVM with the separator in front (`,{"a":1}`), because a trailing one would stay inside the JSON
array. The first row's comma becomes the opening bracket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

SEPARATOR = ","

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
class Compressed:
    """A body that was compressed whole; `data` is the compressed bytes."""

    data: memoryview

    def __len__(self) -> int:
        return self.data.nbytes

    def __iter__(self) -> Iterator[memoryview | bytes]:
        yield self.data


def load_body(pieces: Sequence[memoryview], compression: str) -> JsonArray | Compressed:
    """Return the body of a load: rows of one table, compressed as `compression` says (`none` or a codec's name)."""
    array = JsonArray(pieces)
    if compression == "none":
        return array
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODECS[compression]) as stream:
        for piece in array:
            stream.write(piece)
    return Compressed(memoryview(sink.getvalue()))
