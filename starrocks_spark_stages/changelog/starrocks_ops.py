"""`to_starrocks_ops`: a changelog as one upsert or delete per key, for a PRIMARY KEY table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window, functions as F, types as T

from starrocks_spark_stages.changelog import rows
from starrocks_spark_stages.changelog.rules.conversions import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, RowKind
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.public_names import suggests_arguments

OP: Final = "op"
KEY: Final = "__key"
RANK: Final = "__rank"

UPSERT: Final = "upsert"
REMOVE: Final = "delete"

# Of changes with the same sequence, the highest rank is the last.
RANKS: Final = {UPDATE_BEFORE: 0, DELETE: 1, INSERT: 2, UPDATE_AFTER: 2}


@suggests_arguments
def to_starrocks_ops(
    df: DataFrame,
    *,
    sink_key: str | Sequence[str],
    sequence: str | Sequence[str],
    row_kind: str = "row_kind",
) -> DataFrame:
    """Reduce changes to the last one of each sink key, as an upsert or a delete.

    +I and +U are upserts, -D is a delete. A -U is dropped if a +U of its key follows, and is a delete if the update
    moved its row to another key. On a stream the last change is that of each micro-batch.

    An unknown row kind, a NULL key or a NULL sequence fails the running query. The error names the row's place.

    Args:
        df: The changes, with a row kind. Rows marked for the sink (`transaction_end`) are refused: without all of its
            rows a source transaction would be torn.
        sink_key: The columns of the table's primary key.
        sequence: The columns that order the changes: the last change has the highest values. Only -U and +U of an
            update may share one.
        row_kind: The column with the row kind.

    Returns:
        The changes with the sink's column `op` (upsert or delete) in place of `row_kind`.

    Raises:
        InputError: A parameter, named in the message, does not fit the frame.
        OptionError: A parameter, named in the message, is invalid, or the rows are marked for the sink.

    Example::

        from starrocks_txn_sink import StarRocksSink, TableRoute, to_starrocks_ops

        operations = to_starrocks_ops(changes, sink_key="id", sequence="lsn")
        sink = StarRocksSink(options, routes=[TableRoute("customers", ["id", "name"])])
        sink.write(operations)
    """
    rows.require_row_kind(df, row_kind)
    keys, order = rows.require_columns(sink_key, "sink_key", df), rows.require_columns(sequence, "sequence", df)
    for parameter, target_names in (("sink_key", keys), ("sequence", order)):
        if not target_names:
            raise OptionError(f"{parameter} is empty.", hint="Name at least one column.")
    rows.refuse_clash([OP], [name for name in df.columns if name != row_kind], OP)
    if "transaction_end" in df.columns:
        raise OptionError(
            "The DataFrame has the column transaction_end, whose rows may not be dropped one by one.",
            hint="Write it as it is, or drop transaction_end and the columns that go with it.",
        )
    frame = rows.refuse_bad_changes(df, row_kind, keys, order, "to_starrocks_ops")
    names = [name for name in df.columns if name != row_kind]
    kind = rows.column(row_kind)
    adds = kind.isin([str(member) for member in RowKind if member.adds])
    op = F.when(adds, F.lit(UPSERT)).otherwise(F.lit(REMOVE)).alias(OP)
    orders = [column.alias(f"__order_{number}") for number, column in enumerate(rows.sort_columns(df, order))]
    rank = F.coalesce(*(F.when(kind == str(member), value) for member, value in RANKS.items()))
    chosen_columns = frame.select(op, *map(rows.column, names), *orders, rank.alias(RANK))
    places = [*(f"__order_{number}" for number in range(len(orders))), RANK]
    if not frame.isStreaming:
        latest = Window.partitionBy(*map(rows.column, keys)).orderBy(*(F.desc(place) for place in places))
        numbered = chosen_columns.withColumn(RANK, F.row_number().over(latest))
        return numbered.filter(F.col(RANK) == 1).select(OP, *map(rows.column, names))
    # Spark has no row_number over a stream, so micro-batches are reduced as Arrow tables.
    keyed = chosen_columns.withColumn(KEY, rows.to_text(map(rows.column, keys))).repartition(KEY)
    result = T.StructType([T.StructField(OP, T.StringType()), *(df.schema[name] for name in names)])
    return keyed.mapInArrow(LastPerKey(places, result.names), result)


class LastPerKey:
    """Reduces a task's record batches to the last row of each key; memory holds about twice the remaining rows."""

    def __init__(self, places: Sequence[str], columns: Sequence[str]) -> None:
        self._places = list(places)
        self._columns = list(columns)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.Table] = []
        held_rows, limit = 0, 100_000
        for batch in batches:
            waiting.append(pa.Table.from_batches([batch]))
            held_rows += batch.num_rows
            if held_rows >= limit:
                waiting = [self.last_rows(pa.concat_tables(waiting))]
                held_rows = waiting[0].num_rows
                limit = max(limit, 2 * held_rows)  # with many keys, do not sort all of them again for each batch
        if waiting:
            yield from self.last_rows(pa.concat_tables(waiting)).select(self._columns).combine_chunks().to_batches()

    def last_rows(self, table: pa.Table) -> pa.Table:
        """The last row of each key by the sort columns."""
        order = [(name, "ascending") for name in (KEY, *self._places)]
        ordered = table.take(pc.sort_indices(table, sort_keys=order))
        keys = ordered[KEY].combine_chunks()
        ends = pc.not_equal(keys.slice(1), keys.slice(0, max(0, len(keys) - 1)))
        return ordered.filter(pa.concat_arrays([ends, pa.array([True] if len(keys) else [], pa.bool_())]))
