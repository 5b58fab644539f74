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
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from starrocks_txn_sink.protocol.label import Backoff

Ints = npt.NDArray[np.int64]

SEPARATOR: Final = ","
"""In front of each row of JSON. A separator behind a row would end up inside the JSON array (`rows.body`)."""


@dataclass(frozen=True, slots=True)
class RowIndex:
    """Row index of a piece: where rows lie, kept only by lanes that may have to bisect a batch.

    `positions` has the position of each row, ascending; `offsets` the byte where each row begins, then the end.
    """

    positions: Ints
    offsets: npt.NDArray[np.integer]

    def count_up_to(self, position: int) -> int:
        """The number of rows with positions up to `position`."""
        return int(np.searchsorted(self.positions, position, side="right"))

    def cut(self, piece: memoryview, low: int, high: int) -> tuple[memoryview, RowIndex]:
        """Rows `low` to `high` of the piece, with their index."""
        start = int(self.offsets[0])
        part = piece[int(self.offsets[low]) - start : int(self.offsets[high]) - start]
        return part, RowIndex(self.positions[low:high], self.offsets[low : high + 1])

    def rows(self, piece: memoryview) -> list[bytes]:
        """Each row's bytes, its separator included."""
        start = int(self.offsets[0])
        ends = [int(offset) - start for offset in self.offsets]
        return [bytes(piece[low:high]) for low, high in itertools.pairwise(ends)]


@dataclass(frozen=True, slots=True)
class RegionRows:
    """Rows of one region.

    `piece` holds the ready bytes of `rows` rows; `compacted` counts rows that were left out of it. `marks` is None
    unless the segmenter was asked for a row index.
    """

    partition: str
    table: str
    piece: memoryview
    rows: int
    compacted: int = 0
    row_index: RowIndex | None = None


@dataclass(frozen=True, slots=True)
class TransactionEnds:
    """`count` source transactions of `partition` ended, the first at position `first`, the last at `last`.

    `digest` fingerprints the last one. A count of 0 marks the end of a batch of rows without positions.
    """

    partition: str
    first: int
    last: int
    count: int
    digest: str = ""


Segment = RegionRows | TransactionEnds


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
    row_index: list[RowIndex | None] = field(default_factory=list)

    def append(self, piece: memoryview, rows: int, row_index: RowIndex | None = None) -> None:
        self.pieces.append(piece)
        self.row_index.append(row_index)
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
    last_freeze: float | None = None
    clean_boundary: bool = True

    def __post_init__(self) -> None:
        self.active = Chunk(self.partition, self.table)

    def write(self, piece: memoryview, rows: int, row_index: RowIndex | None = None) -> None:
        """Take rows; the region is inside a source transaction until `end_transaction`."""
        self.active.append(piece, rows, row_index)
        self.clean_boundary = False

    def end_transaction(self) -> None:
        """The source transaction whose rows were written last is complete."""
        self.clean_boundary = True

    def freeze_due(self, now: float, mini_interval: float) -> bool:
        """Whether the active chunk may and should be frozen now: clean, not empty, mini interval elapsed."""
        if not self.clean_boundary or not self.active.rows:
            return False
        return self.last_freeze is None or now >= self.last_freeze + mini_interval

    def freeze(self, now: float) -> Chunk | None:
        """Hand over the active chunk, or None when it is empty, and start a new one."""
        if not self.active.rows:
            return None
        frozen, self.active = self.active, Chunk(self.partition, self.table)
        self.last_freeze = now
        return frozen


@dataclass(slots=True)
class OpenRegions:
    """A set of regions, in the order in which they were added."""

    _regions: dict[tuple[str, str], Region] = field(default_factory=dict)
    _tables: dict[str, dict[str, Region]] = field(default_factory=dict)
    _waiting: list[tuple[float, str, str]] = field(default_factory=list)  # a heap

    def __bool__(self) -> bool:
        return bool(self._regions)

    def add(self, region: Region) -> None:
        self._regions[(region.partition, region.table)] = region
        self._tables.setdefault(region.partition, {})[region.table] = region

    def remove(self, region: Region) -> None:
        del self._regions[(region.partition, region.table)]
        del self._tables[region.partition][region.table]

    def all(self) -> list[Region]:
        return list(self._regions.values())

    def of(self, partition: str) -> list[Region]:
        return list(self._tables.get(partition, {}).values())

    def wait(self, region: Region, mini_interval: float) -> None:
        """`region` is at a clean boundary, and due `mini_interval` after its last freeze."""
        if region.last_freeze is not None:
            heappush(self._waiting, (region.last_freeze + mini_interval, region.partition, region.table))

    def due(self, now: float, mini_interval: float) -> Iterator[Region]:
        """Those that waited long enough, unless rows of another source transaction have come to them since."""
        while self._waiting and self._waiting[0][0] <= now:
            _, partition, table = heappop(self._waiting)
            region = self._regions.get((partition, table))
            if region is not None and region.freeze_due(now, mini_interval):
                yield region


RECYCLE_AT = 0.8
"""The part of its timeout that a StarRocks transaction lives before it is committed at a clean boundary."""


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """Sizes in bytes, times in seconds; see SinkOptions for their meaning.

    With `seal_bytes` a work is also committed at a clean boundary once it has so many bytes.
    `commit_interval` None commits only at the end of the rows: then a micro-batch is one StarRocks transaction, unless
    it lives past the recycle point.
    """

    commit_interval: float | None
    mini_interval: float
    timeout: float
    buffer_bytes: int
    chunk_bytes: int
    load_bytes: int
    retry_buffer_bytes: int
    load_parallelism: int
    max_attempts: int
    body_bytes: int = 64 << 20
    recycle_at: float = RECYCLE_AT
    close_bytes: int | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.2, longest=10.0))
