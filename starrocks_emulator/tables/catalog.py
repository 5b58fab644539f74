"""What the emulator knows of its tables: immutable definitions, kept as JSON text in DuckDB and mirrored in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

import duckdb

from starrocks_emulator.tables.types import ColumnType

UNKNOWN_DATABASE, DATABASE_EXISTS, TABLE_EXISTS, UNKNOWN_TABLE = 5501, 1007, 1050, 5502
RESERVED_DATABASES = frozenset({"information_schema", "_statistics_", "sys"})


AUTO_INCREMENT = "AUTO_INCREMENT"


class CatalogError(Exception):
    """A statement that the catalog refuses; `code` is the MySQL error code, `table` the one that does not exist."""

    def __init__(self, message: str, code: int = 1064, table: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.table = table

    @property
    def as_target(self) -> str:
        """The message to a statement that would change the table, which names it alone."""
        return f"Table {self.table} is not found" if self.table else self.message


class Model(Enum):
    """The table types; the value is `TABLE_MODEL` of information_schema.tables_config."""

    PRIMARY_KEY = "PRIMARY_KEYS"
    UNIQUE_KEY = "UNIQUE_KEYS"
    AGGREGATE_KEY = "AGG_KEYS"
    DUPLICATE_KEY = "DUP_KEYS"

    @property
    def clause(self) -> str:
        """The words of CREATE TABLE, such as `PRIMARY KEY`."""
        return self.name.replace("_", " ")

    @property
    def column_key(self) -> str:
        """`COLUMN_KEY` of a key column."""
        return self.value[:3]

    @property
    def replaces(self) -> bool:
        """Whether a table has one row of a key: a later row takes its place, or is added to it."""
        return self is not Model.DUPLICATE_KEY

    @property
    def takes_operations(self) -> bool:
        """Whether `__op`, partial updates and merge conditions are allowed."""
        return self is Model.PRIMARY_KEY


@dataclass(frozen=True, slots=True)
class Default:
    """A column's default: a constant text, one of the functions `CURRENT_TIMESTAMP` and `uuid()`, or AUTO_INCREMENT."""

    text: str
    function: bool = False

    @property
    def counts(self) -> bool:
        """Whether it is AUTO_INCREMENT: a new number for each row without one."""
        return self.function and self.text == AUTO_INCREMENT

    @property
    def sql(self) -> str:
        """The SQL expression whose text is the default."""
        if not self.function:
            return literal(self.text)
        if self.counts:
            return "CAST(nextval('meta.auto_increment') AS VARCHAR)"
        if self.text == "uuid()":
            return "CAST(uuid() AS VARCHAR)"
        return "strftime(CAST(now() AS TIMESTAMP), '%Y-%m-%d %H:%M:%S')"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; `aggregate` is the function of an AGGREGATE KEY table that joins the values of a key."""

    name: str
    type: ColumnType
    nullable: bool = True
    default: Default | None = None
    comment: str = ""
    aggregate: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """An automatic partition: of a time, its begin; of a list, a value for each column."""

    name: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `partition_by` and `distributed_by` spread no rows here; `partitions` are the automatic ones;
    `version` changes with every definition, so that a load planned on an older one is noticed."""

    database: str
    name: str
    model: Model
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    comment: str = ""
    partition_by: str = ""
    distributed_by: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = 1
    partitions: tuple[Partition, ...] = ()

    @property
    def relation(self) -> str:
        """The DuckDB name of the stored rows, quoted."""
        return f"{schema_of(self.database)}.{quote(stored_name(self.name))}"

    @property
    def spread(self) -> tuple[str, ...]:
        """The columns by whose hash a server spreads the rows."""
        _, _, names = self.distributed_by.partition("(")
        return tuple(name.strip(" `") for name in names.partition(")")[0].split(",") if name.strip())

    def column(self, name: str) -> Column | None:
        """The column of that name, whatever the letters' case."""
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)

    def is_key(self, column: Column) -> bool:
        """Whether the column is one of the key's."""
        return column.name in self.keys

    def with_columns(self, columns: tuple[Column, ...]) -> Table:
        """The same table with other columns, as a new version."""
        return replace(self, columns=columns, version=self.version + 1)

    def with_partitions(self, partitions: tuple[Partition, ...]) -> Table:
        """The same table with other partitions; loads that are planned go on."""
        return replace(self, partitions=partitions)

    def to_json(self) -> str:
        """The text for `from_json`, as `meta.tables` has it."""
        plain = asdict(self)
        plain["model"] = self.model.value
        plain["properties"] = dict(self.properties)
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> Table:
        """The table that `to_json` has written; texts without partitions are of older versions."""
        plain: dict[str, Any] = {"partitions": (), **json.loads(text)}
        plain["model"] = Model(plain["model"])
        plain["keys"] = tuple(plain["keys"])
        plain["columns"] = tuple(_column(column) for column in plain["columns"])
        plain["partitions"] = tuple(Partition(part["name"], tuple(part["values"])) for part in plain["partitions"])
        return cls(**plain)


