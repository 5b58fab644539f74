"""TableAdmission: the rows of a lane whose tables have room under its label, and the tables of those that wait.

Works on the arrays of a batch; a batch without a new table costs a look at the names of its tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from starrocks_txn_sink.coordinator.model import Ints
from starrocks_txn_sink.coordinator.table_room import MOST_PARTITIONS, Crowded, TableRoom
from starrocks_txn_sink.protocol.ledger import Position

Bools = npt.NDArray[np.bool_]
PartitionRun = tuple[str, int, int]  # source partition, first row, row after the last


@dataclass(slots=True)
class _Ahead:
    """Tables of a source partition in the order of its source transactions; `at` is the position of the last group."""

    groups: list[set[str]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    at: int | None = None

    def add(self, position: int, tables: set[str]) -> None:
        new = tables - self.seen
        if not new:
            return
        if position == self.at:
            self.groups[-1] |= new
        else:
            self.groups.append(new)
        self.at = position
        self.seen |= new


@dataclass(frozen=True, slots=True)
class TaggedRows:
    """Arrays of a batch: each row's position, and the number of its table in `names`."""

    positions: Ints
    tables: Ints
    names: Sequence[str]

    def first(self, low: int, high: int, tables: set[str]) -> int | None:
        """The first row of `low` to `high` (exclusive) for a table that is none of `tables`."""
        new = np.array([name not in tables for name in self.names])
        is_new = new[self.tables[low:high]]
        index = int(is_new.argmax()) if high > low else 0
        return low + index if high > low and is_new[index] else None

    def transaction(self, row: int, low: int, high: int) -> tuple[int, int]:
        """The rows of a source transaction, which share a position: the first one, and the one after the last."""
        positions, position = self.positions[low:high], self.positions[row]
        first, end = (low + int(np.searchsorted(positions, position, side=side)) for side in ("left", "right"))
        return first, end

    def tables_of(self, low: int, high: int) -> set[str]:
        """The names of the tables of rows `low` to `high` (exclusive)."""
        return {self.names[code] for code in np.unique(self.tables[low:high])}


@dataclass(slots=True)
class TableAdmission:
    """Lets the rows of one lane into `room`, in order within each source partition.

    `committed` has the ledger's positions: rows up to them are visible, and need no room. `left` tells of the tables of
    rows that wait (`coordinator.table_room`).
    """

    room: TableRoom
    committed: Mapping[str, Position] = field(default_factory=dict)
    _tables: set[str] = field(default_factory=set)  # that have room
    _left: dict[str, _Ahead] = field(default_factory=dict)
    _last: tuple[str, int] | None = None  # place of the row that came in last

    def __post_init__(self) -> None:
        self._tables = set(self.room.names)

    @property
    def left(self) -> dict[str, list[list[str]]]:
        """The smallest next source transactions first: they are the likeliest to have room."""
        first = sorted(self._left.items(), key=lambda item: len(item[1].groups[0]))
        return {name: [sorted(group) for group in queue.groups] for name, queue in first[:MOST_PARTITIONS]}

    @property
    def knows_enough(self) -> bool:
        """Whether the tables that wait fill the next label, so that nothing more has to be known of them."""
        tables: set[str] = set()
        for queue in self._left.values():
            tables |= queue.seen
        return len(tables) > self.room.most

    def admit(self, runs: Sequence[PartitionRun], rows: TaggedRows) -> Bools | None:
        """Mask of the rows that come in; None if all do, the usual case. Raises Crowded."""
        keep: Bools | None = None
        fits = not self._left and not self.room.waits and self._tables.issuperset(rows.names)
        for partition, low, high in runs:
            start = self._start(partition, low, high, rows)
            cut = high if fits else self._cut(partition, start, high, rows)
            if cut > start:
                self._last = partition, int(rows.positions[cut - 1])
            if cut < high:
                keep = np.ones(len(rows.positions), np.bool_) if keep is None else keep
                keep[cut:high] = False
                self._note(self._left.setdefault(partition, _Ahead()), cut, high, rows)
        return keep

    def _start(self, partition: str, low: int, high: int, rows: TaggedRows) -> int:
        """The first row that is not visible yet."""
        entry = self.committed.get(partition)
        if entry is None or rows.positions[low] > entry.position:
            return low
        return low + int(np.searchsorted(rows.positions[low:high], entry.position, side="right"))

    def _cut(self, partition: str, start: int, high: int, rows: TaggedRows) -> int:
        """The first row that has no room; raises Crowded if the rows before it in its source transaction are sent."""
        if partition in self._left:
            return start
        cut = self._fill(start, high, rows)
        if partition in self.room.waits:
            waits = self.room.waits[partition]
            cut = min(cut, start + int(np.searchsorted(rows.positions[start:high], waits, side="right")))
        if cut == start < high and self._last == (partition, int(rows.positions[cut])):
            raise Crowded({partition: int(rows.positions[cut]) - 1})
        return cut

    def _fill(self, start: int, high: int, rows: TaggedRows) -> int:
        """Give room to the tables of whole source transactions as long as there is some; the first row without it."""
        index = start
        while (row := rows.first(index, high, self._tables)) is not None:
            first, end = rows.transaction(row, start, high)
            tables = self._tables | rows.tables_of(first, end)
            if len(tables) > self.room.most:
                return first
            self._tables, index = tables, end
        return high

    def _note(self, queue: _Ahead, low: int, high: int, rows: TaggedRows) -> None:
        """Add the tables of rows `low` to `high` (exclusive), source transaction by source transaction."""
        if queue.seen.issuperset(rows.names):
            return
        start = low
        while (row := rows.first(start, high, queue.seen)) is not None:
            first, end = rows.transaction(row, low, high)
            queue.add(int(rows.positions[row]), rows.tables_of(first, end))
            start = end
