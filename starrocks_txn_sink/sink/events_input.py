"""Raw events projected for lanes that assemble: the columns the rules read, or raw values with their places."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.assembler.spark import event_columns
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.lane.columns import EVENT_TIME
from starrocks_txn_sink.sink.assembly import TransactionAssembly
from starrocks_txn_sink.sink.projection import LANE, as_they_come, event_time, lane_ends, lane_of, named, spread_events
from starrocks_txn_sink.sources.txn_event import parse_txn_events
from starrocks_txn_sink.sources.txn_lines import POSITION, SOURCE_PARTITION, VALUE, TxnEventLines


@dataclass(frozen=True, slots=True)
class EventsInput:
    """Events for the lanes, one Spark partition each; `lines` parses them there, None: they are parsed already."""

    rows: DataFrame
    lines: TxnEventLines | None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What frames of one schema need: the columns to take of them, and the last rows of the lanes."""

    schema: T.StructType
    columns: list[Column]
    ends: DataFrame


@dataclass(slots=True)
class EventsProjection:
    """Projects micro-batches and brings their events to the lanes, sorted or as they come; `name_task` as in
    `lane_input`.

    Each call of the JVM's planner costs milliseconds, in a small micro-batch more than the rows. So there are few, and
    what is the same for the next frame is kept.
    """

    assembly: TransactionAssembly
    lanes: int
    name_task: bool
    _kept: dict[bool, _Prepared] = field(default_factory=dict)  # by whether events are sorted

    def of(self, frame: DataFrame, *, sort: bool) -> EventsInput:
        """Raw values whose place is in the JSON itself are parsed by the JVM when they are to be sorted.

        Raises InputError for missing columns or wrong types.
        """
        lines = self.assembly.lines
        if lines is not None and sort and not lines.placed:
            frame, lines = _parsed(frame, lines), None
        kept = self._prepared(frame, lines, sort)
        rows = frame.select(*kept.columns)
        if not sort:
            return EventsInput(as_they_come(rows, kept.ends), lines)
        spread = spread_events(rows, kept.ends, self.lanes)
        return EventsInput(named(spread) if self.name_task else spread, lines)

    def _prepared(self, frame: DataFrame, lines: TxnEventLines | None, sort: bool) -> _Prepared:
        schema, kept = frame.schema, self._kept.get(sort)
        if kept is None or kept.schema != schema:
            kept = self._kept[sort] = self._prepare(frame, lines, sort)
        return kept

    def _prepare(self, frame: DataFrame, lines: TxnEventLines | None, sort: bool) -> _Prepared:
        if lines is not None:
            columns = _raw(frame, lines)
        else:
            columns = _events(frame, SOURCE_PARTITION if self.assembly.lines else self.assembly.by)
        if sort:
            columns.append(lane_of(columns[0], self.lanes).alias(LANE))
        session, schema = frame.sparkSession, frame.select(*columns).schema
        ends = lane_ends(session, schema, self.lanes, POSITION, name_task=self.name_task and not sort)
        return _Prepared(frame.schema, columns, ends)


def _parsed(frame: DataFrame, lines: TxnEventLines) -> DataFrame:
    return parse_txn_events(
        frame,
        lines.value,
        source_partition=lines.source_partition,
        position=lines.position,
        keep=(EVENT_TIME,) if event_time(frame) else (),
        on_malformed=lines.on_malformed,
    )


def _events(frame: DataFrame, by: str) -> list[Column]:
    partition, *others = event_columns(frame, by)
    return [partition.cast("string").alias(SOURCE_PARTITION), *others, *event_time(frame)]


def _raw(frame: DataFrame, lines: TxnEventLines) -> list[Column]:
    wanted = [each for each in (lines.value, lines.source_partition, lines.position) if each]
    missing = [each for each in wanted if each not in frame.columns]
    if missing:
        raise InputError(
            f"The frame lacks the column {', '.join(missing)}.",
            hint=f"It has {', '.join(frame.columns)}; name others, or None where the JSON itself holds them.",
        )
    if not isinstance(frame.schema[lines.value].dataType, (T.StringType, T.BinaryType)):
        raise InputError(
            f"The column {lines.value} is {frame.schema[lines.value].dataType.simpleString()}, not string or binary.",
            hint="Name the column that holds the JSON, or leave `lines` out for events that are parsed already.",
        )
    return [
        _place(lines.source_partition, "string").alias(SOURCE_PARTITION),
        _place(lines.position, "bigint").alias(POSITION),
        _column(lines.value).alias(VALUE),
        *event_time(frame),
    ]


def _place(name: str | None, kind: str) -> Column:
    return (_column(name) if name else F.lit(None)).cast(kind)


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
