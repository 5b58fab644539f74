"""One operation per key for a PRIMARY KEY table: the last change of a changelog.

-U and +U of an update may share a sequence; then the new row wins. So a -U has an effect only if no +U of the same key
follows, because the update moved the row to another key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Key, Row, RowChange, RowKind

UPSERT: Final = "upsert"
REMOVE: Final = "delete"

# Of changes with the same sequence, the highest rank is the last.
RANKS: Final[dict[RowKind, int]] = {UPDATE_BEFORE: 0, DELETE: 1, INSERT: 2, UPDATE_AFTER: 2}


def final_changes(
    changes: Iterable[tuple[RowChange, Any]], key_of: Callable[[Row], Key]
) -> dict[Key, tuple[str, Row, Any]]:
    """Last operation of each key as (upsert or delete, row, sequence); `changes` are pairs (change, sequence)."""
    last: dict[Key, tuple[tuple[Any, int], RowChange]] = {}
    for change, sequence in changes:
        key, at = key_of(change.row), (sequence, RANKS[change.kind])
        if key not in last or at >= last[key][0]:
            last[key] = at, change
    return {key: (UPSERT if change.kind.adds else REMOVE, change.row, at[0]) for key, (at, change) in last.items()}
