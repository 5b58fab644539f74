"""Which verified transactions are complete: index arithmetic over rows and ENDs, no Python per row.

A transaction is complete if its END has arrived, it has `event_count` rows, their `total_order` is 1 … n, their
positions ascend, and each collection has as many rows as `data_collections` says. A transaction with several BEGINs is
complete if its deliveries prove it (`deliveries`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import history, model
from starrocks_txn_sink.assembler.rules.history import NOWHERE, Kind
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, one_array
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.deliveries import integer_column, join_deliveries, same_rows
from starrocks_txn_sink.assembler.verified.gtids import has_gtid
from starrocks_txn_sink.assembler.verified.parts import parts
from starrocks_txn_sink.assembler.verified.repeats import Past, Settled, WithRows

_FEW_PAIRS: Final = 8  # for each row


@dataclass(frozen=True, slots=True)
class Tally:
    """The transactions of a step, by number; of an id that is settled there may be several (`parts`).

    `code`, `opening`, `is_end`, `repeated`, `surplus` and `others` have an entry per event, `rows` one per row, all
    other arrays one per transaction. The rows of transaction t are at the places `rows[first[t]:first[t + 1]]`.
    """

    ids: pa.StringArray
    code: Indexes  # the event's transaction; -1: none, a row of a snapshot
    opening: Mask  # events that open a transaction: rows and ENDs, but no BEGIN
    is_end: Mask
    end: Indexes  # the place of the END that counts the rows; -1 without END
    commit: Indexes  # the sequence of the first END, because every delivery keeps the order of commits
    rows: Indexes  # the places of all rows, by (transaction, total_order), without copies
    first: Indexes
    count: Indexes  # of rows
    repeated: Mask  # exact repeats of other events; none in a transaction with a conflict
    surplus: Mask  # other rows and ENDs that a released transaction does not need
    conflict: Mask  # two different rows with one total_order, or unproven
    unproven: Mask  # several deliveries, which do not prove the transaction yet
    expected: Indexes  # event_count, of all deliveries together; -1 without END
    collections_agree: Mask
    whole: Mask
    overdue: Mask  # not whole, and the first event arrived too long ago
    position: Indexes  # the highest of the rows and the END
    foreign: Indexes  # the BEGIN from which on rows are of another transaction with the same id; -1: none
    others: Mask  # events of a released transaction's later deliveries that are not proved to be repeats
    trusted: Mask  # whole, as far as time tells: no count proves that nothing lies between two deliveries
    known: Mask  # have the id of a settled one
    further: Mask  # of these: begun and ended behind all that is settled, so no copies of it
    undecided: tuple[int, int] | None  # of the first such END in `others`: its transaction and sequence


def tally(events: pa.Table, arrived_before: float, with_rows: WithRows, settled: Settled) -> Tally:
    """Tally `events` (intake.HELD_EVENTS, perhaps without rows, which `with_rows` adds) behind those that are settled.

    A transaction whose first event arrived at or before `arrived_before` (seconds) counts as having all of its rows.
    """
    of_parts = parts(events, settled)
    ids, code, known = of_parts.ids, of_parts.code, of_parts.known
    is_begin, is_end = v.has_status(events, v.BEGIN), v.has_status(events, v.END)
    is_row, arrived = ~is_begin & ~is_end & (code >= 0), events[v.ARRIVED].to_numpy()
    end = _ends(events, code, is_end, len(ids))
    commit = np.where(end >= 0, integer_column(events, v.SEQUENCE)[end], NOWHERE)
    expected = np.where(end >= 0, integer_column(events, v.EVENT_COUNT, -1)[end], -1)
    overdue = np.zeros(len(ids), dtype=bool)
    overdue[code[(code >= 0) & ~is_begin & (arrived <= arrived_before)]] = True
    joined, unproven = join_deliveries(events, code, is_begin, known, overdue, with_rows)
    orders = integer_column(events, v.TOTAL_ORDER, 0).copy()
    for transaction, delivery in joined.items():  # joined rows get new numbers, over all deliveries
        orders[code == transaction] = 0
        orders[delivery.rows] = np.arange(1, len(delivery.rows) + 1)
        end[transaction], expected[transaction] = delivery.end, len(delivery.rows)
    # Of the rows with one number the oldest comes first: it is kept, the others are its copies.
    times = integer_column(events, v.TIMESTAMP)
    placed = _in_order(np.flatnonzero(is_row & (orders > 0)), code, orders, times)
    again = np.flatnonzero((np.diff(code[placed]) == 0) & (np.diff(orders[placed]) == 0)) + 1
    rows, copies, before = np.delete(placed, again), placed[again], placed[again - 1]
    same = same_rows(events, copies, before, with_rows)
    conflict = unproven.copy()
    conflict[code[copies[~same]]] = True
    count = np.bincount(code[rows], minlength=len(ids))
    first = np.concatenate([[0], np.cumsum(count)])
    collections_agree = _collections_agree(events, code, rows, end)
    collections_agree[list(joined)] = True  # `join_deliveries` compares the counts of each delivery
    positions = integer_column(events, model.POSITION)
    whole = (expected == count) & collections_agree & ~conflict
    whole &= _are_consecutive(code[rows], orders[rows], first, positions[rows])
    position = np.where(end >= 0, positions[end], NOWHERE)
    filled = np.flatnonzero(count)
    position[filled] = np.maximum(position[filled], np.maximum.reduceat(positions[rows], first[filled]))
    needed = np.zeros(len(code), dtype=bool)
    needed[np.concatenate([rows, end[end >= 0]])] = True
    # No repeats: rows and ENDs of a cut transaction, which may be needed until its release, and copies with another
    # timestamp, which may be of another delivery.
    last = np.append(np.where(end >= 0, times[end], NOWHERE), NOWHERE)[code]  # the time of the END
    repeated = is_end & ~needed & (times == last)
    repeated[copies[same & (times[copies] == times[before]) & ~conflict[code[copies]]]] = True
    is_cut = unproven.copy()
    is_cut[list(joined)] = True
    repeated &= ~np.append(is_cut, False)[code]
    others = np.zeros(len(code), dtype=bool)
    others[[place for delivery in joined.values() for place in delivery.others.tolist()]] = True
    sequence = integer_column(events, v.SEQUENCE)
    ends_to_come = np.flatnonzero(others & is_end & ~needed & (arrived > arrived_before))
    undecided = int(ends_to_come[sequence[ends_to_come].argmin()]) if len(ends_to_come) else -1
    # What is younger than the END is of a further delivery, whose BEGIN is still to be read.
    others |= (is_row | is_end) & (last != NOWHERE) & (times > last) & ~repeated & ~np.append(is_cut, False)[code]
    others &= ~needed
    surplus = (is_row | is_end) & ~repeated & ~needed & ~others
    foreign = np.full(len(ids), -1, dtype=np.int64)
    foreign[list(joined)] = [delivery.foreign for delivery in joined.values()]
    begun = np.zeros(len(ids) + 1, dtype=bool)
    begun[code[is_begin]] = True
    further = of_parts.later & (end >= 0) & begun[:-1]
    trusted = np.zeros(len(ids), dtype=bool)
    trusted[[transaction for transaction, delivery in joined.items() if delivery.trusted]] = True
    return Tally(
        ids, code, ~is_begin, is_end, end, commit, rows, first, count, repeated, surplus, conflict, unproven, expected,
        collections_agree, whole, overdue & ~whole, position, foreign, others, trusted & whole, known, further,
        (int(code[undecided]), int(sequence[undecided])) if undecided >= 0 else None,
    )  # fmt: skip


def _in_order(places: Indexes, code: Indexes, orders: Indexes, times: Indexes) -> Indexes:
    """The places of rows by (transaction, total_order, time)."""
    of_rows, numbers = code[places], orders[places] - 1
    counts = np.bincount(of_rows)
    slots = (np.cumsum(counts) - counts)[of_rows] + numbers
    if (numbers < counts[of_rows]).all() and len(places) and (np.bincount(slots, minlength=len(places)) == 1).all():
        in_order = np.empty_like(places)  # each transaction has its numbers once: no sort is needed
        in_order[slots] = places
        return in_order
    return places[np.lexsort((times[places], numbers, of_rows))]


def _are_consecutive(code: Indexes, orders: Indexes, first: Indexes, positions: Indexes) -> Mask:
    """Whether the rows of each transaction are numbered 1 … n, in the order of their positions."""
    wrong = orders != np.arange(len(code)) - first[code] + 1
    wrong[1:] |= (code[1:] == code[:-1]) & (positions[1:] < positions[:-1])
    good = np.ones(len(first) - 1, dtype=bool)
    good[code[wrong]] = False
    return good


def _ends(events: pa.Table, code: Indexes, is_end: Mask, transactions: int) -> Indexes:
    """The first END of each transaction; -1 without one."""
    places = np.flatnonzero(is_end)
    newest_first = places[np.argsort(integer_column(events, v.SEQUENCE)[places], kind="stable")][::-1]
    end = np.full(transactions, -1, dtype=np.int64)
    end[code[newest_first]] = newest_first  # the last assignment to a transaction counts, which is its first END
    return end


def _collections_agree(events: pa.Table, code: Indexes, rows: Indexes, end: Indexes) -> Mask:
    """Whether each transaction has the number of rows that its END says, in every collection.

    A pair (transaction, collection) is one integer: transaction * width + index of the collection.
    """
    agree = end >= 0
    ended = np.flatnonzero(agree)
    encoded = one_array(events[v.COLLECTION]).dictionary_encode()
    names = encoded.dictionary
    width = len(names) + 1
    of_rows = code[rows] * width + pc.fill_null(encoded.indices, len(names)).to_numpy()[rows]
    counted = len(end) * width <= _FEW_PAIRS * len(rows)  # which costs less than a sort
    if counted:
        counts = np.bincount(of_rows, minlength=len(end) * width)
        pairs = np.flatnonzero(counts)
    else:
        pairs, counts = np.unique(of_rows, return_counts=True)
    listed = one_array(events[v.DATA_COLLECTIONS]).take(pa.array(end[ended]))
    owner = ended[pc.list_parent_indices(listed).to_numpy()]
    flat = pc.list_flatten(listed)
    wanted_codes = pc.fill_null(pc.index_in(flat.field(0), value_set=names), len(names)).to_numpy() + owner * width
    number = pc.fill_null(flat.field(1), -1).to_numpy()
    wanted_codes, number, owner = wanted_codes[number != 0], number[number != 0], owner[number != 0]
    if counted:
        right = counts[wanted_codes] == number
    else:
        at = np.searchsorted(pairs, wanted_codes)
        right = at < len(pairs)
        right[right] = (pairs[at[right]] == wanted_codes[right]) & (counts[at[right]] == number[right])
    agree[owner[~right]] = False
    # All listed collections are right, so as many pairs as listed collections means that no collection is unlisted.
    agree &= np.bincount(pairs // width, minlength=len(end)) == np.bincount(owner, minlength=len(end))
    return agree


@dataclass(frozen=True, slots=True)
class TransactionClasses:
    """Transactions by number (Tally). A transaction that is in none of the first three waits."""

    released: Indexes  # in commit order, the sequence of ENDs
    repeated: Indexes  # complete, at a position that is already released
    given_up: Indexes  # overdue
    strays: Mask  # parts with the id of a settled one: they wait for what tells what they are, and hold nothing back
    blocking: int  # the first transaction that holds back later commits; -1: none
    upto: float  # the sequence of what holds back; infinite: nothing does
    position: Indexes  # of every transaction: `Tally.position`, which goes on where the source's goes back
    shift: int  # of the next transactions


def classify(counts: Tally, last_position: int | None, past: Past) -> TransactionClasses:
    """Classify the tallied transactions.

    A transaction is released if it is whole and all earlier commits are settled. An overdue transaction is given up;
    otherwise it would hold back all later ones. So does one that has the id of a settled one, and is no copy of it:
    what comes behind it may be another source's, too. `history.kinds` decides what is new, by GTIDs and by positions.
    These count for a GTID below all of its server, too, unless they have gone back: they are of another log then.
    """
    strays = counts.known & ~counts.whole & ~counts.further
    overdue = np.flatnonzero(counts.overdue & ~strays)
    ended = np.flatnonzero((counts.end >= 0) & ~strays)
    ended = ended[np.argsort(counts.commit[ended], kind="stable")]
    blocked = ended[~counts.whole[ended] & ~counts.overdue[ended]]
    reached = ended[: int((ended == blocked[0]).argmax())] if len(blocked) else ended
    blocking = int(blocked[0]) if len(blocked) else -1
    upto = float(counts.commit[blocking]) if len(blocked) else np.inf
    if counts.undecided is not None:
        upto = min(upto, counts.undecided[1])
        decided = reached[counts.commit[reached] < upto]
        blocking = counts.undecided[0] if len(decided) < len(reached) else blocking
        reached = decided
    due = reached[counts.whole[reached]]
    shift, positions = past.shift, counts.position + past.shift
    seen, never_seen = (mask[due] for mask in past.gtids.find(counts.ids))
    uncertain = has_gtid(counts.ids)[due] & ~never_seen
    filled = counts.expected[due] > 0
    start = NOWHERE if last_position is None else last_position
    while True:  # once for each time that the source's positions go back
        old = uncertain if shift else seen
        position = np.where(filled & ~old, positions[due], NOWHERE)
        last_passed = np.maximum.accumulate(np.concatenate([[start], position]))[:-1]
        above = np.where(filled, positions[due] > last_passed, ~counts.known[due])
        new = history.kinds(above, seen=old, never_seen=never_seen) == Kind.NEW
        back = np.flatnonzero(new & ~above)
        if not len(back):
            return TransactionClasses(due[new], due[~new], overdue, strays, blocking, upto, positions, shift)
        more = int(last_passed[back[0]] + 1 - position[back[0]])
        shift += more
        positions[due[back[0] :]] += more


def reason(counts: Tally, transaction: int) -> str:
    """Why a transaction is incomplete; a text of a bounded set."""
    expected, count = int(counts.expected[transaction]), int(counts.count[transaction])
    if counts.end[transaction] < 0:
        return "no END"
    if counts.unproven[transaction]:
        return "cut by a restart"
    if counts.conflict[transaction]:
        return "two rows at one place"
    if expected != count:
        return "rows missing" if expected > count else "too many rows"
    return "table counts" if not counts.collections_agree[transaction] else "gap in total_order"


def collection_counts(events: pa.Table, counts: Tally, transaction: int) -> str:
    """The rows that were found and expected in each table of a transaction, like `orders 1/1, order_items 0/2`."""
    rows = counts.rows[counts.first[transaction] : counts.first[transaction + 1]]
    tables = events[v.COLLECTION].take(pa.array(rows)).value_counts().to_pylist()
    counts_seen = {table["values"]: int(table["counts"]) for table in tables}
    end = int(counts.end[transaction])
    announced = (events[v.DATA_COLLECTIONS][end].as_py() or []) if end >= 0 else []
    counts_announced = {collection["data_collection"]: collection["event_count"] for collection in announced}
    names = sorted(str(name) for name in {*counts_seen, *counts_announced})
    return ", ".join(
        f"{name} {counts_seen.get(name, 0)}/{counts_announced.get(name, 0) if end >= 0 else '?'}" for name in names
    )
