"""Offset ranges of Kafka partitions, read with librdkafka: by the tasks of `balanced_kafka`, and by lanes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import DeadlineExceeded, SourceChanged
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sources.balanced.plan import KafkaPartition
from starrocks_txn_sink.sources.kafka.consumer import Consumer, Problem, Rows, open_consumer, topic_names
from starrocks_txn_sink.sources.txn_lines import POSITION, SOURCE_PARTITION, VALUE

_POLL_MESSAGES: Final = 20_000
_POLL_SECONDS: Final = 0.1  # a poll waits this long for more messages, so it asks for no more than there are
_UNRECOVERABLE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)  # not an unreachable broker: it may come back within `patience`


@dataclass(frozen=True)
class OffsetRanges:
    """Offsets [start, end) of each partition with rows; `patience` is the longest wait for the next row, in seconds.

    With `time` `read_values` also gives the rows' timestamps; with `keys` `read_ranges` reads their keys.
    """

    ranges: Mapping[KafkaPartition, tuple[int, int]]
    patience: float
    config: Mapping[str, Any] = field(repr=False)  # may hold a password: not in repr
    time: bool = False
    keys: bool = False

    @property
    def topics(self) -> list[str]:
        """The names of the topics, sorted."""
        return topic_names(self.ranges)


# At most one consumer: a worker process reads for one query at a time, mostly the same query.
_consumers: dict[str, Consumer] = {}


def consumer_of(config: Mapping[str, Any]) -> Consumer:
    """This process's consumer; closes a consumer with another configuration first."""
    name = json.dumps(dict(config), sort_keys=True)
    if name not in _consumers:
        for other in list(_consumers):
            _consumers.pop(other).close()
        _consumers[name] = open_consumer(config)
    return _consumers[name]


def read_ranges(part: OffsetRanges) -> Iterator[Rows]:
    """The rows of the ranges with this process's consumer; errors as of `polls`."""
    consumer = consumer_of(part.config)
    consumer.assign({partition: start for partition, (start, _) in part.ranges.items()})
    try:
        yield from polls(consumer, part, SystemClock())
    finally:
        consumer.assign({})


def read_values(part: OffsetRanges) -> Iterator[pa.RecordBatch]:
    """The rows of a lane that parses: source_partition (text), position, value, and with `time` event_time in µs.

    Rows of a partition come in the order of their offsets. Errors as of `polls`.
    """
    names = [SOURCE_PARTITION, POSITION, VALUE, *([EVENT_TIME] if part.time else [])]
    for rows in read_ranges(part):
        partitions = pa.array(rows.partitions).dictionary_encode().cast(pa.dictionary(pa.int32(), pa.string()))
        columns = [partitions.cast(pa.string()), pa.array(rows.offsets), rows.values]
        yield pa.record_batch(columns + ([pa.array(rows.times * 1000)] if part.time else []), names)


