"""A readable trace of one schedule; costs next to nothing when nobody listens."""

from __future__ import annotations

from collections.abc import Callable

from .scheduler import Scheduler

Say = Callable[[str], None]


class Trace:
    """Lines `time  who  what`."""

    def __init__(self, scheduler: Scheduler, say: Say | None) -> None:
        self._scheduler = scheduler
        self._say = say

    def say(self, who: str, text: str | Callable[[], str]) -> None:
        if self._say is not None:
            self._say(f"{self._scheduler.now:9.3f}  {who:<12} {text if isinstance(text, str) else text()}")
