"""Where source transactions and rows lie in a piece of bytes: kept by lanes that may have to take it apart."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Marks:
    """For each row of a piece its position, ascending; `offsets` has one entry more: where rows begin, and the end."""

    positions: Ints
    offsets: npt.NDArray[np.integer]

    def upto(self, position: int) -> int:
        """How many rows belong to positions up to `position`."""
        return int(np.searchsorted(self.positions, position, side="right"))

    def cut(self, piece: memoryview, low: int, high: int) -> tuple[memoryview, Marks]:
        """Rows `low` to `high` of the piece, with their marks."""
        start = int(self.offsets[0])
        part = piece[int(self.offsets[low]) - start : int(self.offsets[high]) - start]
        return part, Marks(self.positions[low:high], self.offsets[low : high + 1])

    def rows(self, piece: memoryview) -> list[bytes]:
        """Each row's bytes, its separator included."""
        start = int(self.offsets[0])
        ends = [int(offset) - start for offset in self.offsets]
        return [bytes(piece[low:high]) for low, high in itertools.pairwise(ends)]