def _column(plain: dict[str, Any]) -> Column:
    default = plain["default"]
    return Column(
        name=plain["name"],
        type=ColumnType.from_plain(plain["type"]),
        nullable=plain["nullable"],
        default=None if default is None else Default(**default),
        comment=plain["comment"],
        aggregate=plain.get("aggregate", ""),
    )


def quote(name: str) -> str:
    """An identifier as DuckDB reads it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string literal as DuckDB reads it."""
    return "'" + text.replace("'", "''") + "'"


def stored_name(name: str) -> str:
    """What DuckDB, for which `t` and `T` are one name, calls a table or database: with the places of the capitals."""
    capitals = sum(1 << place for place, letter in enumerate(name) if letter != letter.lower())
    return f"{name} {capitals:x}" if capitals else name


def schema_of(database: str) -> str:
    """The DuckDB schema of a StarRocks database, quoted; the prefix keeps clear of DuckDB's own schemas."""
    return quote(stored_name(f"db_{database}"))


class Registry:
    """Definitions by name. Changes are made on a cursor inside the caller's transaction and adopted by `reload`."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS meta")
        cursor.execute("CREATE SEQUENCE IF NOT EXISTS meta.auto_increment")
        cursor.execute("CREATE TABLE IF NOT EXISTS meta.databases (name VARCHAR)")
        cursor.execute("CREATE TABLE IF NOT EXISTS meta.tables (database VARCHAR, name VARCHAR, definition VARCHAR)")
        self._tables: dict[str, dict[str, Table]] = {}
        self.reload(cursor)

    def reload(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Adopt what the database says."""
        tables: dict[str, dict[str, Table]] = {
            name: {} for (name,) in cursor.execute("SELECT name FROM meta.databases ORDER BY name").fetchall()
        }
        for (definition,) in cursor.execute("SELECT definition FROM meta.tables ORDER BY database, name").fetchall():
            table = Table.from_json(definition)
            tables[table.database][table.name] = table
        self._tables = tables

    @property
    def databases(self) -> Sequence[str]:
        """Names of all databases, sorted."""
        return tuple(self._tables)

    def tables(self, database: str | None = None) -> Sequence[Table]:
        """All tables, or those of one database."""
        databases = self._tables if database is None else {database: self._tables.get(database, {})}
        return tuple(table for tables in databases.values() for table in tables.values())

    def find(self, database: str, name: str) -> Table | None:
        """The table, or None if it or the database is unknown."""
        return self._tables.get(database, {}).get(name)

    def table(self, database: str, name: str) -> Table:
        """The table; raises CatalogError when the database or the table is unknown."""
        self.check_database(database)
        table = self.find(database, name)
        if table is None:
            raise CatalogError(f"Unknown table '{database}.{name}'", UNKNOWN_TABLE, name)
        return table

    def check_database(self, database: str) -> None:
        """Raise CatalogError for an unknown database."""
        if database not in self._tables:
            raise CatalogError(f"Unknown database '{database}'", UNKNOWN_DATABASE)

    def create_database(self, cursor: duckdb.DuckDBPyConnection, name: str) -> None:
        """Add a database; raises CatalogError if it is there, or its name is the server's own."""
        if name in self._tables or name.lower() in RESERVED_DATABASES:
            raise CatalogError(f"Can't create database '{name}'; database exists", DATABASE_EXISTS)
        cursor.execute(f"CREATE SCHEMA {schema_of(name)}")
        cursor.execute("INSERT INTO meta.databases VALUES (?)", [name])

    def drop_database(self, cursor: duckdb.DuckDBPyConnection, name: str) -> None:
        """Remove a database with its tables and rows; raises CatalogError if it is unknown."""
        self.check_database(name)
        cursor.execute(f"DROP SCHEMA {schema_of(name)} CASCADE")
        cursor.execute("DELETE FROM meta.databases WHERE name = ?", [name])
        cursor.execute("DELETE FROM meta.tables WHERE database = ?", [name])

    def create_table(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        """Add an empty table; raises CatalogError if it is there, or its database is not."""
        self.check_database(table.database)
        if self.find(table.database, table.name):
            raise CatalogError(f"Table '{table.name}' already exists", TABLE_EXISTS)
        columns = ", ".join(f"{quote(column.name)} {column.type.duckdb}" for column in table.columns)
        cursor.execute(f"CREATE TABLE {table.relation} ({columns})")
        cursor.execute("INSERT INTO meta.tables VALUES (?, ?, ?)", [table.database, table.name, table.to_json()])

    def drop_table(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        """Remove a table and its rows."""
        cursor.execute(f"DROP TABLE {table.relation}")
        cursor.execute("DELETE FROM meta.tables WHERE database = ? AND name = ?", [table.database, table.name])

    def redefine(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        """Record the table's new definition; the stored rows are the caller's matter."""
        cursor.execute(
            "UPDATE meta.tables SET definition = ? WHERE database = ? AND name = ?",
            [table.to_json(), table.database, table.name],
        )
