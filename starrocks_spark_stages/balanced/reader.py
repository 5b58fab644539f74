"""`spark.readStream.format("balanced_kafka")`: a Kafka source whose partitions progress together in event time.

    spark.dataSource.register(BalancedKafka)
    spark.readStream.format("balanced_kafka").option("kafka.bootstrap.servers", "…").option("subscribe", "a,b").load()

The driver ends each micro-batch at one event time on every partition of every topic (`rules.plan`). Each task reads
a `Slice` of that time from all partitions, so a micro-batch is sorted by event time over all its tasks.
Needs Spark 4.2 and the extra `kafka`: confluent-kafka is the maintained client with fast offsets for times.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.types import StructType

from starrocks_spark_stages.balanced.event_times import EventTimes
from starrocks_spark_stages.balanced.rules import plan
from starrocks_spark_stages.balanced.rules.plan import BatchLimits, PartitionEnds
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.sources.kafka.consumer import HEADERS, Rows
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets, parse_offsets
from starrocks_txn_sink.sources.kafka.options import BALANCED, EARLIEST, LATEST, BalancedOptions
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges, read_ranges
from starrocks_txn_sink.sources.kafka.skew import NEWEST, TIME
from starrocks_txn_sink.spark_version import BALANCED_READING, require

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    require(BALANCED_READING)
    raise

_ROWS_PER_TASK: Final = 20_000  # at least: below, one task is faster than several


class BalancedKafka(DataSource):
    """The data source `balanced_kafka`; BalancedOptions documents its options.

    Columns as in Spark's own Kafka source: key, value (binary), topic, partition, offset, timestamp, and with
    includeHeaders the headers.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return BALANCED

    def schema(self) -> str:
        """The columns as DDL, which the option `includeHeaders` decides; raises OptionError for wrong options."""
        return f"{SCHEMA}, {HEADERS_COLUMN}" if BalancedOptions.read(dict(self.options)).headers else SCHEMA

    def streamReader(self, schema: StructType) -> BalancedKafkaReader:  # noqa: N802, ARG002 - the name is Spark's
        """The reader of a query; raises OptionError for wrong options."""
        return BalancedKafkaReader(BalancedOptions.read(dict(self.options)))


def _offset(offsets: Offsets, time: int = -1) -> dict[str, Any]:
    """End of a micro-batch as the checkpoint has it: `{"topic": {"0": 17}, "@time": 1700000000000}`.

    The offsets have the form of Spark's own Kafka source, so lag is shown wherever Spark's own would be. `@time` (no
    topic can have that name) is the event time up to which all partitions have been read; -1 before the first.
    """
    return {**_by_topic(offsets), TIME: time}


