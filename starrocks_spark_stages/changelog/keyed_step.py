"""A rule of one key, or event-time order, as a step of a Spark query; a batch gives what a stream gives in the end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_spark_stages.assemble.keyed_state import COUNTS, summed_counts
from starrocks_spark_stages.changelog import state_operator as state
from starrocks_spark_stages.changelog.rows import column, from_text, require_storable, sort_columns, to_text
from starrocks_spark_stages.changelog.rules.keyed import KeyRule, Retention
from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.spark_version import STATE_BY_TIME, require, require_rocksdb

WATERMARK: Final = "spark.watermarkDelayMs"
"""Spark's mark of a column with a watermark, in the column's metadata."""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """The input of a rule as expressions over a frame.

    `fields` are those of `row`. The columns `beside` travel with a row without being part of it: a row that leaves
    has those of the change that caused it to leave. `before` is a before image as text.
    """

    key: Sequence[Column]
    kinds: Column
    row: Sequence[Column]
    fields: Sequence[T.StructField]
    beside: Sequence[T.StructField] = ()
    sequence: Sequence[str] = ()
    before: Column | None = None
    upsert_key: Sequence[Column] = ()

    @classmethod
    def of_changes(
        cls,
        frame: DataFrame,
        row_kind: str,
        keys: Sequence[str],
        sequence: Sequence[str],
        beside: Sequence[str],
        upsert_key: Sequence[str] = (),
    ) -> KeyedInput:
        """The input for a frame with a row kind; its other columns are the row, except those `beside`."""
        fields = [field for field in frame.schema.fields if field.name not in (row_kind, *beside)]
        return cls(
            key=[column(name) for name in keys],
            kinds=column(row_kind),
            row=[column(field.name) for field in fields],
            fields=fields,
            beside=[frame.schema[name] for name in beside],
            sequence=sequence,
            upsert_key=[column(name) for name in upsert_key],
        )

    def output(self, name: str) -> Column:
        """A column of the rule's output, from the row or from `beside`."""
        inside = name in {field.name for field in self.fields}
        return F.col("row" if inside else "beside").getField(name).alias(name)


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Retention of state, its clock, and `counts` of steps, under a name in `observedMetrics` (None: not counted)."""

    retention: Retention
    clock: Clock
    observation: str | None = None
    counts: Sequence[str] = ("swallowed",)


def metrics_name(function: str, uid: str | None) -> str:
    """A call's name in a query's `observedMetrics`: `uid`, or a generated one."""
    return uid or f"{function}-{next(_numbers)}"


def run_rule(frame: DataFrame, keyed_input: KeyedInput, rule: KeyRule, settings: StateSettings) -> DataFrame:
    """The rule's output as columns kind (text), row, before and, if there are any, `beside` (structs).

    Within a micro-batch a key's changes are ordered by sequence, a -U first among equals, then by arrival. A stream
    keeps state with transformWithState, for which the session's state store must be RocksDB.
    """
    require_storable([*keyed_input.fields, *keyed_input.beside])
    orders = sort_columns(frame, keyed_input.sequence)
    # -U and +U of an update may share a sequence: the old row comes first.
    tie = F.when(keyed_input.kinds == "-U", 0).otherwise(1) if orders else F.lit(0)
    beside = [column(field.name) for field in keyed_input.beside]
    wire = frame.select(
        (to_text(keyed_input.key) if keyed_input.key else F.lit("")).alias(state.KEY),
        *(column.alias(f"{state.ORDER}{number}") for number, column in enumerate(orders)),
        tie.alias(state.TIE),
        keyed_input.kinds.alias("kinds"),
        to_text(keyed_input.row).alias("row"),
        (F.lit(None) if keyed_input.before is None else keyed_input.before).cast("string").alias("before"),
        *(
            (to_text(columns) if columns else F.lit(None)).cast("string").alias(name)
            for name, columns in (("extra", beside), ("upsert_key", keyed_input.upsert_key))
        ),
    )
    wire = _with_arrival(wire, is_needed=not orders)
    if frame.isStreaming:
        keyed_output = _run_stream_by_key(wire, rule, settings)
    else:
        places = [name for name in wire.columns if name.startswith(state.ORDER)]
        ordered = wire.repartition(state.KEY).sortWithinPartitions(state.KEY, *places, state.TIE, state.ARRIVAL)
        keyed_output = ordered.mapInArrow(state.BatchKeyProcessor(rule), state.OUTPUT_SCHEMA)
    if settings.observation is not None:
        keyed_output = keyed_output.observe(settings.observation, *summed_counts(settings.counts))
    structs = [from_text(F.col(name), keyed_input.fields).alias(name) for name in ("row", "before")]
    if keyed_input.beside:
        structs.append(from_text(F.col("extra"), keyed_input.beside).alias("beside"))
    return keyed_output.filter(F.col(COUNTS).isNull()).select("kind", *structs)


def sort_by_event_time(
    frame: DataFrame, time: str, key: Sequence[Column], sequence: Sequence[str], name: str
) -> DataFrame:
    """`frame` sorted by event time, then `sequence`; rows of a `key` leave in order, and in one task.

    A stream's rows wait for the watermark; rows that arrive at or below it are dropped and counted as `late`. Raises
    OptionError for a stream whose session's state store is not RocksDB.
    """
    if not frame.isStreaming:
        spread = frame.repartition(*key) if key else frame.repartition(1)
        return spread.sortWithinPartitions(*map(column, (time, *sequence)))
    require_storable(frame.schema.fields)
    orders = sort_columns(frame, sequence)
    wire = frame.select(
        (to_text(key) if key else F.lit("")).alias(state.KEY),
        F.unix_micros(column(time)).alias("time"),
        *(column.alias(f"{state.ORDER}{number}") for number, column in enumerate(orders)),
        to_text(map(column, frame.columns)).alias("row"),
    )
    ordered_output = _run_stream_by_time(_with_bucket(_with_arrival(wire, is_needed=True)))
    rows = ordered_output.observe(f"{name}-order", *summed_counts(["late"])).filter(F.col(COUNTS).isNull())
    return rows.select(from_text(F.col("row"), frame.schema.fields).alias("row")).select("row.*")


def _with_arrival(wire: DataFrame, *, is_needed: bool) -> DataFrame:
    """`wire` with the order of arrival as a column, because Spark guarantees no order after a shuffle."""
    if not is_needed:
        return wire.withColumn(state.ARRIVAL, F.lit(0).cast("bigint"))
    if not wire.isStreaming:
        return wire.withColumn(state.ARRIVAL, F.monotonically_increasing_id())
    shape = T.StructType([*wire.schema.fields, T.StructField(state.ARRIVAL, T.LongType())])
    return wire.mapInArrow(state.number_arrivals, shape)


def _with_bucket(wire: DataFrame) -> DataFrame:
    return wire.withColumn("bucket", F.pmod(F.xxhash64(state.KEY), F.lit(state.BUCKETS)).cast("int"))


# --- the state operators ---


def _run_stream_by_key(wire: DataFrame, rule: KeyRule, settings: StateSettings) -> DataFrame:
    require_rocksdb(wire)
    processor = state.KeyProcessor(rule, settings.retention, settings.clock)
    grouped = _with_bucket(wire).groupBy("bucket")
    return grouped.transformWithStateInPandas(processor, state.OUTPUT_SCHEMA, "Append", "None")


def _run_stream_by_time(wire: DataFrame) -> DataFrame:
    require(STATE_BY_TIME)
    require_rocksdb(wire)
    grouped = wire.groupBy("bucket")
    return grouped.transformWithStateInPandas(state.Reorderer(), state.TIMED_SCHEMA, "Append", "EventTime")
