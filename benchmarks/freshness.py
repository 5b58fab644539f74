"""From a source event's file to a reader who sees it, at a steady rate, with the stand-in as the server.

    python -m benchmarks.freshness [--seconds 30] [--rate 10000]

Runs the demo with one source partition and with sixty, assembling in the lanes and in a stage, and prints p50 and p99.
The stand-in publishes at once, so these are the sink's and Spark's shares, not a cluster's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from benchmarks.measure import line, say


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=10_000)
    given = parser.parse_args()
    figures = {}
    say(f"{'':28}{'p50 s':>8}{'p99 s':>8}")
    for partitions in (1, 60):
        for way in ("fused", "stage"):
            found = _demo(partitions, way, given.seconds, given.rate)
            name = f"{partitions} partitions, {way}"
            figures[name] = found
            say(f"{name:28}{found['p50']:8.2f}{found['p99']:8.2f}")
    line("freshness", figures)


def _demo(partitions: int, way: str, seconds: float, rate: float) -> dict[str, float]:
    command = [sys.executable, "-m", "starrocks_txn_sink", "demo", "--json", "--quiet", "--assemble", way]
    command += ["--partitions", str(partitions), "--seconds", str(seconds), "--rate", str(rate)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    found = summary["freshness_seconds"]
    return {"p50": float(found["p50"]), "p99": float(found["p99"])}


if __name__ == "__main__":
    main()
