"""When the next micro-batch may start: as late as `freshness` allows, so with the fewest commits. Pure.

A row that comes right behind the newest offsets of a micro-batch waits until the next one is planned, and then until
that one is visible. So a micro-batch is held back behind its commit until

    hold + what the next one will need = freshness,    hold: from the planning of this one to its end.

What the next one needs is what the newest ones needed. One that was slow by chance does not count for more than the
rows that it made late: of all rows 1 % may be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

LATE: Final = 0.01
"""The share of rows that may be late."""
WINDOW: Final = 64
"""Micro-batches that are looked at: a load that has grown counts after one (`_grown`), one that is gone after these."""
MOST_STRETCH: Final = 8.0
LONGEST_PAUSE: Final = 60.0
"""Seconds, or `freshness` if that is longer: what a server that suffers gets at most."""
_MARGIN: Final = 0.95  # of freshness: Spark asks for offsets a moment before it notes the time, and timers are late
_IDLE: Final = 3.0  # times the usual wait for Spark: longer ones were waits for rows
_HALF: Final = 0.5  # of a limit of the server's
_TENTH: Final = 0.1  # each further one doubles the interval
_OF_PUBLISHING: Final = 4.0  # times the time that the server needs to publish: the least interval


class Reason(Enum):
    """What decides about the interval."""

    GOAL = "freshness"
    BACKLOG = "backlog"
    SLOW = "slow"
    ROWSETS = "rowsets"
    TRANSACTIONS = "transactions"
    PUBLISH = "publish"


@dataclass(frozen=True, slots=True)
class Strain:
    """What the server shows: rowsets of a tablet and running transactions as shares of their limits, seconds of a
    publication; 0 for what it does not show."""

    rowsets: float = 0.0
    transactions: float = 0.0
    publish: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What comes behind a commit: the seconds of a `pause`, then the next start, `interval` seconds behind this one.

    `late` is the share of the newest rows that were visible later than `freshness` says, if they came evenly.
    """

    pause: float
    interval: float
    late: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class _Sample:
    """A micro-batch: seconds from its planning to its visibility, from the end of the one before to its planning, and
    between the two plannings."""

    visible: float
    wait: float
    interval: float


@dataclass(slots=True)
class Pace:
    """The pace of one run of a query. All times are seconds of one clock that never goes back."""

    freshness: float
    _samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _planned: float | None = None
    _ended: float = 0.0

    def step(self, *, planned: float | None, begun: float, now: float, backlog: bool, strain: Strain) -> Step:
        """A micro-batch that began at `begun` is visible `now`; `planned` is when its offsets were, if that is known.

        `backlog`: it has left rows behind that were there. The caller then pauses, and calls `ended`.
        """
        planned = begun - self._usual_gap(begun) if planned is None else min(planned, begun)
        if self._planned is not None:
            self._planned, planned_before = max(planned, self._ended), self._planned
            wait = self._planned - self._ended
            self._samples.append(_Sample(now - self._planned, wait, self._planned - planned_before))
        else:  # a query's first micro-batch starts much that the others find
            self._planned = planned
        hold, reason = self._hold(backlog)
        spent, wait = now - self._planned, self._usual_wait()
        interval, cause = _stretched(max(hold, spent) + wait, strain)
        pause = min(max(0.0, interval - wait - spent), max(LONGEST_PAUSE, self.freshness))
        return Step(pause, spent + pause + wait, self._late(), cause or reason)

    def ended(self, now: float) -> None:
        """The pause is over, or something has cut it short."""
        self._ended = now

    def _late(self) -> float:
        """The share of rows that were late in the newest micro-batches, if they came evenly since the planning before,
        or, where Spark has waited for rows, in its usual wait."""
        limit = _IDLE * self._usual_wait()
        spans = [sample.interval if sample.wait <= limit else limit for sample in self._samples]
        late = [
            min(span, max(0.0, span + sample.visible - self.freshness))
            for span, sample in zip(spans, self._samples, strict=True)
        ]
        return sum(late) / sum(spans) if sum(spans) else 0.0

    def _usual_wait(self) -> float:
        """From the end of a micro-batch to the next one's planning where rows are waiting."""
        return _usual(sample.wait for sample in self._samples)

    def _usual_gap(self, begun: float) -> float:
        """From the end of a micro-batch to the next one's begin; where the planning is hidden it may be its start."""
        if self._planned is not None:
            self._gaps.append(begun - self._ended)
        return _usual(self._gaps)

    def _hold(self, backlog: bool) -> tuple[float, Reason]:
        """Seconds from this planning to the end of the pause, and why so many."""
        if backlog:
            return 0.0, Reason.BACKLOG
        if not self._samples:
            return 0.0, Reason.GOAL
        limit, goal = _IDLE * self._usual_wait(), self.freshness * _MARGIN
        needs = [(min(sample.wait, limit), sample.visible) for sample in self._samples]
        reachable = [(wait, visible) for wait, visible in needs if wait + visible < goal]
        newest_wait, newest = needs[-1]
        if not reachable or newest_wait + newest >= goal:
            return 0.0, Reason.SLOW
        grown = _grown(goal, newest, self._samples[-1].interval) - newest_wait
        low, high = 0.0, max(0.0, min(grown, goal))
        if _late_of(reachable, high, goal) <= LATE:
            return high, Reason.GOAL
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if _late_of(reachable, middle, goal) <= LATE else (low, middle)
        return low, Reason.GOAL


def _usual(seconds: Iterable[float]) -> float:
    """What Spark itself needs, by its lower quartile: longer ones may have been waits for rows."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 4] if ordered else 0.0


def _late_of(needs: list[tuple[float, float]], hold: float, goal: float) -> float:
    """The share of late rows if each of these micro-batches came behind one that is held for `hold` seconds."""
    late = (max(0.0, hold + wait + visible - goal) / max(hold + wait, 1e-9) for wait, visible in needs)
    return sum(min(1.0, share) for share in late) / len(needs)


def _grown(goal: float, visible: float, interval: float) -> float:
    """The longest interval whose rows are visible in time, if more rows of a longer interval take longer to write."""
    if goal - visible <= interval:
        return goal - visible
    return goal * interval / (interval + visible)


def _stretched(interval: float, strain: Strain) -> tuple[float, Reason | None]:
    """The interval that the server can bear, and what it shows of that; None where nothing forces it."""
    shares = {Reason.ROWSETS: strain.rowsets, Reason.TRANSACTIONS: strain.transactions}
    reason, share = max(shares.items(), key=lambda pair: pair[1])
    if share > _HALF:
        return interval * min(MOST_STRETCH, 2.0 ** ((share - _HALF) / _TENTH)), reason
    if strain.publish * _OF_PUBLISHING > interval:
        return strain.publish * _OF_PUBLISHING, Reason.PUBLISH
    return interval, None
