"""Applying judged rows to a table inside the caller's DuckDB transaction, without an index.

The last row per key is found first, what it replaces is deleted by a join, and it is inserted unless it is a delete:
far cheaper than a primary key index at a million rows. Arrival order decides between rows of one key, or an arbitrary
order: the server promises none inside one transaction, and an emulator that shuffles the rows shows who relies on one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import duckdb

from starrocks_emulator.settings import RowOrder
from starrocks_emulator.tables.catalog import Column, Model, Table, quote


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Renumbers the arrivals of staged rows, or leaves them alone."""

    order: RowOrder = RowOrder.ARRIVAL
    seed: int = 0

    def of(self, rows: str) -> str:
        """The relation `rows` with `__arrival` in the order in which its rows are to be applied."""
        if self.order is RowOrder.ARRIVAL:
            return rows
        return f"(SELECT * REPLACE (hash(__arrival, {self.seed:d}) AS __arrival) FROM {rows})"


@dataclass(frozen=True, slots=True)
class Manner:
    """How rows enter their table: the columns they carry, and the two modes of PRIMARY KEY tables."""

    columns: tuple[str, ...]
    partial: bool = False
    merge_column: str = ""

    def to_json(self) -> str:
        """The text for `from_json`, kept with the rows of an invisible commit."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Manner:
        """The manner that `to_json` has written."""
        plain = json.loads(text)
        return cls(tuple(plain["columns"]), plain["partial"], plain["merge_column"])


class MissingDefault(Exception):
    """A partial update met a new key and a NOT NULL column that has neither a value nor a default."""


def apply_rows(cursor: duckdb.DuckDBPyConnection, table: Table, manner: Manner, rows: str) -> None:
    """Apply the relation `rows` (the manner's columns, `__op`, `__arrival`) to `table`; raises MissingDefault."""
    if not table.model.replaces:
        names = _names(manner.columns)
        cursor.execute(f"INSERT INTO {table.relation} ({names}) SELECT {names} FROM {rows} ORDER BY __arrival")
    elif table.model is Model.AGGREGATE_KEY:
        _aggregate(cursor, table, manner.columns, rows)
    elif manner.partial or manner.merge_column:
        _apply_selectively(cursor, table, manner, rows)
    else:
        _replace(cursor, table, manner.columns, rows, f"__arrival IN ({_last_per_key(table, rows)})")


def with_added(manner: Manner, rows: str, new_columns: Sequence[Column]) -> tuple[Manner, str]:
    """`rows` that were judged before their table got `new_columns`, which are written with their defaults."""
    if manner.partial or not new_columns:
        return manner, rows
    values = ", ".join(f"{_default(column)} AS {quote(column.name)}" for column in new_columns)
    columns = (*manner.columns, *(column.name for column in new_columns))
    return replace(manner, columns=columns), f"(SELECT *, {values} FROM {rows})"


def _names(columns: Sequence[str], prefix: str = "") -> str:
    return ", ".join(prefix + quote(column) for column in columns)


def _last_per_key(table: Table, rows: str) -> str:
    return f"SELECT max(__arrival) FROM {rows} GROUP BY {_names(table.keys)}"


def _same_key(table: Table, left: str, right: str) -> str:
    return " AND ".join(f"{left}.{quote(key)} = {right}.{quote(key)}" for key in table.keys)


def _replace(cursor: duckdb.DuckDBPyConnection, table: Table, columns: Sequence[str], rows: str, winners: str) -> None:
    """Delete what `rows` replace, then insert those of them that `winners` selects and that are upserts."""
    cursor.execute(f"DELETE FROM {table.relation} AS kept USING {rows} AS new WHERE {_same_key(table, 'kept', 'new')}")
    names = _names(columns)
    cursor.execute(f"INSERT INTO {table.relation} ({names}) SELECT {names} FROM {rows} WHERE __op = 0 AND {winners}")


_JOINED = {
    "SUM": "sum({})",
    "MAX": "max({})",
    "MIN": "min({})",
    "REPLACE": "last({} ORDER BY __arrival)",
    "REPLACE_IF_NOT_NULL": "last({0} ORDER BY __arrival) FILTER ({0} IS NOT NULL)",
    "BITMAP_UNION": "bitmap_union({})",
    "HLL_UNION": "hll_union({})",
}
"""Aggregate function of a column → the DuckDB expression that joins the values of a key."""

AGGREGATES = tuple(_JOINED)


def _aggregate(cursor: duckdb.DuckDBPyConnection, table: Table, columns: Sequence[str], rows: str) -> None:
    """Join `rows` with the stored rows of their keys, column by column."""
    keys, names = _names(table.keys), _names(columns)
    values = [
        f"{_JOINED[column.aggregate].format(quote(column.name))} AS {quote(column.name)}"
        for column in table.columns
        if column.aggregate
    ]
    selection = ", ".join([keys, *values])
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE final AS SELECT {selection}, 0 AS __op FROM ("
        f"SELECT {names}, __arrival FROM {rows} UNION ALL"
        f" SELECT {names}, -1 FROM {table.relation} AS kept"
        f" WHERE EXISTS (SELECT 1 FROM {rows} AS new WHERE {_same_key(table, 'kept', 'new')})) GROUP BY {keys}"
    )
    try:
        _replace(cursor, table, columns, "final", "true")
    finally:
        cursor.execute("DROP TABLE final")


def _apply_selectively(cursor: duckdb.DuckDBPyConnection, table: Table, manner: Manner, rows: str) -> None:
    """Work out the final rows against the stored ones first, then replace by them."""
    order = "__arrival DESC"
    refused = ""
    if manner.merge_column:
        merge = quote(manner.merge_column)
        order = f"new.{merge} DESC NULLS LAST, __arrival DESC"
        refused = f"WHERE kept.rowid IS NULL OR kept.{merge} IS NULL OR new.{merge} >= kept.{merge}"
    values = ", ".join(f"{_final_value(column, manner)} AS {quote(column.name)}" for column in table.columns)
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE final AS SELECT {values}, new.__op AS __op, kept.rowid IS NULL AS __fresh"
        f" FROM (SELECT * FROM {rows} AS new"
        f" QUALIFY row_number() OVER (PARTITION BY {_names(table.keys)} ORDER BY {order}) = 1) AS new"
        f" LEFT JOIN {table.relation} AS kept ON {_same_key(table, 'kept', 'new')} {refused}"
    )
    try:
        _check_defaults(cursor, table, manner)
        _replace(cursor, table, [column.name for column in table.columns], "final", "true")
    finally:
        cursor.execute("DROP TABLE final")


def _final_value(column: Column, manner: Manner) -> str:
    if column.name in manner.columns:
        return f"new.{quote(column.name)}"
    return f"CASE WHEN kept.rowid IS NULL THEN {_default(column)} ELSE kept.{quote(column.name)} END"


def _default(column: Column) -> str:
    if column.default:
        return column.type.value_of(f"({column.default.sql})")
    return f"CAST(NULL AS {column.type.duckdb})"


def _check_defaults(cursor: duckdb.DuckDBPyConnection, table: Table, manner: Manner) -> None:
    for column in table.columns:
        if column.name in manner.columns or column.nullable or column.default:
            continue
        missing = cursor.execute(
            f"SELECT count(*) FROM final WHERE __fresh AND __op = 0 AND {quote(column.name)} IS NULL"
        ).fetchone()
        if missing and missing[0]:
            raise MissingDefault(f"Column has no default value. column: {column.name}")
