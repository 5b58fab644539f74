"""Requests of the driver to Kafka: which failures are repeated, and with which metadata."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from starrocks_txn_sink.errors import DeadlineExceeded, SourceChanged
from starrocks_txn_sink.sources.kafka import admin
from starrocks_txn_sink.sources.kafka.topic_ids import ASKED_AGAIN, TopicIds, ask_ids, refuse_new_topics
from starrocks_txn_sink.telemetry import Event
from tests.support.manual_clock import ManualClock


def clients_that_meet(code: int, monkeypatch: pytest.MonkeyPatch, *, healed_by: int) -> list[Any]:
    """Clients whose requests fail with `code` before the client number `healed_by`; the list takes those made."""
    clients: list[Any] = []

    def list_offsets(number: int, request: dict[Any, Any]) -> dict[Any, Any]:
        def result(_: float) -> Any:
            if number < healed_by:
                raise KafkaException(KafkaError(code, "no"))
            return SimpleNamespace(offset=7, timestamp=-1)

        return {partition: SimpleNamespace(result=result) for partition in request}

    def make(_: object) -> Any:
        number = len(clients)
        clients.append(
            SimpleNamespace(list_offsets=lambda request, **_: list_offsets(number, request), poll=lambda _: 0)
        )
        return clients[-1]

    monkeypatch.setattr(admin, "AdminClient", make)
    return clients


@pytest.mark.parametrize("code", [KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION])
def test_a_leader_that_has_moved_is_looked_for_with_new_metadata(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's admin client repeats its old leader epoch until its metadata expire, longer than the patience."""
    clients = clients_that_meet(code, monkeypatch, healed_by=1)
    assert admin.KafkaAdmin({}, 120.0, ManualClock()).first_offsets([("t", 0)]) == {("t", 0): 7}
    assert len(clients) == 2


def test_a_broker_that_is_away_costs_no_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = clients_that_meet(KafkaError._TRANSPORT, monkeypatch, healed_by=1)
    with pytest.raises(DeadlineExceeded, match="did not list offsets"):
        admin.KafkaAdmin({}, 3.0, ManualClock()).first_offsets([("t", 0)])
    assert len(clients) == 1


def test_a_wrong_address_is_told_at_once_with_its_reason() -> None:
    """A request's own error says "transport failure", whatever the reason."""
    events: list[Event] = []
    config = {"bootstrap.servers": "no-such-host.invalid:9092", "log_level": 0}
    kafka = admin.KafkaAdmin(config, 0.1, ManualClock(), listener=events.append, request_seconds=0.5)
    with pytest.raises(DeadlineExceeded, match=r"did not list topics: no-such-host\.invalid:9092.*resolve"):
        kafka.partitions(["t"])
    assert "resolve" in events[0].fields["reason"]


def test_a_reason_is_that_of_the_request_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that failed before says nothing about a leader that has moved since."""
    clients, events = clients_that_meet(KafkaError.NOT_LEADER_FOR_PARTITION, monkeypatch, healed_by=1), list[Event]()
    kafka = admin.KafkaAdmin({}, 120.0, ManualClock(), listener=events.append)
    kafka._config["error_cb"](KafkaError(KafkaError._TRANSPORT, "broker 1 is away"))
    kafka.first_offsets([("t", 0)])
    assert [event.fields["reason"] for event in events] == ["no"]
    clients.clear()
    with pytest.raises(DeadlineExceeded, match="did not list topics: no"):
        kafka._retry("list topics", lambda: (_ for _ in ()).throw(KafkaException(KafkaError(-195, "no"))))


def test_topics_have_ids_but_for_those_of_an_old_broker_or_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def result(name: str) -> Any:
        if name == "gone":
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no"))
        return SimpleNamespace(topic_id=Uuid(0, 0) if name == "old" else Uuid(1, 2))

    def describe_topics(topics: Any, **_: object) -> Any:
        names = [bytes(name).decode() if isinstance(name, bytes) else name for name in topics.topic_names]
        return {name: SimpleNamespace(result=lambda _, name=name: result(name)) for name in names}

    monkeypatch.setattr(admin, "AdminClient", lambda _: SimpleNamespace(describe_topics=describe_topics))
    kafka = admin.KafkaAdmin({}, 1.0, ManualClock())
    assert kafka.topic_ids({"a", "old", "gone"}) == {"a": str(Uuid(1, 2))}
    assert kafka.topic_ids(()) == {}


def test_a_topic_with_another_id_is_another_source() -> None:
    refuse_new_topics({"a": "1", "b": "2", "gone": "3"}, {"a": "1", "b": "2", "new": "4"})
    with pytest.raises(SourceChanged, match=r"made again.*id_before=2, id_now=7, topic=b.*for sync"):
        refuse_new_topics({"a": "1", "b": "2"}, {"a": "1", "b": "7"})


def test_a_run_asks_again_for_ids_that_brokers_tell() -> None:
    """In a long run a topic may be made again, and grow past what was read, between two micro-batches."""
    topics, now, asked = TopicIds(), {"a": "1"}, list[set[str]]()

    def ask(names: set[str]) -> dict[str, str]:
        asked.append(names)
        return {name: now[name] for name in names & now.keys()}

    for time in (0.0, 1.0, ASKED_AGAIN - 1, ASKED_AGAIN):
        assert topics.due(time) == (time in (0.0, ASKED_AGAIN))
        topics.check({"a", "untold"}, {}, ask, time)
    assert (asked, topics.known) == ([{"a", "untold"}, {"a"}], {"a": "1"})
    now["a"] = "2"
    with pytest.raises(SourceChanged, match="id_before=1, id_now=2, topic=a"):
        topics.check({"a"}, {}, ask, 2 * ASKED_AGAIN)
    with pytest.raises(SourceChanged, match="id_before=1, id_now=2"):  # after a restart
        TopicIds().check({"a"}, {"a": "1"}, ask, 0.0)


def test_brokers_that_do_not_answer_leave_ids_unknown_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> Any:
        raise DeadlineExceeded("Kafka did not describe topics: away.")

    monkeypatch.setattr(admin.KafkaAdmin, "topic_ids", no_answer)
    with caplog.at_level("WARNING"):
        assert ask_ids({}, {"a"}) == {}
    assert "topics.unknown" in caplog.text


def test_a_client_ends_with_its_last_user() -> None:
    """Its threads and connections would stay until a garbage collection."""
    gc.disable()
    try:
        kafka = admin.KafkaAdmin({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, 0.1, ManualClock())
        client = weakref.ref(kafka)
        del kafka
        assert client() is None
    finally:
        gc.enable()
