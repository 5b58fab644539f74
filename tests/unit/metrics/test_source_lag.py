"""How far a query is behind its sources: what is counted, how long it has waited, and a source without an answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from starrocks_txn_sink.metrics.kafka_offsets import client_settings, parse_ends
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.source_lag import LagWatch, QueryLag, SourceLag, WaitingTime
from starrocks_txn_sink.metrics.state import dashboard_state
from starrocks_txn_sink.metrics.verdict import Light, health_status, lights
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets, offsets_of
from starrocks_txn_sink.telemetry import Event
from tests.support.manual_clock import ManualClock

P0: KafkaPartition = ("orders", 0)
CLOSED: Any = SimpleNamespace(name="closed")
P1: KafkaPartition = ("orders", 1)
ITEMS: KafkaPartition = ("items", 0)


def test_the_oldest_unread_row_has_waited_since_the_source_first_ended_behind_it() -> None:
    waiting = WaitingTime()
    assert waiting.seconds(0.0, P0, 100, 100) == 0.0
    assert waiting.seconds(5.0, P0, 100, 110) == 0.0  # it has come since the last look
    assert waiting.seconds(10.0, P0, 100, 120) == 5.0
    assert waiting.seconds(15.0, P0, 100, 120) == 10.0
    assert waiting.seconds(20.0, P0, 115, 130) == 10.0  # row 116 came between 5 and 10
    assert waiting.seconds(25.0, P0, 130, 130) == 0.0
    assert waiting.seconds(30.0, P0, 50, 130) == 0.0  # read again from an earlier place


def test_a_long_wait_is_remembered_with_few_samples() -> None:
    waiting = WaitingTime()
    for second in range(5000):
        lag = waiting.seconds(float(second), P0, 10, 11 + second)
    assert lag == 4999.0
    assert len(waiting._seen[P0]) <= 65


def test_a_recreated_topic_does_not_wait_for_its_old_end() -> None:
    waiting = WaitingTime()
    waiting.seconds(0.0, P0, 10, 1000)
    assert waiting.seconds(60.0, P0, 0, 5) == 0.0


def measured(read: Mapping[int, Offsets], ends: Offsets) -> Mapping[str, Any]:
    event = QueryLag({place: lambda _: ends for place in read}).measure(0.0, read)
    assert event is not None
    return event.fields


def test_rows_add_up_by_topic_and_are_known_by_partition() -> None:
    lags = measured({0: {P0: 5, P1: 7}}, {P0: 10, P1: 7})
    assert lags == {"lags": {"orders": SourceLag(5, 0.0)}, "partitions": {"0": 5, "1": 0}}
    lags = measured({0: {P0: 5, ITEMS: 7}}, {P0: 10, ITEMS: 9})
    assert lags["lags"] == {"orders": SourceLag(5, 0.0), "items": SourceLag(2, 0.0)}
    assert lags["partitions"] == {"orders/0": 5, "items/0": 2}


def test_a_source_that_the_plan_has_twice_counts_once() -> None:
    assert measured({0: {P0: 5}, 1: {P0: 5}}, {P0: 10})["lags"] == {"orders": SourceLag(5, 0.0)}


def test_sources_of_other_kinds_have_no_lag() -> None:
    assert offsets_of("7") == {}
    assert offsets_of("no JSON") == {}
    assert offsets_of('{"logOffset": 3}') == {}
    assert offsets_of('{"orders": {"0": 5, "1": 7}, "@time": {"0": 1}}') == {P0: 5, P1: 7}
    assert QueryLag({}).measure(0.0, {0: {}}) is None


def test_the_ends_are_read_from_the_text_of_a_java_map() -> None:
    text = (
        "{my-topic.v2-12=ListOffsetsResultInfo(offset=41, timestamp=-1, leaderEpoch=Optional[0]), "
        "orders-0=ListOffsetsResultInfo(offset=7, timestamp=-1, leaderEpoch=Optional.empty)}"
    )
    assert parse_ends(text) == {("my-topic.v2", 12): 41, P0: 7}


def test_only_settings_of_a_client_go_to_the_client() -> None:
    options = {
        "kafka.bootstrap.servers": "b:9092",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.ssl.truststore.location": "/t",
        "kafka.max.poll.records": "5",
        "subscribe": "orders",
    }
    assert client_settings(options) == {
        "bootstrap.servers": "b:9092",
        "sasl.mechanism": "PLAIN",
        "ssl.truststore.location": "/t",
    }


# --- the thread: Spark and Kafka are emulators ---


class Scala:
    """As much of a JVM's object as the watch asks for."""

    def __init__(self, **methods: Any) -> None:
        for name, value in methods.items():
            setattr(self, name, lambda *_, value=value: value)


