"""A key's state as text, with the time of its last access, and what it is worth when it is read again."""

from __future__ import annotations

import orjson

from starrocks_txn_sink.changelog.keyed import State
from starrocks_txn_sink.changelog.retention import Retention


def written(state: State, now: float) -> str:
    """State accessed at `now` (seconds since 1970) as text."""
    return orjson.dumps([now, state]).decode()


def read(text: str | None, retention: Retention, now: float) -> State | None:
    """The state in `text`; None when there is none, or when it has expired by `now`."""
    if text is None:
        return None
    last_access, state = orjson.loads(text)
    return None if retention.expired(last_access, now) else state
