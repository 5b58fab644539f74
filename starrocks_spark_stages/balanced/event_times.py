"""The driver's requests to Kafka for event times: the newest and the oldest one, and the offsets at one."""

from collections.abc import Callable, Iterable

from confluent_kafka import IsolationLevel

from starrocks_spark_stages.balanced.rules.plan import PartitionEnds, Times, newest_readable
from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin, OffsetSpec, Position
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets


class EventTimes(KafkaAdmin):
    """KafkaAdmin that also knows when rows happened."""

    def partition_ends(self, partitions: Iterable[KafkaPartition]) -> PartitionEnds:
        """End offset and highest event time of each partition."""
        partition_list = list(partitions)
        # Times first, ends second: then all rows up to such a time are before that end, even if rows arrive in between.
        positions = self._positions(partition_list, OffsetSpec.max_timestamp())
        newest = {partition: time if offset >= 0 else None for partition, (offset, time) in positions.items()}
        newest.update(
            self._newest_before_open_transactions(
                [partition for partition in partition_list if newest[partition] is None]
            )
        )
        return PartitionEnds(self.end_offsets(partition_list), newest)

    def _newest_before_open_transactions(self, partitions: list[KafkaPartition]) -> dict[KafkaPartition, int]:
        """Highest readable event time of the partitions that have readable rows; see `newest_readable`."""
        if not partitions or self._level is IsolationLevel.READ_UNCOMMITTED:
            return {}
        first_rows = self._rows_from(dict.fromkeys(partitions, 0))
        low = {partition: time for partition, (offset, time) in first_rows.items() if offset >= 0}
        last_rows = self._positions(low, OffsetSpec.max_timestamp(), IsolationLevel.READ_UNCOMMITTED)
        high = {partition: max(time, low[partition]) for partition, (_, time) in last_rows.items()}

        def times_from(times: Times) -> dict[KafkaPartition, int | None]:
            return {
                partition: time if offset >= 0 else None for partition, (offset, time) in self._rows_from(times).items()
            }

        return newest_readable(low, high, times_from)

    def oldest_time(self, partitions: Iterable[KafkaPartition]) -> int | None:
        """Lowest event time of the partitions' first rows; None if all partitions are empty."""
        first_rows = self._rows_from(dict.fromkeys(partitions, 0)).values()
        return min((time for offset, time in first_rows if offset >= 0), default=None)

    def offsets_from(self, partitions: Iterable[KafkaPartition], end: Offsets) -> Callable[[int], Offsets]:
        """Kafka's offsets for times as a function, `rules.plan.OffsetsFrom`."""
        partition_list = list(partitions)

        def offsets_at(time: int) -> Offsets:
            rows = self._rows_from(dict.fromkeys(partition_list, max(time, 0)))
            return {partition: offset if offset >= 0 else end[partition] for partition, (offset, _) in rows.items()}

        return offsets_at

    def _rows_from(self, times: Times) -> dict[KafkaPartition, Position]:
        """Each partition's first row at or above the given time."""
        return self._list_offsets(
            {partition: OffsetSpec.for_timestamp(time) for partition, time in times.items()}, self._level
        )
