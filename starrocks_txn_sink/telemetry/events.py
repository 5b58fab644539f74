"""Events: the core emits them; logs, metrics and tests listen.

An event is a name and a few bounded fields. Listeners must not raise and must not block. `fan_out` ignores a listener's
exception, because observation must never break a commit.
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
    """The listener that does nothing. Hot paths compare with it by identity, and then create no event."""


def fan_out(listeners: Iterable[Listener]) -> Listener:
    """One listener that passes each event to all `listeners`; an exception in one does not affect the next."""
    targets = tuple(listeners)

    def emit(event: Event) -> None:
        for target in targets:
            with contextlib.suppress(Exception):
                target(event)

    return emit


class Span:
    """A timed `with` block: emits `{name}.started`, then `{name}.completed` or `{name}.failed`, all with `fields`.

    The last event adds `seconds`, `outcome` (the argument of `end`, or the error that leaves the block) and the further
    fields of `end`. The block failed if the outcome is an error or has one (`outcome.error`); `code` names the error.
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
        """Record the result of the block, and further fields of its last event."""
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
