"""Real Kafka → parse → assemble → sink → emulator, with the broker restarted and the driver killed on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from starrocks_emulator.process import EmulatorProcess
from tests.crash.workload import TABLES, Verdict, judge
from tests.kafka import endurance
from tests.kafka.broker import Broker
from tests.kafka.query_process import QueryProcess
from tests.kafka.shop import Shop
from tests.kafka.workload import CHANGES, EVENTS, MARKERS, PART, Message, debezium, expected, send, txn_events
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Run:
    """One query over several lives, and what the tables show."""

    def __init__(self, broker: Broker, starrocks: EmulatorProcess, jars: str, home: Path, kind: str) -> None:
        self.shop = Shop(starrocks)
        self.task = {
            "servers": broker.servers,
            "jars": jars,
            "folder": str(home / "spark"),
            "checkpoint": str(home / "checkpoint"),
            "format": kind,
            "per_trigger": 300,
            "options": self.shop.options(kind),
        }

    def until_some(self, query: QueryProcess) -> None:
        """Wait until the query has written something; what is there must be whole."""
        wait_until(lambda: bool(self.shop.seen()) or not query.running)
        assert query.running, query.messages()
        assert judge(self.shop.seen()) == Verdict()


def test_txn_events_over_a_restarted_broker_and_a_killed_driver(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    partitions, transactions = 4, 50
    broker.create({EVENTS: partitions})
    send(broker.servers, txn_events(partitions, transactions, 4))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    query = QueryProcess(run.task)
    try:
        run.until_some(query)
        broker.kill()
        broker.start()
    finally:
        query.kill()
    QueryProcess(run.task).finish(400)
    assert judge(run.shop.seen(), expected(partitions, transactions)) == Verdict()


@pytest.mark.parametrize(
    ("source", "assemble", "reader"),
    [("balanced_kafka", "lanes", "spark"), ("kafka", "stage", "spark"), ("kafka", "lanes", "librdkafka")],
)
def test_sixty_partitions_while_events_come_over_a_restarted_broker_and_a_killed_driver(
    broker: Broker,
    starrocks: EmulatorProcess,
    spark_kafka: str,
    tmp_path: Path,
    source: str,
    assemble: str,
    reader: str,
) -> None:
    plan = endurance.Plan(60, 50, per_trigger=3000, source=source, assemble=assemble, reader=reader)
    messages: list[str] = []
    last, watcher = endurance.run(broker, starrocks, spark_kafka, tmp_path, plan, messages.append)
    assert last == endurance.Look(3000, 0, 0, 60, 1, 50)
    assert (watcher.worst, watcher.looks > 0, len(messages)) == (None, True, 2)


@pytest.mark.parametrize(("assemble", "reader"), [("stage", "spark"), ("lanes", "librdkafka")])
def test_debezium_rows_and_ends_of_many_partitions_over_a_killed_driver(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path, assemble: str, reader: str
) -> None:
    transactions, prefix = 100, f"in-{assemble}"
    broker.create({f"{CHANGES.format(prefix)}.{table}": 3 for table in TABLES} | {MARKERS.format(prefix): 1})
    send(broker.servers, debezium(transactions, 5, 3, Random(7), prefix))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "debezium")
    task = run.task | {"assemble": assemble, "reader": reader, "prefix": prefix}
    query = QueryProcess(task)
    try:
        run.until_some(query)
    finally:
        query.kill()
    QueryProcess(task).finish(400)
    assert judge(run.shop.seen(), expected(1, transactions)) == Verdict()


def plain(message: Message) -> Message:
    """The message as a connector without transaction metadata writes it; a marker stays."""
    value = message.value or {}
    return replace(message, value={**value, "transaction": None}) if "op" in value else message


@pytest.mark.parametrize("reader", ["librdkafka", "spark"])
def test_debezium_changes_without_metadata_are_written_once_by_several_lanes_over_a_killed_driver(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path, reader: str
) -> None:
    transactions, prefix = 150, f"alone-{reader}"
    broker.create({f"{CHANGES.format(prefix)}.{table}": 3 for table in TABLES} | {MARKERS.format(prefix): 1})
    twice = debezium(transactions, 5, 3, Random(7), prefix)
    send(broker.servers, (plain(message) for message in {id(message): message for message in twice}.values()))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "debezium")
    task = run.task | {"assemble": "lanes", "reader": reader, "prefix": prefix, "transactions": "none"}
    task |= {"options": run.shop.options("debezium") | {"lanes": 2}}
    query = QueryProcess(task)
    try:
        wait_until(lambda: bool(run.shop.seen()) or not query.running)
    finally:
        query.kill()
    last = QueryProcess(task)
    last.finish(400)
    assert judge(run.shop.seen(), expected(1, transactions)) == Verdict()
    assert positions(run) == sorted(
        f"{CHANGES.format(prefix)}.{table}-{number}" for table in TABLES for number in range(3)
    )
    if reader == "librdkafka":
        assert "lanes: 2" in last.messages()


@pytest.mark.parametrize("transactions", ["whole", "none"])
def test_a_table_and_partitions_that_come_while_the_query_runs_are_read(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path, transactions: str
) -> None:
    prefix = f"grows-{transactions}"
    first, second = (f"{CHANGES.format(prefix)}.{table}" for table in TABLES)
    broker.create({first: 1, MARKERS.format(prefix): 1})
    run = Run(broker, starrocks, spark_kafka, tmp_path, "debezium")
    task = run.task | {"assemble": "lanes", "reader": "librdkafka", "prefix": prefix, "transactions": transactions}

    def whole(expected: set[tuple[str, int]]) -> bool:
        return judge(run.shop.seen(), expected) == Verdict()

    def sent(upto: int, size: int, partitions: int) -> Iterator[Message]:
        twice = debezium(upto, size, partitions, Random(7), prefix)
        once = {id(message): message for message in twice if message.at > upto - 20}.values()
        return (plain(message) if transactions == "none" else message for message in once)

    send(broker.servers, sent(20, 1, 1))
    query = QueryProcess(task | {"trigger": "200 milliseconds"})
    try:
        wait_until(lambda: whole(expected(1, 20)), alive=lambda: query.running, reason=query.messages)
        broker.add_partitions(first, 3)
        broker.create({second: 2})
        send(broker.servers, sent(40, 4, 2))
        wait_until(lambda: whole(expected(1, 40)), alive=lambda: query.running, reason=query.messages)
    finally:
        query.kill()


def test_debezium_changes_without_metadata_are_written_in_rounds_over_a_killed_driver(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    """One micro-batch has all offsets. Each round ends behind the messages that its lanes have parsed at once."""
    transactions, prefix = 20_000, "alone-in-rounds"
    broker.create({f"{CHANGES.format(prefix)}.{table}": 1 for table in TABLES} | {MARKERS.format(prefix): 1})
    twice = debezium(transactions, 5, 1, Random(7), prefix)
    send(broker.servers, (plain(message) for message in {id(message): message for message in twice}.values()))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "debezium")
    task = run.task | {"assemble": "lanes", "reader": "librdkafka", "prefix": prefix, "transactions": "none"}
    task |= {
        "options": run.shop.options("debezium") | {"lanes": 2, "commit_interval": 0.001},
        "per_trigger": 10_000_000,
    }
    query = QueryProcess(task)
    try:
        wait_until(lambda: bool(run.shop.seen()) or not query.running)
    finally:
        query.kill()
    QueryProcess(task).finish(400)
    assert judge(run.shop.seen(), expected(1, transactions)) == Verdict()
    visible = "SELECT count(DISTINCT LABEL) FROM information_schema.loads WHERE DB_NAME = 'shop' AND STATE = 'FINISHED'"
    assert run.shop.ask(visible)[0][0] > 1


@pytest.mark.parametrize("lanes", [1, 2])
def test_lanes_that_read_kafka_write_all_rows_once_and_tell_spark_how_many(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path, lanes: int
) -> None:
    partitions, transactions, topic = 3, 50, f"direct-{lanes}"
    broker.create({topic: partitions})
    events = list(txn_events(partitions, transactions, 4, topic))
    send(broker.servers, iter(events))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    task = run.task | {"topic": topic, "assemble": "lanes", "reader": "librdkafka", "options_of_kafka": False}
    query = QueryProcess(task | {"options": run.shop.options("events") | {"lanes": lanes}})
    query.finish(400)
    assert judge(run.shop.seen(), expected(partitions, transactions)) == Verdict()
    assert f"input rows: {len(events)}" in query.messages()
    assert "source.slow" not in query.messages()


def part(number: int, first: int, last: int, topic: str, partition: int) -> Iterator[Message]:
    """The transactions `first` to `last` of one part, in a partition of a topic."""
    for event in txn_events(number + 1, last, 4):
        if event.partition == number and event.at >= 1_700_000_000_000 + first:
            yield replace(event, topic=topic, partition=partition)


def numbers(number: int, last: int) -> set[tuple[str, int]]:
    return {(PART.format(number), place) for place in range(1, last + 1)}


def positions(run: Run) -> list[str]:
    """The source partitions of the ledger."""
    sql = "SELECT DISTINCT name FROM shop._starrocks_txn_sink_ledger WHERE kind = 'position' ORDER BY name"
    return [str(name) for (name,) in run.shop.ask(sql)]


@pytest.mark.parametrize("reader", ["librdkafka", "spark"])
def test_partitions_of_several_topics_are_told_apart_also_when_their_rows_never_meet(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path, reader: str
) -> None:
    """The second topic's rows come later, at offsets that the first has passed; and it gets another partition."""
    a, b = f"a-{reader}", f"b-{reader}"
    broker.create({a: 1, b: 1})
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    task = run.task | {"topic": f"{a},{b}", "assemble": "lanes", "reader": reader}
    send(broker.servers, part(0, 1, 40, a, 0))
    QueryProcess(task).finish(400)
    assert judge(run.shop.seen(), numbers(0, 40)) == Verdict()
    broker.add_partitions(b, 2)
    send(broker.servers, chain(part(1, 1, 30, b, 0), part(2, 1, 30, b, 1)))
    QueryProcess(task).finish(400)
    assert judge(run.shop.seen(), numbers(0, 40) | numbers(1, 30) | numbers(2, 30)) == Verdict()
    assert positions(run) == [f"{a}-0", f"{b}-0", f"{b}-1"]


