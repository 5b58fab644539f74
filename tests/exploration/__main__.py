"""`python -m tests.exploration [--small] [--quiet]`: explore, print the counterexamples, JSON as last line."""

from __future__ import annotations

import argparse
import json
import sys
import time

from .search import Counterexample, Explored, explore
from .setups import INGREDIENTS, LARGE, SMALL, Bounded, without


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 if nothing breaks, the numbers of states are the known ones, and whatever is left out is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration", description=__doc__)
    parser.add_argument("--small", action="store_true", help="the bounds that the test suite takes")
    parser.add_argument("--quiet", action="store_true", help="lengths of the counterexamples only")
    choice = parser.parse_args(arguments)
    started = time.monotonic()
    states, violations = _whole(SMALL if choice.small else LARGE)
    needed = {name: _missed(name, quiet=choice.quiet) for name in INGREDIENTS}
    summary = {
        "states": states,
        "violations": violations,
        "seconds": round(time.monotonic() - started, 1),
        "needed": needed,
    }
    _say(json.dumps(summary))
    return 0 if not violations and all(needed.values()) else 1


def _whole(bounded: tuple[Bounded, ...]) -> tuple[int, int]:
    """Explore the whole protocol in each setup; a number of states other than the known one counts as a violation."""
    states = violations = 0
    for setup, expected in bounded:
        started = time.monotonic()
        result = explore(setup)
        states += result.states
        right = isinstance(result, Explored) and result.states == expected
        violations += not right
        seconds = time.monotonic() - started
        _say(f"{setup.name} ({setup.bounds}): {result.states} states, {expected} expected, {seconds:.1f} s")
        if isinstance(result, Explored):
            _say(f"    every state seen, {result.moves} moves, at most {result.depth} from the start, no violation")
        else:
            _tell(result, quiet=False)
    return states, violations


def _missed(name: str, *, quiet: bool) -> int:
    """Leave `name` out: the length of the shortest counterexample, 0 when there is none within the bounds."""
    _say(f"without {name} ({INGREDIENTS[name].means}):")
    result = explore(without(name))
    if isinstance(result, Explored):
        _say(f"    no violation in {result.states} states: not shown to be necessary within these bounds")
        return 0
    _tell(result, quiet=quiet)
    return len(result.trace)


def _tell(counterexample: Counterexample, *, quiet: bool) -> None:
    _say(f"    {counterexample.kind} after {len(counterexample.trace)} steps")
    if not quiet:
        for number, step in enumerate(counterexample.trace, 1):
            _say(f"    {number:3}. {step}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
