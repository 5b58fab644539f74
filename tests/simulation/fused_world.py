"""Schedules in which the lanes assemble: the same trouble, the same checker, raw events in.

python -m tests.simulation.fused_world --seeds 1000
python -m tests.simulation.fused_world --seed 7      (with its trace)
"""

from __future__ import annotations

import argparse
import sys
import time

from starrocks_txn_sink.errors import InputError
from tests.support.memory_directory import MemoryDirectory

from .driver import Checkpoint, Driver
from .fused_driver import FusedDriver
from .fused_source import EventChecker, event_source
from .trace import Say
from .world import History, World

KEEP = 100


class FusedWorld(World):
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
        driver = FusedDriver(self, f"d{len(self.drivers) + 1}", checkpoint, lanes, oddity=oddity)
        self.drivers.append(driver)
        driver.start()

    def _all_written_before(self) -> bool:
        """Whether a recreated source may come: events of another source are left out here."""
        return False

    def _judge_error(self, driver: Driver, error: BaseException) -> None:
        """Rows that only a superseded driver named may be swept under its feet: it stops, which is all it can do."""
        if isinstance(error, InputError) and self.checker.is_superseded(driver.writer):
            return
        super()._judge_error(driver, error)


def run_fused(seed: int, say: Say | None = None) -> History:
    """Run the schedule of `seed`."""
    return FusedWorld(seed, say).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        found = run_fused(arguments.seed, lambda line: print(line)).violations  # noqa: T201
        print(*(f"{one.kind}: {one.text}" for one in found), sep="\n")  # noqa: T201
        return bool(found)
    started, bad, faults, commits = time.monotonic(), 0, 0, 0
    for seed in range(arguments.seeds):
        history = run_fused(seed)
        faults, commits = faults + history.faults, commits + history.commits
        if history.violations:
            bad += 1
            first = history.violations[0]
            print(f"seed {seed}: {first.kind}: {first.text}")  # noqa: T201
    seconds = time.monotonic() - started
    said = f"{arguments.seeds} schedules, {faults} faults, {commits} commits, {bad} violated"
    print(f"{said}; {seconds:.0f} s, simulated")  # noqa: T201
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
