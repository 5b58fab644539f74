"""Regions and chunks: where the rows of one (source partition, table) wait, and when they may leave.

A region has one *active* chunk that takes rows and hands over *frozen* ones. A chunk is frozen at a clean boundary once
the mini interval has passed since the region's last switch, so that many small source transactions share a load, or by
size, also inside a source transaction, so that memory stays bounded. Loading part of a source transaction is harmless:
only a commit makes rows visible, and a commit happens at a clean boundary only
(docs/architecture.md, "The life of a StarRocks transaction", step 2).

Pure: the time is an argument, pieces are opaque byte buffers that are never copied.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Marks:
    """Where rows lie in a piece, for lanes that may have to take it apart.

    Each row of the piece has its position, ascending; `offsets` has one entry more: where rows begin, and the end.
    """

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


@dataclass(slots=True)
class Chunk:
    """Rows of one region in arrival order: `pieces` are buffers of ready bytes, `bytes` is their total length.

    `marks` has what is known of the rows of each piece, None where nobody asked for it.
    """

    partition: str
    table: str
    pieces: list[memoryview] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    marks: list[Marks | None] = field(default_factory=list)

    def append(self, piece: memoryview, rows: int, marks: Marks | None = None) -> None:
        self.pieces.append(piece)
        self.marks.append(marks)
        self.rows += rows
        self.bytes += piece.nbytes


@dataclass(slots=True)
class Region:
    """The rows of one (source partition, table) that are not frozen yet.

    `clean_boundary` is True when no source transaction of this region is half written; `last_switch` is the time of the
    latest freeze, None before the first, so that the very first source transaction is frozen at once.
    """

    partition: str
    table: str
    active: Chunk = field(init=False)
    last_switch: float | None = None
    clean_boundary: bool = True

    def __post_init__(self) -> None:
        self.active = Chunk(self.partition, self.table)

    def write(self, piece: memoryview, rows: int, marks: Marks | None = None) -> None:
        """Take rows; the region is inside a source transaction until `end_transaction`."""
        self.active.append(piece, rows, marks)
        self.clean_boundary = False

    def end_transaction(self) -> None:
        """The source transaction whose rows were written last is complete."""
        self.clean_boundary = True

    def switch_due(self, now: float, mini_interval: float) -> bool:
        """Whether the active chunk may and should be frozen now: clean, not empty, mini interval elapsed."""
        if not self.clean_boundary or not self.active.rows:
            return False
        return self.last_switch is None or now >= self.last_switch + mini_interval

    def freeze(self, now: float) -> Chunk | None:
        """Hand over the active chunk, or None when it is empty, and start a new one."""
        if not self.active.rows:
            return None
        frozen, self.active = self.active, Chunk(self.partition, self.table)
        self.last_switch = now
        return frozen
