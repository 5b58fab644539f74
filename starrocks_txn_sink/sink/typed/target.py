"""StarRocks' tables from information_schema: models, columns, types, and names in rows that are no columns.

`COLUMN_TYPE` follows MySQL's habits: `tinyint(1)` is BOOLEAN, `bigint(20) unsigned` is LARGEINT, decimals come in three
widths, and nested types repeat all of it inside angle brackets.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import require_supported
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import LaneReport

_SELECT = (
    "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, COLUMN_KEY,"
    " GENERATION_EXPRESSION FROM information_schema.columns WHERE TABLE_SCHEMA = %s AND {} "
    "ORDER BY TABLE_NAME, ORDINAL_POSITION"
)
COLUMNS_SQL = _SELECT.format("TABLE_NAME IN ({})")
"""Parameters: the database and the tables' names; replace `{}` by as many `%s`."""
NOT_NULL_SQL = _SELECT.format("IS_NULLABLE = 'NO'")
"""The NOT NULL columns of all tables, those of primary keys among them. Parameter: the database."""

_COUNTER = re.compile(
    r"^\s*`((?:[^`]|``)+)`\s+bigint(?:\(\d+\))?\s+(?:NOT\s+NULL\s+)?AUTO_INCREMENT\b", re.IGNORECASE | re.MULTILINE
)
_WORD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*")
_NUMBERS = re.compile(r"\s*\(([\d\s,]*)\)")
_SAME = {"TEXT": "STRING", "BINARY": "VARBINARY", "INTEGER": "INT", "INT128": "LARGEINT", "BOOL": "BOOLEAN"}
_NESTED = ("ARRAY", "MAP", "STRUCT")
_NUMBERED = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_TEXTS = ("CHAR", "VARCHAR", "STRING", "VARBINARY")
_PLACEHOLDERS = {
    **dict.fromkeys(_TEXTS, '""'),
    **dict.fromkeys(("JSON", "MAP", "STRUCT"), "{}"),
    "ARRAY": "[]",
    "DATE": '"1970-01-01"',
    **dict.fromkeys(("BITMAP", "HLL"), '"0"'),  # of the field that their function reads
    "DATETIME": '"1970-01-01 00:00:00"',
}
_KNOWN = frozenset((*_NUMBERED, "DATE", "DATETIME", *_TEXTS, "JSON", "BITMAP", "HLL", *_NESTED))

PRIMARY_KEYS = "PRIMARY_KEYS"
"""Table model that supports deletes, as information_schema.tables_config names it."""

_COMPARE_SECONDS = 5.0
_SHOWN_NAMES, _SHOWN_LETTERS = 5, 32  # a line of the log has at most 200 letters a field
_UNKNOWN = (
    "The server drops these values without a word. Correct the names in the rows (case counts), or add the columns to "
    "the table."
)


@dataclass(frozen=True, slots=True)
class TargetType:
    """A type of StarRocks by its SQL name; `OTHER` for one that the sink does not write.

    `length` counts bytes and is None where nothing bounds it; `items` are the parts of a nested type: the element, key
    and value, or the fields with their names.
    """

    name: str
    length: int | None = None
    precision: int = 0
    scale: int = 0
    items: tuple[tuple[str, TargetType], ...] = ()

    @property
    def placeholder(self) -> str | None:
        """Some value of the type as JSON; None for a type that the sink does not write."""
        if self.name in _NUMBERED:
            return "0"
        return _PLACEHOLDERS.get(self.name)

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.items:
            return f"{self.name}<{', '.join(f'{name} {kind}'.strip() for name, kind in self.items)}>"
        return self.name if self.length is None else f"{self.name}({self.length})"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column of a table. `defaulted` says that the server fills it when it is left out."""

    name: str
    type: TargetType
    nullable: bool = True
    defaulted: bool = False
    key: bool = False
    generated: bool = False

    @property
    def required(self) -> bool:
        """Whether a row without it is refused (wire contract 5.5)."""
        return not (self.nullable or self.defaulted or self.generated)


Columns = Mapping[str, tuple[TargetColumn, ...]]
"""Columns of tables, by table in their order."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The database's tables, as far as a session knows them.

    `models` has their models. `columns` has the columns of the tables that typed routes write; None without
    `query_url`. `required` has the NOT NULL columns of PRIMARY KEY tables, those of the key among them.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    columns: Columns | None = None
    required: Columns = field(default_factory=dict)

    @classmethod
    def read(
        cls, connection: LeaderConnection, options: SinkOptions, typed_tables: Iterable[str], deadline: Deadline
    ) -> Tables:
        """Check the server's version and ask for all of it. Raises as `table_models`."""
        models = table_models(connection, options, deadline)
        columns = table_columns(connection, options.database, typed_tables, deadline)
        return cls(models, columns, required_columns(connection, options.database, models, deadline))


