"""All benchmarks, one after the other, each in a process of its own; at the end the figures that matter most.

python -m benchmarks
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.measure import say
from benchmarks.summary import Figures, benchmark_lines, summary

RUNS = (
    "raw_lines --rows 4000000 --rounds 5 --only parse,lanes",
    "kafka_lines --rows 400000 --batch 240000 --rounds 2",
    "debezium --transactions 20000 --rounds 2",
    "throughput --rows 1500000 --rounds 5",
    "long_open --batches 100 --rows 1000 --huge 1000",
    "memory --megabytes 300",
    "scale --rows 200000 --rounds 1 --only lanes",
    "freshness --seconds 15 --only lanes",
    "steady --warm-up 30 --seconds 20 --rounds 1",
    "backlog --rows 500000 --rounds 1",
    "emulator",
    "start --rounds 2",
)


def main() -> int:
    """Run them; the exit code counts those that failed."""
    started, failed = time.monotonic(), 0
    found: list[Figures] = []
    for run in RUNS:
        began = time.monotonic()
        lines, code = _run(run)
        found += benchmark_lines(lines)
        failed += code != 0
        say(f"{run.split()[0]}: {time.monotonic() - began:.0f} s")
    say("")
    for text in summary(found):
        say(text)
    say(f"all: {time.monotonic() - started:.0f} s")
    return failed


def _run(run: str) -> tuple[list[str], int]:
    """What a program prints, which is shown at once, and its exit code."""
    lines = []
    with subprocess.Popen(
        [sys.executable, "-m", *f"benchmarks.{run}".split()], stdout=subprocess.PIPE, text=True
    ) as process:
        for text in process.stdout or ():
            lines.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
    return lines, process.returncode


if __name__ == "__main__":
    sys.exit(main())
