"""The benchmarks' own tools: what is measured is what was used, and a program that needs no Spark runs to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.family import Family

BUSY = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"


@pytest.mark.parametrize("command", [["-c", BUSY], ["-c", BUSY, "benchmarks.null_server"]], ids=["worker", "server"])
def test_what_a_process_used_counts_on_after_its_end_and_a_server_does_not_count(command: list[str]) -> None:
    family = Family()
    before = family.look().python
    child = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    family.look()
    grown, its_memory = family.python - before, family.workers_rss
    child.communicate()
    family.look()
    if "benchmarks.null_server" in command:
        assert grown < 0.3
        assert its_memory == 0
    else:
        assert grown >= 0.25
        assert its_memory > 1 << 20
        assert family.python - before >= grown
        assert family.workers_rss == 0


def test_the_cost_of_metrics_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.metrics", "--rows", "2000", "--rounds", "1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert (figures["benchmark"], figures["rows"]) == ("metrics", 2000)
    assert figures["lane_cpu_seconds"] > 0
