"""StarRocks DDL, parsed by sqlglot, as table definitions; what the emulator cannot serve is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from sqlglot import TokenType, exp
from sqlglot.dialects.starrocks import StarRocks

from starrocks_emulator.settings import EmulatorError
from starrocks_emulator.tables.apply import AGGREGATES
from starrocks_emulator.tables.catalog import AUTO_INCREMENT, CatalogError, Column, Default, Model, Table
from starrocks_emulator.tables.partitions import check_partitioning
from starrocks_emulator.tables.types import UnsupportedType, parse_type

_KEY_PROPERTIES: tuple[tuple[type[exp.Expr], Model], ...] = (
    (exp.PrimaryKey, Model.PRIMARY_KEY),
    (exp.UniqueKeyProperty, Model.UNIQUE_KEY),
    (exp.DuplicateKeyProperty, Model.DUPLICATE_KEY),
    (exp.AggregateKeyProperty, Model.AGGREGATE_KEY),
)
_IGNORED_CONSTRAINTS = (exp.CharacterSetColumnConstraint, exp.CollateColumnConstraint, exp.Var)
_RESERVED = {"__op"}
_DEFAULT_KEY_COLUMNS = 3


def _aggregate_of(name: str) -> Callable[[Any], exp.Expr]:
    return lambda _: exp.Var(this=name)


class Dialect(StarRocks):
    """StarRocks' SQL with the types and the aggregate functions of columns that sqlglot does not know."""

    SUPPORTS_USER_DEFINED_TYPES = True

    class Parser(StarRocks.Parser):  # type: ignore[valid-type, misc]  # a variable to mypy
        """Reads `BITMAP_UNION` and the like behind the type of a column, and VERSION(), which is not StarRocks' own."""

        FUNCTIONS: ClassVar = {
            **StarRocks.Parser.FUNCTIONS,
            "VERSION": lambda _: exp.Anonymous(this="VERSION"),
            "UTC_TIMESTAMP": lambda _: exp.Anonymous(this="UTC_TIMESTAMP"),
        }

        CONSTRAINT_PARSERS: ClassVar = {
            **StarRocks.Parser.CONSTRAINT_PARSERS,
            **{name: _aggregate_of(name) for name in AGGREGATES},
        }

        def _parse_index_params(self) -> exp.IndexParameters | None:
            """None in front of PARTITION BY: behind PRIMARY KEY sqlglot takes that for a part of the key."""
            if self._match(TokenType.PARTITION_BY, advance=False):
                return None
            parameters: exp.IndexParameters = super()._parse_index_params()
            return parameters


def require_extensible_sqlglot(dialect: type[StarRocks] = Dialect) -> None:
    """Raises EmulatorError where sqlglot is compiled: nothing can extend its parser then, so each statement fails."""
    try:
        dialect().parser()
    except TypeError as error:
        raise EmulatorError(
            f"The emulator extends the parser of sqlglot, whose compiled form forbids it ({error}). "
            "Uninstall sqlglotc, or give the emulator an environment of its own."
        ) from error


def table_definition(create: exp.Create, database: str) -> Table:
    """The table that a parsed CREATE TABLE defines, in `database` unless the statement names another.

    Raises CatalogError for what StarRocks or the emulator refuses.
    """
    schema = create.this
    if not isinstance(schema, exp.Schema):
        raise CatalogError("Only CREATE TABLE with a list of columns can be served by the emulator.")
    properties = create.args.get("properties")
    clauses = list(properties.expressions) if properties else []
    parts = [*schema.expressions, *clauses]
    for part in parts:
        if isinstance(part, exp.ExternalProperty):
            raise CatalogError("External tables cannot be served by the emulator.")
    columns = tuple(column_definition(part) for part in parts if isinstance(part, exp.ColumnDef))
    model, keys = _keys(parts, columns)
    table = Table(
        database=schema.this.db or database,
        name=schema.this.name,
        model=model,
        keys=keys,
        columns=_checked(columns, keys, model),
        comment=_first(part.this.name for part in clauses if isinstance(part, exp.SchemaCommentProperty)),
        partition_by=_partition_by(parts),
        distributed_by=_first(part.sql("starrocks") for part in clauses if isinstance(part, exp.DistributedByProperty)),
        properties={part.name: part.args["value"].name for part in clauses if type(part) is exp.Property},
    )
    check_partitioning(table)
    return table


def _partition_by(parts: list[exp.Expr]) -> str:
    """The clause as the server writes it."""
    clause = next((part for part in parts if type(part).__name__.startswith("Partition")), None)
    by = clause.this if isinstance(clause, exp.PartitionedByProperty) else None
    listed = by.expressions if isinstance(by, exp.Schema) else [by] if by is not None else []
    if len(listed) == 1 and isinstance(listed[0], (exp.Tuple, exp.Paren)):
        listed = listed[0].expressions or [listed[0].this]
    names = [column.name for column in listed if isinstance(column, (exp.Column, exp.Identifier))]
    if listed and len(names) == len(listed):
        return f"PARTITION BY ({', '.join(f'`{name}`' for name in names)})"
    if listed:
        text = f"PARTITION BY {', '.join(part.sql('starrocks') for part in listed)}"
    else:
        text = clause.sql("starrocks") if clause is not None else ""
    return re.sub(r"(?i)\b(?:date_trunc\('\w+'|time_slice\()", lambda match: match[0].lower(), text)


