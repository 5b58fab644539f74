"""The tables of a source, as its database's catalog describes them, for `init`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starrocks_txn_ops.sync.source_database import Ask, SourceDatabase
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sources.formats.connect_types import SourceTable, columns_of

_POSTGRES_COLUMNS: Final = """
SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
  coalesce(to_jsonb(a) ->> 'attgenerated', '') <> '', c.relreplident::text
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' AND a.attnum > 0
  AND NOT a.attisdropped AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'
ORDER BY n.nspname, c.relname, a.attnum
"""
_POSTGRES_KEYS: Final = """
SELECT n.nspname, c.relname, x.relname, i.indisprimary, a.attname
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class x ON x.oid = i.indexrelid
  CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (number, place)
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
WHERE i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
ORDER BY n.nspname, c.relname, NOT i.indisprimary, x.relname, k.place
"""
_MYSQL_COLUMNS: Final = """
SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, c.IS_NULLABLE = 'NO',
  c.EXTRA REGEXP '(VIRTUAL|STORED|PERSISTENT)', ''
FROM information_schema.COLUMNS c JOIN information_schema.TABLES t
  ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME
WHERE t.TABLE_TYPE = 'BASE TABLE' AND c.TABLE_SCHEMA = %s
ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION
"""
_MYSQL_KEYS: Final = """
SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, INDEX_NAME = 'PRIMARY', COLUMN_NAME
FROM information_schema.STATISTICS WHERE NON_UNIQUE = 0 AND TABLE_SCHEMA = %s
ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX
"""
_NO_OLD_ROW: Final = (
    "PostgreSQL refuses its updates and deletes in a publication until it has a REPLICA IDENTITY: FULL, or a unique "
    "index"
)


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table of the source: columns with their types, its key, notes; `unique` would be a key of a table without.

    The database computes the `generated` columns; messages may lack them. Both parts of the name `collection` may have
    points themselves; the first is the `owner`, which a database's catalog gives.
    """

    collection: str
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    generated: frozenset[str] = frozenset()
    owner: str | None = None

    @property
    def place(self) -> tuple[str, str]:
        """The table's schema, or database of MySQL, and its own name."""
        owner = self.collection.rpartition(".")[0] if self.owner is None else self.owner
        return owner, self.collection.removeprefix(f"{owner}.")

    @classmethod
    def of_messages(cls, table: SourceTable) -> DescribedTable:
        """With StarRocks' types, by the schema of the messages."""
        columns = columns_of(table.schema, table.keys)
        notes = [
            f"{column.name}: {column.note or 'DECIDE: ' + column.refusal}"
            for column in columns
            if column.note or column.refusal
        ]
        pairs = tuple((column.name, column.new_type or "?") for column in columns)
        return cls(table.collection, table.keys, pairs, tuple(notes))


def read_catalog(place: SourceDatabase, password: str, seconds: float) -> list[DescribedTable]:
    """The tables of a database, with the source's types; raises InputError without one."""
    with place.connect(password, seconds) as ask:
        tables = _postgresql(ask) if place.postgresql else _mysql(ask, place.database)
    if not tables:
        raise InputError(
            f"The database {place.database} has no table, or none that the user {place.user} may see.",
            hint="Correct --source, or grant SELECT.",
        )
    return tables


def _postgresql(ask: Ask) -> list[DescribedTable]:
    return _described(ask(_POSTGRES_COLUMNS, ()), ask(_POSTGRES_KEYS, ()))


def _mysql(ask: Ask, database: str) -> list[DescribedTable]:
    return _described(ask(_MYSQL_COLUMNS, (database,)), ask(_MYSQL_KEYS, (database,)))


def _described(columns: list[tuple[Any, ...]], keys: list[tuple[Any, ...]]) -> list[DescribedTable]:
    """The tables, from the rows of both questions."""
    indexes: dict[tuple[str, str], dict[str, list[str]]] = {}
    primary: dict[tuple[str, str], str] = {}
    for owner, table, index, is_primary, column in keys:
        indexes.setdefault((owner, table), {}).setdefault(index, []).append(column)
        if is_primary:
            primary[owner, table] = index
    of_tables: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for owner, table, *column in columns:
        of_tables.setdefault((owner, table), []).append(tuple(column))
    described = []
    for place, rows in of_tables.items():
        filled = {name for name, _, not_null, *_ in rows if not_null}
        unique = [tuple(index) for index in indexes.get(place, {}).values() if filled.issuperset(index)]
        key = tuple(indexes[place][primary[place]]) if place in primary else ()
        notes = (_NO_OLD_ROW,) if not key and rows[0][4] == "d" else ()
        pairs = tuple((name, kind) for name, kind, *_ in rows)
        generated = frozenset(name for name, _, _, is_generated, _ in rows if is_generated)
        of_unique = () if key else (unique or [()])[0]
        described.append(DescribedTable(".".join(place), key, pairs, notes, of_unique, generated, place[0]))
    return described
