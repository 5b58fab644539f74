"""What comes wrong through a real broker: a clear error or the stated policy, counted, and nothing lost."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from starrocks_emulator.process import EmulatorProcess
from starrocks_spark_stages.balanced.reader import BalancedKafka
from starrocks_txn_sink import SinkOptions, StarRocksSink, assemble_debezium, assemble_transactions
from starrocks_txn_sink.sources import parse_debezium, parse_debezium_transactions, parse_txn_events
from tests.crash.workload import Verdict, judge
from tests.kafka.broker import Broker
from tests.kafka.query_process import QueryProcess
from tests.kafka.shop import DATABASE, Shop
from tests.kafka.workload import Message, expected, send, txn_events
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

LETTERS = (
    f"CREATE TABLE {DATABASE}.letters (txn_id VARCHAR(64), total_order BIGINT, collection STRING, position BIGINT,"
    " reason STRING, op STRING, content STRING) DUPLICATE KEY(txn_id) DISTRIBUTED BY HASH(txn_id)"
)


class Flow:
    """Topics of its own → balanced reading → assembler → sink → emulator."""

    def __init__(self, spark: SparkSession, broker: Broker, starrocks: EmulatorProcess, home: Path) -> None:
        spark.dataSource.register(BalancedKafka)
        self.spark, self.broker, self.home = spark, broker, home
        self.shop = Shop(starrocks)
        self.name = f"f{uuid.uuid4().hex[:8]}"
        self.queries: list[StreamingQuery] = []

    def read(self, **topics: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.broker.servers, "idle_timeout": "1", **topics}
        return self.spark.readStream.format("balanced_kafka").options(**options).load()

    def write(self, rows: DataFrame, now: bool = True) -> StreamingQuery:
        writer = rows.writeStream.foreachBatch(StarRocksSink(SinkOptions(**self.shop.options(self.name))))
        writer = writer.option("checkpointLocation", str(self.home / "checkpoint"))
        self.queries.append((writer.trigger(availableNow=True) if now else writer).start())
        return self.queries[-1]


@pytest.fixture
def flow(spark: SparkSession, broker: Broker, starrocks: EmulatorProcess, tmp_path: Path) -> Iterator[Flow]:
    running = Flow(spark, broker, starrocks, tmp_path)
    yield running
    for query in running.queries:
        query.stop()


def put(servers: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("bad", [b'{"type": "DATA", secret', b'["secret"]', b""])
def test_what_is_no_event_fails_with_its_place_or_is_left_out(flow: Flow, bad: bytes) -> None:
    flow.broker.create({flow.name: 2})
    send(flow.broker.servers, txn_events(2, 2, 3, flow.name))
    put(flow.broker.servers, flow.name, bad)
    topic = flow.read(subscribe=flow.name)
    with pytest.raises(PySparkException, match="source_partition=0 position=10") as failed:
        flow.write(assemble_transactions(parse_txn_events(topic))).awaitTermination()
    assert "secret" not in str(failed.value)
    assert flow.shop.seen() == []
    query = flow.write(assemble_transactions(parse_txn_events(topic, on_malformed="drop")))
    assert query.awaitTermination(300)
    assert judge(flow.shop.seen(), expected(2, 2)) == Verdict()
    assert _observed(query, "parse_txn_events")["malformed"] == 1


def test_what_does_not_add_up_is_quarantined_and_counted_and_the_others_go_on(flow: Flow) -> None:
    """Transactions 2 (no END), 3 (a count too high) and 4 (too low) between two good ones."""
    changes, markers = f"{flow.name}.public.debits", f"{flow.name}.transaction"
    flow.broker.create({changes: 2, markers: 1})
    flow.shop.ask(LETTERS)
    counts = {1: 2, 2: None, 3: 3, 4: 1, 5: 2}
    send(flow.broker.servers, (event for n, count in counts.items() for event in _transaction(flow.name, n, count)))
    rows = parse_debezium(flow.read(subscribe=changes), on_unknown_table="dead_letter", dead_letter_table="letters")
    ends = parse_debezium_transactions(flow.read(subscribe=markers))
    whole = assemble_debezium(rows, ends, open_timeout="3 seconds", dead_letter_table="letters")
    query = flow.write(whole, now=False)
    letters = f"SELECT txn_id, COUNT(*) FROM {DATABASE}.letters GROUP BY txn_id ORDER BY txn_id"

    def given_up() -> bool:
        """Events move the time of open_timeout on: here the BEGIN of a transaction that does not go on."""
        send(flow.broker.servers, islice(_transaction(flow.name, 6, None), 1))
        return len(flow.shop.seen()) == 2 and len(flow.shop.ask(letters)) == 3

    wait_until(given_up)
    assert judge(flow.shop.seen(), {("part-0", 1), ("part-0", 5)}) == Verdict()
    assert flow.shop.ask(letters) == [("702", 2), ("703", 2), ("704", 2)]
    wait_until(lambda: _observed(query)["quarantined"] == 3)
    observed = _observed(query)
    assert (observed["data"], observed["rows"], observed["released"], observed["quarantined_rows"]) == (10, 4, 2, 6)


def _task(broker: Broker, jars: str, folder: Path, topic: str, **more: Any) -> dict[str, Any]:
    """A query over one topic of TxnEvents."""
    return {
        "servers": broker.servers,
        "jars": jars,
        "folder": str(folder / "spark"),
        "checkpoint": str(folder / "checkpoint"),
        "format": "events",
        "topic": topic,
        "per_trigger": 100,
        **more,
    }


def test_sparks_own_source_a_recreated_topic_and_a_checkpoint_that_is_gone(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    shop, topic = Shop(starrocks), f"f{uuid.uuid4().hex[:8]}"
    task = _task(broker, spark_kafka, tmp_path, topic, options=shop.options("anew"))
    broker.create({topic: 1})
    send(broker.servers, txn_events(1, 20, 3, topic))
    QueryProcess(task).finish(300)
    QueryProcess({**task, "checkpoint": str(tmp_path / "another")}).finish(300)
    assert judge(shop.seen(), expected(1, 20)) == Verdict()  # all of it came again, none of it was written again
    broker.delete(topic)
    wait_until(lambda: _created(broker, topic))
    send(broker.servers, txn_events(1, 2, 3, topic))
    with pytest.raises(AssertionError, match=r"data may have been (lost|missed)"):
        QueryProcess(task).finish(300)
    assert judge(shop.seen(), expected(1, 20)) == Verdict()


@pytest.mark.parametrize("reader", ["librdkafka", "spark"])
def test_a_recreated_topic_that_is_longer_stops_the_query_until_it_has_another_job_and_checkpoint(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path, reader: str
) -> None:
    """Spark finds its offsets in the new topic, whose records in front of them it would never read."""
    shop, topic = Shop(starrocks), f"l{uuid.uuid4().hex[:8]}"
    lanes = {"assemble": "lanes", "reader": reader}
    task = _task(broker, spark_kafka, tmp_path, topic, options=shop.options("longer"), **lanes)
    broker.create({topic: 1})
    send(broker.servers, txn_events(1, 20, 3, topic))
    QueryProcess(task).finish(300)
    broker.delete(topic)
    wait_until(lambda: _created(broker, topic))
    send(broker.servers, txn_events(1, 60, 3, topic))
    with pytest.raises(AssertionError, match=r"was deleted and made again.*another `job` and a new checkpoint"):
        QueryProcess(task).finish(300)
    assert judge(shop.seen(), expected(1, 20)) == Verdict()
    QueryProcess({**task, "checkpoint": str(tmp_path / "another"), "options": shop.options("later")}).finish(300)
    assert judge(shop.seen(), expected(1, 60)) == Verdict(duplicated=20)  # what both topics have: the table has no key


def _transaction(prefix: str, number: int, count: int | None) -> Iterator[Message]:
    """Two rows, and an END that says `count` unless it is None."""
    changes, markers = f"{prefix}.public.debits", f"{prefix}.transaction"
    xid, lsn = 700 + number, 1000 * number
    yield Message(markers, 0, {"status": "BEGIN", "id": f"{xid}:{lsn}"}, number)
    source = {"connector": "postgresql", "name": prefix, "schema": "public", "table": "debits"}
    for seq in range(2):
        row = {"part": "part-0", "position": number, "seq": seq, "size": 2}
        transaction = {"id": f"{xid}:{lsn + seq}", "total_order": seq + 1}
        value = {"before": None, "after": row, "source": source | {"lsn": lsn + seq}, "op": "c"}
        yield Message(changes, seq, value | {"transaction": transaction}, number)
    if count is not None:
        collections = [{"data_collection": "public.debits", "event_count": count}]
        end = {"status": "END", "id": f"{xid}:{lsn + 2}", "event_count": count, "data_collections": collections}
        yield Message(markers, 0, end, number)


def _observed(query: StreamingQuery, name: str = "assemble_debezium") -> Counter[str]:
    metrics: Counter[str] = Counter()
    for progress in query.recentProgress:
        if name in progress.observedMetrics:
            metrics.update(progress.observedMetrics[name].asDict())
    return metrics


def _created(broker: Broker, topic: str) -> bool:
    try:
        broker.create({topic: 1})
    except Exception:  # the old one is still being deleted
        return False
    return True
