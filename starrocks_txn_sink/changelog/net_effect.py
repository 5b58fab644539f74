"""The net effect of several changes of one key: what a reader would see who looks only before and after."""

from __future__ import annotations

from collections.abc import Sequence

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Change


def net_effect(changes: Sequence[Change], *, full_deletes: bool) -> list[Change]:
    """The fewest changes with the same effect as `changes`, all of one key and in order.

    Whether the key had a row before is told by the first change: only +I says it had none. With `full_deletes` a
    delete's row is a whole one and may serve as the before image of the update that replaces it. A last -U still waits
    for its +U, so such changes stay as they are.
    """
    if not changes or changes[-1].kind is UPDATE_BEFORE:
        return list(changes)
    first, last = changes[0], changes[-1]
    if first.kind is INSERT:
        return [Change(INSERT, last.row)] if last.kind.adds else []
    retracted = first if not first.kind.adds else None
    if last.kind is DELETE:
        return [Change(DELETE, (retracted or last).row)]
    if retracted is not None and (retracted.kind is UPDATE_BEFORE or full_deletes):
        return [Change(UPDATE_BEFORE, retracted.row), Change(UPDATE_AFTER, last.row)]
    return [Change(UPDATE_AFTER, last.row)]
