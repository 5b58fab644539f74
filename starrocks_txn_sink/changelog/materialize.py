"""Rule of the upsert materializer: of all rows that claim a sink key, the table shows the one added last.

After a join over several tasks, or a lost key column, changes of one sink key arrive interleaved. But a row is always
added before it is retracted, so a list of the claiming rows is enough to know which row to show.
"""

from __future__ import annotations

from typing import NamedTuple

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, Key, Row, RowChange


class ClaimingRow(NamedTuple):
    """A row that claims a sink key; compared by its upsert key, or as a whole if that is None."""

    key: Key | None
    row: Row

    def same_as(self, other: ClaimingRow) -> bool:
        return self.row == other.row if other.key is None else self.key == other.key


class MaterializeResult(NamedTuple):
    """Change for the sink (None: no change), the claiming rows after it, and whether a retraction found no row."""

    change: RowChange | None
    rows: tuple[ClaimingRow, ...]
    swallowed: bool = False


def materialize(change: RowChange, rows: tuple[ClaimingRow, ...], upsert_key: Key | None = None) -> MaterializeResult:
    """Apply one change to the rows of a sink key.

    An added row replaces the row with its upsert key in place, or is appended. A retraction removes the first row that
    is the same. If it was the last of the list, the new last row is shown; if it was the only one, the key is deleted
    with the retracting row. A retraction without a match is swallowed.
    """
    kept = ClaimingRow(upsert_key, change.row)
    position = next((at for at, each in enumerate(rows) if each.same_as(kept)), None)
    if change.kind.adds:
        return _add(change, rows, kept, position)
    if position is None:
        return MaterializeResult(None, rows, swallowed=True)
    remaining = rows[:position] + rows[position + 1 :]
    if not remaining:
        return MaterializeResult(RowChange(DELETE, change.row), remaining)
    if position == len(remaining):
        return MaterializeResult(RowChange(UPDATE_AFTER, remaining[-1].row), remaining)
    return MaterializeResult(None, remaining)


def _add(
    change: RowChange, rows: tuple[ClaimingRow, ...], kept: ClaimingRow, position: int | None
) -> MaterializeResult:
    shown = RowChange(UPDATE_AFTER if rows else INSERT, change.row)
    if kept.key is None or position is None:
        return MaterializeResult(shown, (*rows, kept))
    return MaterializeResult(shown, (*rows[:position], kept, *rows[position + 1 :]))


def needs_materializer(mode: str, sink_key: tuple[str, ...], upsert_key: tuple[str, ...] | None) -> bool:
    """Whether to materialize: `force` always, `none` never, `auto` unless the upsert key is the sink key.

    Without an upsert key nothing guarantees that the sink key is unique, or that its changes arrive in order.
    """
    if mode == "auto":
        return upsert_key is None or set(upsert_key) != set(sink_key)
    return mode == "force"
