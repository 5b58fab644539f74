"""How large the rows of each partition are, from a sample: Kafka tells offsets for times, but no bytes for offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.sources.balanced_plan import Offsets, Place
from starrocks_txn_sink.sources.kafka_slice import place_of

_EVERY_SECONDS: Final = 60.0
_SAMPLE_SECONDS: Final = 3.0
_SAMPLE_ROWS: Final = 5000
_UNKNOWN_BYTES: Final = 1000.0  # until a row has been seen


class RowSizes:
    """Mean bytes of key and value by partition; sampled anew once a minute."""

    def __init__(self, config: Mapping[str, Any], clock: Clock) -> None:
        self._consumer = Consumer({**config, "queued.min.messages": 100})
        self._clock = clock
        self._sampled_at: float | None = None
        self._means: dict[Place, float] = {}

    def means(self, start: Offsets, end: Offsets) -> Mapping[Place, float]:
        """For every place of `start`; one that was never seen has the mean of the others."""
        now = self._clock.monotonic()
        if self._sampled_at is None or now - self._sampled_at >= _EVERY_SECONDS:
            self._sample([place for place in start if end[place] > start[place]], start)
            self._sampled_at = now
        usual = sum(self._means.values()) / len(self._means) if self._means else _UNKNOWN_BYTES
        return {place: self._means.get(place, usual) for place in start}

    def close(self) -> None:
        self._consumer.close()

    def _sample(self, places: list[Place], start: Offsets) -> None:
        self._consumer.assign([TopicPartition(*place, start[place]) for place in places])
        seen: dict[Place, list[int]] = defaultdict(list)
        rows, deadline = 0, Deadline.after(_SAMPLE_SECONDS, self._clock)
        while len(seen) < len(places) and rows < _SAMPLE_ROWS and not deadline.expired():
            for message in self._consumer.consume(500, timeout=0.2):
                if message.error() is None:
                    size = len(message.value() or b"") + len(message.key() or b"")
                    seen[place_of(message)].append(size)
                    rows += 1
        self._consumer.unassign()
        self._means.update({place: sum(sizes) / len(sizes) for place, sizes in seen.items()})
