"""The tasks of `balanced_kafka`: their rows, sorted by event time, and the mean row size of each partition.

The sizes are from a sample: Kafka has offsets for times, but no byte counts for offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.sources.balanced.plan import KafkaPartition, Offsets
from starrocks_txn_sink.sources.kafka.consumer import Rows
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges, read_ranges
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
                    topic, number = message.topic(), message.partition()
                    assert topic is not None  # a received message has both
                    assert number is not None
                    sizes[topic, number].append(len(message.value() or b"") + len(message.key() or b""))
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
    return pa.concat_tables(parts) if parts else _ARROW.empty_table()


def _table(rows: Rows, topics: pa.Array) -> pa.Table:
    columns = [
        rows.keys,
        rows.values,
        topics.take(pa.array(rows.topics)),
        pa.array(rows.partitions).cast(pa.int32()),
        pa.array(rows.offsets),
        pa.array(rows.times * 1000).cast(pa.timestamp("us", "UTC")),
    ]
    return pa.table(columns, _ARROW)
