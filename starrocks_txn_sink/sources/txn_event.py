"""TxnEvents as a DataFrame: their columns, and `parse_txn_events`, which makes them of raw JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.ledger import quote
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sources.kafka.spark_reader import refuse_several_topics
from starrocks_txn_sink.sources.txn_lines import POSITION, SOURCE_PARTITION, VALUE, OnMalformed, TxnEventLines

TXN_EVENT_SCHEMA: Final = (
    "source_partition STRING, position BIGINT, type STRING, txn_id STRING, "
    "database STRING, table STRING, op STRING, row STRING"
)
"""The columns of parsed events. Not for Spark's own JSON reader, which loses text (docs/guides/sources.md)."""

_EVENT_FIELDS: Final = T.StructType(
    [
        T.StructField(name, T.LongType() if kind == "BIGINT" else T.StringType())
        for name, kind in (field.split() for field in TXN_EVENT_SCHEMA.split(", "))
    ]
)
_MALFORMED: Final = "_malformed"


@suggests_arguments
def parse_txn_events(
    df: DataFrame,
    value: str = "value",
    *,
    source_partition: str | None = "partition",
    position: str | None = "offset",
    keep: tuple[str, ...] = (),
    on_malformed: OnMalformed = "fail",
    name: str = "parse_txn_events",
) -> DataFrame:
    """Parse TxnEvents from JSON, by the rules of `TxnEventLines`.

    A `row` may be a string or an object, which keeps its text. A value is malformed if it is NULL (a Kafka tombstone),
    is more or less than one JSON object, or has a field of another type.

    Args:
        df: The raw events.
        value: The column with the JSON (string or binary).
        source_partition: The column with the source partition, by default Kafka's; None takes the field from the JSON.
            With several topics make one column of topic and partition.
        position: The column with the position, by default Kafka's offset; None takes the field from the JSON.
        keep: Further columns of `df` to keep.
        on_malformed: `fail` the query at a malformed value, or `drop` the value and count it in each progress under
            `observedMetrics[name]["malformed"]`.
        name: The key of the count.

    Returns:
        The columns of TXN_EVENT_SCHEMA, then `keep`. Source partition and position keep the types of their columns.

    Raises:
        InputError: A column is missing (at once), or a value is malformed (in the running query). The error names
            source partition and position, never the content.
        OptionError: `on_malformed` is unknown, or `source_partition` is Kafka's partition and the stream reads several
            topics (a pattern is not seen).

    Example::

        from starrocks_txn_sink.sources import kafka_options, parse_txn_events

        reader = spark.readStream.format("kafka").options(**kafka_options("broker:9092", subscribe="events"))
        events = parse_txn_events(reader.load())
    """
    lines = TxnEventLines(value=value, source_partition=source_partition, position=position, on_malformed=on_malformed)
    if source_partition == "partition" and ("partition", "int") in df.dtypes:  # Kafka's own
        refuse_several_topics(df)
    return parse_lines(df, lines, keep, name)


def parse_lines(df: DataFrame, lines: TxnEventLines, keep: tuple[str, ...], name: str) -> DataFrame:
    """`parse_txn_events` with the columns and the policy of `lines`."""
    places = {SOURCE_PARTITION: lines.source_partition, POSITION: lines.position}
    needed = (lines.value, *(each for each in places.values() if each), *keep)
    check_input(df, needed, ", or None to take the field from the JSON")
    kept = {f"keep_{number}": each for number, each in enumerate(keep)}
    given = {VALUE: lines.value, **{name: own for name, own in places.items() if own}, **kept}
    raw = df.select(*(named_column(own).alias(name) for name, own in given.items()))
    fields = [
        T.StructField(field.name, raw.schema[field.name].dataType if places.get(field.name) else field.dataType)
        for field in _EVENT_FIELDS.fields
    ]
    fields += [T.StructField(own, raw.schema[name].dataType) for name, own in kept.items()]
    if lines.on_malformed == "fail":
        return raw.mapInArrow(_Parser(lines, tuple(kept)), T.StructType(fields))
    parser, counted = _Parser(lines, tuple(kept), counting=True), T.StructField(_MALFORMED, T.LongType())
    events = raw.mapInArrow(parser, T.StructType([*fields, counted]))
    observed = events.observe(name, F.coalesce(F.sum(_MALFORMED), F.lit(0)).alias("malformed"))
    return observed.where(F.col(_MALFORMED).isNull()).drop(_MALFORMED)


@dataclass(frozen=True, slots=True)
class _Parser:
    """Parses Arrow batches in a Spark task. `counting` adds a column for the number of malformed values: NULL in each
    event, and a last row with the number alone."""

    lines: TxnEventLines
    keep: tuple[str, ...]
    counting: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        malformed = 0
        events: pa.Table | None = None
        for batch in batches:
            events = self.lines.parse(batch, self.keep)
            malformed += batch.num_rows - events.num_rows
            if self.counting:
                events = events.append_column(_MALFORMED, pa.nulls(events.num_rows, pa.int64()))
            yield from events.combine_chunks().to_batches()
        if malformed and events is not None:
            row = {name: pa.nulls(1, events.schema.field(name).type) for name in events.column_names}
            yield pa.RecordBatch.from_pydict({**row, _MALFORMED: pa.array([malformed], pa.int64())})


def check_input(df: DataFrame, needed: tuple[str, ...], advice: str = "") -> None:
    """Raise InputError, with `advice`, for a missing column."""
    missing = [each for each in needed if each not in df.columns]
    if missing:
        raise InputError(
            f"The DataFrame lacks the column {', '.join(missing)}.",
            hint=f"It has {', '.join(df.columns)}; name other columns{advice}.",
        )


def named_column(name: str) -> Column:
    """The column of exactly this name, even with dots."""
    return F.col(quote(name))
