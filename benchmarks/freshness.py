"""From a source event's file to a reader who sees it, at a steady rate, with the emulator as the server.

    python -m benchmarks.freshness [--seconds 20] [--rate 10000] [--rounds 1] [--warm-up 25]

Runs the demo with one source partition and with sixty, assembling in the lanes and in a stage, and prints p50 and p99
and the median of each phase of a micro-batch; of several rounds the median. The emulator publishes at once, so these
are the sink's and Spark's shares, not a cluster's. Its reader asks every 50 ms, which is in the figures. The JVM
compiles for minutes: what a query does that has run for a while shows with `--warm-up 400`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.measure import line, say, where

PARTITIONS = (1, 60)
WAYS = ("lanes", "stage")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=float, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm-up", type=int, default=25, help="micro-batches before anything is measured")
    parser.add_argument("--only", default=",".join(WAYS), help="comma-separated: lanes, stage")
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.rounds):
        for partitions in PARTITIONS:
            for way in arguments.only.split(","):
                runs.setdefault(f"{partitions} partitions, {way}", []).append(_demo(partitions, way, arguments))
    figures = {name: _medians(samples) for name, samples in runs.items()}
    say(f"\nfreshness at {arguments.rate:g} rows/s ({where()}), seconds")
    for name, medians in figures.items():
        say(f"{name:24}p50 {medians['p50']:.2f}, p99 {medians['p99']:.2f}")
        say(
            "    "
            + ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in medians.items() if phase not in ("p50", "p99"))
        )
    line("freshness", {"rate": arguments.rate, **figures})


def _demo(partitions: int, way: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "starrocks_txn_sink", "demo", "--json", "--quiet", "--assemble", way]
    command += ["--partitions", str(partitions), "--seconds", str(arguments.seconds), "--rate", str(arguments.rate)]
    command += ["--warm-up", str(arguments.warm_up)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    summary = json.loads(process.stdout.splitlines()[-1])
    return {**summary["freshness_seconds"], **summary["micro_batch_seconds"]}


def _medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(sample[name] for sample in samples), 3) for name in samples[0]}


if __name__ == "__main__":
    main()
