"""The clock of `open_timeout`: it stands while the query is down, and judges only what was read to its end.

A transaction whose END waits unread in Kafka is not open for too long: the query is late, not the source. So the time
between two runs does not count, and a micro-batch that leaves messages behind judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadingClock:
    """A time of this clock is `down` seconds behind Spark's; in a state of an earlier release the two are the same.

    `at` is Spark's time of the last micro-batch, in seconds since the epoch; None: there was none.
    """

    at: float | None = None
    down: float = 0.0

    def running_since(self, began: float, now: float) -> ReadingClock:
        """The clock at Spark's time `now`, in a run whose first micro-batch began at `began`.

        The time from `at` on that is before the run does not count. A micro-batch that runs again has Spark's time of
        the earlier run, so that the pause is behind it.
        """
        down = 0.0 if self.at is None else max(0.0, min(now, began) - self.at)
        return ReadingClock(self.at, self.down + down)

    def read(self, now: float) -> float:
        """This clock's time at Spark's time `now`."""
        return now - self.down

    def after(self, now: float) -> ReadingClock:
        """The clock after the micro-batch of the time `now`."""
        return ReadingClock(now if self.at is None else max(now, self.at), self.down)
