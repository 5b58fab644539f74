"""A rule of one key, or event-time order, as a step of a Spark query: streaming or batch, the same rows in the end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.changelog import spark_state as state
from starrocks_txn_sink.changelog.keyed import KeyRule
from starrocks_txn_sink.changelog.retention import Retention
from starrocks_txn_sink.changelog.spark_rows import column, from_text, require_kept, sortable, to_text
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """The columns that a rule of one key reads, as expressions over a frame; see keyed.Arrived for their meaning."""

    key: Column
    kinds: Column
    row: Column
    sequence: Sequence[str] = ()
    before: Column | None = None
    extra: Column | None = None
    upsert_key: Column | None = None


@dataclass(frozen=True, slots=True)
class Keeping:
    """How state is kept: for how long, by which clock, and under which name swallowed retractions are counted."""

    retention: Retention = field(default_factory=Retention)
    clock: Clock = field(default_factory=SystemClock)
    counted_as: str | None = None


def metrics_name(function: str, uid: str | None) -> str:
    """The name under which a call's counts are in a query's `observedMetrics`: `uid`, or one of its own."""
    return uid or f"{function}-{next(_numbers)}"


def run_rule(frame: DataFrame, given: KeyedInput, rule: KeyRule, keeping: Keeping) -> DataFrame:
    """The rule's output as columns kind, row, before, extra (all text).

    Within a micro-batch a key's changes are taken in the order of the sequence; a -U before what shares its sequence;
    then as they arrived. A stream's state is kept with transformWithState where the session's state store provider is
    RocksDB, with applyInPandasWithState elsewhere; a checkpoint belongs to one of them.
    """
    orders = sortable(frame, given.sequence)
    tie = F.when(given.kinds == "-U", 0).otherwise(1) if orders else F.lit(0)
    optional = {"before": given.before, "extra": given.extra, "upsert_key": given.upsert_key}
    wire = frame.select(
        given.key.alias(state.KEY),
        *(each.alias(f"order_{number}") for number, each in enumerate(orders)),
        tie.alias(state.TIE),
        given.kinds.alias("kinds"),
        given.row.alias("row"),
        *((F.lit(None) if each is None else each).cast("string").alias(name) for name, each in optional.items()),
    )
    wire = _numbered(wire, needed=not orders)
    if frame.isStreaming:
        done = _by_key(wire, rule, len(orders), keeping)
    else:
        places = [f"order_{number}" for number in range(len(orders))]
        ordered = wire.repartition(state.KEY).sortWithinPartitions(state.KEY, *places, state.TIE, state.ARRIVAL)
        done = ordered.mapInArrow(state.KeySweep(rule, len(orders)), state.LEFT_SCHEMA)
    if keeping.counted_as is not None:
        done = _counting(done, keeping.counted_as, "swallowed")
    return done.filter(F.col("counts").isNull()).drop("counts")


def in_event_time_order(
    frame: DataFrame, time: str, key: Sequence[Column], sequence: Sequence[str], name: str
) -> DataFrame:
    """`frame` by event time, ties by `sequence`: a stream's rows wait for the watermark, those at or below it are lost.

    How many were lost is counted as `late`. Rows of a key (`key`) leave in order, and in one task. Raises OptionError
    for a stream whose session keeps state elsewhere than in RocksDB.
    """
    if not frame.isStreaming:
        spread = frame.repartition(*key) if key else frame.repartition(1)
        return spread.sortWithinPartitions(*map(column, (time, *sequence)))
    require_kept(frame.schema.fields)
    orders = sortable(frame, sequence)
    wire = frame.select(
        (to_text(key) if key else F.lit("")).alias(state.KEY),
        F.unix_micros(column(time)).alias("time"),
        *(each.alias(f"order_{number}") for number, each in enumerate(orders)),
        to_text(map(column, frame.columns)).alias("row"),
    )
    done = _by_time(_in_buckets(_numbered(wire, needed=True)), len(orders))
    rows = _counting(done, f"{name}-order", "late").filter(F.col("counts").isNull())
    return rows.select(from_text(F.col("row"), frame.schema.fields).alias("row")).select("row.*")


def _numbered(wire: DataFrame, *, needed: bool) -> DataFrame:
    """`wire` with the rows' places within their task, as they arrive: Spark promises no order after a shuffle."""
    if not needed:
        return wire.withColumn(state.ARRIVAL, F.lit(0).cast("bigint"))
    if not wire.isStreaming:
        return wire.withColumn(state.ARRIVAL, F.monotonically_increasing_id())
    shape = T.StructType([*wire.schema.fields, T.StructField(state.ARRIVAL, T.LongType())])
    return wire.mapInArrow(state.number, shape)


def _in_buckets(wire: DataFrame) -> DataFrame:
    bucket = F.pmod(F.xxhash64(state.KEY), F.lit(state.BUCKETS)).cast("int")
    return wire.withColumn("bucket", bucket)


def _counting(done: DataFrame, name: str, count: str) -> DataFrame:
    value = F.get_json_object(F.col("counts"), f"$.{count}").cast("bigint")
    return done.observe(name, F.coalesce(F.sum(value), F.lit(0)).alias(count))


# --- the state operator that the session's state store provider allows ---


def _by_key(wire: DataFrame, rule: KeyRule, orders: int, keeping: Keeping) -> DataFrame:
    if _has_rocksdb(wire):
        processor = state.KeyProcessor(rule, orders, keeping.retention, keeping.clock)
        grouped = _in_buckets(wire).groupBy("bucket")
        return grouped.transformWithStateInPandas(processor, state.LEFT_SCHEMA, "Append", "None")
    from starrocks_txn_sink.changelog.spark_group_state import STATE, KeyGroup

    group = KeyGroup(rule, orders, keeping.retention, keeping.clock)
    timeout = "ProcessingTimeTimeout" if keeping.retention.seconds > 0 else "NoTimeout"
    return wire.groupBy(state.KEY).applyInPandasWithState(group, state.LEFT_SCHEMA, STATE, "append", timeout)


def _by_time(wire: DataFrame, orders: int) -> DataFrame:
    if not _has_rocksdb(wire):  # the other operator would drop late rows without counting them, and end a chain
        raise OptionError(
            "order_by waits for the watermark, and the session's state store has no timers for that.",
            hint=f"Set {PROVIDER} to {ROCKSDB} before the query starts.",
        )
    grouped = wire.groupBy("bucket")
    return grouped.transformWithStateInPandas(state.Reorderer(orders), state.TIMED_SCHEMA, "Append", "EventTime")


def _has_rocksdb(frame: DataFrame) -> bool:
    return frame.sparkSession.conf.get(PROVIDER, "") == ROCKSDB
