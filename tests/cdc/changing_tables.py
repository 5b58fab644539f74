"""Tables whose definitions change while rows are written: kinds of DDL, and what StarRocks is to have afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tests.cdc.databases import Database

SECRET, HIDDEN = "masked-needle", "dropped-needle"
"""Parts of the values of columns that a rule masks or drops."""

_COLUMNS = (
    "(id INT PRIMARY KEY, n INT NOT NULL, s VARCHAR(4), p DECIMAL(10,2), secret VARCHAR(60), hidden VARCHAR(60), "
    "filled INT)"
)
_VALUES = {"n": "{0} + 1000", "s": "'x{1}'", "p": "{0}.25", "filled": "1"}


@dataclass
class Table:
    """A table with the expressions of its columns' values; `{0}` is the row's number, `{1}` one digit of it."""

    name: str
    kind: str
    values: dict[str, str] = field(default_factory=lambda: dict(_VALUES))
    written: dict[int, int] = field(default_factory=dict)  # the tick of the last write by row
    changed_at: int = 0
    live: bool = True

    def insert(self, number: int) -> Iterator[str]:
        """A new row, and an update of the one before."""
        if not self.live:
            return
        values = {"id": str(number)} | {name: text.format(number, number % 10) for name, text in self.values.items()}
        values |= {"secret": f"'{SECRET}-{number}'", "hidden": f"'{HIDDEN}-{number}'"}
        yield f"INSERT INTO {self.name} ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        self.written[number] = number
        if number - 1 in self.written:
            yield f"UPDATE {self.name} SET filled = {number} WHERE id = {number - 1}"
            self.written[number - 1] = number
        if number % 5 == 4 and number - 4 in self.written:
            yield f"DELETE FROM {self.name} WHERE id = {number - 4}"
            del self.written[number - 4]


@dataclass(frozen=True)
class Change:
    """A DDL for the table `{0}`, and the values of its columns from then on, None for a column that is gone."""

    kind: str
    postgres: str
    mariadb: str = ""
    values: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def of_type(cls, kind: str, column: str, to: str, value: str | None, using: str = "") -> Change:
        values = {} if value is None else {column: value}
        alter = "ALTER TABLE {0} "
        return cls(kind, f"{alter}ALTER {column} TYPE {to}{using}", f"{alter}MODIFY {column} {to}", {**values})


CHANGES = (
    Change("add_nullable", "ALTER TABLE {0} ADD COLUMN a VARCHAR(9)", values={"a": "'new'"}),
    Change("add_default", "ALTER TABLE {0} ADD COLUMN a INT DEFAULT 7"),
    Change("add_not_null", "ALTER TABLE {0} ADD COLUMN a INT NOT NULL DEFAULT 7"),
    Change("drop_column", "ALTER TABLE {0} DROP COLUMN p", values={"p": None}),
    Change("rename_column", "ALTER TABLE {0} RENAME COLUMN s TO renamed", values={"s": None, "renamed": "'x{1}'"}),
    Change.of_type("widen_int", "n", "BIGINT", "{0} + 5000000000"),
    Change.of_type("widen_varchar", "s", "VARCHAR(40)", "'a long text {1}'"),
    Change.of_type("widen_decimal", "p", "DECIMAL(14,4)", "{0}.1234"),
    Change.of_type("int_to_text", "n", "VARCHAR(20)", "'number {0}'", " USING n::text"),
    Change("add_table", f"CREATE TABLE {{0}} {_COLUMNS}"),
    Change("drop_table", "DROP TABLE {0}"),
    Change("rename_table", "ALTER TABLE {0} RENAME TO {0}_new"),
    Change(
        "another_key",
        "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey, ADD PRIMARY KEY (id, n)",
        "ALTER TABLE {0} DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)",
    ),
    Change.of_type("widen_masked", "secret", "VARCHAR(200)", None),
)


class Source:
    """The tables of a database, one for each kind of DDL, and two whose sums are equal in each whole transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.tables = {change.kind: Table(f"t_{change.kind}", change.kind) for change in CHANGES}
        self.tables["add_table"].live = False
        self.number = 0
        for table in self.tables.values():
            if table.live:
                database.run(f"CREATE TABLE {table.name} {_COLUMNS}")
        for name in ("left_sum", "right_sum"):
            database.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT)")

    def tick(self) -> None:
        """One transaction over all tables."""
        self.number += 1
        statements = [f"INSERT INTO left_sum VALUES ({self.number}, {self.number})"]
        for table in self.tables.values():
            statements += table.insert(self.number)
        self.database.commit(*statements, f"INSERT INTO right_sum VALUES ({self.number}, {self.number})")

    def change(self, change: Change) -> None:
        """Run a DDL."""
        table = self.tables[change.kind]
        statement = change.postgres if self.database.kind == "postgres" else change.mariadb or change.postgres
        self.database.run(statement.format(table.name))
        table.changed_at = self.number
        table.live = change.kind != "drop_table"
        table.name += "_new" if change.kind == "rename_table" else ""
        for column, value in change.values.items():
            table.values.pop(column, None)
            if value is not None:
                table.values[column] = value

    def expected(self, columns: dict[str, list[str]]) -> dict[str, tuple[list[str], list[tuple[Any, ...]]]]:
        """Of each table the `columns` that StarRocks and the source have, without masked ones, and the rows."""
        expected_rows: dict[str, tuple[list[str], list[tuple[Any, ...]]]] = {}
        for table in [table for table in self.tables.values() if table.live]:
            names = [name for name in columns.get(table.name, ["id"]) if name in ("id", "a", *table.values)]
            rows = self.database.rows(f"SELECT {', '.join(names)} FROM {table.name} ORDER BY id")
            plain_rows = [dict(zip(names, map(plain, row), strict=True)) for row in rows]
            if table.kind == "rename_table":  # it is a new one, without the rows before
                plain_rows = [row for row in plain_rows if table.written[int(row["id"])] > table.changed_at]
            expected_rows[table.name] = names, [self._unfilled(table, row) for row in plain_rows]
        return expected_rows

    def _unfilled(self, table: Table, row: dict[str, Any]) -> tuple[Any, ...]:
        """The row as changes have told it: none has told a new column's value in rows that were there before."""
        column = {"add_default": "a", "add_not_null": "a", "rename_column": "renamed"}.get(table.kind)
        if column in row and table.written[int(row["id"])] <= table.changed_at:
            row[column] = None
        return tuple(row.values())


def plain(value: Any) -> Any:
    """A value as a text without trailing zeros."""
    if value is None:
        return None
    text = str(value)
    return f"{Decimal(text).normalize():f}" if re.fullmatch(r"-?\d+\.\d+", text) else text
