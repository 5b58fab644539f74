"""The deliveries of a transaction that a restart cut, joined where they prove it.

After a restart of the connector in the middle of a transaction, Debezium sends its BEGIN again, then the rows behind
its last stored offset, *numbered from 1 again*, and an END that counts this second delivery alone. So a later delivery
proves the transaction only together with the rows in front of it, which are in Kafka since an earlier delivery. The
deliveries are told apart by Kafka's timestamps: a row belongs to the last BEGIN that is not younger. A later delivery
begins at row `k` (from 0) if its first row is row `k` of an earlier delivery, or at row 0 if its first row has the
position of its BEGIN (PostgreSQL). Otherwise rows between the two may still be on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, same_values
from starrocks_txn_sink.assembler.verified import intake as v

NOWHERE = np.iinfo(np.int64).min
"""The integer that stands for NULL."""
_CONTENT = (v.COLLECTION, model.POSITION, model.OP, model.ROW)


def integer_column(events: pa.Table, column: str, null: int = NOWHERE) -> Indexes:
    """An integer column as an array, `null` where it is NULL."""
    values: Indexes = pc.fill_null(events[column], null).to_numpy()
    return values


def same_rows(events: pa.Table, ours: Indexes, theirs: Indexes) -> Mask:
    """Whether the rows at the places `ours` are those at `theirs`, but for their numbers."""
    one, other = events.take(pa.array(ours)), events.take(pa.array(theirs))
    same = np.ones(len(ours), dtype=bool)
    for column in _CONTENT:
        same &= same_values(one[column], other[column]).to_numpy()
    return same


@dataclass(frozen=True, slots=True)
class Joined:
    """The places of a transaction's rows, in order, and of the END that proves them."""

    rows: Indexes
    end: int


def join_deliveries(events: pa.Table, code: Indexes, is_begin: Mask, overdue: Mask) -> tuple[dict[int, Joined], Mask]:
    """(the proven transactions among those with several BEGINs, mask of the others)."""
    begins = np.bincount(code[is_begin], minlength=len(overdue))
    unproven = begins > 1
    joined: dict[int, Joined] = {}
    if unproven.any():
        cut = _CutTransactions(events)
        for each in np.flatnonzero(unproven).tolist():
            found = cut.join(np.flatnonzero(code == each), complete=bool(overdue[each]))
            if found is not None:
                joined[each], unproven[each] = found, False
    return joined, unproven


@dataclass(frozen=True, slots=True)
class _Delivery:
    """`rows` are the places of rows 1, 2, … as far as they follow each other; `whole`: no row has another number."""

    begin: int
    end: int  # -1 without one
    rows: Indexes
    whole: bool


class _CutTransactions:
    """The events of a step, to join the deliveries of single transactions."""

    def __init__(self, events: pa.Table) -> None:
        self.events = events
        self.is_begin, self.is_end = v.has_status(events, v.BEGIN), v.has_status(events, v.END)
        names = (v.TOTAL_ORDER, model.POSITION, v.SEQUENCE, v.TIMESTAMP)
        self.order, self.position, self.sequence, self.timestamp = (integer_column(events, name) for name in names)

    def join(self, places: Indexes, *, complete: bool) -> Joined | None:
        """Join the deliveries of the transaction whose events are at `places`; None if they do not prove it.

        `complete` states that all of its rows have arrived (open_timeout is above the lag between the topics): a
        delivery then begins where the rows before it end.
        """
        deliveries = self._deliveries(places)
        if deliveries is None:
            return None
        known = np.empty(0, dtype=np.int64)
        for number, each in enumerate(deliveries):
            start = 0 if number == 0 else self._start(known, each, complete=complete)
            if start is None:
                continue
            rows = np.concatenate([known[:start], each.rows])
            if self._proves(each) and (np.diff(self.position[rows]) >= 0).all():
                return Joined(rows, each.end)
            known = rows if len(rows) > len(known) else known
        return None

    def _deliveries(self, places: Indexes) -> list[_Delivery] | None:
        """The deliveries in their order; None without timestamps that tell them apart."""
        is_begin, is_end = self.is_begin[places], self.is_end[places]
        begins, ends, rows = places[is_begin], places[is_end], places[~is_begin & ~is_end]
        begins = begins[np.argsort(self.sequence[begins])]
        starts = self.timestamp[begins]
        if (starts == NOWHERE).any() or (self.timestamp[rows] == NOWHERE).any() or (np.diff(starts) < 0).any():
            return None
        fresh = np.diff(starts, prepend=-1) > 0  # a producer that repeats a BEGIN keeps its timestamp
        begins, starts = begins[fresh], starts[fresh]
        delivery = np.maximum(np.searchsorted(starts, self.timestamp[rows], side="right") - 1, 0)
        owner = np.maximum(np.searchsorted(self.sequence[begins], self.sequence[ends]) - 1, 0)
        return list(self._each_delivery(begins, ends, owner, rows, delivery))

    def _each_delivery(
        self, begins: Indexes, ends: Indexes, owner: Indexes, rows: Indexes, delivery: Indexes
    ) -> Iterator[_Delivery]:
        for number, begin in enumerate(begins):
            mine = rows[delivery == number]
            mine = mine[np.argsort(self.order[mine], kind="stable")]
            again = np.flatnonzero(np.diff(self.order[mine]) == 0) + 1
            repeated = again[same_rows(self.events, mine[again], mine[again - 1])]
            mine = np.delete(mine, repeated)
            follows = self.order[mine] == np.arange(1, len(mine) + 1)
            end = ends[owner == number]
            yield _Delivery(
                int(begin),
                int(end[0]) if len(end) else -1,
                mine if follows.all() else mine[: int(follows.argmin())],
                bool(follows.all()),
            )

    def _start(self, known: Indexes, delivery: _Delivery, *, complete: bool) -> int | None:
        """The number (from 0) of the delivery's first row in the transaction."""
        if not len(delivery.rows):
            return len(known) if complete else None
        first = delivery.rows[:1]
        near = np.flatnonzero(self.position[known] == self.position[first])
        found = near[same_rows(self.events, known[near], np.repeat(first, len(near)))]
        if len(found):
            return int(found[0]) if len(found) == 1 else None  # equal rows of one position cannot be told apart
        if not len(known) and self.position[first[0]] == self.position[delivery.begin]:
            return 0
        after = not len(known) or self.position[known[-1]] <= self.position[first[0]]
        return len(known) if complete and after else None

    def _proves(self, delivery: _Delivery) -> bool:
        """Whether the END's counts, in all and by collection, are those of the delivery."""
        if delivery.end < 0 or not delivery.whole:
            return False
        if self.events[v.EVENT_COUNT][delivery.end].as_py() != len(delivery.rows):
            return False
        listed = self.events[v.DATA_COLLECTIONS][delivery.end].as_py() or []
        said = {each["data_collection"]: each["event_count"] for each in listed if each["event_count"]}
        counted = self.events[v.COLLECTION].take(pa.array(delivery.rows)).value_counts().to_pylist()
        return said == {each["values"]: each["counts"] for each in counted}
