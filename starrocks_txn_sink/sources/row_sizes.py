"""Mean row size of each partition, from a sample: Kafka has offsets for times, but no byte counts for offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.sources.balanced_plan import KafkaPartition, Offsets
from starrocks_txn_sink.sources.kafka_slice import partition_of

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
