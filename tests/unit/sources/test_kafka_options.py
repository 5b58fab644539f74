"""Options for Spark's Kafka source, and the look at a running query, on objects shaped like Spark's."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sources import kafka_options
from starrocks_txn_sink.sources.kafka.spark_reader import (
    SMALL_POLLS,
    UNCOMMITTED,
    advice_on_options,
    refuse_several_topics,
)
from starrocks_txn_sink.telemetry import Event, EventLogger
from tests.support.log_records import records_of

FAST = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.wait.ms": "1",
    "kafka.max.partition.fetch.bytes": "4194304",
    "kafka.receive.buffer.bytes": "1048576",
}


def test_polls_are_large_without_asking() -> None:
    assert kafka_options("h:1", subscribe="a") == FAST | {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}


def test_the_servers_may_have_kafkas_own_name() -> None:
    assert kafka_options(**{"kafka.bootstrap.servers": "h:1"}) == kafka_options(bootstrap_servers="h:1")


def test_own_options_win_whatever_their_case() -> None:
    own: dict[str, str | int] = {"Kafka.Max.Poll.Records": 700, "kafka.receive.buffer.bytes": "-1"}
    options = kafka_options("h:1", failOnDataLoss=False, maxOffsetsPerTrigger=5, **own)
    polls = {name: value for name, value in options.items() if name.lower() == "kafka.max.poll.records"}
    assert polls == {"Kafka.Max.Poll.Records": "700"}
    assert options["kafka.receive.buffer.bytes"] == "-1"
    assert options["kafka.fetch.max.wait.ms"] == FAST["kafka.fetch.max.wait.ms"]
    assert (options["failOnDataLoss"], options["maxOffsetsPerTrigger"]) == ("false", "5")


@pytest.mark.parametrize("name", ["subscribePattern", "subscribepattern"])
def test_a_pattern_is_for_whole_names(name: str) -> None:
    """Spark takes each topic in whose name it finds a match."""
    pattern = kafka_options("h:1", **{name: r"shop\..*|audit"})[name]
    names = ("shop.orders", "audit", "myshop.orders", "audits", "my.audit")
    assert [topic for topic in names if re.search(pattern, topic)] == ["shop.orders", "audit"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "bootstrap_servers is missing"),
        ({"bootstrap_servers": " "}, "bootstrap_servers is missing"),
        ({"bootstrap_servers": ["h:1"]}, "kafka.bootstrap.servers is of type list"),
        ({"max.poll.records": 5}, "no option max.poll.records"),
        ({"maxOffsetPerTrigger": 5}, "no option maxoffsetpertrigger"),
        ({"kafka.max.poll.records": True}, "kafka.max.poll.records is of type bool"),
        ({"kafka.max.poll.records": "many"}, "no whole number above zero"),
        ({"kafka.max.poll.records": 0}, "no whole number above zero"),
        ({"kafka.max.poll.records": -1}, "no whole number above zero"),
        ({"subscribe": ["a", "b"]}, "subscribe is of type list"),
        ({"subscribe": "a", "Subscribe": "b"}, "given twice"),
        ({"subscribePattern": ""}, "subscribePattern is empty"),
        ({"subscribepattern": " "}, "no topic's name has"),
        ({"subscribePattern": "orders | items"}, "no topic's name has"),
        ({"bootstrap_servers": "h:1", "kafka.bootstrap.servers": "h:2"}, "given twice"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    servers = {} if "missing" in message else {"bootstrap_servers": "h:1"}
    with pytest.raises(OptionError, match=message):
        kafka_options(**(servers | options))


def test_an_error_shows_no_value() -> None:
    secret: Any = {"password": "s3cret"}
    with pytest.raises(OptionError) as failure:
        kafka_options("h:1", **{"kafka.sasl.jaas.config": secret})
    assert "s3cret" not in str(failure.value)


# --- the look at a query ---


class Sequence(list[Any]):
    """A Seq or an Option of Scala."""

    def apply(self, at: int) -> Any:
        return self[at]

    def size(self) -> int:
        return len(self)

    def iterator(self) -> Iterated:
        return Iterated(self)


class Iterated:
    def __init__(self, items: list[Any]) -> None:
        self._left = list(items)

    def hasNext(self) -> bool:  # noqa: N802
        return bool(self._left)

    def next(self) -> Any:
        return self._left.pop(0)


class Java:
    """An object of a class `kind`, with methods that return `values`."""

    def __init__(self, kind: str, **values: Any) -> None:
        self._kind = kind
        for name, value in values.items():
            setattr(self, name, lambda value=value: value)

    def getClass(self) -> Java:  # noqa: N802
        return Java("Class", getSimpleName=self._kind)


def rdd(number: int, *parents: Java, kind: str = "MapPartitionsRDD", **values: Any) -> Java:
    return Java(kind, id=number, dependencies=Sequence(Java("Dependency", rdd=parent) for parent in parents), **values)


def kafka(number: int, parameters: dict[str, Any], method: str = "inputPartition") -> Java:
    """Spark's source; the first partition of the RDD has no input, as after a pruned group."""
    partition = Java("KafkaBatchInputPartition", executorKafkaParams=parameters)
    partitions = [Java("DataSourceRDDPartition", **{method: Sequence(inputs)}) for inputs in ([], [partition])]
    return rdd(number, kind="DataSourceRDD", partitions=partitions)


