"""`python -m tests.simulation prove --seeds 10000 | prove --seed 7 | sabotage`."""

from __future__ import annotations

import argparse
import sys

from .prove import prove, replay
from .schedules import run_any, run_recreated


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    proving = commands.add_parser("prove", help="run seeded schedules and check every history")
    proving.add_argument("--seeds", type=int, default=1000, help="how many schedules")
    proving.add_argument("--first", type=int, default=0, help="the first seed")
    proving.add_argument("--seed", type=int, help="replay this one with its trace")
    proving.add_argument("--processes", type=int, help="default: one for each core")
    proving.add_argument("--recreated", action="store_true", help="only those whose source is recreated")
    planting = commands.add_parser("sabotage", help="plant bugs; each must be noticed")
    planting.add_argument("--processes", type=int, help="default: one for each core")
    choice = parser.parse_args(arguments)
    if choice.command == "sabotage":
        from .sabotage import sabotage

        return sabotage(_say, choice.processes)
    run = run_recreated if choice.recreated else run_any
    if choice.seed is not None:
        return replay(choice.seed, _say, run)
    return prove(choice.seeds, _say, choice.first, choice.processes, run)


if __name__ == "__main__":
    sys.exit(main())
