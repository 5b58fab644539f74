"""What becomes of each transaction: handed on, repeated, given up, or left to wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler.verified import schema as v
from starrocks_txn_sink.assembler.verified.tally import Bools, Ints, Tally, numbers


@dataclass(frozen=True, slots=True)
class Judgement:
    """Transactions by number (Tally); each is in one of the three, or waits.

    `released` is in the order of commit: that of the ENDs' sequence. `repeated` add up, at a position that has been
    passed already. `incomplete` says of each whether it does not add up yet.
    """

    released: Ints
    repeated: Ints
    given_up: Ints
    incomplete: Bools


def judge(events: pa.Table, found: Tally, last_position: int | None, arrived_before: float | None) -> Judgement:
    """Judge the tallied `events`, which have the column `arrived`.

    A transaction is handed on when it adds up and all that committed before it are settled. One that does not add up
    and whose first event arrived at or before `arrived_before` is given up, so that it holds back the others no longer.
    """
    whole = _adds_up(events, found)
    overdue = ~whole & _older(events, found, arrived_before)
    ended = np.flatnonzero(found.end >= 0)
    ended = ended[np.argsort(numbers(events, v.SEQUENCE, 0)[found.end[ended]], kind="stable")]
    blocked = ~whole[ended] & ~overdue[ended]
    reached = ended[: int(blocked.argmax())] if blocked.any() else ended
    due = reached[whole[reached]]
    if not len(due):
        return Judgement(due, due, np.flatnonzero(overdue), ~whole)
    position = found.position[due]
    start = np.iinfo(np.int64).min if last_position is None else last_position
    passed = np.maximum.accumulate(np.concatenate([[start], position]))[:-1]
    new = (position > passed) | (found.expected[due] == 0)
    return Judgement(due[new], due[~new], np.flatnonzero(overdue), ~whole)


def _adds_up(events: pa.Table, found: Tally) -> Bools:
    ordered = found.ordered(numbers(events, v.TOTAL_ORDER, 0))
    adds_up: Bools = (found.expected == found.count) & ordered & found.collections_agree & ~found.conflict
    return adds_up


def _older(events: pa.Table, found: Tally, arrived_before: float | None) -> Bools:
    older = np.zeros(len(found.ids), dtype=bool)
    if arrived_before is not None:
        early = (found.code >= 0) & (events[v.ARRIVED].to_numpy() <= arrived_before)
        older[found.code[early]] = True
    return older


def reason(found: Tally, transaction: int) -> str:
    """Why a transaction does not add up, in a word of a bounded set."""
    expected, count = int(found.expected[transaction]), int(found.count[transaction])
    if found.end[transaction] < 0:
        return "no END"
    if found.conflict[transaction]:
        return "two rows at one place"
    if expected != count:
        return "rows missing" if expected > count else "too many rows"
    return "table counts" if not found.collections_agree[transaction] else "gap in total_order"


def counts(events: pa.Table, found: Tally, transaction: int) -> dict[str, str]:
    """`{collection: "found/expected"}` of a transaction."""
    rows = found.rows[found.first[transaction] : found.first[transaction + 1]]
    tables = events[v.COLLECTION].take(pa.array(rows)).value_counts().to_pylist()
    seen = {each["values"]: int(each["counts"]) for each in tables}
    end = int(found.end[transaction])
    said = (events[v.DATA_COLLECTIONS][end].as_py() or []) if end >= 0 else []
    wanted = {each["data_collection"]: each["event_count"] for each in said}
    names = sorted(str(name) for name in {*seen, *wanted})
    return {name: f"{seen.get(name, 0)}/{wanted.get(name, 0) if end >= 0 else '?'}" for name in names}