def test_a_second_topic_is_refused_before_a_row_is_lost_and_the_way_out_works(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    """A pattern that matches one topic at first; the state of that topic has its partitions by their numbers."""
    broker.create({"grown-a": 1})
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    task = run.task | {"pattern": "grown-.*", "assemble": "lanes", "reader": "librdkafka"}
    first = list(part(0, 1, 40, "grown-a", 0))
    send(broker.servers, iter(first[:-3]))  # the last source transaction stays open
    QueryProcess(task).finish(400)
    assert judge(run.shop.seen(), numbers(0, 39)) == Verdict()
    broker.create({"grown-b": 1})
    send(broker.servers, chain(first[-3:], part(1, 1, 40, "grown-b", 0)))
    refused = QueryProcess(task)
    with pytest.raises(AssertionError):
        refused.finish(400)
    assert "The query reads several topics (grown-a, grown-b)" in refused.messages()
    assert judge(run.shop.seen(), numbers(0, 39)) == Verdict()
    QueryProcess(task | {"old_topic": "grown-a"}).finish(400)
    assert judge(run.shop.seen(), numbers(0, 40) | numbers(1, 40)) == Verdict()
    assert positions(run) == ["0", "grown-b-0"]


def test_a_backlog_that_outlives_the_timeout_is_written_in_rounds_over_a_killed_driver(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    """One micro-batch has all offsets, and slow loads make it several times as long as a label lives."""
    partitions, transactions, topic = 2, 18_000, "backlog"
    broker.create({topic: partitions})
    send(broker.servers, txn_events(partitions, transactions, 8, topic))
    starrocks.faults({"rules": [{"operation": "load", "listener": "be", "action": "delay", "seconds": 0.6}]})
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    small = {"lanes": 1, "timeout": 20, "buffer_bytes": 400_000, "chunk_bytes": 200_000, "load_bytes": 200_000}
    task = run.task | {"topic": topic, "assemble": "lanes", "reader": "librdkafka", "per_trigger": 10_000_000}
    task |= {"options": run.shop.options("events") | small}
    query = QueryProcess(task)
    try:
        run.until_some(query)
    finally:
        query.kill()
    QueryProcess(task).finish(400)
    assert judge(run.shop.seen(), expected(partitions, transactions)) == Verdict()
    visible = "SELECT count(DISTINCT LABEL) FROM information_schema.loads WHERE DB_NAME = 'shop' AND STATE = 'FINISHED'"
    assert run.shop.ask(visible)[0][0] > 1


def test_a_small_micro_batch_has_one_lane_and_a_query_may_start_again_with_the_same_sink(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    partitions, transactions = 3, 50
    broker.create({"restarted": partitions})
    send(broker.servers, txn_events(partitions, transactions, 4, "restarted"))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    task = run.task | {"topic": "restarted", "assemble": "lanes", "reader": "librdkafka", "restarted": True}
    query = QueryProcess(task | {"per_trigger": 200})
    query.finish(400)
    assert judge(run.shop.seen(), expected(partitions, transactions)) == Verdict()
    lanes = [line for line in query.messages().splitlines() if line.startswith("lanes: ")]
    assert len(lanes) > 2
    assert set(lanes) == {"lanes: 1"}


def test_rows_that_were_changed_in_front_of_the_sink_are_not_read_again_without_the_change(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    broker.create({"changed": 2})
    send(broker.servers, txn_events(2, 5, 4, "changed"))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    query = QueryProcess(run.task | {"topic": "changed", "assemble": "lanes", "reader": "librdkafka", "changed": True})
    with pytest.raises(AssertionError):
        query.finish(400)
    assert "nothing else: there is a step in front of the sink" in query.messages()
    assert not run.shop.seen()


def test_offsets_that_kafka_dropped_meanwhile_end_the_query_by_name(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    topic = "dropped"
    broker.create({topic: 1})
    send(broker.servers, txn_events(1, 200, 4, topic))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    task = run.task | {"topic": topic, "assemble": "lanes", "reader": "librdkafka", "per_trigger": 60}
    query = QueryProcess(task)
    try:
        run.until_some(query)
    finally:
        query.kill()
    broker.drop_rows(topic, 1)
    after = QueryProcess(task)
    with pytest.raises(AssertionError):
        after.finish(400)
    assert "Kafka no longer has the first offsets of the micro-batch" in after.messages()
    assert judge(run.shop.seen()) == Verdict()


def test_a_damaged_record_batch_ends_the_query_by_its_place_and_is_read_once_it_is_repaired(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path
) -> None:
    topic = "damaged"
    broker.create({topic: 1})
    send(broker.servers, txn_events(1, 20, 4, topic))
    broker.flip_bit(topic, 0, batch=0, byte=9)
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    task = run.task | {"topic": topic, "assemble": "lanes", "reader": "librdkafka"}
    query = QueryProcess(task)
    with pytest.raises(AssertionError):
        query.finish(100)  # below the patience with an absent broker
    assert "SourceDamaged" in query.messages()
    assert f"[offset=0, partition=0, topic={topic}]" in query.messages()
    assert not run.shop.seen()
    broker.flip_bit(topic, 0, batch=0, byte=9)
    QueryProcess(task).finish(400)
    assert judge(run.shop.seen(), expected(1, 20)) == Verdict()


@pytest.mark.parametrize(("assemble", "reader"), [("stage", "spark"), ("lanes", "spark"), ("lanes", "librdkafka")])
def test_kafka_transactions_that_their_producer_has_aborted_are_not_written(
    broker: Broker, starrocks: EmulatorProcess, spark_kafka: str, tmp_path: Path, assemble: str, reader: str
) -> None:
    topic = f"aborted-{assemble}-{reader}"
    broker.create({topic: 1})
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    for number, events in groupby(txn_events(1, 3, 4, topic), lambda event: event.at):
        producer.begin_transaction()
        for event in events:
            producer.produce(topic, json.dumps(event.value), partition=0)
        if number % 10 == 2:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    query = QueryProcess(run.task | {"topic": topic, "assemble": assemble, "reader": reader, "per_trigger": 1000})
    query.finish(400)
    assert judge(run.shop.seen(), {(PART.format(0), number) for number in (1, 3)}) == Verdict()
    assert "source.uncommitted" not in query.messages()


@pytest.mark.parametrize(
    ("assemble", "options_of_kafka", "warnings"), [("stage", False, 1), ("lanes", False, 1), ("lanes", True, 0)]
)
def test_the_sink_warns_once_of_small_polls(
    broker: Broker,
    starrocks: EmulatorProcess,
    spark_kafka: str,
    tmp_path: Path,
    assemble: str,
    options_of_kafka: bool,
    warnings: int,
) -> None:
    """Three micro-batches, with and without a shuffle between Kafka and the sink."""
    partitions, transactions, topic = 2, 50, f"polls-{assemble}-{warnings}"
    broker.create({topic: partitions})
    send(broker.servers, txn_events(partitions, transactions, 4, topic))
    run = Run(broker, starrocks, spark_kafka, tmp_path, "events")
    query = QueryProcess(
        run.task | {"topic": topic, "assemble": assemble, "options_of_kafka": options_of_kafka, "per_trigger": 200}
    )
    query.finish(400)
    assert judge(run.shop.seen(), expected(partitions, transactions)) == Verdict()
    assert query.messages().count("source.slow") == warnings
    assert query.messages().count("source.uncommitted") == warnings
    labels = run.shop.ask("SELECT DISTINCT LABEL FROM information_schema.loads WHERE DB_NAME = 'shop'")
    assert len(labels) >= 3
