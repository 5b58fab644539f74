"""Many schedules, over all cores: counts what was violated, and names the first seed that failed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import get_context

import orjson

from .bar import on_terminal
from .checker import KINDS
from .world import History, run_schedule

Say = Callable[[str], None]
RunSchedule = Callable[..., History]
_PROGRESS = 1000


@dataclass(slots=True)
class Tally:
    """What came of the schedules so far."""

    schedules: int = 0
    faults: int = 0
    commits: int = 0
    drivers: int = 0
    cpu_seconds: float = 0.0
    violated: Counter[str] = field(default_factory=Counter)
    first_failing_seed: int | None = None

    def add(self, history: History) -> None:
        self.schedules += 1
        self.faults += history.faults
        self.commits += history.commits
        self.drivers += history.drivers
        self.cpu_seconds += history.cpu_seconds
        self.violated.update({violation.kind for violation in history.violations})
        if history.violations and (self.first_failing_seed is None or history.seed < self.first_failing_seed):
            self.first_failing_seed = history.seed

    def summary(self, seconds: float) -> str:
        """One line of JSON; `lost` and so on count schedules."""
        kinds = {kind: self.violated[kind] for kind in KINDS}
        counts = {"schedules": self.schedules, "faults": self.faults, **kinds, "seconds": round(seconds, 1)}
        return orjson.dumps({**counts, "first_failing_seed": self.first_failing_seed}).decode()


def prove(seeds: int, say: Say, first: int = 0, processes: int | None = None, run: RunSchedule = run_schedule) -> int:
    """`run` the schedules of `seeds` seeds from `first` on; the last line is JSON; 1 if anything was violated."""
    started, tally = time.perf_counter(), Tally()
    workers = processes or os.cpu_count() or 1
    for history in on_terminal(_histories(run, range(first, first + seeds), workers), seeds):
        tally.add(history)
        for violation in history.violations[:3]:
            say(f"seed {history.seed}: {violation.kind}: {violation.text}")
        if tally.schedules % _PROGRESS == 0:
            say(
                f"{tally.schedules} schedules, {tally.faults} faults, {tally.commits} StarRocks transactions, "
                f"{tally.drivers} drivers, {tally.schedules / tally.cpu_seconds:.0f} schedules per core and second"
            )
    say(tally.summary(time.perf_counter() - started))
    return 1 if tally.first_failing_seed is not None else 0


def _histories(run: RunSchedule, seeds: range, workers: int) -> Iterable[History]:
    if workers == 1 or len(seeds) < 200:
        return map(run, seeds)
    return _spread(run, seeds, workers)


def _spread(run: RunSchedule, seeds: range, workers: int) -> Iterable[History]:
    with get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=50)


def replay(seed: int, say: Say, run: RunSchedule = run_schedule) -> int:
    """Run one schedule and say everything that happens in it."""
    started = time.perf_counter()
    history, tally = run(seed, say), Tally()
    tally.add(history)
    say(tally.summary(time.perf_counter() - started))
    return 1 if history.violations else 0
