"""Requests of the driver to Kafka: which failures are repeated, and with which metadata."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from starrocks_txn_sink.errors import DeadlineExceeded
from starrocks_txn_sink.sources.kafka import admin
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
