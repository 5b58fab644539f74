"""The probe: a client of its own that asks only how far each source partition is visible, and measures freshness by it.

Looking at everything takes the reader long enough to be seen in a figure of half a second; one number for each source
partition is a few milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.demo.freshness import Freshness


class Probe:
    """Asks until stopped. Between questions it rests at least `pause` seconds and as long as the last one took.

    `newest` returns the newest visible txn_no of each source partition; when it raises, the next question is asked.
    """

    def __init__(
        self, newest: Callable[[], Mapping[int, int]], freshness: Freshness, *, clock: Clock, pause: float = 0.05
    ) -> None:
        self._newest, self._freshness, self._clock, self._pause = newest, freshness, clock, pause
        self.errors = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            start = self._clock.monotonic()
            self._look()
            self._clock.sleep(max(self._pause, self._clock.monotonic() - start))

    def _look(self) -> None:
        try:
            newest = self._newest()
        except Exception:  # whatever a client library raises: the reader tells of it, and the next answer counts
            self.errors += 1
            return
        self._freshness.seen(newest, self._clock.monotonic())
