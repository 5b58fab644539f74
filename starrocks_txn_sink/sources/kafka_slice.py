"""What an executor's task reads: a slice of many partitions, sorted by event time, with one consumer that is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter, methodcaller
from typing import Any, Final, TypeAlias

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
# A message is asked by C code for each of these: there are hundreds of thousands a second.
_ERROR, _TOPIC, _PARTITION, _OFFSET = map(methodcaller, ("error", "topic", "partition", "offset"))
_TIME, _KEY, _VALUE = map(methodcaller, ("timestamp", "key", "value"))
_Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
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
        self._ordered = list(wanted.ranges)
        self._ends = np.array([end for _, end in wanted.ranges.values()], dtype=np.int64)
        self._topics = sorted({topic for topic, _ in self._ordered})
        self._numbers = np.zeros((len(self._topics), max(number for _, number in self._ordered) + 1), dtype=np.int64)
        for code, (topic, number) in enumerate(self._ordered):
            self._numbers[self._topics.index(topic), number] = code

    def take(self, messages: list[Message]) -> tuple[pa.Table, list[Place]]:
        """The rows among the messages that are before the ends, and the places that have reached theirs now."""
        passed = set()
        if any(map(_ERROR, messages)):
            passed = {place for message in messages if (place := self._told(message)) is not None}
            messages = [each for each in messages if each.error() is None]
        topics, partitions = self._topics_of(messages), _integers(_PARTITION, messages)
        numbers, offsets = self._numbers[topics, partitions], _integers(_OFFSET, messages)
        newest = np.full(len(self._ends), -1, dtype=np.int64)
        np.maximum.at(newest, numbers, offsets)
        passed |= {self._ordered[number] for number in np.flatnonzero(newest >= self._ends - 1)}
        done = [place for place in passed if self.places.pop(place, None) is not None]
        kept = np.flatnonzero(offsets < self._ends[numbers])
        names = pa.array(self._topics, pa.string()).take(pa.array(topics[kept]))
        return _table([messages[n] for n in kept.tolist()], names, partitions[kept], offsets[kept]), done

    def _topics_of(self, messages: list[Message]) -> _Integers:
        """The topic of each message by number; most slices have one, and then no message is asked."""
        if len(self._topics) == 1:
            return np.zeros(len(messages), dtype=np.int64)
        codes = {topic: code for code, topic in enumerate(self._topics)}
        return np.fromiter(map(codes.__getitem__, map(_TOPIC, messages)), dtype=np.int64, count=len(messages))

    def _told(self, message: Message) -> Place | None:
        """The place that has no more rows before its end, if the message says so.

        Its last offsets belong to markers of transactions, which no reader gets. (After a change of the leader a log
        may seem to end earlier for a while.)
        """
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


def _integers(what: Callable[[Message], int], messages: list[Message]) -> _Integers:
    return np.fromiter(map(what, messages), dtype=np.int64, count=len(messages))


def _table(messages: list[Message], topics: pa.Array, partitions: _Integers, offsets: _Integers) -> pa.Table:
    times = np.fromiter(map(itemgetter(1), map(_TIME, messages)), dtype=np.int64, count=len(messages))
    columns = [
        pa.array(list(map(_KEY, messages)), pa.binary()),
        pa.array(list(map(_VALUE, messages)), pa.binary()),
        topics,
        pa.array(partitions).cast(pa.int32()),
        pa.array(offsets),
        pa.array(times * 1000).cast(pa.timestamp("us", "UTC")),
    ]
    return pa.table(columns, _ARROW)


def _sorted(rows: pa.Table) -> pa.Table:
    order = [(name, "ascending") for name in ("timestamp", "topic", "partition", "offset")]
    return rows.sort_by(order)
