"""A value that kills its lane's process each time is no outage: the query ends with the reason and the place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from starrocks_txn_sink.sink.supervisor import ExitCode
from tests.support.assembling_shop import script
from tests.support.dying_lane_driver import POISON
from tests.support.exactly_once_shop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.deep]  # three JVMs' worth of lanes that start and die

ROOT = Path(__file__).parents[2]


def put(folder: Path, partition: str, text: str, note: str) -> None:
    """A file of raw values, as Kafka's source gives them."""
    rows = [
        {"partition": partition, "offset": event["position"], "value": orjson.dumps(event).decode()}
        for event in script(partition, text, first=17, txn=note)
    ]
    (folder / f"{partition}.json").write_bytes(b"\n".join(map(orjson.dumps, rows)))


def test_a_lane_that_dies_each_time_ends_the_query_with_sparks_reason_and_the_place(bare_shop: Shop) -> None:
    events = bare_shop.folder / "events"
    events.mkdir()
    put(events, "p-0", "B D D E", "fine")
    put(events, "p-1", "B D E", POISON.decode())
    bare_shop.count_requests()
    words = [sys.executable, "-m", "tests.support.dying_lane_driver", bare_shop.server.load_url]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [*words, bare_shop.server.query_url, str(bare_shop.folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert process.returncode == ExitCode.GAVE_UP, process.stderr
    _, block = process.stderr.split("\nstarrocks-txn-sink: ")
    cause, remedy, place, more, following = block.splitlines()[:5]
    assert cause.startswith("The task of lane ")
    assert " ended early, 3 times in a row. Spark's reason: " in cause
    assert "Python worker exited unexpectedly (crashed)" in cause
    assert "spark.executor.memoryOverhead" in remedy
    assert place.endswith("reads from source partition p-1, position 17")
    assert more.endswith("docs/operations/errors/lane_died.md (unknown)")
    assert following.endswith("the query stays down (exit code 75)")
    assert bare_shop.requests()["begin"] == 3
    assert bare_shop.written() == (0, 0)