def target_columns(rows: Iterable[Sequence[object]]) -> dict[str, tuple[TargetColumn, ...]]:
    """The columns of each table, from the rows of COLUMNS_SQL."""
    tables: dict[str, tuple[TargetColumn, ...]] = {}
    for table, *row in rows:
        tables[str(table)] = (*tables.get(str(table), ()), _column(row))
    return tables


def _column(row: Sequence[object]) -> TargetColumn:
    name, kind, nullable, default, key, generation = row
    return TargetColumn(
        str(name),
        parse_type(str(kind)),
        nullable=str(nullable).upper() == "YES",
        defaulted=default is not None,
        key=str(key or "").upper() == "PRI",
        generated=bool(generation),
    )


def may_count(columns: Iterable[TargetColumn]) -> bool:
    """Whether one of a table's columns may be AUTO_INCREMENT: only the table's DDL shows it."""
    return any(column.required and column.type.name == "BIGINT" for column in columns)


def with_counters(columns: Iterable[TargetColumn], ddl: str) -> tuple[TargetColumn, ...]:
    """`columns` with those that are AUTO_INCREMENT in SHOW CREATE TABLE marked as filled by the server.

    information_schema does not show them: EXTRA is always empty. The server fills them also where a NULL is sent.
    """
    counted = {found[1].replace("``", "`") for found in _COUNTER.finditer(ddl)}
    return tuple(
        replace(column, nullable=True, defaulted=True) if column.name in counted else column for column in columns
    )


def parse_type(text: str) -> TargetType:
    """The type that a `COLUMN_TYPE` names; `OTHER` for an unknown one."""
    try:
        kind, rest = _parse(text)
    except ValueError:
        return TargetType("OTHER")
    return kind if not rest.strip() else TargetType("OTHER")


def _parse(text: str) -> tuple[TargetType, str]:
    word, text = _word(text)
    name = _SAME.get(word.upper(), word.upper())
    name = "DECIMAL" if name.startswith("DECIMAL") else name
    if name in _NESTED and text.lstrip().startswith("<"):
        return _nested(name, text.lstrip()[1:])
    found = _NUMBERS.match(text)
    numbers = [int(part) for part in found[1].split(",") if part.strip()] if found else []
    text = text[found.end() :] if found else text
    if text.lstrip().lower().startswith("unsigned"):
        name, text = "LARGEINT", text.lstrip()[len("unsigned") :]
    return _scalar(name, numbers), text


def _scalar(name: str, numbers: list[int]) -> TargetType:
    if name == "TINYINT" and numbers == [1]:
        return TargetType("BOOLEAN")
    if name == "DECIMAL":
        precision, scale = [*numbers, 0][:2] if numbers else (10, 0)
        return TargetType(name, precision=precision, scale=scale)
    if name in _TEXTS:
        length = numbers[0] if numbers else {"STRING": 65533, "VARBINARY": 1048576}.get(name, 1)
        return TargetType(name, length=length)
    return TargetType(name if name in _KNOWN else "OTHER")


def _nested(name: str, text: str) -> tuple[TargetType, str]:
    items: list[tuple[str, TargetType]] = []
    while True:
        label = ""
        if name == "STRUCT":
            label, text = _word(text)
            text = text.lstrip().removeprefix(":")
        kind, text = _parse(text)
        items.append((label, kind))
        text = text.lstrip()
        if text.startswith(">"):
            return TargetType(name, items=tuple(items)), text[1:]
        if not text.startswith(","):
            raise ValueError(text)
        text = text[1:]