def spread(
    ranges: Mapping[KafkaPartition, tuple[int, int]], parts: int, least: int = 1
) -> list[dict[KafkaPartition, tuple[int, int]]]:
    """The ranges in at most `parts` groups of about as many offsets; none is cut, and no group is empty.

    There are several groups only if each could have `least` offsets.
    """
    enough = max(1, sum(end - start for start, end in ranges.values()) // least)
    groups: list[dict[KafkaPartition, tuple[int, int]]] = [{} for _ in range(min(parts, enough, len(ranges)))]
    sizes = [0] * len(groups)
    for partition, (start, end) in sorted(ranges.items(), key=lambda each: each[1][0] - each[1][1]):
        smallest = sizes.index(min(sizes))
        groups[smallest][partition] = (start, end)
        sizes[smallest] += end - start
    return groups


def polls(consumer: Consumer, part: OffsetRanges, clock: Clock) -> Iterator[Rows]:
    """The rows of the ranges; the consumer has been assigned their starts.

    Raises SourceChanged for offsets that Kafka no longer has, DeadlineExceeded after `patience` seconds without a row.
    """
    unfinished = UnfinishedPartitions(part)
    deadline = Deadline.after(part.patience, clock)
    while unfinished.ends:
        rows, problems = consumer.poll(min(unfinished.left, _POLL_MESSAGES), _POLL_SECONDS, part.keys)
        if len(rows.offsets) or problems:
            deadline = Deadline.after(part.patience, clock)
        elif deadline.expired():
            raise DeadlineExceeded(
                f"Kafka delivered no rows for {part.patience:.0f} s.",
                hint="Check that the brokers are running. The source balanced_kafka waits longer with `patience`.",
                partitions=len(unfinished.ends),
                first=next(iter(unfinished.ends)),
            )
        rows, done = unfinished.take(rows, problems)
        if done:
            # A partition that is done must not fill the fetch queue with rows beyond its end. Pausing it would cost
            # more: after a pause of all partitions a client takes a second to resume.
            consumer.leave(done)
        if len(rows.offsets):
            yield rows


class UnfinishedPartitions:
    """The partitions whose ends have not been reached yet."""

    def __init__(self, part: OffsetRanges) -> None:
        self.ends = {partition: end for partition, (_, end) in part.ranges.items()}
        self._ordered = list(part.ranges)
        self._next = np.array([start for start, _ in part.ranges.values()], dtype=np.int64)
        self._end_array = np.array([end for _, end in part.ranges.values()], dtype=np.int64)
        self._topics = part.topics
        self._index_of = np.zeros((len(self._topics), max(number for _, number in self._ordered) + 1), dtype=np.int64)
        for code, (topic, number) in enumerate(self._ordered):
            self._index_of[self._topics.index(topic), number] = code

    @property
    def left(self) -> int:
        """Offsets before the ends, at least 1."""
        return max(1, int(np.maximum(self._end_array - self._next, 0).sum()))

    def take(self, rows: Rows, problems: list[Problem]) -> tuple[Rows, list[KafkaPartition]]:
        """The given rows without those beyond the ends, and the partitions that have just reached their ends."""
        passed = {partition for problem in problems if (partition := self._partition_at_end(problem)) is not None}
        numbers = self._index_of[rows.topics, rows.partitions]
        np.maximum.at(self._next, numbers, rows.offsets + 1)
        # The last offset before an end may be a marker, which has no row. A row beyond the end then shows the end.
        passed |= {self._ordered[number] for number in np.flatnonzero(self._next >= self._end_array)}
        done = [partition for partition in passed if self.ends.pop(partition, None) is not None]
        for topic, number in done:
            place = self._index_of[self._topics.index(topic), number]
            self._next[place] = self._end_array[place]
        within = rows.offsets < self._end_array[numbers]
        return rows if within.all() else rows.take(np.flatnonzero(within)), done

    def _partition_at_end(self, problem: Problem) -> KafkaPartition | None:
        """The partition whose log ends at or after its end in the ranges, if the problem is the end of a log.

        No row shows this end if the last offsets before it are markers of Kafka transactions, which a consumer never
        receives. Raises SourceChanged for an unrecoverable problem.
        """
        partition, offset, error = problem
        if error.code() == KafkaError._PARTITION_EOF:
            # After a change of leader a log may seem to end too early for a while: keep waiting then.
            return partition if partition is not None and offset >= self.ends.get(partition, offset) else None
        _raise_unrecoverable(problem)
        return None


def _raise_unrecoverable(problem: Problem) -> None:
    """Raise SourceChanged for an error that waiting does not cure."""
    error = problem.error
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        what = "Kafka no longer has the first offsets of the micro-batch."
        hint = "Raise the topic's retention, or start with a new checkpoint."
    elif error.fatal() or error.code() in _UNRECOVERABLE:
        what = f"Kafka refused to deliver rows: {error.str()}."
        hint = "Correct the topic or the consumer's options."
    else:
        return
    topic, number = problem.partition or (None, None)
    raise SourceChanged(what, hint=hint, topic=topic, partition=number)
