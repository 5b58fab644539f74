"""Lanes that read Kafka: the settings of their client, their shares of the partitions, and their rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import TxnEventLines
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sources.kafka import ranges, spark_reader
from starrocks_txn_sink.sources.kafka.consumer import Rows
from starrocks_txn_sink.sources.kafka.options import PATIENCE, client_config
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges, read_values, spread
from starrocks_txn_sink.sources.kafka.spark_reader import first_offsets, needs_topic_names, planned_ranges

SPARK = {
    "key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "group.id": "spark-kafka-source-1-executor",
    "receive.buffer.bytes": 65536,
    "bootstrap.servers": "broker:9092",
}
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required\n username="me" password="p\\"w\\\\;" ;'


def test_the_client_reads_what_sparks_own_would() -> None:
    config = client_config(SPARK)
    assert (config["bootstrap.servers"], config["group.id"]) == ("broker:9092", SPARK["group.id"])
    assert (config["auto.offset.reset"], config["enable.auto.commit"]) == ("error", False)
    assert (config["isolation.level"], config["check.crcs"]) == ("read_uncommitted", "true")
    assert "key.deserializer" not in config
    assert client_config(SPARK | {"isolation.level": "read_committed"})["isolation.level"] == "read_committed"


def test_a_login_of_the_jvm_becomes_a_user_and_a_password() -> None:
    config = client_config(SPARK | {"sasl.jaas.config": SCRAM, "sasl.mechanism": "SCRAM-SHA-512"})
    assert (config["sasl.username"], config["sasl.password"]) == ("me", 'p"w\\;')
    assert config["sasl.mechanism"] == "SCRAM-SHA-512"


@pytest.mark.parametrize(
    "login", ["username='me' password='p\"w'", "username=me password='p\"w'", "username=me password=p-w"]
)
def test_a_login_may_have_single_quotes_or_none(login: str) -> None:
    """As Kafka's own client reads it (Java's StreamTokenizer)."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = client_config(SPARK | {"sasl.jaas.config": f"{module} required {login};", "sasl.mechanism": "PLAIN"})
    assert (config["sasl.username"], config["sasl.password"].replace("-", '"')) == ("me", 'p"w')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.truststore.location", "/secret/trust.jks"),
        ("sasl.jaas.config", 'com.sun.security.auth.module.Krb5LoginModule required keyTab="secret";'),
        ("sasl.jaas.config", SCRAM.replace("username", "tokenauth")),
        ("interceptor.classes", "secret.Class"),
    ],
)
def test_a_setting_that_librdkafka_lacks_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"kafka.{name}") as failure:
        client_config(SPARK | {name: value})
    assert "secret" not in str(failure.value)
    assert "p\\" not in str(failure.value)
    assert "Spark then reads" in str(failure.value)


@given(
    st.dictionaries(
        st.tuples(st.just("t"), st.integers(0, 80)),
        st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)).map(lambda number: (number[0], number[0] + number[1])),
        min_size=1,
    ),
    st.integers(1, 70),
    st.one_of(st.just(1), st.integers(1, 10**7)),
)
def test_every_partition_is_whole_in_one_lane_and_none_has_much_more_than_its_share(
    ranges: dict[tuple[str, int], tuple[int, int]], parts: int, least: int
) -> None:
    groups = spread(ranges, parts, least)
    assert all(groups)
    enough = sum(end - start for start, end in ranges.values()) // least
    assert len(groups) == max(1, min(parts, len(ranges), enough))
    assert sorted(item for group in groups for item in group.items()) == sorted(ranges.items())
    sizes = [sum(end - start for start, end in group.values()) for group in groups]
    largest = max(end - start for start, end in ranges.values())
    assert max(sizes) <= sum(sizes) / len(groups) + largest


class Cut:
    """Spark's KafkaOffsetRange of partition 3 from `first` on."""

    def __init__(self, first: int) -> None:
        self._first = first

    def topicPartition(self) -> TopicPartition:  # noqa: N802 - the name is Java's
        return TopicPartition()

    def fromOffset(self) -> int:  # noqa: N802
        return self._first


