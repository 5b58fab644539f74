"""Schedules in which the lanes assemble: the same trouble, the same checker, raw events in."""

from __future__ import annotations

from starrocks_txn_sink.errors import InputError, SourceChanged
from tests.support.memory_directory import MemoryDirectory

from .assembling_driver import AssemblingDriver
from .driver import Checkpoint, Driver
from .event_log import EventChecker, event_source
from .trace import Say
from .world import History, World

KEEP = 100


class AssemblingWorld(World):
    """A world over an event log; `directories` are the checkpoints' own, by name."""

    def __init__(self, seed: int, say: Say | None = None, keep: int = KEEP) -> None:
        super().__init__(8 * seed + 1, say)
        self.seed, self.keep = seed, keep
        self.source = event_source(self.source.truth, self.rng)
        self.checker = EventChecker(self.source, self.cluster.server.store, "job", self.trace)
        self.checker.token_of = self._token_of
        self.directories: dict[str, MemoryDirectory] = {}

    def directory(self, checkpoint: str) -> MemoryDirectory:
        return self.directories.setdefault(checkpoint, MemoryDirectory())

    def _start_driver(self, checkpoint: Checkpoint, retold: bool = False, oddity: str = "") -> None:
        del retold
        lanes = self.profile.lanes if self.rng.random() < 0.7 else self.rng.choice((1, 2))
        driver = AssemblingDriver(self, f"d{len(self.drivers) + 1}", checkpoint, lanes, oddity=oddity)
        self.drivers.append(driver)
        driver.start()

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


def run_assembling(seed: int, say: Say | None = None) -> History:
    """Run the schedule of `seed`."""
    return AssemblingWorld(seed, say).run()