def _first(texts: Iterable[str]) -> str:
    return next(iter(texts), "")


def _keys(parts: list[exp.Expr], columns: tuple[Column, ...]) -> tuple[Model, tuple[str, ...]]:
    for part in parts:
        for kind, model in _KEY_PROPERTIES:
            if isinstance(part, kind):
                return model, tuple(key.name for key in part.expressions)
    return Model.DUPLICATE_KEY, tuple(column.name for column in columns[:_DEFAULT_KEY_COLUMNS])


def _checked(columns: tuple[Column, ...], keys: tuple[str, ...], model: Model) -> tuple[Column, ...]:
    names = [column.name for column in columns]
    if not names:
        raise CatalogError("A table needs at least one column.")
    for name in names:
        if [known_name.lower() for known_name in names].count(name.lower()) > 1:
            raise CatalogError(f"Duplicate column name '{name}'", 1060)
        if name.lower() in _RESERVED:
            raise CatalogError(f"Incorrect column name '{name}'", 1166)
    for place, key in enumerate(keys):
        if key not in names:
            raise CatalogError(f"Key column({key}) doesn't exist.")
        if names[place] != key:
            raise CatalogError(
                "Key columns must be the first few columns of the schema and the order  of the key columns must be "
                "consistent with the order of the schema"
            )
    for column in columns:
        check_aggregate(column, model, key=column.name in keys)
    if not model.replaces:
        return columns
    return tuple(_as_key(column, model) if column.name in keys else column for column in columns)


def check_aggregate(column: Column, model: Model, *, key: bool) -> None:
    """Raise CatalogError for a function, or for a want of one, that does not go with the table or the type."""
    aggregated = model is Model.AGGREGATE_KEY
    if bool(column.aggregate) != (aggregated and not key):
        raise CatalogError(f"Column {column.name}: an aggregate function belongs to each value of an aggregate table.")
    if aggregated and column.type.is_set and column.aggregate != f"{column.type.name}_UNION":
        raise CatalogError(f"Column {column.name} of type {column.type.text} needs {column.type.name}_UNION.")
    allowed = (Model.AGGREGATE_KEY,) if column.type.name == "HLL" else (Model.AGGREGATE_KEY, Model.PRIMARY_KEY)
    if column.type.is_set and model not in allowed:
        raise CatalogError(f"Type {column.type.text} in a {model.clause} table cannot be served by the emulator.")


def _as_key(column: Column, model: Model) -> Column:
    if model is Model.PRIMARY_KEY and column.type.name == "DECIMAL":
        raise CatalogError(f"primary key column[{column.name}] type not supported: {column.type.text}")
    if column.type.is_json or column.type.is_set or column.type.name in {"FLOAT", "DOUBLE", "VARBINARY"}:
        raise CatalogError(f"Column {column.name} of type {column.type.text} cannot be a key.")
    return Column(column.name, column.type, nullable=False, default=column.default, comment=column.comment)


def column_definition(part: exp.ColumnDef) -> Column:
    """One column; raises CatalogError."""
    kind = part.args.get("kind")
    if not isinstance(kind, exp.DataType):
        raise CatalogError(f"Column {part.name} has no type.")
    try:
        column_type = parse_type(kind)
    except UnsupportedType as error:
        raise CatalogError(str(error)) from error
    nullable, default, comment = True, None, ""
    kinds = [constraint.args.get("kind") for constraint in part.args.get("constraints") or []]
    aggregate = _first(rule.name for rule in kinds if isinstance(rule, exp.Var))
    for rule in kinds:
        if isinstance(rule, exp.NotNullColumnConstraint):
            nullable = bool(rule.args.get("allow_null"))
        elif isinstance(rule, exp.DefaultColumnConstraint):
            default = _default(rule.this, part.name)
        elif isinstance(rule, exp.AutoIncrementColumnConstraint):
            if column_type.name != "BIGINT":
                raise CatalogError(f"The AUTO_INCREMENT column must be BIGINT: {part.name}")
            nullable, default = False, Default(AUTO_INCREMENT, function=True)
        elif isinstance(rule, exp.CommentColumnConstraint):
            comment = rule.this.name
        elif not isinstance(rule, _IGNORED_CONSTRAINTS):
            clause = rule.sql("starrocks") if isinstance(rule, exp.Expr) else str(rule)
            raise CatalogError(f"Column {part.name}: {clause} cannot be served by the emulator.")
    return Column(part.name, column_type, nullable, default, comment, aggregate)


def _default(value: exp.Expr, column: str) -> Default | None:
    while isinstance(value, exp.Paren):
        value = value.this
    if isinstance(value, exp.Null):
        return None
    if isinstance(value, exp.Literal):
        return Default(value.name)
    if isinstance(value, exp.Neg) and isinstance(value.this, exp.Literal):
        return Default("-" + value.this.name)
    if isinstance(value, exp.Boolean):
        return Default("1" if value.this else "0")
    if isinstance(value, exp.CurrentTimestamp):
        return Default("CURRENT_TIMESTAMP", function=True)
    if isinstance(value, exp.Uuid):
        return Default("uuid()", function=True)
    raise CatalogError(f"Column {column}: this DEFAULT cannot be served by the emulator.")
