"""A micro-batch as the driver knows it. The sink and its writers ask an `Input`, and know no frame.

Each way into the driver is one class:

- `FrameInput`, here: ready rows in a frame of Spark;
- `EventsInput` (`sink.events_input`): events in a frame of Spark, which the lanes assemble;
- `KafkaInput` (`sink.kafka_input`): messages that the lanes read themselves;
- `CollectedInput` (`sink.collected_input`): rows or events that Spark has collected in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession, types as T

from starrocks_txn_sink.assembler.rules.directory import StateDirectory
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink import projection
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.checkpoint import query_directory
from starrocks_txn_sink.sink.lane_plan import LanePlan, Reading
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.typed.route import TIME_ZONE
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.sources.formats.raw_format import RawFormat
from starrocks_txn_sink.sources.kafka.spark_reader import PlannedRanges, advice_on_options, lane_config
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import Message, decode

Value = TypeVar("Value")

RunTasks = Callable[[Any, int], list[Message]]
"""Runs a lane's task, a function of Arrow batches, once for each lane, and returns the messages of all. The number is
that of the lanes which read their offsets themselves."""

_MESSAGES: Final = T.StructType([T.StructField("message", T.StringType())])  # `messages.MESSAGES`, parsed


@dataclass(slots=True)
class InputMemory:
    """What the micro-batches of a session leave for the next one: the average bytes of a row, and what is slow to make.

    `row_bytes` begins with a guess. With `topic_names` source partitions are named by topic and partition.
    """

    row_bytes: float = 200.0
    topic_names: bool = False
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What `make` has made for the `key`, in this micro-batch or an earlier one; None is made again."""
        if self._made.get(key) is None:
            self._made[key] = make()
        value: Value = self._made[key]
        return value

    def learn(self, receipts: Sequence[Receipt]) -> None:
        """Take the average of the rows in a micro-batch's receipts."""
        regions = [region for receipt in receipts for region in receipt.regions]
        if rows := sum(region.rows for region in regions):
            self.row_bytes = sum(region.bytes for region in regions) / rows

    def name_topics(self, topic_names: bool) -> None:
        """Name the source partitions of this micro-batch with their topics, or without."""
        self.topic_names = topic_names


@dataclass(frozen=True, slots=True)
class OpenInput:
    """The rows of a micro-batch, as its lanes get them.

    `lines` parse raw events in the lanes; None: rows, or events that are parsed. `planned` are offsets of Kafka that
    the lanes read themselves; None: Spark hands them the rows. Without `named` nobody compares the rows' names with
    columns.
    """

    run: RunTasks
    lines: RawFormat | None = None
    planned: PlannedRanges | None = None
    named: bool = True


class Input(Protocol):
    """One micro-batch: the write that it belongs to, what is known of its source, and how lanes get its rows."""

    @property
    def origin(self) -> BatchOrigin:
        """The write that the rows belong to."""

    @property
    def spark(self) -> SparkSession | None:
        """Spark's session; None where there is no Spark in this process."""

    @property
    def schema(self) -> T.StructType:
        """The columns, as the user hands them over."""

    @property
    def zone(self) -> str:
        """The time zone of its times without one."""

    @property
    def positioned(self) -> bool:
        """Whether the rows have positions in source partitions, or get them in the lanes."""

    def directory(self) -> StateDirectory | None:
        """The sink's folder in the query's checkpoint; None if it is hidden, and for a write without a query."""

    def advice(self, options: SinkOptions, *, first: bool) -> Iterator[Event]:
        """Warnings at a session's start about the rows, and of the `first` session about their source."""

    def check(self, session: Session) -> None:
        """Raise OptionError if this input must not go on with what the session has found in the ledger."""

    def plan(self, options: SinkOptions) -> LanePlan:
        """How lanes read micro-batches like this one; raises OptionError if they cannot."""

    def client_config(self) -> Mapping[str, Any] | None:
        """Librdkafka's settings for the brokers that the query reads; None if there are none, or they are unknown."""

    def open(self, terms: TableTerms, plan: LanePlan, memory: InputMemory) -> OpenInput:
        """The rows for the lanes, as `terms` write and `plan` reads them.

        Raises InputError for columns that are missing or of a wrong type, and OptionError.
        """


@dataclass(frozen=True, slots=True)
class FrameInput:
    """Ready rows in a frame of Spark: a micro-batch of `foreachBatch`, or the frame of a call of `write`."""

    frame: DataFrame
    origin: BatchOrigin

    @property
    def spark(self) -> SparkSession | None:
        """The frame's session."""
        return self.frame.sparkSession

    @property
    def schema(self) -> T.StructType:
        """The frame's."""
        return self.frame.schema

    @property
    def zone(self) -> str:
        """The session's, which a query may change while it runs."""
        return str(self.frame.sparkSession.conf.get(TIME_ZONE))

    @property
    def positioned(self) -> bool:
        """See Input."""
        return projection.is_marked(self.schema)

    @property
    def reads_kafka(self) -> bool:
        """Whether the lanes read Kafka, and not Spark."""
        return False

    def directory(self) -> StateDirectory | None:
        """See Input."""
        return query_directory(self.spark, None, self.origin.checkpoint) if self.origin.streaming else None

    def advice(self, options: SinkOptions, *, first: bool) -> Iterator[Event]:
        """See Input."""
        if projection.has_unfilled_deletes(self.schema, options):
            yield Event("deletes.unfilled", {"advice": projection.UNFILLED_DELETES})
        if first and self.origin.streaming:
            yield from advice_on_options(self.frame, by_spark=not self.reads_kafka)

    def check(self, session: Session) -> None:
        """Any: a takeover by another query is none of a frame's business."""

    def plan(self, options: SinkOptions) -> LanePlan:
        """See Input."""
        return LanePlan.of(self.frame, options, positioned=self.positioned, streaming=self.origin.streaming)

    def client_config(self) -> Mapping[str, Any] | None:
        """See Input."""
        return lane_config(self.frame)

    def open(self, terms: TableTerms, plan: LanePlan, memory: InputMemory) -> OpenInput:  # noqa: ARG002
        """See Input."""
        sort = plan.reading is Reading.SORTED and self.positioned
        rows = projection.lane_input(self.frame, terms, plan.tasks, sort=sort, digest=terms.options.exactly_once)
        return OpenInput(run_on(rows))


def run_on(rows: DataFrame) -> RunTasks:
    """Runs lanes' tasks on the partitions of `rows`, as one Spark job."""
    return lambda task, _: [decode(row[0]) for row in rows.mapInArrow(task, _MESSAGES).collect()]
