"""The statements that give tables the columns which JSON rows need: a plan, made from lists of columns alone.

A new column gets its declared type, or the type by the source's schema, or the narrowest that holds all values seen
(`rows.value_kinds`). It is NULL in the rows before. The plan adds and creates; it never drops, renames or narrows. What
has no safe statement is an error that names table, column and the way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from starrocks_txn_sink.coordinator.model import ColumnNeeds, MissingColumns
from starrocks_txn_sink.errors import OptionError, UnknownColumn
from starrocks_txn_sink.options import TableOptions
from starrocks_txn_sink.options.enums import declared_keys, declared_types
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows.alterations import Types, alteration
from starrocks_txn_sink.rows.target import NO_KEYS, TargetColumn, TargetType, parse_type
from starrocks_txn_sink.rows.value_kinds import ValueKind, type_for
from starrocks_txn_sink.rows.widening import widened_for, wider_type
from starrocks_txn_sink.sources.formats.connect_types import STRING, SourceColumn, key_column


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The statement for a table, which `creates` the table, with `properties` of its own, or alters it.

    `widens`: it gives a column a wider type. `adds`: the names of columns that it adds to a table.
    """

    table: str
    sql: str
    creates: bool = False
    properties: tuple[tuple[str, str], ...] = ()
    widens: bool = False
    adds: tuple[str, ...] = ()

    def statement(self, replication: int | None) -> str:
        """The statement; for a new table with a number of replicas, None for the server's default."""
        replicas = {"replication_num": str(replication)} if replication and self.creates else {}
        pairs = ", ".join(
            f"{_quoted(name)} = {_quoted(value)}" for name, value in (replicas | dict(self.properties)).items()
        )
        return f"{self.sql} PROPERTIES ({pairs})" if pairs else self.sql


@dataclass(frozen=True, slots=True)
class TableLayout:
    """What a new table gets beside its columns: `buckets` (None: StarRocks' choice), and properties of its DDL."""

    buckets: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def _quoted(text: str) -> str:
    if not text.isprintable():
        raise OptionError(f"A property of a table has a control character: {text!r}.", hint="Correct it.")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_PLAIN: Final = TableLayout()


def primary_key_table(
    database: str, table: str, types: Mapping[str, str], keys: Sequence[str], layout: TableLayout = _PLAIN
) -> SchemaChange:
    """The statement that creates a table with columns of these `types`, those of its key first."""
    return _new_table(database, table, types, keys, ("PRIMARY KEY", keys, keys), layout)


def history_table(
    database: str,
    table: str,
    types: Mapping[str, str],
    order: Sequence[str],
    spread: Sequence[str],
    layout: TableLayout = _PLAIN,
) -> SchemaChange:
    """The statement that creates a table which keeps all rows, sorted by the columns `order`."""
    return _new_table(database, table, types, order, ("DUPLICATE KEY", order, spread or order), layout)


def _new_table(
    database: str,
    table: str,
    types: Mapping[str, str],
    filled: Sequence[str],
    keys: tuple[str, Sequence[str], Sequence[str]],
    layout: TableLayout,
) -> SchemaChange:
    model, key, spread = keys
    columns = ", ".join(
        f"{identifier(name)} {kind} {'NOT NULL' if name in filled else 'NULL'}" for name, kind in types.items()
    )
    sql = (
        f"CREATE TABLE IF NOT EXISTS {identifier(database, table)} ({columns}) "
        f"{model} ({', '.join(map(identifier, key))}) DISTRIBUTED BY HASH ({', '.join(map(identifier, spread))})"
    )
    buckets = "" if layout.buckets is None else f" BUCKETS {layout.buckets}"
    return SchemaChange(table, f"{sql}{buckets}", creates=True, properties=tuple(layout.properties.items()))


def alter_table(database: str, table: str, added: Mapping[str, str], modified: Types) -> Iterator[SchemaChange]:
    """The `alteration`; nothing where there is nothing to change. Raises InputError for a name that none can hold."""
    if added or modified:
        identifier(*added, *(column.name for column in modified))
        sql = alteration(identifier(database, table), added, modified)
        yield SchemaChange(table, sql, widens=bool(modified), adds=tuple(added))


def type_of_key(type_: str) -> str:
    """The type of a new key whose values are of this type; "" where StarRocks takes no such key."""
    return key_column(SourceColumn("", type_)).type


def plan_missing(
    database: str,
    missing: MissingColumns,
    columns: Mapping[str, Sequence[TargetColumn]],
    tables: Mapping[str, TableOptions],
) -> list[SchemaChange]:
    """The changes that give the tables their `missing` columns and wider types; none where the columns hold all.

    `columns` has the columns of the tables that exist, `tables` what the user has declared. Raises UnknownColumn for a
    column without a safe type, for a name that differs from a column's in case only, and for a new table without keys;
    InputError for a name that no statement can hold.
    """
    changes: list[SchemaChange] = []
    for table, needs in missing.items():
        declared, target_columns = tables.get(table, TableOptions()), columns.get(table, ())
        changes += (_additions if target_columns else _creation)(database, table, needs, target_columns, declared)
    return changes


