"""A key's state as text with the time of its last access; expired state reads as no state."""

from __future__ import annotations

import orjson

from starrocks_txn_sink.changelog.keyed import State
from starrocks_txn_sink.changelog.retention import Retention


def state_to_text(state: State, now: float) -> str:
    """`state`, last accessed at `now` (seconds since 1970), as text."""
    return orjson.dumps([now, state]).decode()


def state_from_text(text: str | None, retention: Retention, now: float) -> State | None:
    """The state in `text`; None for no text, or for state that has expired at `now`."""
    if text is None:
        return None
    last_access, state = orjson.loads(text)
    return None if retention.has_expired(last_access, now) else state
