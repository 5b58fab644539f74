"""The driver is killed between the lanes' commit and the manifest, and right after it; nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.assembling_shop import AssemblingShop, script
from tests.support.servers import place_of

pytestmark = [pytest.mark.spark, pytest.mark.deep]

ROOT = Path(__file__).parents[2]


def kill_at(shop: AssemblingShop, batch: int, point: str) -> None:
    """Run the query in a process of its own until it is at `point` of `batch`; then `kill -9` for all of it."""
    options = {**place_of(shop.server), "job": "test"}
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "support" / "assembling_crash_driver.py"),
        str(shop.folder / "driver"),
    ]
    command += [str(shop.source), str(shop.checkpoint()), json.dumps(options), str(batch), point]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert any(line.strip() == "there" for line in process.stdout), "the driver ended by itself"
    finally:
        tree = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        for child in tree:
            child.kill()
        psutil.wait_procs(tree, 20)
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_driver_killed_around_the_manifest(assembling: AssemblingShop, point: str) -> None:
    """Micro-batch 1 ends what micro-batch 0 left open, and leaves something open itself."""
    assembling.put(script("p-0", "B D D E B D D"), script("p-1", "B D"))
    assembling.put(script("p-0", "D E B D", 8), script("p-1", "D D", 3))
    assembling.put(script("p-0", "D E", 12), script("p-1", "E", 5))
    kill_at(assembling, 1, point)
    assert assembling.written() == (5, 5), "the lanes had committed"
    assert len(assembling.state("batches")) == (1 if point == "before" else 2)
    receipts = assembling.go()
    assert [receipt.batch_id for receipt in receipts] == [2]
    assert assembling.written() == (10, 10)
    assert len(assembling.state("batches")) == 3
    assert {name.split("-")[1] for name in assembling.state("batches")[1:]} == {"000002"}, "the younger run's count"
