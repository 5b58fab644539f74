"""Offset ranges of Kafka partitions, read with librdkafka: by the tasks of `balanced_kafka`, and by lanes."""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import DeadlineExceeded, SourceChanged, SourceDamaged
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sources.formats.raw_format import KEY, MESSAGE_KEY, POSITION, SOURCE_PARTITION, VALUE
from starrocks_txn_sink.sources.kafka.consumer import Consumer, Problem, Rows, open_consumer, topic_names
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition

_NAMED: Final = 8  # partitions in a message, which is one line
_POLL_MESSAGES: Final = 20_000
_POLL_SECONDS: Final = 0.1  # a poll waits this long for more messages, so it asks for no more than there are
_UNRECOVERABLE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)  # not an unreachable broker: it may come back within `patience`
_DAMAGED: Final = (
    KafkaError._BAD_MSG,  # librdkafka's check of the CRC
    KafkaError._BAD_COMPRESSION,
    KafkaError._NOT_IMPLEMENTED,  # a format or codec that librdkafka does not have
    KafkaError._UNDERFLOW,
    KafkaError.INVALID_MSG,  # the broker's check of the CRC
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.MSG_SIZE_TOO_LARGE,  # no batch ends within the largest answer
    KafkaError.INVALID_RECORD,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
)


@dataclass(frozen=True)
class OffsetRanges:
    """Offsets [start, end) of each partition with rows; `patience` is the longest wait for the next row, in seconds.

    `read_values` gives the `columns` that a format asks for, and with `time` EVENT_TIME. With `topic_names` it names
    source partitions by topic and partition. With `keys` and `headers` `read_ranges` reads the rows' own.
    """

    ranges: Mapping[KafkaPartition, tuple[int, int]]
    patience: float
    config: Mapping[str, Any] = field(repr=False)  # may hold a password: not in repr
    time: bool = False
    keys: bool = False
    topic_names: bool = False
    columns: tuple[str, ...] = (SOURCE_PARTITION, POSITION, VALUE)
    headers: bool = False

    @property
    def topics(self) -> list[str]:
        """The names of the topics, sorted."""
        return topic_names(self.ranges)

    @property
    def place(self) -> str:
        """Topics, partitions and offsets, for a message; no more than _NAMED partitions."""
        first_ranges = sorted(self.ranges.items())[:_NAMED]
        texts = [f"{topic}-{number} offsets {start} to {end - 1}" for (topic, number), (start, end) in first_ranges]
        rest = len(self.ranges) - len(first_ranges)
        return ", ".join(texts) + (f" and {rest} partitions more" if rest else "")

    def starts(self) -> dict[str, int]:
        """The first offset by source partition, as `read_values` names it."""
        return {self._name(place): start for place, (start, _) in self.ranges.items()}

    def after(self, reached: Mapping[str, int]) -> OffsetRanges:
        """The ranges that are left when a lane has stopped at the next offsets `reached`; the other ones are read."""
        names = {place: self._name(place) for place in self.ranges}
        ranges_left = {
            place: (reached[names[place]], end)
            for place, (_, end) in self.ranges.items()
            if reached.get(names[place], end) < end
        }
        return replace(self, ranges=ranges_left)

    def _name(self, place: KafkaPartition) -> str:
        topic, number = place
        return f"{topic}-{number}" if self.topic_names else str(number)


_MOST_IDLE: Final = 2  # two queries may take turns in one process
_idle: list[tuple[str, Consumer]] = []  # by configuration; those used last come last
_guard = threading.Lock()


@contextmanager
def leased_consumer(config: Mapping[str, Any]) -> Iterator[Consumer]:
    """A consumer of this process that nobody else uses meanwhile, from an earlier block or new. Thread-safe.

    It reads nothing at the block's end.
    """
    name = json.dumps(dict(config), sort_keys=True)
    with _guard:
        place = next((place for place, (known, _) in enumerate(_idle) if known == name), None)
        consumer = None if place is None else _idle.pop(place)[1]
    if consumer is None:
        consumer = open_consumer(config)
    try:
        yield consumer
    finally:
        consumer.assign({})
        with _guard:
            _idle.append((name, consumer))
        close_consumers(_MOST_IDLE)


