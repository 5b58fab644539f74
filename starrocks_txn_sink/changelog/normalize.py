"""Full deletes and true inserts from an upsert stream: what a changelog says once the key's row is known."""

from __future__ import annotations

from typing import NamedTuple

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Change, Row


class Normalized(NamedTuple):
    """The changes that are left, and the key's row now."""

    changes: list[Change]
    previous: Row | None


def normalize(change: Change, previous: Row | None, *, with_update_before: bool = False) -> Normalized:
    """One change of an upsert stream, given the row that its key has (None: no row, or its state expired).

    The first add of a key is +I, a later one +U (with its -U if asked for), the same row again is nothing. A delete
    carries the row that was there; deleting what is not there is nothing. A -U is nothing: the rule makes its own.
    """
    if change.kind is UPDATE_BEFORE:
        return Normalized([], previous)
    if change.kind is DELETE:
        return Normalized([] if previous is None else [Change(DELETE, previous)], None)
    if previous is None:
        return Normalized([Change(INSERT, change.row)], change.row)
    if previous == change.row:
        return Normalized([], previous)
    retract = [Change(UPDATE_BEFORE, previous)] if with_update_before else []
    return Normalized([*retract, Change(UPDATE_AFTER, change.row)], change.row)
