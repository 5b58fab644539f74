"""Frames of raw messages, parsed by a `RawFormat` in Spark's tasks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.ledger import quote
from starrocks_txn_sink.rows.columns import OFFSET, TOPIC_PARTITION
from starrocks_txn_sink.sources.formats.raw_format import RawFormat, further_places

_COUNT: Final = "_count"
_COUNTS: Final = ("malformed", "truncates")
_OF_KAFKA: Final = ("int", "bigint")
_PLACE: Final = {OFFSET: "bigint", TOPIC_PARTITION: "string"}


def parse_messages(
    df: DataFrame, messages: RawFormat, keep: tuple[str, ...], name: str, counts: tuple[str, ...] = ()
) -> DataFrame:
    """The events of `df`, then its columns `keep`, and the place of each message if `df` has Kafka's columns.

    Each progress of the query has the `counts` (of _COUNTS) under `observedMetrics[name]`, and `malformed` if the
    format drops malformed messages.
    """
    counts = counts if messages.on_malformed == "fail" else ("malformed", *counts)
    df, there = _with_place(df)
    keep = (*keep, *(name for name in there if name not in keep))
    extra = {f"keep_{number}": column for number, column in enumerate(keep)}
    columns_by_field = {**messages.columns, **extra}
    check_input(df, tuple(columns_by_field.values()), ", or None to take the field from the JSON")
    places = {name: name for name in further_places(messages.columns, df.columns)}  # for errors alone
    raw = df.select(
        *(named_column(column).alias(batch_name) for batch_name, column in (columns_by_field | places).items())
    )
    fields = [
        T.StructField(
            field.name, raw.schema[field.name].dataType if field.name in columns_by_field else _spark_type(field.type)
        )
        for field in messages.events
    ]
    fields += [T.StructField(column, raw.schema[batch_name].dataType) for batch_name, column in extra.items()]
    if not counts:
        return raw.mapInArrow(_Parser(messages, tuple(extra)), T.StructType(fields))
    parser, columns = _Parser(messages, tuple(extra), counts), [_COUNT + count for count in counts]
    count_fields = [T.StructField(column, T.LongType()) for column in columns]
    events = raw.mapInArrow(parser, T.StructType([*fields, *count_fields]))
    sums = [F.coalesce(F.sum(_COUNT + count), F.lit(0)).alias(count) for count in counts]
    return events.observe(name, *sums).where(F.col(columns[0]).isNull()).drop(*columns)


def _with_place(df: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
    """`df` with its messages' places in Kafka, as rows carry them (`rows.places`), and the names of these columns."""
    kinds = dict(df.dtypes)
    if not {OFFSET, TOPIC_PARTITION}.isdisjoint(kinds) or (kinds.get("partition"), kinds.get("offset")) != _OF_KAFKA:
        return df, place_columns(df)
    partition = F.concat_ws("-", *(F.col(name) for name in ("topic", "partition") if name in kinds))
    return df.withColumns({OFFSET: F.col("offset"), TOPIC_PARTITION: partition}), tuple(_PLACE)


def place_columns(frame: DataFrame) -> tuple[str, ...]:
    """The columns of a frame with places in Kafka, as `parse_messages` makes them; none if one is missing."""
    there = [(field.name, field.dataType.simpleString()) for field in frame.schema if field.name in _PLACE]
    return tuple(_PLACE) if dict(there) == _PLACE and len(there) == len(_PLACE) else ()


@dataclass(frozen=True, slots=True)
class _Parser:
    """Parses Arrow batches in a Spark task. `counts` adds columns for numbers: NULL in each event, and a last row with
    the numbers alone."""

    messages: RawFormat
    keep: tuple[str, ...]
    counts: tuple[str, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = dict.fromkeys(_COUNTS, 0)
        events: pa.Table | None = None
        for batch in batches:
            parsed = self.messages.parse(batch, self.keep)
            numbers["malformed"] += parsed.malformed
            numbers["truncates"] += sum(parsed.truncates.values())
            events = parsed.events
            for count in self.counts:
                events = events.append_column(_COUNT + count, pa.nulls(events.num_rows, pa.int64()))
            yield from events.combine_chunks().to_batches()
        if any(numbers[count] for count in self.counts) and events is not None:
            row = {name: pa.nulls(1, events.schema.field(name).type) for name in events.column_names}
            count_columns = {_COUNT + count: pa.array([numbers[count]], pa.int64()) for count in self.counts}
            yield pa.RecordBatch.from_pydict(row | count_columns)


def _spark_type(kind: pa.DataType) -> T.DataType:
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(member.name, _spark_type(member.type)) for member in kind])
    if pa.types.is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type))
    return T.LongType() if kind == pa.int64() else T.StringType()


def check_input(df: DataFrame, columns: tuple[str, ...], advice: str = "") -> None:
    """Raise InputError, with `advice`, for a missing column."""
    missing = [column for column in columns if column not in df.columns]
    if missing:
        raise InputError(
            f"The DataFrame lacks the column {', '.join(missing)}.",
            hint=f"It has {', '.join(df.columns)}; name other columns{advice}.",
        )


def named_column(name: str) -> Column:
    """The column of exactly this name, even with dots."""
    return F.col(quote(name))
