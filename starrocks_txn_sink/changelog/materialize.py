"""The upsert materializer's rule: one sink key, all the rows that claim it, and the one that the table should show.

A join that is spread over tasks, or a lost key column, lets changes of one sink key arrive interleaved. What holds is
that a row is added before it is retracted. So the rows of a sink key are kept in a list; the last one is shown.
"""

from __future__ import annotations

from typing import NamedTuple

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, Change, Key, Row


class Kept(NamedTuple):
    """A row of the list and its upsert key; None where there is no upsert key, and the whole row is compared."""

    key: Key | None
    row: Row

    def same_as(self, other: Kept) -> bool:
        return self.row == other.row if other.key is None else self.key == other.key


class Materialized(NamedTuple):
    """What to tell the sink (None: nothing), the list now, and whether a retraction found no row and was swallowed."""

    change: Change | None
    rows: tuple[Kept, ...]
    swallowed: bool = False


def materialize(change: Change, rows: tuple[Kept, ...], upsert_key: Key | None = None) -> Materialized:
    """Apply one change to the rows of a sink key.

    An add replaces the row with its upsert key in place, or is appended. A retraction removes the first row that is the
    same; if that was the last of the list, the new last one is shown again; if the list is empty now, the key is
    deleted, with the retracting row. A retraction that finds nothing is swallowed.
    """
    kept = Kept(upsert_key, change.row)
    found = next((at for at, each in enumerate(rows) if each.same_as(kept)), None)
    if change.kind.adds:
        return _add(change, rows, kept, found)
    if found is None:
        return Materialized(None, rows, swallowed=True)
    left = rows[:found] + rows[found + 1 :]
    if not left:
        return Materialized(Change(DELETE, change.row), left)
    if found == len(left):
        return Materialized(Change(UPDATE_AFTER, left[-1].row), left)
    return Materialized(None, left)


def _add(change: Change, rows: tuple[Kept, ...], kept: Kept, found: int | None) -> Materialized:
    shown = Change(UPDATE_AFTER if rows else INSERT, change.row)
    if kept.key is None or found is None:
        return Materialized(shown, (*rows, kept))
    return Materialized(shown, (*rows[:found], kept, *rows[found + 1 :]))


def needs_materializer(mode: str, sink_key: tuple[str, ...], upsert_key: tuple[str, ...] | None) -> bool:
    """Whether rows have to be materialized: `force` always, `none` never, `auto` unless the upsert key is the sink key.

    Without an upsert key nothing promises that changes of a sink key arrive in order, or that it is unique.
    """
    if mode == "auto":
        return upsert_key is None or set(upsert_key) != set(sink_key)
    return mode == "force"
