"""The one instrumentation seam: the core emits events; logs, metrics and tests listen.

An event is a name and a few bounded fields. Listeners must not raise and must not block; one that raises is dropped
from that call only, because watching a commit may never break it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """`name` is `noun.verb` (`load.completed`); `fields` hold labels, tables, counts, seconds, never row values."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


def nobody(event: Event) -> None:
    """Listen to nothing."""


def fan_out(listeners: Iterable[Listener]) -> Listener:
    """One listener that passes each event to all `listeners`; an exception in one does not affect the next."""
    targets = tuple(listeners)

    def tell(event: Event) -> None:
        for target in targets:
            with contextlib.suppress(Exception):
                target(event)

    return tell