class Sequence:
    def __init__(self, *items: object) -> None:
        self._items = items

    def iterator(self) -> Any:
        remaining = list(self._items)
        scala: Any = Scala()
        scala.hasNext, scala.next = lambda: bool(remaining), lambda: remaining.pop(0)
        return scala


def query(committed: str | None, kind: str = "kafka") -> Any:
    def option(text: str | None) -> Any:
        return Scala(isDefined=text is not None, get=Scala(json=text))

    leaf = Scala(
        isStreaming=True,
        getClass=Scala(getSimpleName="StreamingRelationV2"),
        sourceName=kind,
        table=Scala(getClass=Scala(getClassLoader=None)),
        extraOptions=Scala(asCaseSensitiveMap={"kafka.bootstrap.servers": "b"}),
    )
    execution = Scala(
        committedOffsets=Scala(get=option(committed)),
        sources=Sequence(Scala()),
        analyzedPlan=Scala(collectLeaves=Sequence(leaf)),
        resolvedCheckpointRoot="checkpoint",
        sparkSession=Scala(sessionState=Scala(newHadoopConf=None)),
    )
    scala: Any = Scala()
    scala.id, scala.runId, scala._jsq = "q", "r", Scala(streamingQuery=execution)
    return scala


Emitted = tuple[LagWatch, list[Event], list[object]]


@pytest.fixture
def jvm() -> Any:
    return MagicMock()


