"""What a PRIMARY KEY table needs of a changelog: one operation per key, the last one.

The two halves of an update may share a sequence; then the new row wins over the old one. So a -U has an effect only
where no +U of the same key follows: where the update moved the row to another key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from starrocks_txn_sink.changelog.kinds import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Change, Key, Row, RowKind

UPSERT: Final = "upsert"
REMOVE: Final = "delete"

# Among changes with the same sequence the higher rank is the later one.
RANKS: Final[dict[RowKind, int]] = {UPDATE_BEFORE: 0, DELETE: 1, INSERT: 2, UPDATE_AFTER: 2}


def final_changes(
    changes: Iterable[tuple[Change, Any]], key_of: Callable[[Row], Key]
) -> dict[Key, tuple[str, Row, Any]]:
    """The last operation of each key: (upsert or delete, row, sequence). `changes` come with their sequence."""
    last: dict[Key, tuple[tuple[Any, int], Change]] = {}
    for change, sequence in changes:
        key, at = key_of(change.row), (sequence, RANKS[change.kind])
        if key not in last or at >= last[key][0]:
            last[key] = at, change
    return {key: (UPSERT if change.kind.adds else REMOVE, change.row, at[0]) for key, (at, change) in last.items()}