class TopicPartition:
    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3


def test_a_new_partition_that_spark_has_cut_is_read_from_its_first_offset() -> None:
    assert first_offsets(map(Cut, (40, 0, 80))) == {("t", 3): 0}


def test_a_new_partition_is_read_from_its_first_offset_which_only_sparks_tasks_know() -> None:
    old, new, empty = ("t", 0), ("t", 1), ("t", 2)
    ranges = planned_ranges({old: 5}, {old: 7, new: 3, empty: 0}, {old: 5, new: 1})
    assert ranges == {old: (5, 7), new: (1, 3)}
    assert planned_ranges({old: 7, new: 3, empty: 0}, {old: 7, new: 3, empty: 2}, {}) == {empty: (0, 2)}


def test_a_micro_batch_takes_what_a_new_partition_has_before_its_first_planned_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark plans no start for it."""
    tasks = [SimpleNamespace(offsetRange=lambda: Cut(40)), SimpleNamespace(offsetRange=lambda: Cut(20))]
    scan = SimpleNamespace(
        start=lambda: SimpleNamespace(json=lambda: '{"t":{"0":5}}'),
        end=lambda: SimpleNamespace(json=lambda: '{"t":{"0":7,"3":60}}'),
        inputPartitions=lambda: tasks,
        metrics=lambda: SimpleNamespace(get=lambda _: SimpleNamespace(get=object)),
    )
    rows = SimpleNamespace(rdd=lambda: SimpleNamespace(id=lambda: 1))
    for name, double in {
        "analyzed_plan": lambda _: rows, "class_name": lambda _: "LogicalRDD", "items": list, "_scan": lambda _: scan,
    }.items():  # fmt: skip
        monkeypatch.setattr(spark_reader, name, double)
    execution = SimpleNamespace(toRdd=rows.rdd)
    source = spark_reader.KafkaSource("q", SimpleNamespace(lastExecution=lambda: execution), {}, ("value",))
    frame: Any = None
    (lane,) = source.plan(frame, 1).lanes
    assert (lane.ranges, lane.patience) == ({("t", 0): (5, 7), ("t", 3): (20, 60)}, PATIENCE)


def test_lanes_wait_for_kafka_as_long_as_the_balanced_source_says(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = SimpleNamespace(json=lambda: '{"t":{"0":5},"@time":1}'), SimpleNamespace(json=lambda: '{"t":{"0":7}}')
    scan = SimpleNamespace(
        start=lambda: bounds[0],
        end=lambda: bounds[1],
        inputPartitions=lambda: SimpleNamespace(size=lambda: 1, apply=lambda _: "PythonStreamingInputPartition"),
        metrics=lambda: SimpleNamespace(get=lambda _: SimpleNamespace(get=object)),
    )
    rows = SimpleNamespace(rdd=lambda: SimpleNamespace(id=lambda: 1))
    execution = SimpleNamespace(toRdd=rows.rdd, analyzed=lambda: None)
    stream = SimpleNamespace(lastExecution=lambda: execution)
    options = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "t", "patience": "7"}
    for name, double in {
        "query_of_batch": lambda *_: stream, "analyzed_plan": lambda _: rows, "_scan": lambda _: scan,
        "class_name": lambda kind: kind if isinstance(kind, str) else "LogicalRDD",
        "_source_columns_and_steps": lambda _: ({"value": "value"}, []), "_balanced_options": lambda _: options,
    }.items():  # fmt: skip
        monkeypatch.setattr(spark_reader, name, double)
    frame: Any = SimpleNamespace(sparkSession=None)
    source = spark_reader.KafkaSource.of(frame, "q", {"value": "value"}, ("value",))
    assert source is not None
    (lane,) = source.plan(frame, 1).lanes
    assert (lane.ranges, lane.patience) == ({("t", 0): (5, 7)}, 7.0)


@pytest.mark.parametrize(
    ("topics", "names_before", "needs_names"),
    [
        ((), (), False),  # the query is hidden, or reads no Kafka
        (("a",), (), False),
        (("a",), ("0", "1"), False),
        (("a", "b"), (), True),
        (("a", "b"), ("a-0", "b-0", "a-b-1"), True),
        (("a",), ("a-0", "b-0"), True),  # one of the topics was left out
        (("a",), ("b-0", "a-x", "a-0-1"), False),
        (("a-b",), ("a-b-12",), True),
    ],
)
def test_several_topics_are_named_and_one_topic_keeps_its_names(
    topics: tuple[str, ...], names_before: tuple[str, ...], needs_names: bool
) -> None:
    assert needs_topic_names(topics, names_before) == needs_names


def test_a_second_topic_is_refused_before_the_partitions_of_the_first_change_their_names() -> None:
    with pytest.raises(OptionError, match=r"several topics \(a, b\).*named by partition alone \(0, 3\)") as failure:
        needs_topic_names({"a", "b"}, {"3", "0", "a-9"})
    assert failure.value.context["option"] == "source_partition"


def test_rows_of_several_topics_are_named_by_topic_and_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    part = OffsetRanges({("b", 3): (7, 9), ("a", 0): (7, 9), ("a", 12): (1, 2)}, 1.0, {}, topic_names=True)
    topics, numbers = np.array([1, 0, 1, 0]), np.array([3, 0, 3, 12])
    rows = Rows(topics, numbers, np.array([7, 7, 8, 1]), topics * 0, pa.array([b"1", b"2", b"3", b"4"]), None)
    monkeypatch.setattr(ranges, "read_ranges", lambda *_: [rows, rows.take(np.array([], dtype=np.int64))])
    named_rows, empty = read_values(part)
    assert named_rows["source_partition"].to_pylist() == ["b-3", "a-0", "b-3", "a-12"]
    assert (named_rows["source_partition"].type, empty.num_rows) == (pa.string(), 0)


@pytest.mark.parametrize("time", [False, True])
def test_a_row_has_its_place_its_value_and_its_time(monkeypatch: pytest.MonkeyPatch, time: bool) -> None:
    part = OffsetRanges({("t", 3): (7, 10)}, 1.0, {}, time)
    threes, times = np.array([3, 3, 3]), np.array([1000, 2000, 3000])
    rows = Rows(threes * 0, threes, np.array([7, 8, 9]), times, pa.array([b"1", None, b"3"]), None)
    monkeypatch.setattr(ranges, "read_ranges", lambda *_: [rows])
    (batch,) = read_values(part)
    expected = {"source_partition": ["3"] * 3, "position": [7, 8, 9], "value": [b"1", None, b"3"]}
    assert batch.to_pydict() == expected | ({"event_time": [1_000_000, 2_000_000, 3_000_000]} if time else {})


def test_a_format_gets_the_columns_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("value", "key", "topic", "partition", "offset", "timestamp")
    part = OffsetRanges({("b", 3): (7, 8), ("a", 0): (7, 8)}, 1.0, {}, True, True, columns=columns)
    keys, values = pa.array([b"k", None]), pa.array([b"1", b"2"])
    rows = Rows(np.array([1, 0]), np.array([3, 0]), np.array([7, 8]), np.array([1000, 2000]), values, keys)
    monkeypatch.setattr(ranges, "read_ranges", lambda *_: [rows])
    (batch,) = read_values(part)
    assert batch.to_pydict() == {
        "value": [b"1", b"2"], "key": [b"k", None], "topic": ["b", "a"], "partition": [3, 0], "offset": [7, 8],
        "timestamp": [1000, 2000], "event_time": [1_000_000, 2_000_000],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"reader": "java"}, "reader is 'java'"), ({"reader": "librdkafka", "position": None}, "are Kafka's own")],
)
def test_other_readers_and_other_places_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TxnEventLines(**settings)
