"""The lag of a query over a real broker: while a micro-batch hangs, and without a broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.kafka.workload import send, txn_events
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

QUERY = """
import json, sys, time
from pathlib import Path

from pyspark.sql import SparkSession

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.metrics import source_lag
from starrocks_spark_stages.balanced.reader import BalancedKafka

servers, jars, topic, kind, home = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(BalancedKafka)
source_lag.INTERVAL = 0.5
source_lag._PAUSE_AFTER_FAILURE = 0.5


def take(batch, number):
    while not Path(home, f"go{number}").exists():
        time.sleep(0.1)


def emit(event):
    rows = {name: lag.rows for name, lag in event.fields.get("lags", {}).items()}
    seconds = {name: lag.seconds for name, lag in event.fields.get("lags", {}).items()}
    print(json.dumps([event.name, rows, seconds, event.fields.get("partitions")]), flush=True)


start = {"startingOffsets": "earliest"}
options = {"kafka.bootstrap.servers": servers, "subscribe": topic, **start}
frame = spark.readStream.format(kind).options(**options).load()
query = frame.writeStream.foreachBatch(take).option("checkpointLocation", home + "/checkpoint").start()
watch = source_lag.LagWatch(spark, emit, SystemClock(), lambda name: name == str(query.id))
sys.stdin.read()
watch.close()
query.stop()
spark.stop()
"""


@pytest.mark.parametrize("kind", ["kafka", "balanced_kafka"])
def test_rows_that_arrive_while_a_micro_batch_hangs_are_counted_and_their_wait_is_timed(
    broker: Broker, spark_kafka: str, tmp_path: Path, kind: str
) -> None:
    topic, output = f"lag-{kind}", tmp_path / "out"
    broker.create({topic: 2})
    send(broker.servers, txn_events(2, 5, 4, topic))
    with output.open("w") as out, (tmp_path / "errors").open("w") as errors:
        query = subprocess.Popen(
            [sys.executable, "-c", QUERY, broker.servers, spark_kafka, topic, kind, str(tmp_path)],
            stdin=subprocess.PIPE, stdout=out, stderr=errors, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip

    def seen() -> list[list[object]]:
        assert query.poll() is None, (tmp_path / "errors").read_text()[-2000:]
        return [json.loads(line) for line in output.read_text().splitlines()]

    def last_rows() -> object:
        progress = seen()
        return progress[-1][1].get(topic) if progress and isinstance(progress[-1][1], dict) else None

    try:
        first = int(sum(1 for _ in txn_events(2, 5, 4, topic)))
        if kind == "kafka":  # before the very first micro-batch has ended, too
            wait_until(lambda: last_rows() == first, 240)
        (tmp_path / "go0").touch()
        wait_until(lambda: last_rows() == 0, 240)
        send(broker.servers, txn_events(2, 5, 4, topic))
        wait_until(lambda: last_rows() == first, 60)
        send(broker.servers, txn_events(2, 5, 4, topic))
        wait_until(lambda: last_rows() == 2 * first, 60)
        name, _, seconds, partitions = seen()[-1]
        assert name == "source.lagged"
        assert isinstance(seconds, dict)
        assert 0.4 < seconds[topic] < 60
        assert isinstance(partitions, dict)
        assert sorted(partitions) == ["0", "1"]
        broker.kill()
        wait_until(lambda: seen()[-1][0] == "source.unknown", 60)
        broker.start()
        wait_until(lambda: last_rows() == 2 * first, 60)
    finally:
        for number in range(9):
            (tmp_path / f"go{number}").touch()
        if query.stdin is not None:
            query.stdin.close()
        try:
            query.wait(30)
        finally:
            query.kill()
            query.wait()
