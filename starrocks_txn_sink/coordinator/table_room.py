"""TableRoom: which tables a label may have, because each one holds a thread of a backend (wire contract 4.16).

A commit ends its tables one after the other, so a label with more tables than threads would wait for itself. The driver
gives the lanes a room: the names of tables that each of them may load under the label, and a number of others. However
the rows are spread over the lanes, they together have no more tables than fit. A lane leaves out a source transaction
that does not fit, and all behind it in its source partition: these rows wait for the next label. What the lanes say of
the tables ahead lets the driver choose the next room, so that each label brings the job on.

A source transaction whose rows were sent in part, before a table came that has no room, cannot be left out any more:
the label is rolled back, and the transaction waits as a whole. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from starrocks_txn_sink.coordinator.model import LaneShare, TablesAhead
from starrocks_txn_sink.errors import ThreadsHeld, TooManyTables

MOST_PARTITIONS: Final = 100
"""Source partitions of whose tables a lane tells: enough to choose a room, and few enough for a message."""


SETTING: Final = "pipeline_connector_scan_thread_num_per_cpu"
PER_CORE: Final = 8
"""The default of SETTING."""


@dataclass(frozen=True, slots=True)
class ScanThreads:
    """The threads for open loads of the smallest of `backends`: `per_core` for each of its `cores`.

    Not `exact`: nobody answered, and the numbers are guessed.
    """

    cores: int
    per_core: int = PER_CORE
    backends: int = 1
    exact: bool = True

    @property
    def count(self) -> int:
        """All threads of the smallest backend, those for queries too."""
        return self.cores * self.per_core

    @property
    def reserve(self) -> int:
        """Threads for queries: one for each core. With one alone two queries of the loads, asked while a label
        commits, hold it and the first one that the commit frees, and wait for the commit."""
        return max(1, self.count // PER_CORE) if self.count > 2 else 0

    @property
    def room(self) -> int:
        """Loads that may be open at once."""
        return self.count - self.reserve


GUESS: Final = ScanThreads(2, exact=False)
"""A small backend."""


@dataclass(frozen=True, slots=True)
class TableRoom:
    """The tables of a label in one lane: those of `names`, and others until there are `most`.

    `waits` has by source partition the position behind which all rows wait for another label.
    """

    most: int
    names: frozenset[str] = frozenset()
    waits: Mapping[str, int] = field(default_factory=dict)


class Crowded(Exception):
    """A lane has sent rows of source transactions that need more room: they have to wait as a whole, behind `waits`."""

    def __init__(self, waits: Mapping[str, int]) -> None:
        super().__init__()
        self.waits = waits


@dataclass(slots=True)
class TableRooms:
    """The rooms of one write: `most` tables of rows, beside `own` ones of the sink, fit into a label of `lanes` lanes.

    `names` are the tables that the next label probably has. `needed` is the largest number of loads that a label had,
    or should have had. `grow` takes more room if there is some, and waits for room for so many tables; it returns how
    many have room then. No label of the write is open meanwhile. After a commit that waited for threads of others a
    label takes half as many tables, if source transactions let it: `halvings` counts these.
    """

    most: int
    threads: ScanThreads = GUESS
    own: int = 1
    lanes: int = 1
    names: frozenset[str] = frozenset()
    grow: Callable[[int], int] = lambda _: 0
    needed: int = 0
    halvings: int = 0
    _waits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = frozenset(sorted(self.names)[: self.wanted])

    @property
    def wanted(self) -> int:
        """The tables that a label takes, unless a source transaction has more."""
        return max(1, self.most >> self.halvings)

    def halve(self) -> None:
        """The next label gets half of the tables."""
        self.halvings += self.wanted > 1
        self.names = frozenset(sorted(self.names)[: self.wanted])

    def held(self, shares: Sequence[LaneShare]) -> ThreadsHeld:
        """The error for a commit of these loads that found no thread free."""
        threads, loads = self.threads, len(_tables_of(shares)) + self.own
        return ThreadsHeld(
            f"The commit waits for threads: its transaction has {loads} open loads, others hold the rest of the "
            f"{threads.count} threads of the smallest backend ({SETTING} = {threads.per_core}, {threads.cores} cores).",
            loads=loads,
            threads=threads.count,
        )

    @property
    def room(self) -> TableRoom:
        """Of the next label. One lane may take any tables, several only those that are certain to have room."""
        names = self.names if self.lanes > 1 or len(self.names) > self.wanted else frozenset[str]()
        rest = max(0, self.wanted - len(names)) // self.lanes
        return TableRoom(len(names) + rest, names, self._waits)

    def make_wait(self, waits: Mapping[str, int]) -> None:
        """The next label is for the same tables, without the rows behind `waits`."""
        self._waits = {**self._waits, **waits}

    def check(self, shares: Sequence[LaneShare]) -> None:
        """Before a commit: raise TooManyTables if the label has more tables than fit.

        Rows without positions are one source transaction, so no lane leaves any out.
        """
        tables = _tables_of(shares)
        self.needed = max(self.needed, len(tables) + self.own)
        if len(tables) > self.most:
            self._make_fit(tables)
        self.names = frozenset(tables)

    def go_on(self, shares: Sequence[LaneShare]) -> bool:
        """Whether rows wait for the next label, which has a room for them.

        Raises TooManyTables if each source partition goes on with a source transaction that has no room: what was
        before them is visible.
        """
        lanes = [share.left for share in shares if share.left]
        if lanes:
            self._choose(lanes)
        return bool(lanes)

    def _choose(self, lanes: Iterable[TablesAhead]) -> None:
        """Give the next label the tables of as many source transactions as fit, in each source partition in order."""
        groups_by_partition: dict[str, deque[Sequence[str]]] = {}
        for lane in lanes:
            for partition, groups in lane.items():
                groups_by_partition.setdefault(partition, deque()).extend(groups)
        firsts = {partition: set(groups[0]) for partition, groups in groups_by_partition.items()}
        self.most, chosen = max(self.most, self.grow(0)), set[str]()
        self.needed = max(self.needed, 2 * (self.most + self.own))  # there are more
        while (tables := _cheapest(groups_by_partition, chosen, self.wanted)) is not None:
            chosen |= tables
        if not chosen:
            chosen = min(firsts.values(), key=len)
            self._make_fit(chosen)
        self._waits = {
            name: position for name, position in self._waits.items() if not firsts.get(name, chosen) <= chosen
        }
        self.names = frozenset(chosen)

    def _make_fit(self, tables: set[str]) -> None:
        """Grow for the `tables` of one source transaction; raises TooManyTables if that is impossible for certain."""
        self.most = max(self.most, self.grow(len(tables)))
        if self.threads.exact and len(tables) > self.most:
            raise self._too_many(len(tables))

    def _too_many(self, tables: int) -> TooManyTables:
        threads = self.threads
        room = max(0, threads.room - self.own)
        return TooManyTables(
            f"A source transaction has rows for {tables} tables, and a StarRocks transaction has room for {room}. "
            f"Each table holds a thread of a backend until the commit: the smallest backend has {threads.count} "
            f"({SETTING} = {threads.per_core}, for {threads.cores} cores), {threads.reserve} stay free for queries, "
            f"and the sink has {self.own} tables of its own.",
            tables=tables,
            room=room,
        )


def _tables_of(shares: Iterable[LaneShare]) -> set[str]:
    return {region.table for share in shares for receipt in share.loaded for region in receipt.regions}


def _cheapest(groups_by_partition: Mapping[str, deque[Sequence[str]]], chosen: set[str], limit: int) -> set[str] | None:
    """The fewest further tables with which a source partition goes on beyond those `chosen`; None if none fit."""
    cheapest: set[str] | None = None
    for groups in groups_by_partition.values():
        while groups and chosen.issuperset(groups[0]):
            groups.popleft()
        extra = set(groups[0]) - chosen if groups else None
        if extra and len(chosen) + len(extra) <= limit and (cheapest is None or len(extra) < len(cheapest)):
            cheapest = extra
    return cheapest
