"""`python -m tests.simulation prove --seeds 10000 | prove --seed 7 | sabotage`."""

from __future__ import annotations

import argparse
import sys

from .assembling_world import run_assembling
from .prove import prove, replay
from .sabotage import sabotage
from .shared_world import run_shared
from .world import run_schedule


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    proving = commands.add_parser("prove", help="run seeded schedules and check every history")
    proving.add_argument("--assembling", action="store_true", help="schedules whose lanes assemble raw events")
    proving.add_argument("--shared", action="store_true", help="schedules whose lanes load under one label")
    proving.add_argument("--seeds", type=int, default=1000, help="how many schedules")
    proving.add_argument("--first", type=int, default=0, help="the first seed")
    proving.add_argument("--seed", type=int, help="replay this one with its trace")
    proving.add_argument("--processes", type=int, help="default: one for each core")
    planting = commands.add_parser("sabotage", help="plant bugs; each must be noticed")
    planting.add_argument("--processes", type=int, help="default: one for each core")
    chosen = parser.parse_args(arguments)
    if chosen.command == "sabotage":
        return sabotage(_say, chosen.processes)
    run = run_assembling if chosen.assembling else run_shared if chosen.shared else run_schedule
    if chosen.seed is not None:
        return replay(chosen.seed, _say, run)
    return prove(chosen.seeds, _say, chosen.first, chosen.processes, run)


if __name__ == "__main__":
    sys.exit(main())
