"""The newest messages of topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges, close_consumers, read_ranges

MOST: Final = 20
"""Messages of each partition: the newest ones may be tombstones."""
MOST_OF_SHARED: Final = 2000
"""Messages of all partitions of topics that many tables share: those of a table with few changes may be far back."""
ANSWER_SECONDS: Final = 30.0
"""How long a command waits for a broker that does not answer: its address is more often wrong than the broker away."""


def newest_messages(
    config: Mapping[str, Any],
    seconds: float,
    *,
    topics: Iterable[str] = (),
    pattern: str | None = None,
    shared: bool = False,
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of up to MOST messages of each partition, the newest of all first; `config` is librdkafka's.

    There are more, up to MOST_OF_SHARED in all, where many tables share a topic (`shared`). No consumer group is used.
    Raises InputError for a topic that Kafka does not have, DeadlineExceeded after `seconds`.
    """
    clock = SystemClock()
    deadline = Deadline.after(seconds, clock)
    admin = KafkaAdmin(config, min(seconds, ANSWER_SECONDS), clock)
    partitions = admin.partitions(topics, pattern)
    first, ends = admin.first_offsets(partitions), admin.end_offsets(partitions)
    limit = max(MOST, MOST_OF_SHARED // max(len(partitions), 1)) if shared else MOST
    ranges = {place: (max(first[place], ends[place] - limit), ends[place]) for place in partitions}
    part = OffsetRanges(
        {place: (start, end) for place, (start, end) in ranges.items() if start < end},
        seconds,
        config,
        keys=True,
    )
    messages: list[tuple[int, bytes | None, bytes | None]] = []
    try:
        for rows in read_ranges(part, deadline, clock) if part.ranges else ():
            keys = rows.keys.to_pylist() if rows.keys is not None else [None] * len(rows.times)
            messages += zip(np.asarray(rows.times).tolist(), keys, rows.values.to_pylist(), strict=True)
    finally:
        close_consumers()
    messages.sort(key=lambda message: message[0])  # those of one millisecond stay in their order
    return ((key, value) for _, key, value in reversed(messages))
