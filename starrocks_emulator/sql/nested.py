"""ARRAY, MAP and STRUCT in queries: what makes JSON of them, and how results have them (wire contract 5.12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from starrocks_emulator.sql.session import SqlError, analyzing_error
from starrocks_emulator.tables.catalog import Table
from starrocks_emulator.tables.nested import Shape, nested_text, shape_of
from starrocks_emulator.tables.types import ColumnType

Writer = Callable[[Any], str]
KINDS: Final = frozenset({"ARRAY", "MAP", "STRUCT"})


def constructed(value: exp.Expr, kind: str) -> exp.Expr:
    """A value of INSERT or UPDATE as DuckDB makes it: `[…]`, `row(…)` and `map{…}` as JSON of a column of that type."""
    return _constructed(value, shape_of(kind))


def _constructed(value: exp.Expr, shape: Shape) -> exp.Expr:
    if shape.kind == "array" and isinstance(value, exp.Array):
        return _function("json_array", [_constructed(part, shape.parts[0][1]) for part in value.expressions])
    if shape.kind == "struct" and isinstance(value, (exp.Anonymous, exp.Struct)):
        pairs = zip(shape.parts, value.expressions, strict=False)
        parts = [part for (name, field), of in pairs for part in (exp.Literal.string(name), _constructed(of, field))]
        return _function("json_object", parts)
    if shape.kind == "map" and isinstance(value, exp.ToMap):
        of_key = shape.parts[1][1]
        pairs_of_map = [(pair.this, pair.expression) for pair in value.this.expressions]
        return _function("json_object", [part for key, of in pairs_of_map for part in (key, _constructed(of, of_key))])
    if isinstance(value, exp.ParseJSON):
        return exp.cast(value.this.copy(), "json")
    return value.copy()


def _function(name: str, arguments: Sequence[exp.Expr]) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


@dataclass(frozen=True, slots=True)
class NestedColumns:
    """The columns of a query's tables by their names in lower case, and what functions make of ARRAY, MAP, STRUCT."""

    columns: Mapping[str, tuple[Table, ColumnType]]

    def rewritten(self, node: exp.Expr) -> exp.Expr | None:
        """DuckDB's form of a function over such columns; None for what is none. Raises SqlError for what is refused."""
        if isinstance(node, exp.Cast) and node.to.this in (exp.DataType.Type.JSON, *exp.DataType.TEXT_TYPES):
            column_type = self.of(node.this)
            if column_type is not None and (column_type.name == "ARRAY" or node.to.this is exp.DataType.Type.JSON):
                self._refuse(node.this, column_type, node.to.sql("starrocks"))
        if isinstance(node, exp.MapSize) and self.of(node.this) is not None:
            keys = exp.Anonymous(this="json_keys", expressions=[node.this.copy()])
            return exp.Anonymous(this="len", expressions=[keys])
        if not isinstance(node, exp.Anonymous):
            return None
        name = node.name.lower()
        if name == "to_json" and len(node.expressions) == 1:
            return self._as_json(node.expressions[0])
        if name == "json_query" and len(node.expressions) == 2:
            document, path = node.expressions  # `transform` does not go into what it has replaced
            part = exp.Anonymous(this="json_extract", expressions=[self.rewritten(document) or document, path])
            return exp.Anonymous(this="sorted_json", expressions=[exp.cast(part, "varchar")])
        return None

    def of(self, node: exp.Expr | None) -> ColumnType | None:
        """The type of a column of ARRAY, MAP or STRUCT."""
        _, column_type = (
            self.columns.get(node.name.lower(), (None, None)) if isinstance(node, exp.Column) else (None, None)
        )
        return column_type if column_type is not None and column_type.name in KINDS else None

    def _as_json(self, value: exp.Expr) -> exp.Expr | None:
        column_type = self.of(value)
        if column_type is not None:
            if column_type.name == "ARRAY":
                self._refuse(value, column_type, "json")
            return self._document(value)
        if isinstance(value, exp.Anonymous) and value.name.lower() == "row":
            names = [exp.Literal.string(f"col{place}") for place in range(1, len(value.expressions) + 1)]
            pairs = zip(names, map(self._document, value.expressions), strict=True)
            made = exp.Anonymous(this="json_object", expressions=[part for pair in pairs for part in pair])
            return exp.Anonymous(this="sorted_json", expressions=[exp.cast(made, "varchar")])
        return None

    def _document(self, value: exp.Expr) -> exp.Expr:
        column_type = self.of(value)
        if column_type is None:
            return value.copy()
        kind = exp.Literal.string(column_type.text)
        text = exp.cast(value.copy(), "varchar")
        return exp.cast(exp.Anonymous(this="nested_json", expressions=[text, kind]), "json")

    def _refuse(self, column: exp.Expr, column_type: ColumnType, to: str) -> None:
        table, _ = self.columns[column.name.lower()]
        meta = column.this.meta
        part = int(meta.get("start", 5)) - len("CAST("), int(meta.get("end", 5)) + len(f" AS {to})")
        name = f"{table.database}.{table.name}.{column.name}"
        message = f"Invalid type cast from {column_type.ddl} to {to.lower()} in sql `{name}`."
        raise SqlError(analyzing_error(message, part))


def writers(tree: exp.Expr, types: Mapping[str, ColumnType], names: Sequence[str]) -> list[Writer | None]:
    """For each column of a query's result the function that writes its values; None where they stay as they are.

    The query port sends a LARGEINT as a text. `types` are those of columns by their names in lower case.
    """
    selected = tree.expressions if isinstance(tree, exp.Select) else []
    sources = {
        part.alias.lower(): part.this.name.lower()
        for part in selected
        if isinstance(part, exp.Alias) and isinstance(part.this, exp.Column)
    }
    columns = [types.get(sources.get(name.lower(), name.lower())) for name in names]
    return [_writer(column) if column is not None else None for column in columns]


def _writer(column_type: ColumnType) -> Writer | None:
    if column_type.name in KINDS:
        return lambda value: nested_text(str(value), column_type.text)
    return str if column_type.name == "LARGEINT" else None
