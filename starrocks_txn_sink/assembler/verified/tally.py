"""Which verified transactions are complete: index arithmetic over rows and ENDs, no Python per row.

A transaction is complete if its END has arrived, it has `event_count` rows, their `total_order` is 1 … n without gap or
repeat, their positions ascend, and each collection has as many rows as `data_collections` says. A transaction with
several BEGINs is complete if its deliveries prove it (`deliveries`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.deliveries import NOWHERE, integer_column, join_deliveries, same_rows


@dataclass(frozen=True, slots=True)
class Tally:
    """Transactions by number, in the order of first appearance.

    `code` is the transaction of each event (-1: none, a snapshot's row). `end` is the event that is a transaction's
    END, -1 without one, and `commit` the sequence of its first END: every delivery is in the order of commits. `rows`
    are the places of all rows, by (transaction, total_order), repeats left out; those of transaction t are
    `rows[first[t]:first[t + 1]]`, `count[t]` in all. `position` is the highest of its rows and its END.
    """

    ids: pa.StringArray
    code: Indexes
    end: Indexes
    commit: Indexes
    rows: Indexes
    first: Indexes
    count: Indexes
    repeated: Mask  # exact repeats of other events; none in a transaction with a conflict
    surplus: Mask  # other rows and ENDs that a released transaction does not need
    conflict: Mask  # two different rows with one total_order, or unproven
    unproven: Mask  # several deliveries, which do not prove the transaction yet
    expected: Indexes  # event_count, of all deliveries together; -1 without END
    collections_agree: Mask
    whole: Mask
    overdue: Mask  # not whole, and the first event arrived too long ago
    position: Indexes


def tally(events: pa.Table, arrived_before: float) -> Tally:
    """Tally `events` (intake.HELD_EVENTS).

    A transaction whose first event arrived at or before `arrived_before` (seconds) is taken to have all of its rows.
    """
    encoded = events[model.TXN_ID].combine_chunks().dictionary_encode()
    ids = encoded.dictionary
    code: Indexes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64)
    is_begin, is_end = v.has_status(events, v.BEGIN), v.has_status(events, v.END)
    orders = integer_column(events, v.TOTAL_ORDER, 0).copy()
    end = _ends(events, code, is_end, len(ids))
    commit = np.where(end >= 0, integer_column(events, v.SEQUENCE)[end], NOWHERE)
    overdue = np.zeros(len(ids), dtype=bool)
    overdue[code[(code >= 0) & ~is_begin & (events[v.ARRIVED].to_numpy() <= arrived_before)]] = True
    joined, unproven = join_deliveries(events, code, is_begin, overdue)
    for transaction, found in joined.items():
        orders[code == transaction] = 0
        orders[found.rows] = np.arange(1, len(found.rows) + 1)
        end[transaction] = found.end
    cut = unproven.copy()
    cut[list(joined)] = True
    is_cut = np.append(cut, False)[code]
    is_row = ~is_begin & ~is_end & (code >= 0)
    placed = np.flatnonzero(is_row & (orders > 0))
    times = integer_column(events, v.TIMESTAMP)
    placed = placed[np.lexsort((times[placed], orders[placed], code[placed]))]
    later = np.flatnonzero((np.diff(code[placed]) == 0) & (np.diff(orders[placed]) == 0)) + 1
    same = same_rows(events, placed[later], placed[later - 1])
    conflict = unproven.copy()
    conflict[code[placed[later[~same]]]] = True
    rows = np.delete(placed, later)
    count = np.bincount(code[rows], minlength=len(ids))
    first = np.concatenate([[0], np.cumsum(count)])
    expected = np.where(end >= 0, integer_column(events, v.EVENT_COUNT, -1)[end], -1)
    agree = _collections_agree(events, code, rows, end)
    for transaction, found in joined.items():
        expected[transaction], agree[transaction] = len(found.rows), True
    positions = integer_column(events, model.POSITION)
    highest = np.where(end >= 0, positions[end], NOWHERE)
    filled = np.flatnonzero(count)
    highest[filled] = np.maximum(highest[filled], np.maximum.reduceat(positions[rows], first[filled]))
    numbered = _follow(code[rows], orders[rows], first, positions[rows])
    whole = (expected == count) & numbered & agree & ~conflict
    # A row that another delivery brought may be the one to keep, until its transaction is released.
    of_one_delivery = same & (times[placed[later]] == times[placed[later - 1]])
    repeated = is_end.copy()
    repeated[end[end >= 0]] = False
    repeated[placed[later[of_one_delivery & ~conflict[code[placed[later]]]]]] = True
    repeated &= ~is_cut
    surplus = (is_row | is_end) & ~repeated
    surplus[rows] = False
    surplus[end[end >= 0]] = False
    return Tally(
        ids, code, end, commit, rows, first, count, repeated, surplus, conflict, unproven, expected, agree, whole,
        overdue & ~whole, highest,
    )  # fmt: skip


def _follow(code: Indexes, orders: Indexes, first: Indexes, positions: Indexes) -> Mask:
    """Whether the rows of each transaction are numbered 1 … n, in the order of their positions."""
    wrong = orders != np.arange(len(code)) - first[code] + 1
    wrong[1:] |= (code[1:] == code[:-1]) & (positions[1:] < positions[:-1])
    good = np.ones(len(first) - 1, dtype=bool)
    good[code[wrong]] = False
    return good


def _ends(events: pa.Table, code: Indexes, is_end: Mask, transactions: int) -> Indexes:
    """The first END of each transaction; -1 without one."""
    places = np.flatnonzero(is_end)
    places = places[np.argsort(integer_column(events, v.SEQUENCE)[places], kind="stable")][::-1]
    end = np.full(transactions, -1, dtype=np.int64)
    end[code[places]] = places
    return end


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
    agree &= np.bincount(found // width, minlength=len(end)) == np.bincount(owner, minlength=len(end))
    return agree


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
