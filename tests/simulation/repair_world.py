"""Schedules of a repair beside a job that goes on, for planted bugs: the model of `tests.support.repair_model`."""

from __future__ import annotations

import time

from tests.support.repair_model import World, faults_of, repaired

from .checker import Violation
from .world import History

_BUSY = (0.0, 0.4, 0.8, 0.9)


def run_repair(seed: int) -> History:
    """Run the schedule of `seed`: rows that are older than the job's place, and rows that differ in the end."""
    began, cpu = time.perf_counter(), time.process_time()
    world = World(seed, _BUSY[seed % len(_BUSY)])
    faults = faults_of(world, repaired(world))
    violations = tuple(Violation("other", f"row {key} is older than the job, or differs in the end") for key in faults)
    seconds = time.perf_counter() - began
    return History(seed, violations, 0, seconds, len(world.writes), 1, time.process_time() - cpu)
