"""Raw events projected for lanes that assemble: the columns the rules read, or raw values with their places."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.assembler.spark import prepared_events
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.lane.event_times import EVENT_TIME
from starrocks_txn_sink.sink.assembly import TransactionAssembly
from starrocks_txn_sink.sink.spread import as_they_come, named, spread_events
from starrocks_txn_sink.sources.txn_event import parse_txn_events
from starrocks_txn_sink.sources.txn_lines import POSITION, SOURCE_PARTITION, VALUE, TxnEventLines


@dataclass(frozen=True, slots=True)
class EventsInput:
    """Events for the lanes, one Spark partition each; `lines` parses them there, None: they are parsed already."""

    rows: DataFrame
    lines: TxnEventLines | None


def events_input(
    frame: DataFrame, assembly: TransactionAssembly, lanes: int, *, sort: bool, name_task: bool
) -> EventsInput:
    """Project `frame` and bring its events to their lanes, sorted or as they come; `name_task` as in `lane_input`.

    Raw values whose place is in the JSON itself are parsed by the JVM when they are to be sorted. Raises InputError for
    missing columns or wrong types.
    """
    lines = assembly.lines
    if lines is not None and sort and not lines.placed:
        taken = (lines.source_partition, lines.position)
        kept = (EVENT_TIME,) if _event_time(frame) else ()
        frame = parse_txn_events(
            frame, lines.value, source_partition=taken[0], position=taken[1], keep=kept, on_malformed=lines.on_malformed
        )
        lines, assembly = None, TransactionAssembly()
    rows = _raw(frame, lines) if lines is not None else _events(frame, assembly.by)
    spread = spread_events(rows, lanes) if sort else as_they_come(rows)
    return EventsInput(named(spread) if name_task else spread, lines)


def _events(frame: DataFrame, by: str) -> DataFrame:
    timed = _event_time(frame)
    events = prepared_events(frame, by, (EVENT_TIME,) if timed else ())
    events = events.withColumn(SOURCE_PARTITION, F.col(SOURCE_PARTITION).cast("string"))
    return events.withColumns({EVENT_TIME: timed[0]}) if timed else events


def _event_time(frame: DataFrame) -> list[Column]:
    """The column `event_time`, if it is there and a timestamp, as lanes read it."""
    kinds = [field.dataType for field in frame.schema.fields if field.name == EVENT_TIME]
    return [F.unix_micros(EVENT_TIME).alias(EVENT_TIME)] if kinds == [T.TimestampType()] else []


def _raw(frame: DataFrame, lines: TxnEventLines) -> DataFrame:
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
    return frame.select(
        _place(lines.source_partition, "string").alias(SOURCE_PARTITION),
        _place(lines.position, "bigint").alias(POSITION),
        _column(lines.value).alias(VALUE),
        *_event_time(frame),
    )


def _place(name: str | None, kind: str) -> Column:
    return (_column(name) if name else F.lit(None)).cast(kind)


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
