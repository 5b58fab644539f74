"""The balanced reader on a real broker: one event time for all partitions, exact offsets, restarts, what goes wrong."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from starrocks_emulator.server import Emulator
from starrocks_spark_stages.balanced.reader import BalancedKafka
from starrocks_txn_sink import Receipt, SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.compiled.library import PURE
from starrocks_txn_sink.sources.kafka.skew import skew_of
from starrocks_txn_sink.telemetry import Event
from tests.kafka.broker import Broker
from tests.support.query_port import query as ask
from tests.support.servers import place_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

T0 = 1_700_000_000_000


class Reading:
    """A topic of its own, a query over it, and the rows of its micro-batches in the order in which they came."""

    def __init__(self, spark: SparkSession, broker: Broker, home: Path) -> None:
        spark.dataSource.register(BalancedKafka)
        self.spark, self.broker, self.home = spark, broker, home
        self.topics = [f"t{uuid.uuid4().hex[:8]}", f"t{uuid.uuid4().hex[:8]}"]
        self.batches: list[list[Row]] = []
        self.queries: list[StreamingQuery] = []
        self.producer = self.new_producer()

    def new_producer(self) -> Producer:
        # Without idempotence a batch that a new topic's leader refuses at first lands behind the one after it.
        return Producer({"bootstrap.servers": self.broker.servers, "enable.idempotence": True, "log_level": 0})

    def put(self, topic: int, partition: int, *times: int, value: str = "x") -> None:
        for at in times:
            self.producer.produce(
                self.topics[topic], value.encode(), partition=partition, timestamp=T0 + at, on_delivery=_arrived
            )
            self.producer.poll(0)
        assert self.producer.flush(60) == 0

    def start(self, now: bool = True, **options: Any) -> StreamingQuery:
        settings = {"kafka.bootstrap.servers": self.broker.servers, "subscribe": ",".join(self.topics)}
        settings |= {name: str(value) for name, value in options.items()}
        if "subscribePattern" in settings:
            del settings["subscribe"]
        frame = self.spark.readStream.format("balanced_kafka").options(**settings).load()
        writer = frame.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.home / "checkpoint"))
        query = (writer.trigger(availableNow=True) if now else writer).start()
        self.queries.append(query)
        return query

    def run(self, **options: Any) -> None:
        query = self.start(**options)
        assert query.awaitTermination(300)

    def take(self, batch: DataFrame, _: int) -> None:
        rows = batch.collect()
        if rows:
            self.batches.append(rows)

    def times(self) -> list[list[int]]:
        return [[_milliseconds(row) for row in batch] for batch in self.batches]

    def places(self) -> list[tuple[str, int, int]]:
        return [(row.topic, row.partition, row.offset) for batch in self.batches for row in batch]


def _arrived(error: Any, _: Any) -> None:
    assert error is None, error


def _milliseconds(row: Row) -> int:
    at: float = row.timestamp.timestamp()
    return round(at * 1000) - T0


@pytest.fixture
def reading(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Reading]:
    running = Reading(spark, broker, tmp_path)
    broker.create({running.topics[0]: 2, running.topics[1]: 1})
    yield running
    for query in running.queries:
        query.stop()


def test_every_batch_ends_at_one_time_on_all_partitions_of_all_topics(reading: Reading) -> None:
    """A dense, a sparse and a bursty partition, over two topics; a restart in between."""
    reading.put(0, 0, *range(0, 3000, 2))
    reading.put(0, 1, *range(0, 3000, 100))
    reading.put(1, 0, *[1500] * 400, 2999)
    reading.run(max_rows=500)
    times = reading.times()
    assert len(times) >= 4
    assert all(batch == sorted(batch) for batch in times)
    assert all(len(batch) <= 500 for batch in times)
    assert [(before[-1], after[0]) for before, after in itertools.pairwise(times) if before[-1] > after[0]] == []
    reading.put(0, 0, 4000, 4001)
    reading.run(max_rows=500)
    assert [t - 4000 for t in reading.times()[-1]] == [0, 1]
    assert sorted(reading.places()) == sorted(
        [(reading.topics[0], 0, n) for n in range(1502)]
        + [(reading.topics[0], 1, n) for n in range(30)]
        + [(reading.topics[1], 0, n) for n in range(401)]
    )


def test_partitions_and_topics_that_appear_while_it_runs_are_read_from_their_first_row(reading: Reading) -> None:
    first = reading.topics[0]
    reading.put(0, 0, 0, 10)
    reading.put(0, 1, 5)
    query = reading.start(now=False, subscribePattern=f"{first}.*", idle_timeout=1)
    wait_until(lambda: len(reading.places()) == 3 or not query.isActive)
    reading.broker.add_partitions(first, 3)
    reading.topics.append(f"{first}-more")
    reading.broker.create({reading.topics[-1]: 1})
    reading.producer = reading.new_producer()  # the old one does not know the new partition yet
    reading.put(0, 2, 20, 21, 22)
    reading.put(-1, 0, 20, 25)
    wait_until(lambda: len(reading.places()) >= 8 or not query.isActive)
    old = [(first, 0, 0), (first, 0, 1), (first, 1, 0)]
    assert sorted(reading.places()) == sorted(
        [*old, *((first, 2, n) for n in range(3)), *((reading.topics[-1], 0, n) for n in range(2))]
    )
    assert query.exception() is None


def test_the_first_start_by_partition_and_by_time(reading: Reading) -> None:
    first, second = reading.topics
    reading.put(0, 0, *range(10))
    reading.put(0, 1, *range(10))
    reading.put(1, 0, *range(10))
    starts = {first: {"0": 7, "1": -2}, second: {"0": -1}}
    reading.run(startingOffsets=json.dumps(starts))
    assert sorted(reading.places()) == sorted(
        [*((first, 0, n) for n in (7, 8, 9)), *((first, 1, n) for n in range(10))]
    )
    reading.batches.clear()
    reading.home = reading.home / "by-time"
    reading.run(startingTimestamp=T0 + 8)
    assert sorted(reading.places()) == sorted(
        (*place, n) for place in ((first, 0), (first, 1), (second, 0)) for n in (8, 9)
    )
    reading.home = reading.home / "incomplete"
    with pytest.raises(PySparkException, match=f"differ in partition 0 of topic {second}"):
        reading.run(startingOffsets=json.dumps({first: starts[first]}))


def test_lanes_read_the_balanced_offsets_themselves(reading: Reading, server: Emulator) -> None:
    """Each micro-batch ends at one event time, and the lanes read it by partition; also a partition that is new."""
    ask(server, "CREATE TABLE shop.plain (id BIGINT NOT NULL) DUPLICATE KEY(id)")
    sent = itertools.count()

    def transaction(topic: int, partition: int, at: int) -> None:
        number = next(sent)
        row = json.dumps({"id": number})
        for event in ({"type": "BEGIN"}, {"type": "DATA", "table": "plain", "row": row}, {"type": "END"}):
            reading.put(topic, partition, at, value=json.dumps({**event, "txn_id": str(number)}))

    options = SinkOptions(**place_of(server), job="balanced", lanes=2)
    receipts: list[Receipt] = []

    def listen(event: Event) -> None:
        if event.name == "receipt.collected":
            receipts.append(event.fields["receipt"])

    for at in range(0, 60, 10):
        transaction(0, 0, at)
    transaction(0, 1, 30)
    transaction(1, 0, 50)
    assembly = TransactionAssembly(lines=TxnEventLines(reader="librdkafka"))
    for step in range(2):
        sink = StarRocksSink(options, assemble=assembly, listener=listen)
        reading.take = lambda batch, number, sink=sink: sink(batch, number)  # type: ignore[method-assign, misc]
        reading.run(max_rows=9, includeHeaders=step == 1)
        written = [number for (number,) in ask(server, "SELECT id FROM shop.plain ORDER BY id")]
        assert written == list(range(next(sent))), step
        if step == 0:
            assert len(receipts) > 1
            reading.broker.add_partitions(reading.topics[0], 3)
            reading.producer = reading.new_producer()
            sent = itertools.count(len(written))
            transaction(0, 2, 70)
            transaction(1, 0, 70)


def test_the_columns_are_those_of_sparks_own_source(reading: Reading) -> None:
    reading.put(0, 0, 5, value="ü")
    reading.run()
    (row,) = reading.batches[0]
    assert row.__fields__ == ["key", "value", "topic", "partition", "offset", "timestamp"]
    assert (row.key, bytes(row.value).decode(), row.topic, row.partition, row.offset) == (
        None, "ü", reading.topics[0], 0, 0
    )  # fmt: skip


BOTH_SOURCES = """
import json, sys

