"""The input of a coordinator: rows of one region as ready bytes, and ends of source transactions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SEPARATOR: Final = ","
"""In front of each row of JSON. A separator behind a row would end up inside the JSON array (`rows.body`)."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Row index of a piece: where rows lie, kept only by lanes that may have to bisect a batch.

    `positions` has the position of each row, ascending; `offsets` the byte where each row begins, then the end.
    """

    positions: Ints
    offsets: npt.NDArray[np.integer]

    def upto(self, position: int) -> int:
        """The number of rows with positions up to `position`."""
        return int(np.searchsorted(self.positions, position, side="right"))

    def cut(self, piece: memoryview, low: int, high: int) -> tuple[memoryview, Marks]:
        """Rows `low` to `high` of the piece, with their index."""
        start = int(self.offsets[0])
        part = piece[int(self.offsets[low]) - start : int(self.offsets[high]) - start]
        return part, Marks(self.positions[low:high], self.offsets[low : high + 1])

    def rows(self, piece: memoryview) -> list[bytes]:
        """Each row's bytes, its separator included."""
        start = int(self.offsets[0])
        ends = [int(offset) - start for offset in self.offsets]
        return [bytes(piece[low:high]) for low, high in itertools.pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Written:
    """Rows of one region.

    `piece` holds the ready bytes of `rows` rows; `compacted` counts rows that were left out of it. `marks` is None
    unless the segmenter was asked for a row index.
    """

    partition: str
    table: str
    piece: memoryview
    rows: int
    compacted: int = 0
    marks: Marks | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """`count` source transactions of `partition` ended, the first at position `first`, the last at `last`.

    `digest` fingerprints the last one. A count of 0 marks the end of a batch of rows without positions.
    """

    partition: str
    first: int
    last: int
    count: int
    digest: str = ""


Segment = Written | Ended
