"""Which verified transactions are complete: index arithmetic over rows and ENDs, no Python per row.

A transaction is complete if its END has arrived, it has `event_count` rows, their `total_order` is 1 … n without gap or
repeat, their positions ascend, and each collection has as many rows as `data_collections` says. A transaction with
several BEGINs is complete if its deliveries prove it.

**Deliveries.** After a restart of the connector in the middle of a transaction, Debezium sends its BEGIN again, then
the rows behind its last stored offset, *numbered from 1 again*, and an END that counts this second delivery alone. So a
later delivery proves the transaction only together with the rows in front of it, which are in Kafka since an earlier
delivery. The deliveries are told apart by Kafka's timestamps: a row belongs to the last BEGIN that is not younger. A
later delivery begins at row `k` (from 0) if its first row is row `k` of an earlier delivery, or at row 0 if its first
row has the position of its BEGIN (PostgreSQL). Otherwise rows between the two may still be on their way.
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


@dataclass(frozen=True, slots=True)
class Tally:
    """Transactions by number, in the order of first appearance.

    `code` is the transaction of each event (-1: none, a snapshot's row). `end` is the event that is a transaction's
    END, -1 without one, and `commit` the sequence of its first END: every delivery is in the order of commits. `rows`
    are the places of all rows, by (transaction, total_order), repeats left out; those of transaction t are
    `rows[first[t]:first[t + 1]]`. `position` is the highest of its rows and its END.
    """

    ids: pa.StringArray
    code: Indexes
    end: Indexes
    commit: Indexes
    rows: Indexes
    first: Indexes
    repeated: Mask  # exact repeats of other events; none in a transaction with a conflict
    surplus: Mask  # other rows and ENDs that a released transaction does not need
    conflict: Mask  # two different rows with one total_order, or unproven
    unproven: Mask  # several deliveries, which do not prove the transaction yet
    expected: Indexes  # event_count, of all deliveries together; -1 without END
    collections_agree: Mask
    whole: Mask
    overdue: Mask  # not whole, and the first event arrived too long ago
    position: Indexes

    @property
    def count(self) -> Indexes:
        counted: Indexes = np.diff(self.first)
        return counted


def tally(events: pa.Table, arrived_before: float) -> Tally:
    """Tally `events` (intake.HELD_EVENTS).

    A transaction whose first event arrived at or before `arrived_before` (seconds) is taken to have all of its rows.
    """
    encoded = events[model.TXN_ID].combine_chunks().dictionary_encode()
    ids = encoded.dictionary
    code: Indexes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64)
    is_begin, is_end = has_status(events, v.BEGIN), has_status(events, v.END)
    orders = integer_column(events, v.TOTAL_ORDER, 0).copy()
    end, spare = _ends(events, code, is_end, len(ids))
    commit = np.where(end >= 0, integer_column(events, v.SEQUENCE)[end], NOWHERE)
    overdue = np.zeros(len(ids), dtype=bool)
    overdue[code[(code >= 0) & ~is_begin & (events[v.ARRIVED].to_numpy() <= arrived_before)]] = True
    joined, unproven = _join_deliveries(events, code, is_begin, overdue)
    for transaction, found in joined.items():
        mine = code == transaction
        orders[mine] = 0
        orders[found.rows] = np.arange(1, len(found.rows) + 1)
        end[transaction] = found.end
    cut = unproven.copy()
    cut[list(joined)] = True
    is_cut = np.append(cut, False)[code]
    spare &= ~is_cut
    is_row = ~is_begin & ~is_end & (code >= 0)
    placed = np.flatnonzero(is_row & (orders > 0))
    times = integer_column(events, v.TIMESTAMP)
    placed = placed[np.lexsort((times[placed], orders[placed], code[placed]))]
    again = np.zeros(len(placed), dtype=bool)
    again[1:] = (code[placed][1:] == code[placed][:-1]) & (orders[placed][1:] == orders[placed][:-1])
    later = np.flatnonzero(again)
    same = same_rows(events, placed[later], placed[later - 1])
    conflict = unproven.copy()
    conflict[code[placed[later[~same]]]] = True
    rows = placed[~again]
    count = np.bincount(code[rows], minlength=len(ids))
    first = np.concatenate([[0], np.cumsum(count)])
    expected = np.where(end >= 0, integer_column(events, v.EVENT_COUNT, -1)[end], -1)
    agree = _collections_agree(events, code, rows, end)
    for transaction, found in joined.items():
        expected[transaction], agree[transaction] = len(found.rows), True
    numbered = _follow(code[rows], orders[rows], first, integer_column(events, model.POSITION)[rows])
    whole = (expected == count) & numbered & agree & ~conflict
    # A row that another delivery brought may be the one to keep, until its transaction is released.
    of_one_delivery = same & (times[placed[later]] == times[placed[later - 1]])
    repeated = spare
    repeated[placed[later[of_one_delivery & ~conflict[code[placed[later]]]]]] = True
    repeated &= ~is_cut
    surplus = (is_row | is_end) & ~repeated
    surplus[rows] = False
    surplus[end[end >= 0]] = False
    return Tally(
        ids, code, end, commit, rows, first, repeated, surplus, conflict, unproven, expected, agree, whole,
        overdue & ~whole, _positions(events, rows, first, end),
    )  # fmt: skip


def has_status(events: pa.Table, status: str) -> Mask:
    """Mask of the markers with `status`."""
    mask: Mask = pc.fill_null(pc.equal(events[v.STATUS], status), False).to_numpy()
    return mask


def _join_deliveries(events: pa.Table, code: Indexes, is_begin: Mask, overdue: Mask) -> tuple[dict[int, Joined], Mask]:
    """(the proven transactions among those with several BEGINs, mask of the others)."""
    begins = np.bincount(code[is_begin], minlength=len(overdue))
    unproven = begins > 1
    joined: dict[int, Joined] = {}
    if unproven.any():
        cut = CutTransactions.of(events)
        for each in np.flatnonzero(unproven).tolist():
            found = cut.join(np.flatnonzero(code == each), complete=bool(overdue[each]))
            if found is not None:
                joined[each], unproven[each] = found, False
    return joined, unproven


def _follow(code: Indexes, orders: Indexes, first: Indexes, positions: Indexes) -> Mask:
    """Whether the rows of each transaction are numbered 1 … n, in the order of their positions."""
    wrong = orders != np.arange(len(code)) - first[code] + 1
    wrong[1:] |= (code[1:] == code[:-1]) & (positions[1:] < positions[:-1])
    good = np.ones(len(first) - 1, dtype=bool)
    good[code[wrong]] = False
    return good


def _ends(events: pa.Table, code: Indexes, is_end: Mask, transactions: int) -> tuple[Indexes, Mask]:
    """(the first END of each transaction, mask of the other ENDs)."""
    places = np.flatnonzero(is_end)
    places = places[np.argsort(integer_column(events, v.SEQUENCE)[places], kind="stable")][::-1]
    end = np.full(transactions, -1, dtype=np.int64)
    end[code[places]] = places
    spare = is_end.copy()
    spare[end[end >= 0]] = False
    return end, spare


def _collections_agree(events: pa.Table, code: Indexes, rows: Indexes, end: Indexes) -> Mask:
    """Whether each transaction has the number of rows that its END says, in every collection."""
    agree = end >= 0
    ended = np.flatnonzero(agree)
    encoded = events[v.COLLECTION].combine_chunks().dictionary_encode()
    names = encoded.dictionary
    width = len(names) + 1
    found, counts = np.unique(
        code[rows] * width + pc.fill_null(encoded.indices, len(names)).to_numpy()[rows], return_counts=True
    )
    said = events[v.DATA_COLLECTIONS].combine_chunks().take(pa.array(end[ended]))
    owner = ended[pc.list_parent_indices(said).to_numpy()]
    flat = pc.list_flatten(said)
    wanted = pc.fill_null(pc.index_in(flat.field(0), value_set=names), len(names)).to_numpy() + owner * width
    number = pc.fill_null(flat.field(1), -1).to_numpy()
    wanted, number, owner = wanted[number != 0], number[number != 0], owner[number != 0]
    at = np.searchsorted(found, wanted)
    right = at < len(found)
    right[right] = (found[at[right]] == wanted[right]) & (counts[at[right]] == number[right])
    agree[owner[~right]] = False
    collections = np.bincount(found // width, minlength=len(end))
    agree &= collections == np.bincount(owner, minlength=len(end))
    return agree


def _positions(events: pa.Table, rows: Indexes, first: Indexes, end: Indexes) -> Indexes:
    positions = integer_column(events, model.POSITION, NOWHERE)
    highest = np.where(end >= 0, positions[end], NOWHERE)
    filled = np.flatnonzero(np.diff(first))
    if len(filled):
        of_rows = np.maximum.reduceat(positions[rows], first[filled])
        highest[filled] = np.maximum(highest[filled], of_rows)
    return highest


@dataclass(frozen=True, slots=True)
class TransactionClasses:
    """Transactions by number (Tally); each is in one of the three arrays, or waits.

    `released` is in commit order, the sequence of ENDs. `repeated` are complete at a position that is already released.
    `given_up` are overdue. `blocking` is the first one that holds back later commits, -1 if none does.
    """

    released: Indexes
    repeated: Indexes
    given_up: Indexes
    blocking: int


def classify(found: Tally, last_position: int | None) -> TransactionClasses:
    """Classify the tallied transactions.

    A transaction is released if it is whole and all earlier commits are settled. An overdue transaction is given up;
    otherwise it would hold back all later ones.
    """
    overdue = np.flatnonzero(found.overdue)
    ended = np.flatnonzero(found.end >= 0)
    ended = ended[np.argsort(found.commit[ended], kind="stable")]
    blocked = ended[~found.whole[ended] & ~found.overdue[ended]]
    reached = ended[: int((ended == blocked[0]).argmax())] if len(blocked) else ended
    due = reached[found.whole[reached]]
    blocking = int(blocked[0]) if len(blocked) else -1
    if not len(due):
        return TransactionClasses(due, due, overdue, blocking)
    position = found.position[due]
    start = NOWHERE if last_position is None else last_position
    passed = np.maximum.accumulate(np.concatenate([[start], position]))[:-1]
    new = (position > passed) | (found.expected[due] == 0)
    return TransactionClasses(due[new], due[~new], overdue, blocking)


def reason(found: Tally, transaction: int) -> str:
    """Why a transaction is incomplete; a text of a bounded set."""
    expected, count = int(found.expected[transaction]), int(found.count[transaction])
    if found.end[transaction] < 0:
        return "no END"
    if found.unproven[transaction]:
        return "cut by a restart"
    if found.conflict[transaction]:
        return "two rows at one place"
    if expected != count:
        return "rows missing" if expected > count else "too many rows"
    return "table counts" if not found.collections_agree[transaction] else "gap in total_order"


def collection_counts(events: pa.Table, found: Tally, transaction: int) -> str:
    """The rows that were found and expected in each table of a transaction, like `orders 1/1, order_items 0/2`."""
    rows = found.rows[found.first[transaction] : found.first[transaction + 1]]
    tables = events[v.COLLECTION].take(pa.array(rows)).value_counts().to_pylist()
    seen = {each["values"]: int(each["counts"]) for each in tables}
    end = int(found.end[transaction])
    said = (events[v.DATA_COLLECTIONS][end].as_py() or []) if end >= 0 else []
    wanted = {each["data_collection"]: each["event_count"] for each in said}
    names = sorted(str(name) for name in {*seen, *wanted})
    return ", ".join(f"{name} {seen.get(name, 0)}/{wanted.get(name, 0) if end >= 0 else '?'}" for name in names)


# --- the deliveries of a transaction that a restart cut ---

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


@dataclass(frozen=True, slots=True)
class _Delivery:
    """`rows` are the places of rows 1, 2, … as far as they follow each other; `whole`: no row has another number."""

    begin: int
    end: int  # -1 without one
    rows: Indexes
    whole: bool


@dataclass(frozen=True, slots=True)
class CutTransactions:
    """The events of a step, to join the deliveries of single transactions."""

    events: pa.Table
    is_begin: Mask
    is_end: Mask
    order: Indexes
    position: Indexes
    sequence: Indexes
    timestamp: Indexes

    @classmethod
    def of(cls, events: pa.Table) -> CutTransactions:
        names = (v.TOTAL_ORDER, model.POSITION, v.SEQUENCE, v.TIMESTAMP)
        integers = (integer_column(events, name) for name in names)
        return cls(events, has_status(events, v.BEGIN), has_status(events, v.END), *integers)

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
