"""The one instrumentation seam: the core emits events; logs, metrics and tests listen.

An event is a name and a few bounded fields. Listeners must not raise and must not block; one that raises is dropped
from that call only (`fan_out`), because watching a commit may never break it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """`name` is `noun.verb` (`step.completed`); `fields` hold labels, tables, counts, seconds, never row values."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Listen to nothing. Code that emits often asks for it by identity, and makes no event then."""


def fan_out(listeners: Iterable[Listener]) -> Listener:
    """One listener that passes each event to all `listeners`; an exception in one does not affect the next."""
    targets = tuple(listeners)

    def tell(event: Event) -> None:
        for target in targets:
            with contextlib.suppress(Exception):
                target(event)

    return tell


class Span:
    """Work that takes time, in a `with` block: emits `{name}.started`, then `{name}.completed` or `{name}.failed`.

    All have `fields`. The end adds `seconds`, `outcome` (the argument of `end`, or the error that leaves the block) and
    the further fields of `end`. It is a failure when the outcome is an error or has one (`outcome.error`); `code` then
    names the error. A block, not a wrapper: the work runs in its caller's frame.
    """

    def __init__(
        self, listener: Listener, monotonic: Callable[[], float], name: str, fields: Mapping[str, Any]
    ) -> None:
        self._listener = listener
        self._monotonic = monotonic
        self._name = name
        self._fields = dict(fields)
        self._outcome: object = None
        self._further: dict[str, Any] = {}

    def __enter__(self) -> Span:
        self._listener(Event(f"{self._name}.started", self._fields))
        self._started = self._monotonic()
        return self

    def end(self, outcome: object, **further: Any) -> None:
        """The work returned `outcome`."""
        self._outcome, self._further = outcome, further

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = self._monotonic() - self._started
        outcome = self._outcome if error is None else error
        cause = getattr(outcome, "error", outcome)
        failed = isinstance(cause, BaseException)
        code = {"code": getattr(cause, "code", type(cause).__name__)} if failed else {}
        end = {**self._fields, "seconds": seconds, **code, **self._further, "outcome": outcome}
        self._listener(Event(f"{self._name}.{'failed' if failed else 'completed'}", end))
