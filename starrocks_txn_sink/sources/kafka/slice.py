"""Mean row size of each partition, from a sample: Kafka has offsets for times, but no byte counts for offsets."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter, methodcaller
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import DeadlineExceeded, SourceChanged
from starrocks_txn_sink.sources.balanced.plan import KafkaPartition, Offsets
from starrocks_txn_sink.spark_version import BALANCED_READING, require

try:
    from pyspark.sql.datasource import InputPartition
except ImportError:
    require(BALANCED_READING)
    raise

_EVERY_SECONDS: Final = 60.0
# Limits of one sample: it runs on the driver, inside the planning of a micro-batch.
_SAMPLE_SECONDS: Final = 3.0
_SAMPLE_ROWS: Final = 5000
_UNKNOWN_BYTES: Final = 1000.0  # until the first sample has a row


class RowSizes:
    """Mean bytes of key and value by partition; samples again once a minute."""

    def __init__(self, config: Mapping[str, Any], clock: Clock) -> None:
        self._consumer = Consumer({**config, "queued.min.messages": 100})
        self._clock = clock
        self._sampled_at: float | None = None
        self._means: dict[KafkaPartition, float] = {}

    def means(self, start: Offsets, end: Offsets) -> Mapping[KafkaPartition, float]:
        """Mean row bytes for every partition of `start`; an unsampled partition gets the mean of the sampled ones."""
        now = self._clock.monotonic()
        if self._sampled_at is None or now - self._sampled_at >= _EVERY_SECONDS:
            self._sample([partition for partition in start if end[partition] > start[partition]], start)
            self._sampled_at = now
        usual = sum(self._means.values()) / len(self._means) if self._means else _UNKNOWN_BYTES
        return {partition: self._means.get(partition, usual) for partition in start}

    def close(self) -> None:
        self._consumer.close()

    def _sample(self, partitions: list[KafkaPartition], start: Offsets) -> None:
        self._consumer.assign([TopicPartition(*partition, start[partition]) for partition in partitions])
        sizes: dict[KafkaPartition, list[int]] = defaultdict(list)
        rows, deadline = 0, Deadline.after(_SAMPLE_SECONDS, self._clock)
        while len(sizes) < len(partitions) and rows < _SAMPLE_ROWS and not deadline.expired():
            for message in self._consumer.consume(500, timeout=0.2):
                if message.error() is None:
                    sizes[partition_of(message)].append(len(message.value() or b"") + len(message.key() or b""))
                    rows += 1
        self._consumer.unassign()
        self._means.update({partition: sum(each) / len(each) for partition, each in sizes.items()})


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
_POLL_MESSAGES: Final = 20_000
# methodcaller keeps the loop over messages in C code: there are hundreds of thousands of messages a second.
_ERROR, _TOPIC, _PARTITION, _OFFSET = map(methodcaller, ("error", "topic", "partition", "offset"))
_TIME, _KEY, _VALUE = map(methodcaller, ("timestamp", "key", "value"))
_Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_UNRECOVERABLE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)  # not an unreachable broker: it may come back within `patience`
_BATCH_ROWS: Final = 50_000
_ORDER: Final = ("timestamp", "topic", "partition", "offset")


@dataclass(frozen=True)
class Slice(InputPartition):
    """Offsets [start, end) of each partition with rows; `patience` is the longest wait for the next row, in seconds."""

    ranges: Mapping[KafkaPartition, tuple[int, int]]
    patience: float
    config: Mapping[str, Any] = field(repr=False)  # may hold a password: not in repr


# At most one: a worker process reads for one query at a time, and it is mostly the same one.
_consumers: dict[str, Consumer] = {}


def consumer_of(config: Mapping[str, Any]) -> Consumer:
    """This process's consumer; closes a consumer with another configuration first."""
    name = json.dumps(dict(config), sort_keys=True)
    if name not in _consumers:
        for other in list(_consumers):
            _consumers.pop(other).close()
        _consumers[name] = Consumer(dict(config))
    return _consumers[name]


def read_slice(part: Slice) -> Iterator[pa.RecordBatch]:
    """All rows of the slice, sorted by event time, topic, partition and offset.

    Raises SourceChanged for offsets that Kafka no longer has, DeadlineExceeded after `patience` seconds without a row.
    """
    consumer = consumer_of(part.config)
    assigned = [TopicPartition(topic, number, start) for (topic, number), (start, _) in part.ranges.items()]
    consumer.assign(assigned)
    consumer.resume(assigned)  # the slice before may have paused them
    try:
        rows = collect(consumer, part, SystemClock()).sort_by([(name, "ascending") for name in _ORDER])
    finally:
        consumer.unassign()
    yield from rows.to_batches(max_chunksize=_BATCH_ROWS)


