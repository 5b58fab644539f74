"""The demo as a user calls it: a process of its own, judged by its exit code, its output and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.deep]

MARK = "STARROCKS_TXN_SINK_TEST_MARK"

# Plays the demo with a pipeline that loses some rows of one table and doubles some of another.
DAMAGED = """
import sys
from pyspark.sql import functions as F
from starrocks_txn_ops.cli import main
from starrocks_demo import pipeline
from starrocks_spark_stages.assemble.transactions import assemble_transactions

def damaged(events, **more):
    rows = assemble_transactions(events, **more)
    lost = (F.col("table") == "orders") & (F.col("op") == "insert") & (F.col("position") % 7 == 3)
    doubled = (F.col("table") == "order_events") & (F.col("position") % 7 == 4) & ~F.col("transaction_end")
    copies = F.when(doubled, F.array(F.lit(1), F.lit(2))).otherwise(F.array(F.lit(1)))
    return rows.where(~lost).withColumn("copy", F.explode(copies)).drop("copy")

pipeline.assemble_transactions = damaged
sys.exit(main(sys.argv[1:]))
"""


class Demo:
    """A running demo, every process of which carries a mark in its environment."""

    def __init__(self, folder: Path, options: str, script: str | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.scratch = folder / "the demo's scratch"  # Java gets such a name whole
        self.scratch.mkdir()
        program = ["-c", script] if script else ["-m", "starrocks_txn_sink"]
        self._stderr = folder / "stderr"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *program, "demo", "--warm-up", "2", *options.split()],
                env={**os.environ, MARK: self.mark, "TMPDIR": str(self.scratch)},
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )

    def wait(self, seconds: float = 240) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, out.decode()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def family(self) -> list[psutil.Process]:
        """Every living process that carries the mark."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except (psutil.Error, OSError):
                continue
        return processes

    def left(self) -> list[psutil.Process]:
        """Who lives on after the end; Spark's Python workers, which nobody waits for, end a moment after its JVM."""
        end = time.monotonic() + 20
        while (processes := self.family()) and time.monotonic() < end:
            time.sleep(0.1)
        return processes

    def until(self, reached: Callable[[], bool], seconds: float = 120) -> None:
        wait_until(reached, seconds, lambda: self.stderr, alive=lambda: self.process.poll() is None)

    def delivers(self) -> bool:
        """Whether something is visible already."""
        return re.search(r" [1-9][\d,]* of [\d,]+ transactions visible", self.stderr) is not None

    def close(self) -> None:
        for process in self.family():
            process.kill()
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(options: str, script: str | None = None) -> Demo:
        started.append(Demo(tmp_path, options, script))
        return started[-1]

    yield start
    for resource in started:
        resource.close()


def result(out: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


@pytest.mark.parametrize(("lanes", "generation"), [(1, "B"), (2, "C")])
def test_every_source_transaction_is_visible_once_and_none_is_torn(
    demo: Callable[..., Demo], lanes: int, generation: str
) -> None:
    seconds = 3
    source = f"--seconds {seconds} --rate 2000 --partitions 3 --seed 5"
    running = demo(f"--json {source} --lanes {lanes} --generation {generation}")
    code, out = running.wait()
    assert code == 0, running.stderr
    summary = result(out)
    assert out.count("\n") == 1
    assert list(summary) == [
        "source_transactions",
        "rows",
        "reader",
        "starrocks_transactions",
        "loads",
        "freshness_seconds",
        "micro_batch_seconds",
        "wall_seconds",
    ]
    counts = summary["source_transactions"]
    assert counts["written"] == counts["visible"] > 30 * seconds
    assert (counts["lost"], counts["duplicated"], summary["reader"]["torn"]) == (0, 0, 0)
    assert summary["reader"]["samples"] > 5
    assert summary["rows"]["order_events"] > 500 * seconds
    assert summary["starrocks_transactions"]["committed"] >= 2
    assert summary["loads"] >= summary["starrocks_transactions"]["committed"]
    assert 0 < summary["freshness_seconds"]["p50"] <= summary["freshness_seconds"]["p99"]
    phases = summary["micro_batch_seconds"]
    assert 0 < phases["lane: commit"] < phases["sink"] < phases["micro-batch"]
    assert "emulator" in running.stderr
    assert running.left() == []
    assert list(running.scratch.iterdir()) == []


def test_a_pipeline_that_loses_and_doubles_rows_is_found_out(demo: Callable[..., Demo]) -> None:
    running = demo("--json --seconds 3 --rate 1000 --partitions 2 --assemble stage", script=DAMAGED)
    code, out = running.wait()
    assert code == 1, running.stderr
    summary = result(out)
    assert summary["reader"]["torn"] > 0
    assert summary["source_transactions"]["duplicated"] > 0
    assert "WRONG:" in running.stderr
    assert re.search(r"orders differs: [1-9]\d* rows missing, 0 unexpected, 0 duplicated", running.stderr)
    assert re.search(r"order_events differs: 0 rows missing, 0 unexpected, [1-9]\d* duplicated", running.stderr)
    assert running.left() == []


def test_ctrl_c_ends_it_and_leaves_nothing(demo: Callable[..., Demo]) -> None:
    running = demo("--json --seconds 300 --rate 500")
    running.until(running.delivers)
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
    assert running.wait(60)[0] == 130
    assert running.left() == []
    assert list(running.scratch.iterdir()) == []


def test_sigterm_while_things_start_leaves_nothing(demo: Callable[..., Demo]) -> None:
    running = demo("--json --seconds 300")
    running.until(lambda: "Starting Spark" in running.stderr)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait(60)[0] == 143
    assert running.left() == []
    assert list(running.scratch.iterdir()) == []


def test_an_emulator_that_dies_is_a_failure_that_leaves_no_process(demo: Callable[..., Demo]) -> None:
    running = demo("--json --seconds 300 --rate 500")
    running.until(running.delivers)
    (emulator,) = [process for process in running.family() if "starrocks_emulator" in process.cmdline()]
    emulator.kill()
    code, _ = running.wait()
    assert code == 1
    assert "emulator" in running.stderr
    assert running.left() == []