def frame(*roots: Java) -> Any:
    leaf_nodes = Sequence([Java("LocalRelation"), *(Java("LogicalRDD", rdd=root) for root in roots)])
    plan = Java("Project", collectLeaves=leaf_nodes)
    new_frame = Java("Frame")
    new_frame._jdf = Java("Dataset", queryExecution=Java("QueryExecution", analyzed=plan))  # type: ignore[attr-defined]
    return new_frame


def has_small_polls(seen: Any) -> bool:
    return "source.slow" in [event.name for event in advice_on_options(seen, by_spark=True)]


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_query_that_reads_aborted_records_is_told(by_spark: bool) -> None:
    topic = kafka(2, {"max.poll.records": "20000"})
    assert advice_on_options(frame(rdd(1, topic)), by_spark=by_spark) == [
        Event("source.uncommitted", {"advice": UNCOMMITTED})
    ]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_an_isolation_level_that_the_user_has_chosen_is_right(level: str) -> None:
    topic = kafka(2, {"max.poll.records": "20000", "isolation.level": level})
    assert advice_on_options(frame(rdd(1, topic)), by_spark=True) == []


@pytest.mark.parametrize("method", ["inputPartition", "inputPartitions"])
def test_kafkas_default_is_seen_behind_shuffles(method: str) -> None:
    assert has_small_polls(frame(rdd(1, rdd(2, kafka(3, {"group.id": "g"}, method)))))
    assert not has_small_polls(frame(rdd(1, rdd(2, kafka(3, {"max.poll.records": "700"}, method)))))


def test_one_slow_source_of_several_is_enough() -> None:
    fast, slow = kafka(2, {"max.poll.records": "20000"}), kafka(3, {})
    assert has_small_polls(frame(rdd(1, fast, slow)))
    assert not has_small_polls(frame(rdd(1, fast, fast)))


def test_other_sources_and_hidden_or_strange_plans_say_nothing() -> None:
    files = rdd(2, kind="DataSourceRDD", partitions=[Java("P", inputPartition=Sequence([Java("FilePartition")]))])
    assert not has_small_polls(frame(files))
    assert not has_small_polls(frame(rdd(2, kind="DataSourceRDD", partitions=[Java("P")])))
    assert not has_small_polls(frame())
    assert not has_small_polls(object())


def test_a_long_lineage_is_left_alone() -> None:
    lineage = kafka(0, {})
    for number in range(1, 300):
        lineage = rdd(number, lineage)
    assert not has_small_polls(frame(lineage))


def test_the_warning_names_the_helper_in_whole(caplog: pytest.LogCaptureFixture) -> None:
    EventLogger("sink")(Event("source.slow", {"job": "j", "advice": SMALL_POLLS}))
    (record,) = records_of(caplog, "source.slow")
    assert (record.levelno, "kafka_options" in record.getMessage()) == (logging.WARNING, True)
    assert SMALL_POLLS in record.getMessage()


# --- several topics ---


def stream(*options: dict[str, str]) -> Any:
    leaf_nodes = Sequence(Java("StreamingRelationV2", extraOptions=option) for option in options)
    new_frame = Java("Frame")
    plan = Java("Project", collectLeaves=leaf_nodes)
    new_frame._jdf = Java("Dataset", queryExecution=Java("QueryExecution", analyzed=plan))  # type: ignore[attr-defined]
    return new_frame


@pytest.mark.parametrize(
    "options",
    [
        [{"subscribe": "b, a"}],
        [{"assign": '{"a": [0], "b": [0, 1]}'}],
        [{"subscribe": "a"}, {"path": "/x"}, {"subscribe": "b"}],
    ],
)
def test_a_stream_of_several_topics_cannot_go_by_partition(options: list[dict[str, str]]) -> None:
    with pytest.raises(OptionError, match=r"several topics \(a, b\).*concat_ws"):
        refuse_several_topics(stream(*options))


@pytest.mark.parametrize(
    "frame",
    [
        stream({"subscribe": "a,"}),
        stream({"subscribePattern": "a|b"}),
        stream({"subscribe": "a"}, {"subscribe": "a"}),
        stream(),
        Java("Frame"),  # on Spark Connect
    ],
)
def test_other_streams_may(frame: Any) -> None:
    refuse_several_topics(frame)
