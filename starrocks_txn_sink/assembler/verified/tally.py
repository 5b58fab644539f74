"""Counts and classes of verified transactions: index arithmetic over rows and ENDs, no Python per row.

A transaction is complete if its END has arrived, it has `event_count` rows, their `total_order` is 1 … n without gap or
repeat, and each collection has as many rows as `data_collections` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, same_values
from starrocks_txn_sink.assembler.verified import intake as v

NOWHERE = np.iinfo(np.int64).min
_CONTENT = (v.COLLECTION, model.POSITION, model.OP, model.ROW)


@dataclass(frozen=True, slots=True)
class Tally:
    """Transactions by number, in the order of first appearance.

    `code` is the transaction of each event (-1: none, a snapshot's row). `end` is the event that is a transaction's
    END, -1 without one. `rows` are the places of all rows, by (transaction, total_order), repeats left out; those of
    transaction t are `rows[first[t]:first[t + 1]]`. `position` is the highest of its rows and its END.
    """

    ids: pa.StringArray
    code: Indexes
    end: Indexes
    rows: Indexes
    first: Indexes
    repeated: Mask  # exact repeats of other events; none in a transaction with a conflict
    conflict: Mask  # two different rows with one total_order
    expected: Indexes  # event_count; -1 without END
    collections_agree: Mask
    position: Indexes

    @property
    def count(self) -> Indexes:
        counted: Indexes = np.diff(self.first)
        return counted

    def ordered(self, orders: Indexes) -> Mask:
        """Whether the rows of each transaction are numbered 1 … n."""
        place = np.arange(len(self.rows)) - np.repeat(self.first[:-1], self.count) + 1
        wrong = np.repeat(np.arange(len(self.count)), self.count)[orders[self.rows] != place]
        good = np.ones(len(self.count), dtype=bool)
        good[wrong] = False
        return good


def integer_column(events: pa.Table, column: str, null: int) -> Indexes:
    """An integer column as an array, `null` where it is NULL."""
    values: Indexes = pc.fill_null(events[column], null).to_numpy()
    return values


def tally(events: pa.Table) -> Tally:
    """Tally `events` (intake.EVENTS, without BEGINs)."""
    encoded = events[model.TXN_ID].combine_chunks().dictionary_encode()
    ids = encoded.dictionary
    code: Indexes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64)
    is_end = events[v.STATUS].is_valid().to_numpy()
    orders = integer_column(events, v.TOTAL_ORDER, 0)
    end, spare = _ends(events, code, is_end, len(ids))
    placed = np.flatnonzero(~is_end & (code >= 0))
    placed = placed[np.lexsort((orders[placed], code[placed]))]
    again = np.zeros(len(placed), dtype=bool)
    again[1:] = (code[placed][1:] == code[placed][:-1]) & (orders[placed][1:] == orders[placed][:-1])
    conflict = np.zeros(len(ids), dtype=bool)
    conflict[code[_conflicting_rows(events, placed, again)]] = True
    rows = placed[~again]
    first = np.searchsorted(code[rows], np.arange(len(ids) + 1))
    repeated = spare
    repeated[placed[again & ~conflict[code[placed]]]] = True
    expected = np.where(end >= 0, integer_column(events, v.EVENT_COUNT, -1)[end], -1) if len(end) else end
    return Tally(
        ids,
        code,
        end,
        rows,
        first,
        repeated,
        conflict,
        expected,
        _collections_agree(events, code, rows, end),
        _positions(events, rows, first, end),
    )


def _ends(events: pa.Table, code: Indexes, is_end: Mask, transactions: int) -> tuple[Indexes, Mask]:
    """(the newest END of each transaction, mask of the other ENDs)."""
    places = np.flatnonzero(is_end)
    places = places[np.argsort(integer_column(events, v.SEQUENCE, 0)[places], kind="stable")]
    end = np.full(transactions, -1, dtype=np.int64)
    end[code[places]] = places
    spare = is_end.copy()
    spare[end[end >= 0]] = False
    return end, spare


def _conflicting_rows(events: pa.Table, placed: Indexes, again: Mask) -> Indexes:
    """The rows of `again` (same total_order as the previous row) with different content."""
    later = np.flatnonzero(again)
    if not len(later):
        return later
    ours, theirs = events.take(pa.array(placed[later])), events.take(pa.array(placed[later - 1]))
    same = np.ones(len(later), dtype=bool)
    for column in _CONTENT:
        same &= same_values(ours[column], theirs[column]).to_numpy()
    return placed[later[~same]]


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
    highest = np.where(end >= 0, positions[end], NOWHERE) if len(end) else end.copy()
    filled = np.flatnonzero(np.diff(first))
    if len(filled):
        of_rows = np.maximum.reduceat(positions[rows], first[filled])
        highest[filled] = np.maximum(highest[filled], of_rows)
    return highest


@dataclass(frozen=True, slots=True)
class TransactionClasses:
    """Transactions by number (Tally); each is in one of the three arrays, or waits.

    `released` is in commit order, the sequence of ENDs. `repeated` are complete at a position that is already released.
    `given_up` are overdue. `incomplete` is a mask over all transactions.
    """

    released: Indexes
    repeated: Indexes
    given_up: Indexes
    incomplete: Mask


def classify(
    events: pa.Table, found: Tally, last_position: int | None, arrived_before: float | None
) -> TransactionClasses:
    """Classify the transactions of the tallied `events`, which have the column `arrived`.

    A transaction is released if it is complete and all earlier commits are settled. An incomplete transaction is given
    up if its first event arrived at or before `arrived_before`; otherwise it would hold back all later ones.
    """
    whole = _adds_up(events, found)
    overdue = ~whole & _arrived_by(events, found, arrived_before)
    ended = np.flatnonzero(found.end >= 0)
    ended = ended[np.argsort(integer_column(events, v.SEQUENCE, 0)[found.end[ended]], kind="stable")]
    blocked = ~whole[ended] & ~overdue[ended]
    reached = ended[: int(blocked.argmax())] if blocked.any() else ended
    due = reached[whole[reached]]
    if not len(due):
        return TransactionClasses(due, due, np.flatnonzero(overdue), ~whole)
    position = found.position[due]
    start = NOWHERE if last_position is None else last_position
    passed = np.maximum.accumulate(np.concatenate([[start], position]))[:-1]
    new = (position > passed) | (found.expected[due] == 0)
    return TransactionClasses(due[new], due[~new], np.flatnonzero(overdue), ~whole)


def _adds_up(events: pa.Table, found: Tally) -> Mask:
    ordered = found.ordered(integer_column(events, v.TOTAL_ORDER, 0))
    adds_up: Mask = (found.expected == found.count) & ordered & found.collections_agree & ~found.conflict
    return adds_up


def _arrived_by(events: pa.Table, found: Tally, arrived_before: float | None) -> Mask:
    older = np.zeros(len(found.ids), dtype=bool)
    if arrived_before is not None:
        early = (found.code >= 0) & (events[v.ARRIVED].to_numpy() <= arrived_before)
        older[found.code[early]] = True
    return older


def reason(found: Tally, transaction: int) -> str:
    """Why a transaction is incomplete; a text of a bounded set."""
    expected, count = int(found.expected[transaction]), int(found.count[transaction])
    if found.end[transaction] < 0:
        return "no END"
    if found.conflict[transaction]:
        return "two rows at one place"
    if expected != count:
        return "rows missing" if expected > count else "too many rows"
    return "table counts" if not found.collections_agree[transaction] else "gap in total_order"


def collection_counts(events: pa.Table, found: Tally, transaction: int) -> dict[str, str]:
    """`{collection: "found/expected"}` of a transaction."""
    rows = found.rows[found.first[transaction] : found.first[transaction + 1]]
    tables = events[v.COLLECTION].take(pa.array(rows)).value_counts().to_pylist()
    seen = {each["values"]: int(each["counts"]) for each in tables}
    end = int(found.end[transaction])
    said = (events[v.DATA_COLLECTIONS][end].as_py() or []) if end >= 0 else []
    wanted = {each["data_collection"]: each["event_count"] for each in said}
    names = sorted(str(name) for name in {*seen, *wanted})
    return {name: f"{seen.get(name, 0)}/{wanted.get(name, 0) if end >= 0 else '?'}" for name in names}