def _by_topic(values: Mapping[KafkaPartition, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), value in sorted(values.items()):
        topics.setdefault(topic, {})[str(number)] = value
    return topics


class BalancedKafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; only `read` runs in the tasks."""

    def __init__(self, options: BalancedOptions, clock: Clock | None = None, kafka: EventTimes | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._kafka_admin = kafka
        self._sizes: RowSizes | None = None
        self._idleness = plan.Idleness(options.idle_timeout, self._clock)
        self._target: PartitionEnds | None = None  # trigger availableNow: the ends when the query started

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for the tasks; a Kafka client cannot be pickled, and `read` needs none.
        return {**self.__dict__, "_kafka_admin": None, "_sizes": None}

    # --- the names are Spark's ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins; raises InputError for named offsets that Kafka does not have."""
        return _offset(self._starting_offsets(self._partitions()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The rows of a micro-batch, at most."""
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the ends of now as the query's end."""
        self._target = self._kafka.partition_ends(self._partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """End of the micro-batch after `start`; `start` itself while there is nothing to read."""
        ends = self._target or self._kafka.partition_ends(self._partitions())
        offsets = self._continue_from(parse_offsets(start), ends)
        # With availableNow no more rows are expected: all partitions count as idle, so all rows are read.
        idle = set(offsets) if self._target else self._idleness.update(ends.end)
        since, limits = self._since(start, offsets), self._limits(limit, offsets, ends)
        batch = plan.plan_batch(offsets, since, ends, idle, limits, self._kafka.offsets_from(offsets, ends.end))
        if batch.time is None or dict(batch.offsets) == dict(offsets):
            return start
        return _offset(batch.offsets, batch.time)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Ends of the partitions, and under `@newest` the highest event time of each: the input of `skew_of`."""
        ends = self._target or self._kafka.partition_ends(self._partitions())
        newest = {partition: time for partition, time in ends.newest.items() if time is not None}
        return {**_offset(ends.end), NEWEST: _by_topic(newest)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One slice of event time per task, each over all partitions, oldest first."""
        until = parse_offsets(end)
        low = self._first_readable(parse_offsets(start), until)
        rows = sum(until[partition] - low[partition] for partition in low)
        if rows == 0:
            return []
        count = min(self._options.tasks, -(-rows // _ROWS_PER_TASK))
        since, offsets_from = self._since(start, low), self._kafka.offsets_from(low, until)
        bounds = plan.slice_bounds(low, until, since, end[TIME], count, offsets_from)
        return [part for part in itertools.starmap(self._slice, itertools.pairwise(bounds)) if part.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, in a task; raises the errors of `read_slice`."""
        assert isinstance(partition, Slice)
        return read_slice(partition)

    def stop(self) -> None:
        """End the consumer that samples rows."""
        if self._sizes is not None:
            self._sizes.close()

    # --- ours ---

    @property
    def _kafka(self) -> EventTimes:
        if self._kafka_admin is None:
            self._kafka_admin = EventTimes(self._options.config, self._options.patience, self._clock)
        return self._kafka_admin

    def _partitions(self) -> list[KafkaPartition]:
        return self._kafka.partitions(self._options.topics, self._options.pattern)

    def _starting_offsets(self, partitions: Sequence[KafkaPartition]) -> Offsets:
        """The offsets of the first start; a partition without a row since the starting time begins at its end."""
        kafka, options = self._kafka, self._options
        if options.start_time is not None:
            return kafka.offsets_from(partitions, kafka.end_offsets(partitions))(options.start_time)
        if options.starts:
            return self._named_offsets(partitions)
        return kafka.first_offsets(partitions) if options.from_start else kafka.end_offsets(partitions)

    def _named_offsets(self, partitions: Sequence[KafkaPartition]) -> Offsets:
        """The offsets that the user names.

        Raises InputError unless they are of just the subscribed partitions, and offsets that these have.
        """
        kafka, options = self._kafka, self._options
        different = sorted(options.starts.keys() ^ set(partitions))
        if different:
            topic, number = different[0]
            raise InputError(
                f"startingOffsets and the subscription differ in partition {number} of topic {topic}.",
                hint="Give an offset for each subscribed partition: -2 is the first one, -1 the end.",
            )
        first, end = kafka.first_offsets(partitions), kafka.end_offsets(partitions)
        ends = {EARLIEST: first, LATEST: end}
        offsets = {place: ends[start][place] if start in ends else start for place, start in options.starts.items()}
        minimum = first if options.fail_on_data_loss else dict.fromkeys(first, 0)
        for place, start in sorted(offsets.items()):
            if not minimum[place] <= start <= end[place]:
                topic, number = place
                raise InputError(
                    f"startingOffsets has offset {start} for partition {number} of topic {topic}, which has "
                    f"{first[place]} to {end[place]}.",
                    hint="Give an offset between them: -2 is the first one, -1 the end.",
                )
        return offsets

    def _since(self, start: Mapping[str, Any], partitions: Iterable[KafkaPartition]) -> int:
        """The event time of `start`; the first micro-batch has none, and begins just below the oldest row."""
        time: int = start[TIME]
        return time if time >= 0 else (self._kafka.oldest_time(partitions) or 0) - 1

    def _slice(self, low: Offsets, high: Offsets) -> Slice:
        ranges = {partition: (low[partition], high[partition]) for partition in low if high[partition] > low[partition]}
        return Slice(ranges, self._options.patience, self._options.config, headers=self._options.headers)

    def _limits(self, limit: ReadLimit, start: Offsets, ends: PartitionEnds) -> BatchLimits:
        if not isinstance(limit, ReadMaxRows):
            return BatchLimits()
        if self._options.max_bytes is None:
            return BatchLimits(limit.max_rows)
        if self._sizes is None:
            self._sizes = RowSizes(self._options.config, self._clock, headers=self._options.headers)
        return BatchLimits(limit.max_rows, self._options.max_bytes, self._sizes.means(start, ends.end))

    def _first_readable(self, offsets_before: Offsets, end: Offsets) -> Offsets:
        """Offsets from which to read up to `end`.

        A new partition, or with failOnDataLoss=false any partition, begins no earlier than Kafka's first row.
        """
        first = self._kafka.first_offsets(end)
        tolerant = not self._options.fail_on_data_loss
        low = {
            partition: max(offsets_before.get(partition, 0), first[partition])
            for partition in end
            if tolerant or partition not in offsets_before
        }
        return {
            partition: min(low.get(partition, offsets_before.get(partition, 0)), offset)
            for partition, offset in end.items()
        }

    def _continue_from(self, offsets_before: Offsets, ends: PartitionEnds) -> Offsets:
        """Offsets to continue from: `offsets_before`, and the first offset of each new partition.

        Raises InputError for a partition that no longer exists, SourceChanged for rows that Kafka no longer has.
        """
        first = self._kafka.first_offsets(ends.end)
        vanished = [partition for partition in offsets_before if partition not in ends.end]
        if vanished and self._options.pattern is None:
            raise InputError(
                "A partition in the checkpoint no longer exists.", hint="Start with a new checkpoint.", at=vanished[0]
            )
        offsets = {partition: offsets_before.get(partition, first[partition]) for partition in ends.end}
        for partition, offset in offsets.items():
            is_lost = offset < first[partition]
            if (is_lost and self._options.fail_on_data_loss) or offset > ends.end[partition]:
                change = "has dropped rows that were not read yet" if is_lost else "ends before the offset already read"
                # Of a new topic the ledger has positions from the old offsets, and would take new rows for replays.
                raise SourceChanged(
                    f"The topic {change}.",
                    hint='To continue without the dropped rows set failOnDataLoss="false".'
                    if is_lost
                    else "Start with a new checkpoint and a new job of the sink, because offsets start again.",
                    topic=partition[0],
                    partition=partition[1],
                    offset=offset,
                    first=first[partition],
                    end=ends.end[partition],
                )
        return {partition: max(offset, first[partition]) for partition, offset in offsets.items()}


# --- the sizes of rows, from a sample: Kafka has offsets for times, but no byte counts for offsets ---

_EVERY_SECONDS: Final = 60.0
# Limits of one sample: it runs on the driver, inside the planning of a micro-batch.
_SAMPLE_SECONDS: Final = 3.0
_SAMPLE_ROWS: Final = 5000
_UNKNOWN_BYTES: Final = 1000.0  # until the first sample has a row


class RowSizes:
    """Mean bytes of key, value and wanted `headers` by partition; samples again once a minute."""

    def __init__(self, config: Mapping[str, Any], clock: Clock, *, headers: bool = False) -> None:
        self._headers = headers
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
        """End the consumer."""
        self._consumer.close()

    def _sample(self, partitions: list[KafkaPartition], start: Offsets) -> None:
        self._consumer.assign([TopicPartition(*partition, start[partition]) for partition in partitions])
        sizes: dict[KafkaPartition, list[int]] = defaultdict(list)
        rows, deadline = 0, Deadline.after(_SAMPLE_SECONDS, self._clock)
        while len(sizes) < len(partitions) and rows < _SAMPLE_ROWS and not deadline.expired():
            for message in self._consumer.consume(500, timeout=0.2):
                if message.error() is None:
                    topic, number = message.topic(), message.partition()
                    assert topic is not None  # a received message has both
                    assert number is not None
                    headers = (message.headers() or ()) if self._headers else ()
                    parts = message.value(), message.key(), *itertools.chain.from_iterable(headers)
                    sizes[topic, number].append(sum(map(len, filter(None, parts))))
                    rows += 1
        self._consumer.unassign()
        self._means.update({partition: sum(sample) / len(sample) for partition, sample in sizes.items()})


# --- the tasks ---

SCHEMA: Final = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
HEADERS_COLUMN: Final = "headers array<struct<key: string, value: binary>>"
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
_BATCH_ROWS: Final = 50_000
_ORDER: Final = ("timestamp", "topic", "partition", "offset")


@dataclass(frozen=True)
class Slice(InputPartition, OffsetRanges):
    """The offset ranges of one task."""

    keys: bool = True


def read_slice(part: Slice) -> Iterator[pa.RecordBatch]:
    """All rows of the slice, sorted by event time, topic, partition and offset; errors as of `ranges.polls`."""
    rows = collect(part, read_ranges(part)).sort_by([(name, "ascending") for name in _ORDER])
    yield from rows.to_batches(max_chunksize=_BATCH_ROWS)


def collect(part: OffsetRanges, polls: Iterable[Rows]) -> pa.Table:
    """All rows of the polls in no particular order."""
    topics = pa.array(part.topics, pa.string())
    parts = [_table(rows, topics) for rows in polls]
    return pa.concat_tables(parts) if parts else _schema(headers=part.headers).empty_table()


def _schema(*, headers: bool) -> pa.Schema:
    return _ARROW.append(pa.field("headers", HEADERS)) if headers else _ARROW


def _table(rows: Rows, topics: pa.Array) -> pa.Table:
    columns = [
        rows.keys,
        rows.values,
        topics.take(pa.array(rows.topics)),
        pa.array(rows.partitions).cast(pa.int32()),
        pa.array(rows.offsets),
        pa.array(rows.times * 1000).cast(pa.timestamp("us", "UTC")),
        *([] if rows.headers is None else [rows.headers]),
    ]
    return pa.table(columns, _schema(headers=rows.headers is not None))
