"""The driver's requests to a real broker."""

from __future__ import annotations

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin
from tests.kafka.broker import Broker


def test_a_broker_that_was_killed_and_started_again_is_asked_on(broker: Broker) -> None:
    """Its partitions have a new leader epoch then."""
    partitions = [("admin", number) for number in range(8)]
    broker.create({"admin": len(partitions)})
    admin = KafkaAdmin({"bootstrap.servers": broker.servers, "log_level": 2}, 30.0, SystemClock())
    before = admin.first_offsets(partitions)
    broker.kill()
    broker.start()
    assert admin.first_offsets(partitions) == before
