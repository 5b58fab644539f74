"""The rules applied to the events of one task, as they arrive: any source partitions, in chunks, in one pass.

Pure: what is carried comes in and goes out as values; rows of open source transactions are put on a shelf and taken
from it. Memory holds the open source transactions up to a limit; what is more goes to the shelf at once and is read
back piece by piece when its END comes, so a huge source transaction costs no more memory than a small one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.carried import Carried, Place
from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.fates import Mask
from starrocks_txn_sink.assembler.intake import Indexes, looked_through, refuse_other_content
from starrocks_txn_sink.assembler.packing import by_partition
from starrocks_txn_sink.assembler.policy import Policy
from starrocks_txn_sink.assembler.release import Released
from starrocks_txn_sink.assembler.rules import Assembler
from starrocks_txn_sink.assembler.state import BLOB_BYTES, AssemblerState, OpenTransaction
from starrocks_txn_sink.assembler.together import Judged, Many, Steps, many, ordinary, together
from starrocks_txn_sink.errors import Unordered
from starrocks_txn_sink.events import Event

HELD_BYTES: Final = 32 << 20
MANY: Final = 3  # source partitions of a chunk are worth one pass for all …
FEW_EVENTS: Final = 5_000  # … unless each has many events: then copying their rows costs more than the calls


class RowShelf(Protocol):
    """Where rows of open source transactions are kept (assembler.shelf)."""

    def put(self, blobs: list[pa.Table], *, small: bool = False) -> list[Place]: ...

    def get(self, place: Place) -> pa.Table: ...


@dataclass(slots=True)
class _Holding:
    """One source partition in this task: its state, and its blobs in memory or on the shelf."""

    state: AssemblerState
    places: dict[int, Place]
    memory: dict[int, pa.Table] = field(default_factory=dict)
    latest: int | None = None  # the last position that arrived in this task


@dataclass(slots=True)
class Fold:
    """Takes the events of one task. `now` is the micro-batch's processing time (seconds since the epoch).

    With `arrival_order` events are taken as they come, and Unordered is raised when a position does not ascend;
    otherwise they come sorted by (source partition, position), where the same event may come twice. `open_timeout` of
    the policy is not judged here, because a transaction may end later in the same micro-batch: see `expire`.
    """

    policy: Policy
    carried: Mapping[str, Carried]
    now: float
    shelf: RowShelf
    arrival_order: bool
    held_limit: int = HELD_BYTES
    flows: Counters = field(default_factory=Counters)
    notices: list[Event] = field(default_factory=list)
    _holdings: dict[str, _Holding] = field(default_factory=dict)
    _held: int = 0
    _last: tuple[str, pa.Table] | None = None

    def feed(self, events: pa.Table, *, alone: bool = False) -> Iterator[Released]:
        """Take in events with their source_partition; yield released rows.

        Each source partition's rows come whole source transactions at a time, in the order of their ENDs. Events that
        are `alone`, the only ones of the task, may be in any order. Raises Unordered, and what Assembler.feed raises.
        """
        events = looked_through(events, need_txn_id=self.policy.interleaved)
        given = None if self.policy.interleaved else many(events, any_order=alone)
        if given is not None and _worth_it(given):
            yield from self._mostly_together(given, alone=alone)
        else:
            parts: Iterable[tuple[str | int, pa.Table]] = by_partition(events)
            if alone:
                parts = sorted(parts, key=lambda part: str(part[0]))  # as after a shuffle, in whichever order they came
            for partition, own in parts:
                yield from self._by_itself(str(partition), own, alone=alone)
        if self._held > self.held_limit:
            self._relieve()

    def _mostly_together(self, given: Many, *, alone: bool) -> Iterator[Released]:
        """All ordinary source partitions in one pass, the others one by one; rows go on in the order of `given`."""
        judged = self._judged(given)
        plain = ordinary(judged)
        steps = self._together(judged, plain) if plain.any() else None
        if steps is None:
            plain[:] = False
        else:
            self._settle_all(steps)
        waiting = steps.released if steps is not None else None
        place = {name: number for number, name in enumerate(given.names)}.__getitem__
        for name, own in given.only(~plain).parts():
            if waiting is not None:
                before, waiting = waiting.cut(bisect_left(waiting.names, place(name), key=place))
                yield from before
            yield from self._by_itself(name, own, alone=alone)
        yield from () if waiting is None else (waiting,)
        self._last = given.names[-1], given.events.slice(int(given.ends[-1]) - 1)

    def _judged(self, given: Many) -> Judged:
        return Judged.of(given, [self._holding(name).state for name in given.names], self.policy.missing_begin)

    def _together(self, judged: Judged, chosen: Mask) -> Steps | None:
        mine = judged if chosen.all() else self._judged(judged.given.only(chosen))
        names = mine.given.names
        return together(mine, self.now, lambda at, number: self._read(self._holding(names[at]), number))

    def _settle_all(self, steps: Steps) -> None:
        for name, state, removed, added in zip(steps.names, steps.states, steps.removed, steps.added, strict=True):
            holding = self._holding(name)
            self._settle(holding, state, removed, added)
            holding.latest = state.last_position
        self.flows = self.flows.then(steps.counters)

    def _by_itself(self, name: str, events: pa.Table, *, alone: bool) -> Iterator[Released]:
        holding = self._holding(name)
        if not alone:
            self._check_order(name, holding, events)
        policy = replace(self.policy, open_timeout=None)
        for rows in self._step(holding, Assembler(policy, name), events):
            yield Released.of(name, rows)

    @property
    def source_partitions(self) -> int:
        """How many have had events."""
        return len(self._holdings)

    def carry(self) -> dict[str, Carried]:
        """What the next micro-batch needs of the source partitions that had events; puts the rows on the shelf."""
        for holding in self._holdings.values():
            _merge(holding)
        self._shelve(small=True)
        return {name: Carried(each.state, dict(each.places)) for name, each in self._holdings.items()}

    def _holding(self, name: str) -> _Holding:
        if name not in self._holdings:
            before = self.carried.get(name, Carried())
            self._holdings[name] = _Holding(before.state, dict(before.places))
        return self._holdings[name]

    def _check_order(self, name: str, holding: _Holding, events: pa.Table) -> None:
        column = events[schema.POSITION]
        if column.null_count:
            return  # refused with its place by the rules
        positions = column.to_numpy()
        if self.arrival_order:
            _refuse_disorder(name, holding.latest, positions)
        elif self._last is not None and self._last[0] == name and holding.latest == positions[0]:
            refuse_other_content(self._last[1], events.slice(0, 1), name)
        holding.latest = int(positions[-1])
        self._last = name, events.slice(len(positions) - 1)

    def _step(self, holding: _Holding, assembler: Assembler, events: pa.Table) -> Iterator[pa.Table]:
        step = assembler.feed(holding.state, events, self.now, lambda number: self._read(holding, number))
        yield from step.released
        self._settle(holding, step.state, step.removed, step.added)
        self.flows = self.flows.then(step.counters)
        self.notices += step.notices

    def _settle(
        self, holding: _Holding, state: AssemblerState, removed: Iterable[int], added: Mapping[int, pa.Table]
    ) -> None:
        for number in removed:
            gone = holding.memory.pop(number, None)
            if gone is None:
                del holding.places[number]
            else:
                self._held -= gone.nbytes
        for number, rows in added.items():
            holding.memory[number] = kept = _compact(rows)
            self._held += kept.nbytes
        holding.state = state

    def _read(self, holding: _Holding, number: int) -> pa.Table:
        rows = holding.memory.get(number)
        return rows if rows is not None else self.shelf.get(holding.places[number])

    def _relieve(self) -> None:
        """Too many open rows in memory: all of them go to the shelf."""
        for holding in self._holdings.values():
            _merge(holding)
        self._shelve(small=False)

    def _shelve(self, *, small: bool) -> None:
        waiting = [(holding, number) for holding in self._holdings.values() for number in sorted(holding.memory)]
        places = self.shelf.put([holding.memory[number] for holding, number in waiting], small=small)
        for (holding, number), place in zip(waiting, places, strict=True):
            holding.places[number] = place
            del holding.memory[number]
        self._held = 0


def expire(
    policy: Policy, partitions: Mapping[str, Carried], now: float
) -> tuple[dict[str, Carried], Counters, list[Event]]:
    """Judge `open_timeout` over all source partitions; returns those that changed, the flows, and notices.

    Raises SourceTransactionError when the policy says `fail`.
    """
    changed: dict[str, Carried] = {}
    flows, notices = Counters(), list[Event]()
    for name, each in partitions.items():
        step = Assembler(policy, name).expire(each.state, now)
        if step.state != each.state:
            places = {number: place for number, place in each.places.items() if number not in step.removed}
            changed[name] = Carried(step.state, places)
            flows = flows + replace(step.counters, open=0, open_rows=0, state_bytes=0)
            notices += step.notices
    return changed, flows, notices


def _worth_it(given: Many) -> bool:
    return len(given.names) >= MANY and len(given.kinds) <= FEW_EVENTS * len(given.names)


def _refuse_disorder(name: str, latest: int | None, positions: Indexes) -> None:
    before = np.concatenate(([positions[0] - 1 if latest is None else latest], positions[:-1]))
    back = np.flatnonzero(positions <= before)
    if back.size:
        raise Unordered(
            f"The events of source partition {name} do not arrive in the order of their positions: "
            f"{positions[back[0]]} came after {before[back[0]]}. Nothing was committed.",
            hint='Leave shuffle at "auto" or set it to true, so that events are sorted first.',
        )


def _compact(rows: pa.Table) -> pa.Table:
    """`rows` without the memory of what they were cut from, unless they are most of it."""
    behind = rows.get_total_buffer_size()
    return rows.take(pa.array(np.arange(rows.num_rows))) if behind > 2 * rows.nbytes else rows


def _merge(holding: _Holding) -> None:
    """Few blobs for the rows that each open transaction has in memory; they keep the lower numbers."""
    opened = [_merged(each, holding.memory) for each in holding.state.open]
    holding.state = replace(holding.state, open=tuple(opened))


def _merged(transaction: OpenTransaction, memory: dict[int, pa.Table]) -> OpenTransaction:
    groups: list[list[int]] = []
    size = 0
    for number in transaction.blobs:
        more = memory[number].nbytes if number in memory else 0
        together = number in memory and groups and groups[-1][-1] in memory and size + more <= BLOB_BYTES
        if together:
            groups[-1].append(number)
        else:
            groups.append([number])
        size = size + more if together else more
    for group in groups:
        if len(group) > 1:
            memory[group[0]] = pa.concat_tables([memory.pop(number) for number in group])
    return replace(transaction, blobs=tuple(group[0] for group in groups))


def all_counters(flows: Iterable[Counters], levels: Counters) -> Counters:
    """The flows of all lanes, with the levels of all source partitions."""
    return sum(flows, Counters()).then(levels)
