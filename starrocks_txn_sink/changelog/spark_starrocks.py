"""`to_starrocks_ops`: a changelog as what a PRIMARY KEY table needs, one upsert or delete per key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.changelog.final_change import RANKS, REMOVE, UPSERT
from starrocks_txn_sink.changelog.kinds import RowKind
from starrocks_txn_sink.changelog.spark_rows import (
    column,
    guarded,
    kind_checks,
    names,
    place_of,
    refuse_clash,
    require_row_kind,
    sortable,
    to_text,
)
from starrocks_txn_sink.errors import OptionError

OP: Final = "op"
KEY: Final = "__key"
RANK: Final = "__rank"


def to_starrocks_ops(
    df: DataFrame,
    *,
    sink_key: str | Sequence[str],
    sequence: str | Sequence[str],
    row_kind: str = "row_kind",
) -> DataFrame:
    """The last change of each sink key, with the column `op` (upsert or delete) for the sink in place of `row_kind`.

    +I and +U are upserts, -D is a delete. A -U is nothing if a +U of its key follows, and a delete if the update moved
    its row to another key. The last change is the one with the highest `sequence` (columns); -U and +U of an update may
    share one, otherwise a key's changes have different ones. Of a stream, the last change in each micro-batch.

    Raises InputError or OptionError at once, naming the parameter; in the running query an unknown row kind, a NULL key
    or a NULL sequence fails with the row's place. Rows that are marked for the sink (`transaction_end`) are refused:
    dropping some of them would tear source transactions.
    """
    require_row_kind(df, row_kind)
    keys, order = names(sink_key, "sink_key", df), names(sequence, "sequence", df)
    for parameter, given in (("sink_key", keys), ("sequence", order)):
        if not given:
            raise OptionError(f"{parameter} is empty.", hint="Name at least one column.")
    refuse_clash([OP], [name for name in df.columns if name != row_kind], OP)
    if "transaction_end" in df.columns:
        raise OptionError(
            "The DataFrame has the column transaction_end, whose rows may not be dropped one by one.",
            hint="Write it as it is, or drop transaction_end and the columns that go with it.",
        )
    orders = sortable(df, order)
    frame = guarded(df, *kind_checks(row_kind, keys, order, "to_starrocks_ops"), place=place_of(df, order))
    kept = [name for name in df.columns if name != row_kind]
    adds = column(row_kind).isin([str(kind) for kind in RowKind if kind.adds])
    op = F.when(adds, F.lit(UPSERT)).otherwise(F.lit(REMOVE)).alias(OP)
    chosen = frame.select(op, *map(column, kept), *_places(orders), _rank(row_kind).alias(RANK))
    places = [*(f"__order_{number}" for number in range(len(orders))), RANK]
    if not frame.isStreaming:
        latest = Window.partitionBy(*map(column, keys)).orderBy(*(F.desc(place) for place in places))
        numbered = chosen.withColumn(RANK, F.row_number().over(latest))
        return numbered.filter(F.col(RANK) == 1).select(OP, *map(column, kept))
    # A stream has no windows without state, so its micro-batches are reduced as Arrow tables.
    keyed = chosen.withColumn(KEY, to_text(map(column, keys))).repartition(KEY)
    result = T.StructType([T.StructField(OP, T.StringType()), *(df.schema[name] for name in kept)])
    return keyed.mapInArrow(LastPerKey(places, result.names), result)


def _places(orders: Sequence[Column]) -> list[Column]:
    return [each.alias(f"__order_{number}") for number, each in enumerate(orders)]


def _rank(row_kind: str) -> Column:
    rank = F.lit(0)
    for kind, value in RANKS.items():
        rank = F.when(column(row_kind) == str(kind), F.lit(value)).otherwise(rank)
    return rank


class LastPerKey:
    """Reduces a task's record batches to the last row of each key; memory holds the rows that are last, twice."""

    def __init__(self, places: Sequence[str], kept: Sequence[str]) -> None:
        self._places = list(places)
        self._kept = list(kept)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.Table] = []
        rows, limit = 0, 100_000
        for batch in batches:
            waiting.append(pa.Table.from_batches([batch]))
            rows += batch.num_rows
            if rows >= limit:
                waiting = [self.reduced(pa.concat_tables(waiting))]
                rows = waiting[0].num_rows
                limit = max(limit, 2 * rows)
        if waiting:
            yield from self.reduced(pa.concat_tables(waiting)).select(self._kept).combine_chunks().to_batches()

    def reduced(self, table: pa.Table) -> pa.Table:
        """The last row of each key, by the place columns."""
        by = [(name, "ascending") for name in (KEY, *self._places)]
        ordered = table.take(pc.sort_indices(table, sort_keys=by))
        keys = ordered[KEY].combine_chunks()
        ends = pc.not_equal(keys.slice(1), keys.slice(0, max(0, len(keys) - 1)))
        return ordered.filter(pa.concat_arrays([ends, pa.array([True] if len(keys) else [], pa.bool_())]))
