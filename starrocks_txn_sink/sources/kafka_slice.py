"""What an executor's task reads: a slice of many partitions, sorted by event time, with one consumer that is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyspark.sql.datasource import InputPartition

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import DeadlineExceeded, SourceChanged
from starrocks_txn_sink.sources.balanced_plan import Place

SCHEMA: Final = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
_ARROW: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
_POLLED: Final = 20_000
_HOPELESS: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)  # a broker that is away is not among them: it may come back while patience lasts
_BATCH_ROWS: Final = 50_000


@dataclass(frozen=True)
class Slice(InputPartition):
    """Offsets [start, end) of each place that has any; `config` is the consumer's, `patience` seconds without a row."""

    ranges: Mapping[Place, tuple[int, int]]
    patience: float
    config: Mapping[str, Any] = field(repr=False)  # it may have a password


_kept: dict[str, Consumer] = {}  # at most one: a worker process reads for one query at a time, mostly the same one


def consumer_of(config: Mapping[str, Any]) -> Consumer:
    """This process's consumer; one with another configuration is closed first."""
    name = json.dumps(dict(config), sort_keys=True)
    if name not in _kept:
        for other in list(_kept):
            _kept.pop(other).close()
        _kept[name] = Consumer(dict(config))
    return _kept[name]


def read_slice(wanted: Slice) -> Iterator[pa.RecordBatch]:
    """All rows of the slice by (event time, topic, partition, offset). Raises SourceChanged for offsets that Kafka has
    not any more, DeadlineExceeded when it gives nothing for `patience` seconds."""
    consumer = consumer_of(wanted.config)
    assigned = [TopicPartition(topic, number, start) for (topic, number), (start, _) in wanted.ranges.items()]
    consumer.assign(assigned)
    consumer.resume(assigned)  # a slice before may have paused them
    try:
        rows = _sorted(collected(consumer, wanted, SystemClock()))
    finally:
        consumer.unassign()
    yield from rows.to_batches(max_chunksize=_BATCH_ROWS)


def collected(consumer: Consumer, wanted: Slice, clock: Clock) -> pa.Table:
    """Everything up to the ends, in no particular order, from a consumer that has been assigned the starts."""
    open_ends = _OpenEnds(wanted)
    parts: list[pa.Table] = []
    deadline = Deadline.after(wanted.patience, clock)
    while open_ends.places:
        messages = consumer.consume(_POLLED, timeout=0.1)
        if messages:
            deadline = Deadline.after(wanted.patience, clock)
        elif deadline.expired():
            raise DeadlineExceeded(
                f"Kafka gave nothing for {wanted.patience:.0f} s.",
                hint="Check that the brokers are running, or raise patience.",
                partitions=len(open_ends.places),
                first=next(iter(open_ends.places)),
            )
        rows, done = open_ends.take(messages)
        parts.append(rows)
        if done:
            consumer.pause([TopicPartition(*place) for place in done])
    return pa.concat_tables(parts) if parts else _ARROW.empty_table()


class _OpenEnds:
    """The places whose ends have not been reached."""

    def __init__(self, wanted: Slice) -> None:
        self.places = {place: end for place, (_, end) in wanted.ranges.items()}
        self._numbers = {place: number for number, place in enumerate(wanted.ranges)}
        self._ordered = list(wanted.ranges)
        self._ends = np.array([end for _, end in wanted.ranges.values()], dtype=np.int64)

    def take(self, messages: list[Message]) -> tuple[pa.Table, list[Place]]:
        """The rows among the messages that are before the ends, and the places that have reached theirs now."""
        passed = {place for message in messages if (place := self._told(message)) is not None}
        given = [each for each in messages if each.error() is None]
        numbers = np.array([self._numbers[place_of(each)] for each in given], dtype=np.int64)
        offsets = np.fromiter((each.offset() for each in given), dtype=np.int64, count=len(given))
        newest = np.full(len(self._ends), -1, dtype=np.int64)
        np.maximum.at(newest, numbers, offsets)
        passed |= {self._ordered[number] for number in np.flatnonzero(newest >= self._ends - 1)}
        done = [place for place in passed if self.places.pop(place, None) is not None]
        wanted = [given[n] for n in np.flatnonzero(offsets < self._ends[numbers])]
        return _table(wanted), done

    def _told(self, message: Message) -> Place | None:
        """The place that has no more rows before its end, if the message says so: its last offsets belong to markers of
        transactions, which nobody gets. (After a change of the leader a log may seem to end earlier for a while.)"""
        error = message.error()
        if error is None:
            return None
        if error.code() == KafkaError._PARTITION_EOF:
            place, offset = place_of(message), message.offset()
            return place if offset is not None and offset >= self.places.get(place, offset) else None
        _refuse(message, error)
        return None


def _refuse(message: Message, error: KafkaError) -> None:
    """Raise SourceChanged for what waiting does not heal."""
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise SourceChanged(
            "Kafka has not the offsets any more that the micro-batch begins with.",
            hint="Raise the topic's retention, or start with a new checkpoint.",
            topic=message.topic(),
            partition=message.partition(),
        )
    if error.fatal() or error.code() in _HOPELESS:
        raise SourceChanged(
            f"Kafka refused to give rows: {error.str()}.",
            hint="Correct the topic or the consumer's options.",
            topic=message.topic(),
            partition=message.partition(),
        )


def place_of(message: Message) -> Place:
    """A message that was read has both."""
    topic, number = message.topic(), message.partition()
    assert topic is not None
    assert number is not None
    return topic, number


def _table(messages: list[Message]) -> pa.Table:
    times = np.fromiter((each.timestamp()[1] for each in messages), dtype=np.int64, count=len(messages))
    columns = [
        pa.array([each.key() for each in messages], pa.binary()),
        pa.array([each.value() for each in messages], pa.binary()),
        pa.array([each.topic() for each in messages], pa.string()),
        pa.array([each.partition() for each in messages], pa.int32()),
        pa.array([each.offset() for each in messages], pa.int64()),
        pa.array(times * 1000).cast(pa.timestamp("us", "UTC")),
    ]
    return pa.table(columns, _ARROW)


def _sorted(rows: pa.Table) -> pa.Table:
    order = [(name, "ascending") for name in ("timestamp", "topic", "partition", "offset")]
    return rows.sort_by(order)