def close_consumers(limit: int = 0) -> None:
    """Close this process's consumers that nobody uses, the longest unused first, but for `limit`."""
    with _guard:
        unused = _idle[: max(0, len(_idle) - limit)]
        del _idle[: len(unused)]
    for _, consumer in unused:
        consumer.close()


atexit.register(close_consumers)  # no thread of librdkafka may run on while the process takes its libraries down


def read_ranges(part: OffsetRanges, deadline: Deadline | None = None, clock: Clock | None = None) -> Iterator[Rows]:
    """The rows of the ranges with a consumer of this process; errors as of `polls`.

    Reads a damaged record batch once more, with a fresh consumer: it may have been damaged on the way.
    """
    clock, unfinished = clock or SystemClock(), UnfinishedPartitions(part)
    tried_places, partitions_left = set[object](), unfinished.left + 1
    while unfinished.ends:
        with leased_consumer(part.config) as consumer:
            consumer.assign(unfinished.starts)
            try:
                yield from polls(consumer, unfinished, clock, deadline)
            except SourceDamaged as damaged:
                place = tuple(sorted(damaged.context.items()))
                if (
                    place in tried_places or unfinished.left == partitions_left
                ):  # without progress even another place is the same damage
                    raise
                tried_places.add(place)
                partitions_left = unfinished.left
        if unfinished.ends:
            close_consumers()


def read_values(part: OffsetRanges, deadline: Deadline | None = None) -> Generator[pa.RecordBatch, None, None]:
    """The `columns` of the rows of a lane that parses, and with `time` event_time in µs.

    Rows of a partition come in the order of their offsets. Errors as of `polls`.
    """
    names = [*part.columns, *([EVENT_TIME] if part.time else [])]
    topics = pa.array(part.topics, pa.string())
    for rows in read_ranges(part, deadline):
        yield pa.record_batch([_FIELDS[name](rows, part, topics) for name in names], names)


def _source_partitions(rows: Rows, part: OffsetRanges) -> pa.Array:
    """The names of the rows' source partitions: the number of the Kafka partition, or topic and number."""
    if not part.topic_names:
        numbers = pa.array(rows.partitions).dictionary_encode().cast(pa.dictionary(pa.int32(), pa.string()))
        return numbers.cast(pa.string())
    width = int(rows.partitions.max(initial=0)) + 1
    codes, places = np.unique(rows.topics * width + rows.partitions, return_inverse=True)
    names = [f"{part.topics[code // width]}-{code % width}" for code in codes.tolist()]
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(names, pa.string())).cast(pa.string())


_FIELDS: Final[Mapping[str, Callable[[Rows, OffsetRanges, pa.Array], pa.Array]]] = {
    SOURCE_PARTITION: lambda rows, part, _: _source_partitions(rows, part),
    POSITION: lambda rows, *_: pa.array(rows.offsets),
    VALUE: lambda rows, *_: rows.values,
    KEY: lambda rows, *_: rows.keys,
    MESSAGE_KEY: lambda rows, *_: rows.keys,
    "topic": lambda rows, _, topics: pa.DictionaryArray.from_arrays(pa.array(rows.topics, pa.int32()), topics),
    "partition": lambda rows, *_: pa.array(rows.partitions).cast(pa.int32()),
    "offset": lambda rows, *_: pa.array(rows.offsets),
    "timestamp": lambda rows, *_: pa.array(rows.times),
    EVENT_TIME: lambda rows, *_: pa.array(rows.times * 1000),
}
"""The columns of `read_values`, by name; the third argument has the names of the topics."""


