"""Full deletes and true inserts from an upsert stream, given the key's previous row."""

from __future__ import annotations

from typing import NamedTuple

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Row, RowChange


class NormalizeResult(NamedTuple):
    """Changes to put out, and the key's row after them."""

    changes: list[RowChange]
    previous: Row | None


def normalize(change: RowChange, previous: Row | None, *, with_update_before: bool = False) -> NormalizeResult:
    """Normalized form of one change, given its key's row (None: no row, or expired state).

    The first added row is +I; a later one is +U, after its -U if `with_update_before`. A delete carries the previous
    row. Dropped: a row equal to the previous one, a delete without a previous row, and every -U of the input, because
    the rule makes its own.
    """
    if change.kind is UPDATE_BEFORE:
        return NormalizeResult([], previous)
    if change.kind is DELETE:
        return NormalizeResult([] if previous is None else [RowChange(DELETE, previous)], None)
    if previous is None:
        return NormalizeResult([RowChange(INSERT, change.row)], change.row)
    if previous == change.row:
        return NormalizeResult([], previous)
    retract = [RowChange(UPDATE_BEFORE, previous)] if with_update_before else []
    return NormalizeResult([*retract, RowChange(UPDATE_AFTER, change.row)], change.row)