from pyspark.sql import SparkSession, functions as F

from starrocks_spark_stages.balanced.reader import BalancedKafka

servers, jars, topic, home = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", jars)
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(BalancedKafka)


def take(batch, number):
    rows.extend(batch.drop("timestampType").collect())


for kind in ("kafka", "balanced_kafka"):
    rows, options = [], {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    frame = spark.readStream.format(kind).options(startingOffsets="earliest", **options).load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", f"{home}/{kind}")
    writer.trigger(availableNow=True).start().awaitTermination()
    rows.sort(key=lambda row: (row.partition, row.offset))
    print(json.dumps([frame.schema["headers"].dataType.simpleString(), *map(repr, rows)]))
"""


def test_headers_are_those_of_sparks_own_source(reading: Reading, spark_kafka: str, tmp_path: Path) -> None:
    """None, one without a value, one with an empty value, several of one name, in both sources; here also by PURE."""
    topic = reading.topics[0]
    headers: list[list[tuple[str, str | bytes | None]] | None] = [
        None,
        [],
        [("a", None)],
        [("ü", b"")],
        [("a", b"\x00\xff"), ("b", "ü"), ("a", b"2")],
    ]
    for number in range(1000):
        reading.producer.produce(
            topic, b"%d" % number, partition=number % 2, timestamp=T0 + number, headers=headers[number % 5]
        )
    assert reading.producer.flush(60) == 0
    for pure in ("0", "1"):
        command = [sys.executable, "-c", BOTH_SOURCES, reading.broker.servers, spark_kafka, topic, str(tmp_path / pure)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, PURE: pure}
        process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert process.returncode == 0, process.stderr[-2000:]
        of_spark, ours = map(json.loads, process.stdout.splitlines())
        assert ours == of_spark
        assert (len(ours), ours[0]) == (1001, "array<struct<key:string,value:binary>>")
        assert sum("headers=None" in row for row in ours) == 400


def test_slices_of_several_tasks_are_in_order_of_time(reading: Reading) -> None:
    reading.put(0, 0, *range(40_000))
    reading.put(1, 0, *range(0, 40_000, 2))
    reading.run(tasks=3, max_rows=100_000)
    (times,) = reading.times()
    assert (len(times), times == sorted(times)) == (60_000, True)


def test_a_partition_that_falls_silent_holds_the_others_back_only_for_a_while(reading: Reading) -> None:
    reading.put(0, 0, 1, 2, 3)
    reading.put(0, 1, 1)
    reading.put(1, 0, 2)
    reading.start(now=False, idle_timeout=4)
    wait_until(lambda: bool(reading.batches))
    assert reading.times()[0] == [1, 1]
    wait_until(lambda: len(reading.places()) == 5)
    reading.put(0, 1, 2, 9)  # back, and late: handed on at once
    wait_until(lambda: len(reading.places()) >= 6)
    assert 2 in reading.times()[-1]


def test_skew_and_rows_held_back_are_in_the_progress(reading: Reading) -> None:
    reading.put(0, 0, *range(0, 10_000, 10))
    reading.put(0, 1, 500)
    reading.put(1, 0, 9000)
    query = reading.start(now=False, idle_timeout=600)
    wait_until(lambda: query.lastProgress is not None and bool(reading.batches))
    wait_until(lambda: skew_of(query.recentProgress[-1].sources[0]).read_until is not None)
    skew = skew_of(query.recentProgress[-1].sources[0])
    assert skew.read_until == (T0 + 500) / 1000
    assert skew.seconds == pytest.approx(9.49, abs=0.001)
    assert skew.held_back == {f"{reading.topics[0]}-0": 949, f"{reading.topics[0]}-1": 0, f"{reading.topics[1]}-0": 1}
    assert skew.held_back_rows == 950


def test_bytes_are_limited_by_samples(reading: Reading) -> None:
    reading.put(0, 0, *range(400), value="x" * 1000)
    reading.run(max_bytes=100_000)
    sizes = [sum(len(row.value) for row in batch) for batch in reading.batches]
    assert sum(sizes) == 400_000
    assert all(size <= 101_000 for size in sizes)


def test_of_kafka_transactions_committed_rows_come_and_open_ones_hold_nobody_up(reading: Reading) -> None:
    """The other partitions' rows and those before the open transaction come at once, although the row with the highest
    event time is in it; the markers at the end of each transaction have offsets, but are no rows."""
    producer = Producer({"bootstrap.servers": reading.broker.servers, "transactional.id": reading.topics[0]})
    producer.init_transactions(60)

    def put(*times: int) -> None:
        producer.begin_transaction()
        for at in times:
            producer.produce(reading.topics[0], b"x", partition=0, timestamp=T0 + at)
        producer.flush(60)

    put(1, 2, 3)
    producer.commit_transaction(60)
    put(100)
    producer.abort_transaction(60)
    reading.put(0, 1, 2, 3)
    reading.put(1, 0, 3)
    put(200, 201)
    reading.run()
    assert sorted(itertools.chain(*reading.times())) == [1, 2, 2, 3, 3, 3]
    producer.commit_transaction(60)
    reading.run()
    assert reading.times()[-1] == [200, 201]
    query = reading.start(now=False, idle_timeout=600)
    put(int(time.time() * 1000) - T0 + 1_800_000)  # the newest of all, markers too, and out of reach
    reading.put(0, 1, 201)
    reading.put(1, 0, 201)
    wait_until(lambda: len(reading.places()) == 10)
    producer.commit_transaction(60)
    query.stop()


def test_a_recreated_topic_is_noticed(reading: Reading) -> None:
    reading.put(0, 0, *range(50))
    reading.run()
    reading.broker.delete(reading.topics[0])
    wait_until(lambda: _created(reading))
    reading.put(0, 0, 1)
    with pytest.raises(PySparkException, match=r"ends before the offset already read.*offset=50"):
        reading.run()


def test_a_topic_that_is_not_there_is_named(reading: Reading) -> None:
    reading.broker.delete(reading.topics[1])
    with pytest.raises(PySparkException, match=f"no topic {reading.topics[1]}"):
        reading.run()


def test_a_topic_that_is_deleted_while_it_is_read_stops_the_query(reading: Reading) -> None:
    reading.put(0, 0, *range(50))
    query = reading.start(now=False, idle_timeout=1)
    wait_until(lambda: len(reading.places()) == 50)
    reading.broker.delete(reading.topics[0])
    wait_until(lambda: not query.isActive)
    assert "no topic" in str(query.exception()) or "no longer exists" in str(query.exception())


def test_a_broker_that_is_away_for_a_minute_costs_only_time(reading: Reading) -> None:
    reading.put(0, 0, *range(100))
    reading.start(now=False, idle_timeout=1)
    wait_until(lambda: len(reading.places()) == 100)
    reading.broker.kill()
    time.sleep(60)
    reading.broker.start()
    reading.put(0, 0, *range(200, 300))
    wait_until(lambda: len(reading.places()) == 200)
    assert len(set(reading.places())) == 200


def _created(reading: Reading) -> bool:
    try:
        reading.broker.create({reading.topics[0]: 2})
    except Exception:  # the old one is still being deleted
        return False
    return True
