"""The concurrent reader: a client of its own that looks at the tables again and again while they are written."""

from __future__ import annotations

import threading
from collections.abc import Callable

from starrocks_demo.freshness import Freshness
from starrocks_demo.witness import Sample
from starrocks_txn_sink.clock import Clock

_REMEMBERED = 5  # torn samples described in full
_LONGEST = 2.0  # seconds of rest at most: a reader that is told to stop ends its rest first


class Reader:
    """Takes samples until stopped; counts them, keeps what the torn ones showed. Counters may be read at any time.

    `look` returns one sample; when it raises, the error is kept, and sampling goes on with the next call. Between
    samples the reader rests at least `pause` seconds and `rest` times as long as the sample took (two seconds at
    most): the longer the tables, the longer a look at them takes, and who is watched on the same cores shall not wait
    for it. Looking at everything takes long enough to be seen in freshness: a second reader looks at `newest` alone.
    """

    def __init__(
        self,
        look: Callable[[], Sample],
        freshness: Freshness,
        *,
        clock: Clock,
        pause: float = 0.2,
        rest: float = 9.0,
    ) -> None:
        self._look, self._freshness, self._clock = look, freshness, clock
        self._pause, self._rest = pause, rest
        self.samples = 0
        self.torn = 0
        self.errors = 0
        self.evidence: list[str] = []
        self.last_error: str | None = None
        self.latest = Sample()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            start = self._clock.monotonic()
            self.look()
            self._clock.sleep(self._pause_after(self._clock.monotonic() - start))

    def _pause_after(self, seconds: float) -> float:
        return max(self._pause, min(self._rest * seconds, _LONGEST))

    def look(self) -> None:
        """Take one sample."""
        try:
            sample = self._look()
        except Exception as error:  # whatever a client library raises: seen, counted, and tried again
            self.errors += 1
            self.last_error = f"{type(error).__name__}: {error}"
            return
        self._freshness.seen(sample.newest, self._clock.monotonic())
        self.samples += 1
        self.latest = sample
        if sample.torn:
            self.torn += 1
            if len(self.evidence) < _REMEMBERED:
                self.evidence.append(f"sample {self.samples}: {'; '.join(sample.torn)}")