@pytest.fixture
def emitted(jvm: Any, monkeypatch: pytest.MonkeyPatch) -> Emitted:
    """A watch that looks only when a test calls it, its events, and Kafka's answers: the end of P0, or an exception."""
    events: list[Event] = []
    answers: list[object] = []

    def answer(*_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Scala(toString=f"{{orders-0=ListOffsetsResultInfo(offset={answer}, timestamp=-1)}}")

    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create.return_value
    admin.listOffsets.return_value.all.return_value.get.side_effect = answer
    admin.close.side_effect = lambda _: events.append(CLOSED)
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    return LagWatch(SimpleNamespace(_jvm=jvm), events.append, ManualClock(), lambda _: True), events, answers


def test_rows_wait_while_a_micro_batch_runs_also_before_one_has_ended(emitted: Emitted, jvm: Any) -> None:
    watch, events, answers = emitted
    answers += [9, 9, 30]
    file = jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    file.exists.return_value = False
    watch._look("q", query(None))
    assert events == []  # the source has noted nothing yet
    file.exists.return_value = True
    jvm.org.apache.commons.io.IOUtils.toString.return_value = 'v1\n{"orders": {"0": 4}}'
    watch._look("q", query(None))
    jvm.org.apache.hadoop.fs.Path.assert_called_with("checkpoint/sources/0/0")
    for _ in range(2):
        watch._look("q", query('{"orders": {"0": 9}}'))
    assert [event.fields["lags"]["orders"].rows for event in events] == [5, 0, 21]
    assert {event.fields["query"] for event in events} == {"q"}


def test_without_an_answer_the_metrics_are_unknown_and_kafka_is_left_alone_for_a_while(
    emitted: Emitted,
) -> None:
    watch, events, answers = emitted
    answers += [TimeoutError(), TimeoutError(), 9]
    for _ in range(3):
        watch._look("q", query('{"orders": {"0": 9}}'))
    assert [event.name for event in events] == ["closed", "source.unknown"] * 2
    clock: Any = watch._clock
    clock.advance(31)
    watch._look("q", query('{"orders": {"0": 9}}'))
    assert events[-1].name == "source.lagged"


def test_a_source_that_is_not_kafkas_has_no_metrics(emitted: Emitted) -> None:
    watch, events, _ = emitted
    watch._look("q", query("7", kind="rate"))
    watch._look("q", query('{"orders": {"0": 9}}', kind="of another vendor"))
    assert events == []


# --- the model and the page ---


@pytest.fixture
def model() -> Model:
    model = Model(ManualClock())
    model.record(Event("batch.started", {"job": "j", "batch_id": 0, "lanes": 1, "query": "q"}))
    return model


def lagged(rows: int, seconds: float, query: str = "q", topic: str = "orders") -> Event:
    fields = {"query": query, "lags": {topic: SourceLag(rows, seconds)}, "partitions": {"0": rows}}
    return Event("source.lagged", fields)


def test_the_metrics_have_each_topic_and_end_with_the_query(model: Model) -> None:
    model.record(lagged(7, 3.0))
    model.record(lagged(9, 1.0, query="of another sink"))
    assert model.metrics.values("source_lag_rows") == {("orders",): 7.0}
    assert model.metrics.values("source_lag_seconds") == {("orders",): 3.0}
    model.record(lagged(2, 1.0, topic="items"))
    assert model.metrics.values("source_lag_rows") == {("items",): 2.0}
    model.record(Event("query.ended", {"query": "q", "failed": False}))
    assert model.metrics.values("source_lag_rows") == {}


def test_two_queries_of_one_topic_share_its_series(model: Model) -> None:
    model.record(Event("batch.started", {"job": "k", "batch_id": 0, "lanes": 1, "query": "other"}))
    model.record(lagged(7, 3.0))
    model.record(lagged(4, 9.0, query="other"))
    assert model.metrics.values("source_lag_rows") == {("orders",): 7.0}
    assert model.metrics.values("source_lag_seconds") == {("orders",): 9.0}


def test_the_page_shows_them_and_their_course(model: Model) -> None:
    clock: Any = model.clock
    model.record(lagged(7, 3.0))
    clock.advance(10)
    model.record(lagged(11, 13.0))
    clock.advance(10)
    page = dashboard_state(model, clock.wall(), 60.0)
    assert (page["fresh"]["lag"], page["fresh"]["lag_seconds"]) == (11, 13.0)
    assert [value for value in page["series"]["lag_rows"] if value is not None] == [7, 11]
    assert [value for value in page["series"]["lag_seconds"] if value is not None] == [3.0, 13.0]
    model.record(Event("source.unknown", {"query": "q"}))
    assert dashboard_state(model, clock.wall(), 60.0)["fresh"]["lag"] is None


def completed(seconds: float) -> Event:
    return Event("batch.completed", {"job": "j", "batch_id": 0, "seconds": seconds, "receipts": ()})


@pytest.mark.parametrize(("usual", "most"), [(None, 10.0), (0.5, 10.0), (8.0, 24.0)])
def test_a_micro_batch_that_takes_far_longer_than_usual_is_yellow_at_once(
    model: Model, usual: float | None, most: float
) -> None:
    clock: Any = model.clock
    if usual is not None:
        for seconds in (usual, usual, 100.0):
            model.record(completed(seconds))
        model.record(Event("batch.started", {"job": "j", "batch_id": 1, "lanes": 1, "query": "q"}))
    model.record(lagged(303_460, 40.0))
    clock.advance(most)
    assert health_status(model, clock.wall(), 60.0).light is not Light.WARN
    clock.advance(0.1)
    status = health_status(model, clock.wall(), 60.0)
    assert status.light is Light.WARN
    assert "A micro-batch has been running for" in status.text
    assert "303,460 rows wait in the source" in status.text
    assert (f"usually {usual:.1f} s" in status.text) if usual else ("usually" not in status.text)
    assert usual is None or lights(model, clock.wall(), 60.0)["fresh"] is Light.WARN
    model.record(completed(11.0))
    assert health_status(model, clock.wall(), 60.0).light is not Light.WARN