def spread(
    ranges: Mapping[KafkaPartition, tuple[int, int]], parts: int, minimum: int = 1
) -> list[dict[KafkaPartition, tuple[int, int]]]:
    """The ranges in at most `parts` groups of about as many offsets; none is cut, and no group is empty.

    There are several groups only if each could have `minimum` offsets.
    """
    enough = max(1, sum(end - start for start, end in ranges.values()) // minimum)
    groups: list[dict[KafkaPartition, tuple[int, int]]] = [{} for _ in range(min(parts, enough, len(ranges)))]
    sizes = [0] * len(groups)
    for partition, (start, end) in sorted(ranges.items(), key=lambda item: item[1][0] - item[1][1]):
        smallest = sizes.index(min(sizes))
        groups[smallest][partition] = (start, end)
        sizes[smallest] += end - start
    return groups


def polls(
    consumer: Consumer, unfinished: UnfinishedPartitions, clock: Clock, deadline: Deadline | None = None
) -> Iterator[Rows]:
    """The rows of the ranges; the consumer has been assigned their starts.

    Raises SourceChanged for offsets that Kafka no longer has, SourceDamaged for a record batch that cannot be read, and
    DeadlineExceeded at the `deadline`, or when `patience` seconds have brought neither a row nor the end of a
    partition. Problems do not count: a client may report one at each poll, without end.
    """
    part = unfinished.part
    codes = np.array([part.topics.index(name) for name in topic_names(unfinished.starts)])  # of the assigned topics
    patience, reason = Deadline.after(part.patience, clock), None
    while unfinished.ends:
        rows, problems = consumer.poll(min(unfinished.left, _POLL_MESSAGES), _POLL_SECONDS, part.keys, part.headers)
        rows = rows._replace(topics=codes[rows.topics])
        reason = next((problem.error.str() for problem in problems if not _is_end_of_log(problem)), reason)
        for rows_part, their_problems in _parts(rows, problems):
            rows_taken, partitions_done = unfinished.take(rows_part, their_problems)
            if partitions_done:
                # A partition that is done must not fill the fetch queue with rows beyond its end. Pausing it would cost
                # more: after a pause of all partitions a client takes a second to resume.
                consumer.leave(partitions_done)
            if len(rows_taken.offsets):
                yield rows_taken
            unfinished.refuse(their_problems)
            if partitions_done or len(rows_taken.offsets):
                patience, reason = Deadline.after(part.patience, clock), None
        if unfinished.ends and (patience.expired() or (deadline is not None and deadline.expired())):
            raise _too_late(unfinished, reason, has_waited=patience.expired())


def _parts(rows: Rows, problems: list[Problem]) -> Iterator[tuple[Rows, list[Problem]]]:
    """A poll, cut behind each damage: rows that come later may be rows from behind the damage."""
    start, first = 0, 0
    for number, problem in enumerate(problems, 1):
        if problem.error.code() in _DAMAGED:
            yield rows.take(np.arange(start, problem.rows_before)), problems[first:number]
            start, first = problem.rows_before, number
    yield (rows.take(np.arange(start, len(rows.offsets))) if start else rows), problems[first:]


def _too_late(unfinished: UnfinishedPartitions, reason: str | None, *, has_waited: bool) -> DeadlineExceeded:
    sentence = "The batch's deadline passed while the lane read Kafka."
    hint = "Raise batch_deadline, or make micro-batches smaller (maxOffsetsPerTrigger)."
    if has_waited:
        sentence = f"Kafka delivered no rows for {unfinished.part.patience:.0f} s."
        hint = (
            "Check that the brokers are running; if they are, the record batch at the offset may be damaged. "
            "The source balanced_kafka waits longer with `patience`."
        )
    first = next(iter(unfinished.ends))
    return DeadlineExceeded(
        sentence,
        hint=hint,
        partitions=len(unfinished.ends),
        first=first,
        offset=unfinished.starts[first],
        reason=reason,
    )


class UnfinishedPartitions:
    """The partitions whose ends have not been reached yet."""

    def __init__(self, part: OffsetRanges) -> None:
        self.part = part
        self.ends = {partition: end for partition, (_, end) in part.ranges.items()}
        self._ordered = list(part.ranges)
        self._next = np.array([start for start, _ in part.ranges.values()], dtype=np.int64)
        self._end_array = np.array([end for _, end in part.ranges.values()], dtype=np.int64)
        self._topics = part.topics
        self._index_of = np.zeros((len(self._topics), max(number for _, number in self._ordered) + 1), dtype=np.int64)
        for code, (topic, number) in enumerate(self._ordered):
            self._index_of[self._topics.index(topic), number] = code

    @property
    def starts(self) -> dict[KafkaPartition, int]:
        """The offset from which each of the partitions is still to be read."""
        offsets = zip(self._ordered, self._next.tolist(), strict=True)
        return {partition: offset for partition, offset in offsets if partition in self.ends}

    @property
    def left(self) -> int:
        """Offsets before the ends, at least 1."""
        return max(1, int(np.maximum(self._end_array - self._next, 0).sum()))

    def refuse(self, problems: list[Problem]) -> None:
        """Raise the error for a problem that waiting does not cure; the rows before it have been taken.

        Behind a damaged record batch librdkafka looks for the next one at a wrong place, and may then ask for any
        offset, even at the beginning of the next micro-batch. So only an offset that is still to be read counts as an
        offset that Kafka has dropped.
        """
        for problem in problems:
            error, place = problem.error, self._unread_place(problem)
            if error.code() not in (*_DAMAGED, KafkaError._AUTO_OFFSET_RESET):
                if error.fatal() or error.code() in _UNRECOVERABLE:
                    sentence = f"Kafka refused to deliver rows: {error.str()}."
                    raise SourceChanged(sentence, hint="Correct the topic or the consumer's options.", **place)
            elif problem.partition is None or problem.partition in self.ends:
                if error.code() in _DAMAGED:
                    sentence = f"Kafka's record batch is damaged, or librdkafka cannot read it: {error.str()}."
                    raise SourceDamaged(sentence, **place)
                if place.get("offset") != problem.offset:
                    raise SourceDamaged(f"librdkafka has lost its place in the partition: {error.str()}.", **place)
                sentence = "Kafka no longer has the first offsets of the micro-batch."
                hint = "Raise the topic's retention, or start with a new checkpoint."
                raise SourceChanged(sentence, hint=hint, **place)

    def _unread_place(self, problem: Problem) -> dict[str, Any]:
        """Topic, partition and offset of a problem; the first unread offset if its own is not one of the unread."""
        if problem.partition is None:
            return {}
        topic, number = problem.partition
        start, end = self.starts.get(problem.partition), self.ends.get(problem.partition)
        offset = problem.offset if start is None or end is None or start <= problem.offset < end else start
        return {"topic": topic, "partition": number, "offset": offset}

    def take(self, rows: Rows, problems: list[Problem]) -> tuple[Rows, list[KafkaPartition]]:
        """The given rows without those beyond the ends, and the partitions that have just reached their ends."""
        partitions_passed = {
            partition for problem in problems if (partition := self._partition_at_end(problem)) is not None
        }
        numbers = self._index_of[rows.topics, rows.partitions]
        np.maximum.at(self._next, numbers, rows.offsets + 1)
        # The last offset before an end may be a marker, which has no row. A row beyond the end then shows the end.
        partitions_passed |= {self._ordered[number] for number in np.flatnonzero(self._next >= self._end_array)}
        partitions_done = [partition for partition in partitions_passed if self.ends.pop(partition, None) is not None]
        for topic, number in partitions_done:
            place = self._index_of[self._topics.index(topic), number]
            self._next[place] = self._end_array[place]
        within = rows.offsets < self._end_array[numbers]
        return rows if within.all() else rows.take(np.flatnonzero(within)), partitions_done

    def _partition_at_end(self, problem: Problem) -> KafkaPartition | None:
        """The partition whose log ends at or after its end in the ranges, if the problem is the end of a log.

        No row shows this end if the last offsets before it are markers of Kafka transactions, which a consumer never
        receives. After a change of leader a log may seem to end too early for a while: keep waiting then.
        """
        partition, offset = problem.partition, problem.offset
        is_end = _is_end_of_log(problem) and partition is not None and offset >= self.ends.get(partition, offset)
        return partition if is_end else None


def _is_end_of_log(problem: Problem) -> bool:
    return problem.error.code() == KafkaError._PARTITION_EOF
