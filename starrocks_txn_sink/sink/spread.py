"""Rows spread over the lanes, in order, each lane closed by a last row (`lane.ending`)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.lane.columns import END_POSITION, HASH, PARTITION, POSITION, ROW_BITS, TASK
from starrocks_txn_sink.lane.worker import place_at_end

LANE = "lane"


def spread_marked(rows: DataFrame, lanes: int, seq: str) -> DataFrame:
    """Each source partition in one lane, its rows by position and `seq`; the last row has no source partition."""
    placed = rows.withColumn(LANE, lane_of(F.col(PARTITION), lanes))
    spread = _closed(placed, lanes, POSITION).repartitionById(lanes, F.col(LANE))
    order = [F.col(PARTITION).asc_nulls_last(), F.col(POSITION), F.col(seq)]
    return spread.sortWithinPartitions(*order).drop(LANE, seq)


def spread_plain(rows: DataFrame, lanes: int) -> DataFrame:
    """Rows in any lane and any order; only the last row has its place."""
    lane = F.lit(0) if lanes == 1 else F.pmod(F.col(HASH), F.lit(lanes)).cast("int")
    spread = _closed(rows.withColumn(LANE, lane), lanes, HASH).repartitionById(lanes, F.col(LANE))
    return spread.sortWithinPartitions((F.col(HASH) == END_POSITION).asc_nulls_first()).drop(LANE)


def unsorted(rows: DataFrame, column: str, *, name_task: bool) -> DataFrame:
    """`rows` as they come in one lane; the last row has its mark in `column` and, with `name_task`, its task's name."""
    return as_they_come(rows, lane_ends(rows.sparkSession, rows.schema, 1, column, name_task=name_task))


def spread_events(rows: DataFrame, ends: DataFrame, lanes: int) -> DataFrame:
    """Each source partition in one lane, its events by position; a last row of `ends` has no source partition.

    The rows have their lane in the column LANE.
    """
    spread = rows.union(ends).repartitionById(lanes, F.col(LANE))
    return spread.sortWithinPartitions(F.col(PARTITION).asc_nulls_last(), F.col(POSITION)).drop(LANE)


def as_they_come(rows: DataFrame, ends: DataFrame) -> DataFrame:
    """All rows in one task, in the order in which the source gives them, without a shuffle; then the one of `ends`."""
    return rows.union(ends).coalesce(1)


def named(rows: DataFrame) -> DataFrame:
    """The first row of each lane names its task (`lane.worker`); after the shuffle, so that it is the lane's own."""
    return rows.withColumn(TASK, task_name())


def task_name() -> Column:
    """The name of the task's thread, in the first row of each Spark partition as it is at this place."""
    first = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << ROW_BITS) - 1)) == 0
    return F.when(first, F.java_method(F.lit("java.lang.Thread"), F.lit("currentThread")))


def lane_of(partition: Column, lanes: int) -> Column:
    """The lane of a source partition: its trailing number modulo `lanes`, so that partitions 0…n spread evenly; a
    checksum where there is no number. The same in every micro-batch, because order and recovery depend on it."""
    if lanes == 1:
        return F.lit(0)
    number = F.regexp_extract(partition, r"(\d{1,18})$", 1)
    spread = F.when(number != "", number.cast("long")).otherwise(F.crc32(partition))
    return F.coalesce(F.pmod(spread, F.lit(lanes)), F.lit(0)).cast("int")


def _closed(rows: DataFrame, lanes: int, column: str) -> DataFrame:
    """One more row for each lane: END_POSITION in `column`, its lane, and NULLs."""
    return rows.union(lane_ends(rows.sparkSession, rows.schema, lanes, column))


def lane_ends(
    session: SparkSession, schema: T.StructType, lanes: int, column: str, *, name_task: bool = False
) -> DataFrame:
    """A last row for each lane, as `schema` says: END_POSITION in `column`, its lane in LANE, and NULLs; with
    `name_task` also the name of the task that reads it (`lane.worker`)."""
    values = {LANE: F.col("id").cast("int"), column: F.lit(END_POSITION)}
    if name_task:
        values[place_at_end(schema.names)] = task_name()
    return session.range(0, lanes, 1, 1).select(
        *(values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in schema.fields)
    )