def type_of_needs(needs: ColumnNeeds, *, key: bool = False) -> str | None:
    """The type by the schema, else by the values; a text that is longer than the schema's type decides itself."""
    kinds = [ValueKind[name] for name in needs.kinds]
    by_schema, by_values = wider_type(needs.types), type_for(kinds)
    if by_schema == STRING and ValueKind.OVERSIZE in kinds:
        by_schema = None
    type_ = by_values if by_schema is None else SourceColumn("", by_schema, long=True).new_type
    return (type_of_key(type_) or type_) if key and type_ else type_


_Needs = Mapping[str, ColumnNeeds]


def _additions(
    database: str, table: str, needs: _Needs, target_columns: Sequence[TargetColumn], declared: TableOptions
) -> Iterator[SchemaChange]:
    names = {column.name.lower(): column.name for column in target_columns}
    by_name = {column.name: column for column in target_columns}
    added: dict[str, str] = {}
    modified: dict[TargetColumn, TargetType] = {}
    for name, column_needs in needs.items():
        spelling = names.setdefault(name.lower(), name)
        if spelling != name:
            raise UnknownColumn(
                f"Rows of table {table} name the column {name}, and the table has {spelling}. "
                "The case of names counts in "
                "rows, so the server drops the values, and it does not in tables, so no such column can be added.",
                hint=f"Write the name as {spelling} in the rows, or rename the column in the table.",
                table=table,
            )
        if name not in by_name:
            added[name] = _type(table, name, column_needs, declared)
        elif name not in declared.types and (wider := widened_for(by_name[name], column_needs.types)) is not None:
            modified[by_name[name]] = wider
    yield from alter_table(database, table, added, modified)


def _creation(
    database: str, table: str, needs: _Needs, _: Sequence[TargetColumn], declared: TableOptions
) -> Iterator[SchemaChange]:
    keys = declared.keys
    if not keys:
        raise UnknownColumn(
            f"There is no table {table}, or none that the user may see, and nothing names its primary key.",
            hint=f"Name the key, {declared_keys(table)}, and the sink creates the table; or "
            "create it by hand, as a DUPLICATE KEY table if the source has no key: it then keeps each change as a row.",
            table=table,
        )
    lacking = [key for key in keys if key not in needs]
    if lacking:
        raise UnknownColumn(
            f"The primary key of table {table} names {', '.join(lacking)}, which the rows do not have.",
            hint="Correct `keys` in the TableOptions of the table (case counts).",
            table=table,
        )
    refuse_same_names(table, needs)
    values = [name for name in needs if name not in keys]
    types = {name: _key_type(table, name, needs[name], declared) for name in keys}
    types |= {name: _type(table, name, needs[name], declared) for name in values}
    yield primary_key_table(database, table, types, keys)


def refuse_same_names(table: str, names: Iterable[str]) -> None:
    """Raise UnknownColumn for two names that differ in case alone: they are one column in StarRocks."""
    spellings: dict[str, str] = {}
    for name in names:
        spelling = spellings.setdefault(name.lower(), name)
        if spelling != name:
            raise UnknownColumn(
                f"Rows of table {table} name both {spelling} and {name}, and a table cannot have both.",
                hint="Rename one of them in the rows.",
                table=table,
            )


def _type(table: str, name: str, needs: ColumnNeeds, declared: TableOptions, *, key: bool = False) -> str:
    """The type of a new column; raises UnknownColumn if no type holds all values."""
    type_text = declared.types.get(name) or type_of_needs(needs, key=key)
    if type_text is None:
        words = ", ".join(sorted(ValueKind[name].value for name in needs.kinds)) or "nothing but NULL"
        raise UnknownColumn(
            f"No type of StarRocks holds all values of the column {name} that table {table} lacks: {words}.",
            hint=f"Declare its type, {declared_types(table, name)}, or add the column by hand, and start the query "
            "again.",
            table=table,
        )
    return type_text


def _key_type(table: str, name: str, needs: ColumnNeeds, declared: TableOptions) -> str:
    type_text = _type(table, name, needs, declared, key=True)
    if parse_type(type_text).name in NO_KEYS:
        raise UnknownColumn(
            f"The key column {name} of the new table {table} would be {type_text}, and StarRocks takes no such key.",
            hint=f"Name another key, or declare the type: {declared_types(table, name)}.",
            table=table,
        )
    return type_text