def _word(text: str) -> tuple[str, str]:
    found = _WORD.match(text)
    if found is None:
        raise ValueError(text)
    name = found[2] if found[1] is None else found[1].replace("``", "`")
    return name, text[found.end() :]


def table_models(connection: LeaderConnection, options: SinkOptions, deadline: Deadline) -> dict[str, str]:
    """Check the server's version and return the database's tables with their models (PRIMARY_KEYS, DUP_KEYS, …).

    Raises OptionError for a server that is too old, QueryFailed or QueryRefused when the query fails.
    """
    version = str(connection.query("SELECT current_version()", (), deadline)[0][0])
    require_supported(version, unreleased=options.allow_unreleased_server)
    rows = connection.query(
        "SELECT TABLE_NAME, TABLE_MODEL FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s",
        (options.database,),
        deadline,
    )
    return {str(name): str(model) for name, model in rows}


def table_columns(
    connection: LeaderConnection, database: str, tables: Iterable[str], deadline: Deadline
) -> dict[str, tuple[TargetColumn, ...]]:
    """The columns of `tables`, by table in their order; a missing table is left out.

    Raises QueryFailed or QueryRefused when the query fails.
    """
    names = tuple(tables)
    if not names:
        return {}
    sql = COLUMNS_SQL.format(", ".join(["%s"] * len(names)))
    found = target_columns(connection.query(sql, (database, *names), deadline))
    for table, columns in found.items():
        if may_count(columns):
            with contextlib.suppress(QueryRefused):  # then it counts as a column that a row must have
                ddl = connection.query(f"SHOW CREATE TABLE {identifier(database, table)}", (), deadline)
                found[table] = with_counters(columns, str(ddl[0][1]) if ddl else "")
    return found


def required_columns(
    connection: LeaderConnection, database: str, models: Mapping[str, str], deadline: Deadline
) -> dict[str, tuple[TargetColumn, ...]]:
    """The NOT NULL columns of the PRIMARY KEY tables among `models`, those of the keys among them; by table.

    Raises QueryFailed or QueryRefused when the query fails.
    """
    if PRIMARY_KEYS not in models.values():
        return {}
    found = target_columns(connection.query(NOT_NULL_SQL, (database,), deadline))
    return {
        table: tuple(column for column in columns if not column.nullable and not column.generated)
        for table, columns in found.items()
        if models.get(table) == PRIMARY_KEYS
    }


def compare_columns(options: SinkOptions, reports: Sequence[LaneReport]) -> list[Event] | None:
    """Compare the names in the first JSON rows of tables with the tables' columns; None if the server does not answer.

    `columns.unknown` is the event of a table that lacks a column which rows name: the server drops such a value
    without a word (wire contract 5.4). `columns.unnamed` has the columns that those rows leave NULL, and no more than
    that is wrong. The server compares names with their case. Without `query_url` there is nothing to compare.
    """
    found: dict[str, set[str]] = {}
    for report in reports:
        for table, names in report.members.items():
            found.setdefault(table, set()).update(names)
    if not found or options.query_url is None:
        return []
    deadline = Deadline.after(_COMPARE_SECONDS, SystemClock())
    try:
        with contextlib.closing(LeaderConnection(options)) as connection:
            tables = table_columns(connection, options.database, sorted(found), deadline)
    except StarRocksSinkError:
        return None
    events = (_unmatched(table, found[table], columns) for table, columns in sorted(tables.items()))
    return [event for event in events if event is not None]


def _unmatched(table: str, names: Set[str], columns: Sequence[TargetColumn]) -> Event | None:
    unknown = sorted(names - {column.name for column in columns})
    # A default is left out: a missing key is NULL there too, but an AUTO_INCREMENT looks the same.
    unnamed = [
        column.name
        for column in columns
        if column.name not in names and not (column.key or column.generated or column.defaulted)
    ]
    fields = {"table": table, "count": len(unknown), "unknown": _list(unknown), "unnamed": _list(unnamed) or None}
    if unknown:
        return Event("columns.unknown", {**fields, "advice": _UNKNOWN})
    return Event("columns.unnamed", {"table": table, "unnamed": _list(unnamed)}) if unnamed else None


def _list(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(name[:_SHOWN_LETTERS] for name in names[:_SHOWN_NAMES])
    return f"{shown}, and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else shown
