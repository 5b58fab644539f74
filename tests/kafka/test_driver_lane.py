"""A lane in the driver's process: no Python process of Spark's beside it, and a stop of the query ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.process import EmulatorProcess
from tests.crash.workload import Verdict, judge
from tests.kafka.broker import Broker
from tests.kafka.shop import Shop
from tests.kafka.workload import expected, send, txn_events

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

QUERY = """
import json, os, sys, threading, time

import psutil
from pyspark.sql import SparkSession

from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines, recommended_conf
from starrocks_txn_sink.sink import kafka_input
from starrocks_txn_sink.sources import kafka_options

servers, jars, topic, home, options = sys.argv[1:]
conf = {"spark.ui.enabled": "false", "spark.jars": jars, "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[2]").config(map=recommended_conf(preload=True) | conf).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
source = kafka_options(servers, subscribe=topic, startingOffsets="earliest")
frame = spark.readStream.format("kafka").options(**source).load()
assembly = TransactionAssembly(lines=TxnEventLines(reader="librdkafka"))
sink = StarRocksSink(SinkOptions(**json.loads(options)), assemble=assembly)
writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", home + "/checkpoint")


def say(**what):
    pythons = [child for child in psutil.Process().children(recursive=True) if "python" in child.name()]
    print(json.dumps({**what, "pythons": len(pythons)}), flush=True)
    sys.stdin.readline()


def lanes():
    return [thread for thread in threading.enumerate() if thread.name == "starrocks-driver-lane"]


query = writer.start()
while not any(progress["numInputRows"] for progress in query.recentProgress):
    assert not query.awaitTermination(0.2), query.exception()
jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId))
say(jobs=len(jobs))
while not lanes():
    time.sleep(0.05)
time.sleep(1)
hangs, began = bool(lanes()), time.monotonic()
query.stop()
say(hangs=hangs, seconds=time.monotonic() - began, clean=query.exception() is None)
writer.trigger(availableNow=True).start().awaitTermination()
say()
kafka_input._DRIVER_BYTES = 0
writer.trigger(availableNow=True).start().awaitTermination()
say()
"""


@pytest.fixture
def shop(starrocks: EmulatorProcess) -> Shop:
    return Shop(starrocks)


@pytest.fixture
def told(broker: Broker, shop: Shop, spark_kafka: str, tmp_path: Path) -> Iterator[Any]:
    """What the query says of itself, step by step."""
    options = shop.options("here")
    broker.create({"here": 1})
    command = [sys.executable, "-c", QUERY, broker.servers, spark_kafka, "here", str(tmp_path), json.dumps(options)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )

        steps: list[dict[str, Any]] = []

        def following() -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            if steps:  # it waits for the word to go on
                process.stdin.write("\n")
                process.stdin.flush()
            line = process.stdout.readline()
            assert line, (tmp_path / "log").read_text(errors="replace")[-4000:]
            steps.append(json.loads(line))
            return steps[-1]

        try:
            yield following
        finally:
            process.kill()
            process.communicate()


def test_few_rows_need_no_python_process_and_no_job_and_a_stop_ends_a_lane_that_hangs(
    broker: Broker, starrocks: EmulatorProcess, shop: Shop, told: Any
) -> None:
    events = list(txn_events(1, 60, 4, "here"))
    third = len(events) // 3
    send(broker.servers, islice(events, third))
    assert told() == {"jobs": 0, "pythons": 0}
    starrocks.faults({"rules": [{"operation": "load", "listener": "be", "action": "delay", "seconds": 60}]})
    send(broker.servers, islice(events, third, 2 * third))
    stopped = told()
    assert (stopped["hangs"], stopped["clean"], stopped["pythons"]) == (True, True, 0)
    assert stopped["seconds"] < 20
    starrocks.faults({"rules": []})
    assert told() == {"pythons": 0}
    assert judge(shop.seen(), expected(1, 40)) == Verdict()
    send(broker.servers, islice(events, 2 * third, None))
    assert told()["pythons"] > 0  # a micro-batch that is too large: the rest goes on in a worker
    assert judge(shop.seen(), expected(1, 60)) == Verdict()
