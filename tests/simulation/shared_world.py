"""Schedules in which all lanes load under one label: the same trouble, the same checker."""

from __future__ import annotations

from starrocks_txn_sink.errors import TaskRepeated

from .driver import Checkpoint, Driver
from .profile import Profile
from .shared_driver import SharedDriver
from .trace import Say
from .world import KEYED, PLAIN, POISON, History, World

_STEP = KEYED[0] * PLAIN[0]


class SharedWorld(World):
    """A world whose drivers share a label over several lanes; every third one has keys."""

    def __init__(self, seed: int, say: Say | None = None) -> None:
        taken = [at for at in range(_STEP) if at % PLAIN[0] != PLAIN[1] and at % POISON[0] != POISON[1]]
        super().__init__(_STEP * (seed // len(taken)) + taken[seed % len(taken)], say)
        self.seed = seed

    def _shaped(self, profile: Profile) -> Profile:
        return profile

    def _start_driver(self, checkpoint: Checkpoint, retold: bool = False, oddity: str = "") -> None:
        del retold
        driver = SharedDriver(self, f"d{len(self.drivers) + 1}", checkpoint, self.rng.choice((2, 2, 3)), oddity)
        self.drivers.append(driver)
        driver.start()

    def _judge_error(self, driver: Driver, error: BaseException) -> None:
        if not isinstance(error, TaskRepeated):
            super()._judge_error(driver, error)


def run_shared(seed: int, say: Say | None = None) -> History:
    """Run the schedule of `seed`."""
    return SharedWorld(seed, say).run()
