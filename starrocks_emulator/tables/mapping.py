"""The `columns` and `where` headers: which source field fills which column, by what expression (wire contract 5.5).

Expressions are StarRocks SQL; here they become DuckDB SQL over the names that `bodies` gives the source fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from starrocks_emulator.tables.catalog import Table

OP_COLUMN = "__op"
_OPERATIONS = {"0": "upsert", "upsert": "upsert", "1": "delete", "delete": "delete"}


class MappingError(ValueError):
    """A `columns` or `where` header that no plan can be made of; the message is the server's."""


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """`fields` name the source fields in order; `derived` maps a column's name to its SQL expression over fields."""

    fields: tuple[str, ...]
    derived: tuple[tuple[str, str], ...] = ()

    def expression_of(self, column: str) -> str | None:
        """The expression that fills the column, if it is a derived one."""
        return next((text for name, text in self.derived if name.lower() == column.lower()), None)

    def place_of(self, column: str) -> int | None:
        """The place of the source field that has the column's name."""
        names = [name.lower() for name in self.fields]
        return names.index(column.lower()) if column.lower() in names else None

    def fills(self, column: str) -> bool:
        """Whether an expression or a source field fills the column."""
        return self.expression_of(column) is not None or self.place_of(column) is not None


def field_name(name: str) -> str:
    """The SQL name under which a source field's value is at hand in expressions."""
    return f"field_{name.lower()}"


def read_columns(header: str, table: Table) -> ColumnMapping:
    """The mapping that a `columns` header describes; raises MappingError.

    An expression wins over the field of its name.
    """
    fields: list[str] = []
    derived: list[tuple[str, str]] = []
    for part in _split(header):
        name, assigned, expression = part.partition("=")
        name = name.strip().strip("`")
        if not name:
            raise MappingError(f"Invalid columns: {header}")
        if assigned:
            derived.append((name, expression.strip()))
        else:
            fields.append(name)
    if not fields:  # expressions alone: the fields are the table's columns
        fields = [column.name for column in table.columns]
    mapping = ColumnMapping(tuple(fields), tuple(derived))
    _check(mapping, table)
    return ColumnMapping(tuple(fields), tuple((name, _derive(name, text, mapping)) for name, text in derived))


def _split(header: str) -> list[str]:
    """The parts between the commas that stand in no bracket and no quote."""
    parts, depth, quote, start = [], 0, "", 0
    for place, letter in enumerate(header):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "," and not depth:
            parts.append(header[start:place])
            start = place + 1
    return [*parts, header[start:]]


def _check(mapping: ColumnMapping, table: Table) -> None:
    for kind, names in (("column", mapping.fields), ("column mapping", [name for name, _ in mapping.derived])):
        lowered = [name.lower() for name in names]
        for name in names:
            if lowered.count(name.lower()) > 1:
                raise MappingError(f"Duplicate {kind}: {name}")
    for name, _ in mapping.derived:
        if name != OP_COLUMN and table.column(name) is None:
            raise MappingError(f"Mapping column is not in table. column: {name}")


def _derive(column: str, text: str, mapping: ColumnMapping) -> str:
    if column == OP_COLUMN:
        constant = text.strip("'\" ").lower()
        if re.fullmatch(r"'[^']*'|\"[^\"]*\"|\d+", text) and constant not in _OPERATIONS:
            raise MappingError(f"load op type string not supported: {constant}")
    return expression_sql(text, lambda name: field_name(name) if mapping.place_of(name) is not None else None)


def read_filter(header: str, names: Callable[[str], str | None]) -> str:
    """The DuckDB condition of a `where` header; raises MappingError."""
    return expression_sql(header, names)


def expression_sql(text: str, names: Callable[[str], str | None]) -> str:
    """StarRocks' expression `text` as DuckDB SQL, its columns renamed by `names` (None: no such column)."""
    try:
        tree = sqlglot.parse_one(text, read="starrocks")
    except SqlglotError as error:
        raise MappingError(f"Failed to parse expression: {text}") from error
    if tree is None or tree.find(exp.Query, exp.DDL, exp.DML, exp.Command):
        raise MappingError(f"Failed to parse expression: {text}")

    def rename(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        name = names(node.name)
        if name is None:
            raise MappingError(f"Column '{node.name}' cannot be resolved")
        return exp.column(name, quoted=True)

    return tree.transform(rename).transform(_decoded).sql(dialect="duckdb")


def _decoded(node: exp.Expr) -> exp.Expr:
    """Base64 as DuckDB decodes it, which has no `to_binary`; sqlglot knows the other formats."""
    if isinstance(node, exp.ToBinary) and node.text("format").lower() == "encode64":
        return exp.func("from_base64", node.this)
    return node


def all_columns(table: Table, extra: Sequence[str] = ()) -> ColumnMapping:
    """The mapping without a `columns` header: every column by its own name, in the table's order."""
    return ColumnMapping((*(column.name for column in table.columns), *extra))
