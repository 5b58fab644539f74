"""Highest readable event time of a partition whose newest rows are in an open Kafka transaction.

Kafka reports the row with the highest event time of a whole log. If that row belongs to an open Kafka transaction, a
read_committed reader gets no answer, although the rows before the transaction are readable. Without this search such a
partition would hold back all partitions until the transaction ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starrocks_txn_sink.sources.balanced_plan import KafkaPartition

Times = Mapping[KafkaPartition, int]
TimesFrom = Callable[[Times], Mapping[KafkaPartition, int | None]]
"""Event time of each partition's first readable row at or above the given time; None where there is none."""


def newest_readable(low: Times, high: Times, times_from: TimesFrom) -> dict[KafkaPartition, int]:
    """Highest readable event time of each partition, known to lie in `low`…`high`.

    Bisects all partitions with one request per step. Where times do not ascend within a partition, the result may be
    too low.
    """
    found, bound = dict(low), dict(high)
    while True:
        middles = {each: (found[each] + bound[each] + 1) // 2 for each in bound if found[each] < bound[each]}
        if not middles:
            return found
        for partition, time in times_from(middles).items():
            if time is None:
                bound[partition] = middles[partition] - 1
            else:
                found[partition] = min(time, bound[partition])
