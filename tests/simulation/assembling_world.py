"""Schedules in which the lanes assemble: the same trouble, the same checker, raw events in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starrocks_txn_sink.errors import InputError, SourceChanged
from tests.support.memory_directory import MemoryDirectory

from .assembling_driver import AssemblingDriver
from .driver import JOB, Checkpoint, Driver
from .event_log import AtLeastOnceEventChecker, EventChecker, EventSource, event_source
from .source import Source
from .trace import Say
from .world import MOST_DRIVERS, History, World

KEEP = 100


class AssemblingWorld(World):
    """A world over an event log; `directories` are the checkpoints' own, by name.

    In every second schedule `spark_logs` has what all drivers on a checkpoint share, as Spark's log on a disk: who
    writes an entry that is there already, ends. So two drivers may overlap, the older one ahead, and the next one goes
    on where that one was. In the other schedules each driver goes on in a copy, and may cut other micro-batches.
    """

    def __init__(
        self, seed: int, say: Say | None = None, name: int | None = None, keep: int = KEEP, *, ledger: bool = True
    ) -> None:
        super().__init__(8 * seed + 1, say, name, ledger=ledger)
        self.seed, self.keep = seed, keep
        self.source = self._events_of(self.source)
        self.checker = self._make_checker(self.source)
        self.checker.keyed = frozenset(self.keys)
        self.directories: dict[str, MemoryDirectory] = {}
        self.spark_logs: dict[str, Checkpoint] = {}
        self._share_logs = self._shares_logs()
        if self._share_logs:
            self.profile = replace(self.profile, recut=False)
            self.scheduler.after(self.rng.uniform(0.05, 1.5), self._overlap)

    def _make_checker(self, source: Source) -> EventChecker:
        kind = EventChecker if self.ledger else AtLeastOnceEventChecker
        return kind(source, self.cluster.server.store, JOB, self.trace)

    def _events_of(self, source: Source) -> EventSource:
        return event_source(source.truth, self.rng)

    def _shares_logs(self) -> bool:
        return self.seed % 2 == 0

    def _make_driver(self, *arguments: Any, **keywords: Any) -> AssemblingDriver:
        return AssemblingDriver(self, *arguments, **keywords)

    def directory(self, checkpoint: str) -> MemoryDirectory:
        return self.directories.setdefault(checkpoint, MemoryDirectory())

    def _start_driver(self, checkpoint: Checkpoint, retold: bool = False, oddity: str = "") -> None:
        del retold
        if self._share_logs:
            shared = Checkpoint(checkpoint.name, list(checkpoint.offsets), checkpoint.done)
            self.spark_logs.setdefault(checkpoint.name, shared)
        lanes = self.profile.lanes if self.rng.random() < 0.7 else self.rng.choice((1, 2))
        driver = self._make_driver(f"d{len(self.drivers) + 1}", checkpoint, lanes, oddity=oddity)
        self.drivers.append(driver)
        if self._share_logs:  # Spark reads its log first, and an older driver goes on until the job is taken over
            driver.soon(self.rng.choice((0.0, 0.5, 2.0)), driver.start)
        else:
            driver.start()

    def _overlap(self) -> None:
        """Another driver starts while the first one runs, as in a rolling update."""
        if not self.done and len(self.drivers) < MOST_DRIVERS:
            self.events += 1
            self._start_driver(self._last_checkpoint())

    def _last_checkpoint(self) -> Checkpoint:
        last = super()._last_checkpoint()
        return self.spark_logs.get(last.name, last)

    def _all_written_before(self) -> bool:
        """Whether a recreated source may come from the start; here its events come among those of the right one."""
        return False

    def tells_otherwise(self) -> bool:
        """Whether the events that the source repeats now have other content."""
        if not self.network.trouble or "recreated" not in self.profile.events or self.rng.random() > 0.3:
            return False
        self.events += 1
        return True

    def _judge_error(self, driver: Driver, error: BaseException) -> None:
        """Rows that only a superseded driver named may be swept under its feet: it stops, which is all it can do."""
        if isinstance(error, InputError) and self.checker.is_superseded(driver.writer):
            return
        if isinstance(error, SourceChanged) and isinstance(driver, AssemblingDriver) and driver.told_otherwise:
            return
        super()._judge_error(driver, error)


def run_assembling(seed: int, say: Say | None = None, name: int | None = None, *, ledger: bool = True) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    return AssemblingWorld(seed, say, name, ledger=ledger).run()
