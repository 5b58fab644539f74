"""`EventsInput`: events in a frame of Spark, raw or parsed, and their projection in the JVM for lanes that assemble."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_txn_sink.assembler.rules.directory import StateDirectory
from starrocks_txn_sink.assembler.verified import intake as verified
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.without_effect import Circumstance, warn_of
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sink import projection
from starrocks_txn_sink.sink.assembly import Assembly
from starrocks_txn_sink.sink.checkpoint import query_directory
from starrocks_txn_sink.sink.input import FrameInput, InputMemory, OpenInput, run_on
from starrocks_txn_sink.sink.lane_plan import LanePlan, Reading
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.sources import events
from starrocks_txn_sink.sources.formats.raw_format import (
    POSITION,
    SOURCE_PARTITION,
    VALUE,
    RawFormat,
    columns_in,
    further_places,
    is_placed,
)
from starrocks_txn_sink.sources.messages import named_column, parse_messages

_OWN: Final = (SOURCE_PARTITION, POSITION, VALUE)


@dataclass(frozen=True, slots=True)
class EventsInput(FrameInput):
    """Events that Spark reads, for lanes with the rules of `assembly`."""

    assembly: Assembly

    @property
    def positioned(self) -> bool:
        return True

    def directory(self) -> StateDirectory | None:
        if not self.origin.streaming:
            return None
        return query_directory(self.spark, self.assembly.state_dir, self.origin.checkpoint)

    def plan(self, options: SinkOptions) -> LanePlan:
        plan = LanePlan.of(
            self.frame,
            options,
            positioned=True,
            streaming=self.origin.streaming,
            direct=self.reads_kafka,
            proves=self.assembly.assembler.judges_together,
        )
        if plan.disordered:  # so far one task reads all events, and knows their order
            plan = replace(plan, lanes=1, disordered=False)
        idle = options.without_effect(Circumstance.JSON_TEXTS, *plan.circumstances)
        if self.assembly.reads_kafka and not self.reads_kafka:
            idle["reader"] = "Spark reads the topic of a batch frame, whose offsets only Spark knows"
        warn_of(idle, self.origin.key)
        return plan

    def open(self, terms: TableTerms, plan: LanePlan, memory: InputMemory) -> OpenInput:  # noqa: ARG002
        """The events of the frame with one Spark partition for each lane.

        Each call of the JVM's planner costs milliseconds, in a small micro-batch more than the rows. So the memory
        keeps the part of the projection that frames of one schema share.
        """
        frame, lines, sort = self.frame, self.assembly.lines, plan.reading is Reading.SORTED
        if lines is not None and sort and not is_placed(lines):  # Spark sorts by what only the values have
            keep = (EVENT_TIME,) if projection.event_time(frame) else ()
            frame, lines = parse_messages(frame, lines, keep, "parse_txn_events"), None

        def columns() -> list[Column]:
            if lines is not None:
                return raw_columns(frame, lines, topic_names=memory.topic_names)
            return event_columns(frame, SOURCE_PARTITION if self.assembly.lines else self.assembly.source_partition)

        # The frames of `write` may be of different sessions of Spark.
        key = frame.schema, sort, memory.topic_names
        rows = frame.select(*(memory.once(key, columns) if self.origin.streaming else columns()))
        if sort:
            order = [F.col(SOURCE_PARTITION).asc_nulls_last(), F.col(POSITION)]
            return OpenInput(run_on(projection.sorted_lanes(rows, plan.tasks, order)), lines)
        return OpenInput(run_on(rows.coalesce(plan.tasks)), lines)


def event_columns(frame: DataFrame, partition_column: str) -> list[Column]:
    """The columns of parsed events for lanes, the source partition (`partition_column`) as a text first.

    Raises InputError for a column that is missing, or has another type.
    """
    partition, *output_columns = events.event_columns(frame, partition_column)
    return [partition.cast("string").alias(SOURCE_PARTITION), *output_columns, *projection.event_time(frame)]


def raw_columns(frame: DataFrame, lines: RawFormat, *, topic_names: bool = False) -> list[Column]:
    """The columns of raw events; with `topic_names` source partitions are named by topic and partition.

    Raises InputError for a column that is missing, or has another type.
    """
    columns, topics = columns_in(lines, text_columns(frame.schema)), ("topic",) if topic_names else ()
    needed_columns = [*columns.values(), *topics]
    missing = [column for column in needed_columns if column not in frame.columns]
    if missing:
        raise InputError(
            f"The frame lacks the column {', '.join(missing)}.",
            hint=f"It has {', '.join(frame.columns)}; name one of these, or None if the JSON itself has the value."
            + (" A query over several topics needs their column `topic`." if {*topics} & {*missing} else ""),
        )
    kind = frame.schema[columns[VALUE]].dataType
    if not isinstance(kind, (T.StringType, T.BinaryType)):
        raise InputError(
            f"The column {columns[VALUE]} is {kind.simpleString()}, not string or binary.",
            hint="Name the column that holds the JSON, or leave `lines` out for events that are parsed already.",
        )
    partition = _place(columns.get(SOURCE_PARTITION), "string")
    return [
        (F.concat_ws("-", F.col("topic"), partition) if topic_names else partition).alias(SOURCE_PARTITION),
        _place(columns.get(POSITION), "bigint").alias(POSITION),
        named_column(columns[VALUE]).alias(VALUE),
        *(_further(frame, name, column) for name, column in columns.items() if name not in _OWN),
        *(F.col(name) for name in further_places(columns, frame.columns)),
        *projection.event_time(frame),
    ]


def text_columns(schema: T.StructType) -> list[str]:
    """The names of the columns of bytes or texts."""
    return [field.name for field in schema if isinstance(field.dataType, (T.StringType, T.BinaryType))]


def _further(frame: DataFrame, name: str, column: str) -> Column:
    """Another column that a format reads; times are in milliseconds."""
    is_time = name == verified.TIMESTAMP and isinstance(frame.schema[column].dataType, T.TimestampType)
    return (F.unix_millis(named_column(column)) if is_time else named_column(column)).alias(name)


def _place(name: str | None, kind: str) -> Column:
    return (named_column(name) if name else F.lit(None)).cast(kind)
