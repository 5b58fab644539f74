"""What the stand-in knows of its tables: plain, immutable definitions that survive a round trip through JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from starrocks_emulator.tables.types import ColumnType


class CatalogError(Exception):
    """A statement that the catalog refuses; `code` is the MySQL error code."""

    def __init__(self, message: str, code: int = 1064) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Model(Enum):
    """The table types; the value is `TABLE_MODEL` of information_schema.tables_config."""

    PRIMARY_KEY = "PRIMARY_KEYS"
    UNIQUE_KEY = "UNIQUE_KEYS"
    DUPLICATE_KEY = "DUP_KEYS"

    @property
    def clause(self) -> str:
        return {"PRIMARY_KEYS": "PRIMARY KEY", "UNIQUE_KEYS": "UNIQUE KEY", "DUP_KEYS": "DUPLICATE KEY"}[self.value]

    @property
    def column_key(self) -> str:
        """`COLUMN_KEY` of a key column."""
        return {"PRIMARY_KEYS": "PRI", "UNIQUE_KEYS": "UNI", "DUP_KEYS": "DUP"}[self.value]

    @property
    def replaces(self) -> bool:
        """Whether a later row takes the place of an earlier one with the same key."""
        return self is not Model.DUPLICATE_KEY

    @property
    def takes_operations(self) -> bool:
        """Whether `__op`, partial updates and merge conditions are allowed."""
        return self is Model.PRIMARY_KEY


@dataclass(frozen=True, slots=True)
class Default:
    """A column's default: a constant text, or one of the functions `CURRENT_TIMESTAMP` and `uuid()`."""

    text: str
    function: bool = False

    @property
    def sql(self) -> str:
        """The SQL expression whose text is the default."""
        if not self.function:
            return literal(self.text)
        if self.text == "uuid()":
            return "CAST(uuid() AS VARCHAR)"
        return "strftime(CAST(now() AS TIMESTAMP), '%Y-%m-%d %H:%M:%S')"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    type: ColumnType
    nullable: bool = True
    default: Default | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `partition_by` and `distributed_by` are recorded for SHOW CREATE TABLE and mean nothing else here;
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

    @property
    def relation(self) -> str:
        """The DuckDB name of the stored rows, quoted."""
        return f"{schema_of(self.database)}.{quoted(self.name)}"

    def column(self, name: str) -> Column | None:
        """The column of that name, whatever the letters' case."""
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)

    def is_key(self, column: Column) -> bool:
        return column.name in self.keys

    def with_columns(self, columns: tuple[Column, ...]) -> Table:
        """The same table with other columns, as a new version."""
        return replace(self, columns=columns, version=self.version + 1)

    def to_json(self) -> str:
        plain = asdict(self)
        plain["model"] = self.model.value
        plain["properties"] = dict(self.properties)
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> Table:
        plain: dict[str, Any] = json.loads(text)
        plain["model"] = Model(plain["model"])
        plain["keys"] = tuple(plain["keys"])
        plain["columns"] = tuple(_column(column) for column in plain["columns"])
        return cls(**plain)


def _column(plain: dict[str, Any]) -> Column:
    default = plain["default"]
    return Column(
        name=plain["name"],
        type=ColumnType(**plain["type"]),
        nullable=plain["nullable"],
        default=None if default is None else Default(**default),
        comment=plain["comment"],
    )


def quoted(name: str) -> str:
    """An identifier as DuckDB reads it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string literal as DuckDB reads it."""
    return "'" + text.replace("'", "''") + "'"


def schema_of(database: str) -> str:
    """The DuckDB schema of a StarRocks database, quoted; the prefix keeps clear of DuckDB's own schemas."""
    return quoted(f"db_{database}")