def collect(consumer: Consumer, part: Slice, clock: Clock) -> pa.Table:
    """All rows of the slice in no particular order; the consumer has been assigned the slice's starts."""
    unfinished = _UnfinishedPartitions(part)
    parts: list[pa.Table] = []
    deadline = Deadline.after(part.patience, clock)
    while unfinished.ends:
        messages = consumer.consume(_POLL_MESSAGES, timeout=0.1)
        if messages:
            deadline = Deadline.after(part.patience, clock)
        elif deadline.expired():
            raise DeadlineExceeded(
                f"Kafka delivered no rows for {part.patience:.0f} s.",
                hint="Check that the brokers are running, or raise patience.",
                partitions=len(unfinished.ends),
                first=next(iter(unfinished.ends)),
            )
        rows, done = unfinished.take(messages)
        parts.append(rows)
        if done:
            # A partition that is done must not fill the fetch queue with rows beyond its end.
            consumer.pause([TopicPartition(*partition) for partition in done])
    return pa.concat_tables(parts) if parts else _ARROW.empty_table()


class _UnfinishedPartitions:
    """The partitions of a slice whose ends have not been reached yet."""

    def __init__(self, part: Slice) -> None:
        self.ends = {partition: end for partition, (_, end) in part.ranges.items()}
        self._ordered = list(part.ranges)
        self._end_array = np.array([end for _, end in part.ranges.values()], dtype=np.int64)
        self._topics = sorted({topic for topic, _ in self._ordered})
        self._index_of = np.zeros((len(self._topics), max(number for _, number in self._ordered) + 1), dtype=np.int64)
        for code, (topic, number) in enumerate(self._ordered):
            self._index_of[self._topics.index(topic), number] = code

    def take(self, messages: list[Message]) -> tuple[pa.Table, list[KafkaPartition]]:
        """The rows before the ends among the messages, and the partitions that have just reached their ends."""
        passed = set()
        if any(map(_ERROR, messages)):
            passed = {partition for message in messages if (partition := self._partition_at_end(message)) is not None}
            messages = [each for each in messages if each.error() is None]
        topics, partitions = self._topic_indexes(messages), _integers(_PARTITION, messages)
        numbers, offsets = self._index_of[topics, partitions], _integers(_OFFSET, messages)
        newest = np.full(len(self._end_array), -1, dtype=np.int64)
        np.maximum.at(newest, numbers, offsets)
        # The last offset before an end may be a marker: a row beyond the end shows as well that the end is reached.
        passed |= {self._ordered[number] for number in np.flatnonzero(newest >= self._end_array - 1)}
        done = [partition for partition in passed if self.ends.pop(partition, None) is not None]
        kept = np.flatnonzero(offsets < self._end_array[numbers])
        names = pa.array(self._topics, pa.string()).take(pa.array(topics[kept]))
        return _table([messages[n] for n in kept.tolist()], names, partitions[kept], offsets[kept]), done

    def _topic_indexes(self, messages: list[Message]) -> _Integers:
        """The index of each message's topic; a slice of one topic, the usual case, needs no call per message."""
        if len(self._topics) == 1:
            return np.zeros(len(messages), dtype=np.int64)
        codes = {topic: code for code, topic in enumerate(self._topics)}
        return np.fromiter(map(codes.__getitem__, map(_TOPIC, messages)), dtype=np.int64, count=len(messages))

    def _partition_at_end(self, message: Message) -> KafkaPartition | None:
        """The partition whose log ends at or after its end in the slice, if the message reports the end of a log.

        The last offsets before an end may be markers of Kafka transactions, which a consumer never receives.
        """
        error = message.error()
        if error is None:
            return None
        if error.code() == KafkaError._PARTITION_EOF:
            partition, offset = partition_of(message), message.offset()
            # After a change of leader a log may seem to end too early for a while: keep waiting then.
            return partition if offset is not None and offset >= self.ends.get(partition, offset) else None
        _raise_unrecoverable(message, error)
        return None


def _raise_unrecoverable(message: Message, error: KafkaError) -> None:
    """Raise SourceChanged for an error that waiting does not cure."""
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        what = "Kafka no longer has the first offsets of the micro-batch."
        hint = "Raise the topic's retention, or start with a new checkpoint."
    elif error.fatal() or error.code() in _UNRECOVERABLE:
        what = f"Kafka refused to deliver rows: {error.str()}."
        hint = "Correct the topic or the consumer's options."
    else:
        return
    raise SourceChanged(what, hint=hint, topic=message.topic(), partition=message.partition())


def partition_of(message: Message) -> KafkaPartition:
    topic, number = message.topic(), message.partition()
    assert topic is not None  # a received message has both
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
