"""Joins the deliveries of a transaction that a restart of the connector cut, if they prove that no row is missing.

After a restart in the middle of a transaction, Debezium sends the BEGIN again, then the rows after its last stored
offset, *numbered from 1 again*, and an END that counts only the rows of this second delivery. So a later delivery
proves the transaction only together with the rows in front of it, which an earlier delivery brought. Kafka's timestamps
tell the deliveries apart: a row belongs to the last BEGIN that is not younger than the row. A later delivery begins at
row `k` (from 0) if its first row equals row `k` of an earlier delivery, or at row 0 if its first row has the position
of its BEGIN (PostgreSQL). Otherwise rows between the two deliveries may still be on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.history import NOWHERE
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, same_values
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.repeats import WithRows

_CONTENT = (v.COLLECTION, model.OP)
_PLACE = (*_CONTENT, model.POSITION)


def integer_column(events: pa.Table, column: str, null: int = NOWHERE) -> Indexes:
    """An integer column as an array, `null` where it is NULL."""
    values = events[column]
    numbers: Indexes = (pc.fill_null(values, null) if values.null_count else values).to_numpy()
    return numbers


def same_rows(
    events: pa.Table, ours: Indexes, theirs: Indexes, with_rows: WithRows, columns: Sequence[str] = _PLACE
) -> Mask:
    """Whether each row at the places `ours` has the `columns` and content of the row at `theirs`, in any order."""
    same = np.ones(len(ours), dtype=bool)
    if not len(ours):
        return same
    our_events, their_events = events.take(pa.array(ours)), events.take(pa.array(theirs))
    for column in columns:
        same &= same_values(our_events[column], their_events[column]).to_numpy()
    alike = pa.array(np.flatnonzero(same))
    ours_read, theirs_read = (with_rows(rows.take(alike))[model.ROW] for rows in (our_events, their_events))
    same[same] = same_values(ours_read, theirs_read).to_numpy()
    return same


@dataclass(frozen=True, slots=True)
class Joined:
    """The places of a transaction's rows, in order, and of the END that proves them.

    `trusted`: only if no row between two deliveries is missing, which time alone says. `foreign`: the place of the
    BEGIN of a later delivery that has rows of another transaction with the same id; -1: none. `others`: the places of
    later deliveries' events that are not proved to be repeats, because rows of theirs are still to come, or differ.
    """

    rows: Indexes
    end: int
    trusted: bool = False
    foreign: int = -1
    others: Indexes = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def join_deliveries(
    events: pa.Table, code: Indexes, is_begin: Mask, known: Mask, overdue: Mask, with_rows: WithRows
) -> tuple[dict[int, Joined], Mask]:
    """Judge the transactions with several BEGINs: the proven ones, and a mask of the unproven ones.

    Those that are `known` are settled: a delivery that its END proves needs no other one. All rows of the transactions
    `overdue` count as arrived.
    """
    begins = np.bincount(code[is_begin], minlength=len(overdue))
    unproven = begins > 1
    joined: dict[int, Joined] = {}
    if unproven.any():
        cut = _CutTransactions(events, with_rows)
        for group in np.flatnonzero(unproven).tolist():
            places = np.flatnonzero(code == group)
            whole_rows = cut.join(places, known=bool(known[group]), complete=bool(overdue[group]))
            if whole_rows is not None:
                joined[group], unproven[group] = whole_rows, False
    return joined, unproven


@dataclass(frozen=True, slots=True)
class _Delivery:
    """`rows` are the places of rows 1, 2, … up to the first gap; `whole`: there is no gap. `places`: of all events."""

    begin: int
    end: int  # -1 without END
    rows: Indexes
    whole: bool
    places: Indexes


class _CutTransactions:
    """The events of a step, to join the deliveries of single transactions."""

    def __init__(self, events: pa.Table, with_rows: WithRows) -> None:
        self.events, self.with_rows = events, with_rows
        self.is_begin, self.is_end = v.has_status(events, v.BEGIN), v.has_status(events, v.END)
        names = (v.TOTAL_ORDER, model.POSITION, v.SEQUENCE, v.TIMESTAMP)
        self.order, self.position, self.sequence, self.timestamp = (integer_column(events, name) for name in names)

    def join(self, places: Indexes, *, known: bool, complete: bool) -> Joined | None:
        """Join the deliveries of the transaction whose events are at `places`; None if they do not prove it.

        Of one that is `known` the rest alone is enough: its last row tells what it is (`repeats`).
        `complete` states that all of its rows have arrived (open_timeout is above the lag between the topics). Then a
        delivery whose first row is unknown begins where the known rows end, if nothing proves another place.
        """
        deliveries = self._deliveries(places)
        if deliveries is None:
            return None
        joined = self._join(deliveries, complete=False)
        if joined is None and known:
            joined = self._rest(deliveries)
        if joined is None and complete:
            joined = self._join(deliveries, complete=True)
        return joined

    def _join(self, deliveries: list[_Delivery], *, complete: bool) -> Joined | None:
        rows_before = np.empty(0, dtype=np.int64)
        for number, delivery in enumerate(deliveries):
            start = 0 if number == 0 else self._start(rows_before, delivery, complete=complete)
            if start is None:
                continue
            rows = np.concatenate([rows_before[:start], delivery.rows])
            if self._proves(delivery) and (np.diff(self.position[rows]) >= 0).all():
                later = [self._until_end(each) for each in deliveries[number + 1 :]]
                others = self._all_others(rows, [delivery, *later])
                return Joined(rows, delivery.end, complete, self._foreign(rows, later), others)
            rows_before = rows if len(rows) > len(rows_before) else rows_before
        return None

    def _rest(self, deliveries: list[_Delivery]) -> Joined | None:
        """The first delivery that its END proves; nothing else is known to be of it."""
        for rest in deliveries:
            if self._proves(rest) and (np.diff(self.position[rest.rows]) >= 0).all():
                others = [each if each is rest else self._until_end(each) for each in deliveries]
                return Joined(rest.rows, rest.end, others=self._all_others(rest.rows, others))
        return None

    def _foreign(self, rows: Indexes, later: list[_Delivery]) -> int:
        """The BEGIN of the first of the `later` deliveries with other rows than the transaction's `rows`; -1: none.

        Those in front of it that have neither END nor rows yet go with it.
        """
        first = -1
        for delivery in later:
            first = delivery.begin if first < 0 else first
            if not self._repeats(rows, delivery):
                return first
            if delivery.end >= 0 or len(delivery.rows):
                first = -1
        return -1

    def _repeats(self, rows: Indexes, later: _Delivery) -> bool:
        """Whether the first row of a later delivery is one of the transaction's `rows`, wherever it stands."""
        ours, theirs = np.repeat(later.rows[:1], len(rows)), rows
        return not len(ours) or bool(same_rows(self.events, ours, theirs, self.with_rows, _CONTENT).any())

    def _until_end(self, delivery: _Delivery) -> _Delivery:
        """The delivery without rows younger than its END: of a further one, whose BEGIN is still to be read."""
        if delivery.end < 0:
            return delivery
        late = np.flatnonzero(self.timestamp[delivery.rows] > self.timestamp[delivery.end])
        return replace(delivery, rows=delivery.rows[: late[0]], whole=False) if len(late) else delivery

    def _all_others(self, rows: Indexes, deliveries: list[_Delivery]) -> Indexes:
        """`_others` of the deliveries, the first of which may be the transaction's.

        One without an END is part of the next one that has one, and is judged with it.
        """
        others, judged = [deliveries[0].places[:0]], False
        for delivery in reversed(deliveries):
            others.append(self._others(rows, delivery, awaited=delivery.end < 0 and not judged))
            judged = delivery.begin not in others[-1] if delivery.end >= 0 else judged
        return np.concatenate(others)

    def _others(self, rows: Indexes, delivery: _Delivery, *, awaited: bool) -> Indexes:
        """The events of a delivery that are not proved to be repeats of the transaction's `rows`.

        All of them, if rows that its END counts are still to come, its END is `awaited`, or a row is none of `rows`;
        else the rows that are younger than the END: of a further delivery, whose BEGIN is still to be read.
        """
        is_row = ~self.is_begin[delivery.places] & ~self.is_end[delivery.places]
        more = delivery.places[is_row]
        more = more[~np.isin(more, rows)]
        late = more[self.timestamp[more] > self.timestamp[delivery.end]] if delivery.end >= 0 else more[:0]
        if not awaited and not len(more) and (delivery.end < 0 or self._proves(delivery)):
            return more
        if awaited or (delivery.end >= 0 and not self._proves(delivery)):
            return delivery.places
        ours = {*self._contents(rows)}
        unlike = more[[content not in ours for content in self._contents(more)]]
        if delivery.end >= 0 and len(np.setdiff1d(unlike, late)):
            return delivery.places
        return np.union1d(late, unlike)

    def _contents(self, rows: Indexes) -> list[tuple[str | None, ...]]:
        table = self.with_rows(self.events.take(pa.array(rows)))
        return list(zip(*(table[name].to_pylist() for name in (*_CONTENT, model.ROW)), strict=True))

    def _deliveries(self, places: Indexes) -> list[_Delivery] | None:
        """The deliveries in the order of their BEGINs; None without timestamps that tell them apart."""
        is_begin, is_end = self.is_begin[places], self.is_end[places]
        begins, ends, rows = places[is_begin], places[is_end], places[~is_begin & ~is_end]
        begins = begins[np.argsort(self.sequence[begins])]
        starts = self.timestamp[begins]
        if (starts == NOWHERE).any() or (self.timestamp[rows] == NOWHERE).any() or (np.diff(starts) < 0).any():
            return None
        fresh = np.diff(starts, prepend=-1) > 0  # a producer that repeats a BEGIN keeps its timestamp
        begins, starts = begins[fresh], starts[fresh]
        of_row = np.maximum(np.searchsorted(starts, self.timestamp[rows], side="right") - 1, 0)
        of_end = np.maximum(np.searchsorted(self.sequence[begins], self.sequence[ends]) - 1, 0)
        return [
            self._delivery(begin, ends[of_end == number], rows[of_row == number])
            for number, begin in enumerate(begins.tolist())
        ]

    def _delivery(self, begin: int, ends: Indexes, rows: Indexes) -> _Delivery:
        """The delivery with these ENDs and rows, of which the oldest count: others are copies, or of a later one."""
        places = np.concatenate([[begin], ends, rows])
        rows = rows[np.lexsort((self.timestamp[rows], self.order[rows]))]
        again = np.flatnonzero(np.diff(self.order[rows]) == 0) + 1
        rows = np.delete(rows, again[same_rows(self.events, rows[again], rows[again - 1], self.with_rows)])
        follows = self.order[rows] == np.arange(1, len(rows) + 1)
        whole = bool(follows.all())
        end = int(ends[0]) if len(ends) else -1
        return _Delivery(begin, end, rows if whole else rows[: int(follows.argmin())], whole, places)

    def _start(self, rows_before: Indexes, delivery: _Delivery, *, complete: bool) -> int | None:
        """The number (from 0) of the delivery's first row in the transaction; None if it is not certain.

        `rows_before` are the rows of the earlier deliveries, from row 0 on.
        """
        if not len(delivery.rows):
            return len(rows_before) if complete else None
        first = delivery.rows[:1]
        near = np.flatnonzero(self.position[rows_before] == self.position[first])
        rows_found = near[same_rows(self.events, rows_before[near], np.repeat(first, len(near)), self.with_rows)]
        if len(rows_found):
            return (
                int(rows_found[0]) if len(rows_found) == 1 else None
            )  # equal rows of one position cannot be told apart
        if not len(rows_before) and self.position[first[0]] == self.position[delivery.begin]:
            return 0
        after = not len(rows_before) or self.position[rows_before[-1]] <= self.position[first[0]]
        return len(rows_before) if complete and after else None

    def _proves(self, delivery: _Delivery) -> bool:
        """Whether the delivery has as many rows as its END says, in all and by collection."""
        if delivery.end < 0 or not delivery.whole:
            return False
        if self.events[v.EVENT_COUNT][delivery.end].as_py() != len(delivery.rows):
            return False
        listed = self.events[v.DATA_COLLECTIONS][delivery.end].as_py() or []
        expected = {
            collection["data_collection"]: collection["event_count"]
            for collection in listed
            if collection["event_count"]
        }
        table_counts = self.events[v.COLLECTION].take(pa.array(delivery.rows)).value_counts().to_pylist()
        return expected == {count["values"]: count["counts"] for count in table_counts}
