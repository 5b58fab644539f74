"""Both consumers on a real broker: librdkafka through its C interface, and through the Python client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from starrocks_txn_sink.compiled.library import PURE, is_available
from starrocks_txn_sink.errors import DeadlineExceeded, SourceChanged, SourceDamaged
from starrocks_txn_sink.sources.kafka import consumer as consumers
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition
from starrocks_txn_sink.sources.kafka.options import client_config
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges, close_consumers, leased_consumer, read_ranges
from tests.kafka.broker import Broker

pytestmark = pytest.mark.timeout(300)
T0 = 1_700_000_000_000


@pytest.fixture(autouse=True, params=["NativeConsumer", "ObjectConsumer"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    if request.param == "ObjectConsumer":
        monkeypatch.setenv(PURE, "1")
    elif not is_available():
        pytest.skip("this installation has no compiled loop")
    yield getattr(consumers, request.param)
    close_consumers()


def config(servers: str, **changes: Any) -> Mapping[str, Any]:
    return client_config({"bootstrap.servers": servers, "group.id": "test"}) | changes


def read(broker: Broker, ranges: Mapping[KafkaPartition, tuple[int, int]], patience: float = 60.0) -> list[Any]:
    part = OffsetRanges(ranges, patience, config(broker.servers), time=True, keys=True)
    rows_read: list[Any] = []
    for rows in read_ranges(part):
        assert rows.keys is not None
        numbers = (column.tolist() for column in (rows.topics, rows.partitions, rows.offsets, rows.times))
        rows_read += zip(*numbers, rows.keys.to_pylist(), rows.values.to_pylist(), strict=True)
    return sorted(rows_read)


@pytest.fixture
def topics(broker: Broker) -> list[str]:
    names = sorted(f"c{uuid.uuid4().hex[:8]}" for _ in range(2))
    broker.create({names[0]: 2, names[1]: 3})
    return names


def produce(broker: Broker, topic: str, partition: int, *values: bytes | None, **settings: Any) -> Producer:
    producer = Producer({"bootstrap.servers": broker.servers, "enable.idempotence": True, "log_level": 0, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(60)
        producer.begin_transaction()
    for number, value in enumerate(values):
        key = None if number % 2 else b"k%d" % number
        producer.produce(topic, value, key, partition=partition, timestamp=T0 + number)
    if "transactional.id" in settings:
        producer.commit_transaction(60)
    assert producer.flush(60) == 0
    return producer


def test_rows_of_several_topics_with_their_places_keys_and_times(broker: Broker, topics: list[str], kind: type) -> None:
    large = b"x" * 300_000
    produce(broker, topics[0], 1, b"a", None, b"", large)
    produce(broker, topics[1], 0, *[b"%d" % number for number in range(500)])
    ranges = {(topics[0], 1): (1, 4), (topics[1], 0): (100, 400)}
    expected = [(0, 1, n, T0 + n, key, value) for n, key, value in ((1, None, None), (2, b"k2", b""), (3, None, large))]
    expected += [(1, 0, n, T0 + n, None if n % 2 else b"k%d" % n, b"%d" % n) for n in range(100, 400)]
    assert read(broker, ranges) == expected
    assert read(broker, {(topics[0], 1): (0, 1)}) == [(0, 1, 0, T0, b"k0", b"a")]  # the same consumer again
    with leased_consumer(config(broker.servers)) as consumer:
        assert type(consumer) is kind


def test_the_marker_of_a_kafka_transaction_is_no_row_and_ends_the_range(broker: Broker, topics: list[str]) -> None:
    produce(broker, topics[1], 2, b"a", b"b", **{"transactional.id": uuid.uuid4().hex})
    rows = read(broker, {(topics[1], 2): (0, 3)})
    assert [(row[2], row[5]) for row in rows] == [(0, b"a"), (1, b"b")]


def test_offsets_that_are_gone_end_it_at_once(broker: Broker, topics: list[str]) -> None:
    produce(broker, topics[0], 0, b"a", b"b", b"c")
    broker.drop_rows(topics[0], 1)
    produce(broker, topics[0], 0, b"d")
    with pytest.raises(SourceChanged, match=rf"no longer has the first offsets.*partition=0, topic={topics[0]}"):
        read(broker, {(topics[0], 0): (1, 4)})


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_a_damaged_record_batch_is_an_error_with_its_place(broker: Broker, topics: list[str], codec: str) -> None:
    """A bit on the broker's disk has changed; the batches around it are read."""
    topic, values = topics[0], [b'{"type": "DATA", "number": %d}' % number for number in range(30)]
    for start in range(0, 30, 10):
        produce(broker, topic, 0, *values[start : start + 10], **{"compression.type": codec})
    for byte in (0, 40, 71):
        broker.flip_bit(topic, 0, batch=1, byte=byte)
        for range_ in ((0, 30), (10, 20), (15, 30)):
            with pytest.raises(
                SourceDamaged, match=rf"failed CRC.*\[offset={max(range_[0], 10)}, partition=0, topic={topic}\]"
            ):
                read(broker, {(topic, 0): range_})
        assert [row[5] for row in read(broker, {(topic, 0): (0, 10)})] == values[:10]
        assert [row[5] for row in read(broker, {(topic, 0): (20, 30)})] == values[20:]
        broker.flip_bit(topic, 0, batch=1, byte=byte)
    assert [row[5] for row in read(broker, {(topic, 0): (0, 30)})] == values


def test_a_broker_that_is_away_is_waited_for_up_to_the_patience() -> None:
    part = OffsetRanges({("t", 0): (0, 1)}, 0.3, config("127.0.0.1:1"))
    with pytest.raises(DeadlineExceeded, match="no rows for 0 s"):
        list(read_ranges(part))


@pytest.mark.parametrize("setting", [{"nonsense": "1"}, {"security.protocol": "nonsense"}, {"fetch.wait.max.ms": "x"}])
def test_a_setting_that_librdkafka_refuses_is_named(setting: dict[str, str]) -> None:
    with pytest.raises(KafkaException, match=next(iter(setting))), leased_consumer(config("127.0.0.1:1", **setting)):
        pytest.fail("it was opened")
