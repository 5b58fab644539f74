"""Net effect of several changes of one key, as a reader sees it who looks only before and after them."""

from __future__ import annotations

from collections.abc import Sequence

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, RowChange


def net_effect(changes: Sequence[RowChange], *, full_deletes: bool) -> list[RowChange]:
    """The fewest changes with the same effect as `changes`, which are of one key and in order.

    The key had a row before unless the first change is +I. With `full_deletes` a delete's row is whole, and may become
    the before image of the update that replaces the delete. If the last change is a -U, its +U is still to come, and
    all changes are returned unchanged.
    """
    if not changes or changes[-1].kind is UPDATE_BEFORE:
        return list(changes)
    first, last = changes[0], changes[-1]
    if first.kind is INSERT:
        return [RowChange(INSERT, last.row)] if last.kind.adds else []
    retracted = first if not first.kind.adds else None
    if last.kind is DELETE:
        return [RowChange(DELETE, (retracted or last).row)]
    if retracted is not None and (retracted.kind is UPDATE_BEFORE or full_deletes):
        return [RowChange(UPDATE_BEFORE, retracted.row), RowChange(UPDATE_AFTER, last.row)]
    return [RowChange(UPDATE_AFTER, last.row)]
