"""The durable catalog: databases and tables, kept in DuckDB and mirrored in memory for lookups without a query."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from starrocks_emulator.tables.catalog import CatalogError, Table, quoted, schema_of

UNKNOWN_DATABASE, DATABASE_EXISTS, TABLE_EXISTS, UNKNOWN_TABLE = 1049, 1007, 1050, 5502
RESERVED_DATABASES = frozenset({"information_schema", "_statistics_", "sys"})


class Registry:
    """Definitions by name. Changes are made on a cursor inside the caller's transaction and adopted by `reload`."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS meta")
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
        return tuple(self._tables)

    def tables(self, database: str | None = None) -> Sequence[Table]:
        """All tables, or those of one database."""
        chosen = self._tables if database is None else {database: self._tables.get(database, {})}
        return tuple(table for tables in chosen.values() for table in tables.values())

    def find(self, database: str, name: str) -> Table | None:
        return self._tables.get(database, {}).get(name)

    def table(self, database: str, name: str) -> Table:
        """The table; raises CatalogError when the database or the table is unknown."""
        self.check_database(database)
        table = self.find(database, name)
        if table is None:
            raise CatalogError(f"Unknown table '{database}.{name}'", UNKNOWN_TABLE)
        return table

    def check_database(self, database: str) -> None:
        if database not in self._tables:
            raise CatalogError(f"Unknown database '{database}'", UNKNOWN_DATABASE)

    def create_database(self, cursor: duckdb.DuckDBPyConnection, name: str) -> None:
        if name in self._tables or name.lower() in RESERVED_DATABASES:
            raise CatalogError(f"Can't create database '{name}'; database exists", DATABASE_EXISTS)
        cursor.execute(f"CREATE SCHEMA {schema_of(name)}")
        cursor.execute("INSERT INTO meta.databases VALUES (?)", [name])

    def drop_database(self, cursor: duckdb.DuckDBPyConnection, name: str) -> None:
        self.check_database(name)
        cursor.execute(f"DROP SCHEMA {schema_of(name)} CASCADE")
        cursor.execute("DELETE FROM meta.databases WHERE name = ?", [name])
        cursor.execute("DELETE FROM meta.tables WHERE database = ?", [name])

    def create_table(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        self.check_database(table.database)
        if self.find(table.database, table.name):
            raise CatalogError(f"Table '{table.name}' already exists", TABLE_EXISTS)
        columns = ", ".join(f"{quoted(column.name)} {column.type.duckdb}" for column in table.columns)
        cursor.execute(f"CREATE TABLE {table.relation} ({columns})")
        cursor.execute("INSERT INTO meta.tables VALUES (?, ?, ?)", [table.database, table.name, table.to_json()])

    def drop_table(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        cursor.execute(f"DROP TABLE {table.relation}")
        cursor.execute("DELETE FROM meta.tables WHERE database = ? AND name = ?", [table.database, table.name])

    def redefine(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        """Record the table's new definition; the stored rows are the caller's matter."""
        cursor.execute(
            "UPDATE meta.tables SET definition = ? WHERE database = ? AND name = ?",
            [table.to_json(), table.database, table.name],
        )
