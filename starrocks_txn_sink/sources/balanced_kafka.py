"""`spark.readStream.format("balanced_kafka")`: Kafka read so that all partitions progress together in event time.

    spark.dataSource.register(BalancedKafka)
    spark.readStream.format("balanced_kafka").option("kafka.bootstrap.servers", "…").option("subscribe", "a,b").load()

The driver ends each micro-batch at one event time on every partition of every topic (`balanced_plan`); each task reads
a slice of that time from all partitions (`kafka_slice`), so the rows of a micro-batch are sorted by event time over its
tasks, too. Needs confluent-kafka (the extra `kafka`) and pyspark 4.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.sources.balanced_options import BalancedOptions
from starrocks_txn_sink.sources.balanced_plan import Limits, Log, Offsets, OffsetsFrom, Place, plan, slices
from starrocks_txn_sink.sources.idleness import Idleness
from starrocks_txn_sink.sources.kafka_log import KafkaLog
from starrocks_txn_sink.sources.kafka_slice import SCHEMA, Slice, read_slice
from starrocks_txn_sink.sources.row_sizes import RowSizes
from starrocks_txn_sink.sources.skew import NEWEST, TIME

_SMALL_ROWS: Final = 20_000  # below, one task is faster than several


class BalancedKafka(DataSource):
    """Register it with `spark.dataSource.register(BalancedKafka)`; options are those of BalancedOptions.

    Columns: key, value (binary), topic, partition, offset, timestamp, as Spark's own Kafka source has them.
    """

    @classmethod
    def name(cls) -> str:
        return "balanced_kafka"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> BalancedKafkaReader:  # noqa: N802, ARG002 - the name is Spark's
        return BalancedKafkaReader(BalancedOptions.read(dict(self.options)))


@dataclass(frozen=True)
class Offset:
    """Where a micro-batch ends, as it stands in the checkpoint: the next offset of each partition by topic, as Spark's
    own Kafka source writes it, and under `@time` (no topic has such a name) the event time up to which all of them have
    been read (-1: none yet)."""

    offsets: Offsets
    time: int = -1

    def as_json(self) -> dict[str, Any]:
        topics: dict[str, dict[str, int]] = {}
        for (topic, number), offset in sorted(self.offsets.items()):
            topics.setdefault(topic, {})[str(number)] = offset
        return {**topics, TIME: self.time}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        offsets = {
            (topic, int(number)): int(offset)
            for topic, numbers in value.items()
            if not topic.startswith("@")
            for number, offset in numbers.items()
        }
        return cls(offsets, int(value[TIME]))


class BalancedKafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side: plans micro-batches. `read` runs in the tasks."""

    def __init__(self, options: BalancedOptions, clock: Clock | None = None, kafka: KafkaLog | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._kafka_log = kafka
        self._sizes: RowSizes | None = None
        self._idleness = Idleness(options.idle_timeout, self._clock)
        self._target: Log | None = None  # with the trigger availableNow: what was there when the query started

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the reader pickled, and use nothing but its options."""
        return {**self.__dict__, "_kafka_log": None, "_sizes": None}

    # --- the names are Spark's ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        places = self._places()
        offsets = self._kafka.first(places) if self._options.from_start else self._kafka.ends(places)
        return Offset(offsets).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._kafka.log(self._places())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the micro-batch after `start`; `start` itself when nothing can be handed on yet."""
        begin = Offset.from_json(start)
        log = self._target or self._kafka.log(self._places())
        offsets = self._checked(begin.offsets, log)
        log = Log(
            {each: log.end.get(each, offsets[each]) for each in offsets}, {**dict.fromkeys(offsets), **log.newest}
        )
        idle = set(offsets) if self._target else self._idleness.idle(log.end)
        since = begin.time if begin.time >= 0 else (self._kafka.oldest(offsets) or 0) - 1
        found = plan(offsets, since, log, idle, self._limits(limit, offsets, log), self._asking(offsets, log.end))
        if found.time is None or dict(found.end) == dict(offsets):
            return start
        return Offset(found.end, found.time).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the partitions end now, and the highest event time of each: what `skew` makes its figures of."""
        log = self._target or self._kafka.log(self._places())
        newest: dict[str, dict[str, int]] = {}
        for (topic, number), time in log.newest.items():
            if time is not None:
                newest.setdefault(topic, {})[str(number)] = time
        return {**Offset(log.end).as_json(), NEWEST: newest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of event time, each over all partitions, the oldest first."""
        first, last = Offset.from_json(start), Offset.from_json(end)
        low = self._readable(first.offsets, last.offsets)
        rows = sum(last.offsets[place] - low[place] for place in low)
        if rows == 0:
            return []
        count = min(self._options.tasks, -(-rows // _SMALL_ROWS))
        since = first.time if first.time >= 0 else (self._kafka.oldest(low) or 0) - 1
        ask = self._asking(low, last.offsets)
        cuts = slices(low, last.offsets, since, last.time, count, ask) if count > 1 else [low, last.offsets]
        return [each for each in itertools.starmap(self._slice, itertools.pairwise(cuts)) if each.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return read_slice(partition)

    def stop(self) -> None:
        if self._sizes is not None:
            self._sizes.close()

    # --- ours ---

    @property
    def _kafka(self) -> KafkaLog:
        if self._kafka_log is None:
            self._kafka_log = KafkaLog(self._options.config, self._options.patience, self._clock)
        return self._kafka_log

    def _places(self) -> list[Place]:
        return self._kafka.partitions(self._options.topics, self._options.pattern)

    def _asking(self, places: Offsets, end: Offsets) -> OffsetsFrom:
        return self._kafka.offsets_from(places, end)

    def _slice(self, low: Offsets, high: Offsets) -> Slice:
        ranges = {place: (low[place], high[place]) for place in low if high[place] > low[place]}
        return Slice(ranges, self._options.patience, self._options.config)

    def _limits(self, limit: ReadLimit, start: Offsets, log: Log) -> Limits:
        if not isinstance(limit, ReadMaxRows):
            return Limits()
        if self._options.max_bytes is None:
            return Limits(limit.max_rows)
        if self._sizes is None:
            self._sizes = RowSizes(self._options.config, self._clock)
        return Limits(limit.max_rows, self._options.max_bytes, self._sizes.means(start, log.end))

    def _readable(self, known: Offsets, end: Offsets) -> Offsets:
        """Where the rows before `end` begin: for partitions that were not known, and where lost rows are put up with,
        at what Kafka still has."""
        first = self._kafka.first(end)
        tolerant = not self._options.fail_on_data_loss
        low = {place: max(known.get(place, 0), first[place]) for place in end if tolerant or place not in known}
        return {place: min(low.get(place, known.get(place, 0)), offset) for place, offset in end.items()}

    def _checked(self, known: Offsets, log: Log) -> Offsets:
        """Where to go on: partitions that are new begin at their first offset; SourceChanged for rows that are gone."""
        first = self._kafka.first(log.end)
        gone = [place for place in known if place not in log.end]
        if gone and self._options.pattern is None:
            raise InputError(
                "A partition of the checkpoint is not there any more.", hint="Start with a new checkpoint.", at=gone[0]
            )
        offsets = {place: known.get(place, first[place]) for place in log.end}
        for place, offset in offsets.items():
            lost = offset < first[place]
            if (lost and self._options.fail_on_data_loss) or offset > log.end[place]:
                story = "has dropped rows that were not read yet" if lost else "ends before what was read already"
                raise SourceChanged(
                    f"The topic {story}.",
                    hint="Start with a new checkpoint and, because offsets begin anew, a new job of the sink; "
                    'for dropped rows failOnDataLoss="false" goes on without them.',
                    topic=place[0],
                    partition=place[1],
                    offset=offset,
                    first=first[place],
                    end=log.end[place],
                )
        return {place: max(offset, first[place]) for place, offset in offsets.items()}
