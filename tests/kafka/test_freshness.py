"""The pace of commits over a real broker: no pause while the topic has more than a micro-batch may take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.kafka.workload import send, txn_events

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

QUERY = """
import json, sys, threading, time

from pyspark.sql import SparkSession

from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.pacing import Pacing

servers, jars, topic, home = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
told, paused = [], threading.Event()


def emit(event):
    told.append(event.fields)
    if event.fields["pause"] > 10:
        paused.set()


pacing = Pacing(60.0, emit)


def take(batch, number):
    begun = time.monotonic()
    query, run = map(batch.sparkSession._sc.getLocalProperty, ("sql.streaming.queryId", "spark.jobGroup.id"))
    pacing.rest(batch.sparkSession, BatchOrigin(number, "job", query, run, True), (), begun)


options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
frame = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="20").load()
query = frame.writeStream.foreachBatch(take).option("checkpointLocation", home + "/checkpoint").start()
assert paused.wait(240)
began = time.monotonic()
query.stop()
print(json.dumps([told, time.monotonic() - began, query.exception() is None]), flush=True)
spark.stop()
"""


def test_a_topic_with_more_than_a_micro_batch_takes_ends_the_pauses(
    broker: Broker, spark_kafka: str, tmp_path: Path
) -> None:
    topic = "freshness"
    broker.create({topic: 2})
    events = list(txn_events(2, 5, 4, topic))
    send(broker.servers, iter(events))
    command = [sys.executable, "-c", QUERY, broker.servers, spark_kafka, topic, str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    run = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    told, seconds, clean = json.loads(run.stdout.splitlines()[-1])
    reasons = [fields["reason"] for fields in told]
    assert reasons[:-1] == ["backlog"] * (len(told) - 1)
    assert len(told) >= len(events) // 20
    assert [fields["pause"] for fields in told[:-1]] == [0.0] * (len(told) - 1)
    assert reasons[-1] == "freshness"
    assert (seconds < 20, clean) == (True, True)
