"""`python -m tests.crash`: the whole matrix, or the sites whose names contain the words given; see `--help`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.matrix import Case, Matrix
from tests.crash.sites import all_sites
from tests.crash.workload import Verdict


def main() -> int:
    """Progress on standard output, a line of JSON last; returns the exit code.

    1 when anything was lost, doubled, torn or not recovered; 3 when a site was not reached and all others are well.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("words", nargs="*", help="run only sites whose name contains all of these")
    parser.add_argument("--list", action="store_true", help="list the sites and end")
    args = parser.parse_args()
    sites = [site for site in all_sites() if all(word in site.name for word in args.words)]
    if args.list or not sites:
        _say("\n".join(site.name for site in sites) or "No site has such a name.")
        return 0 if sites else 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="crash-") as folder, Matrix(Path(folder), _say) as matrix:
        cases = matrix.run(sites)
    for case in cases:
        if not case.reached:
            _say(f"NOT REACHED {case.site.name}\n" + "\n".join(case.messages)[-6000:])
        elif not case.recovered or not case.seen.good:
            _say(
                f"FAILED {case.site.name}: {case.seen}, recovered={case.recovered}\n" + "\n".join(case.messages)[-6000:]
            )
    _say(f"{len(cases)} sites on the emulator in {time.monotonic() - began:.0f} s")
    figures, code = summary(cases)
    _say(json.dumps(figures))
    return code


def summary(cases: Sequence[Case]) -> tuple[dict[str, int], int]:
    """The line of JSON, and the exit code; a site that was not reached has lost nothing."""
    reached = [case for case in cases if case.reached]
    total = sum((case.seen for case in reached), Verdict())
    recovered, unreached = sum(case.recovered for case in reached), len(cases) - len(reached)
    figures = {"sites": len(cases), "recovered": recovered, "not_reached": unreached}
    well = total.good and recovered == len(reached)
    code = 1 if not well else 3 if unreached else 0
    return figures | {"lost": total.lost, "duplicated": total.duplicated, "torn": total.torn}, code


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
