"""TableRoute: which typed columns of the DataFrame make the rows of which StarRocks table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, functions as F, types as T

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import SchemaChanges, SinkOptions
from starrocks_txn_sink.options.load_properties import CSV_COLUMN
from starrocks_txn_sink.options.sink_options import OWN_TABLES, is_own_table
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.columns import OP, OWN_OP
from starrocks_txn_sink.sink.typed.field import NOT_NULL, TypedField, typed_field
from starrocks_txn_sink.sink.typed.tables import Tables
from starrocks_txn_sink.sink.typed.target import TargetColumn


@suggests_arguments
@dataclass(frozen=True, slots=True)
class TableRoute:
    """Typed columns of a DataFrame that make the rows of one table.

    The JVM makes the JSON of them (`to_json`).

    Args:
        table: The StarRocks table.
        columns: Names of columns, or a mapping of the table's columns to the DataFrame's.
        keys: The columns of the primary key. With them and `schema_changes="apply"` the sink creates a table that does
            not exist, with this primary key.

    Raises:
        OptionError: The table's name is empty, its name or a column's belongs to the sink, or there are no columns.
    """

    table: str
    columns: Sequence[str] | Mapping[str, str]
    keys: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.table:
            raise OptionError("A TableRoute has no table.", hint="Name the StarRocks table that its rows go to.")
        if is_own_table(self.table):
            raise OptionError(
                f"The TableRoute names {self.table}, which belongs to the sink.",
                hint=f"Names that begin with {OWN_TABLES} are reserved; name a table of yours.",
            )
        if isinstance(self.columns, str) or not self.columns:
            raise OptionError(
                f"The TableRoute of {self.table} has no columns.",
                hint="Give a list of column names, or a mapping of the table's columns to the DataFrame's.",
            )
        if any(name.casefold() == OWN_OP for name in self.sources):
            raise OptionError(
                f"The TableRoute of {self.table} names the column {OWN_OP}, which belongs to the sink.",
                hint="StarRocks takes its values for operations. Call the DataFrame's column `op`, and leave it out of "
                "the route.",
            )

    @property
    def sources(self) -> dict[str, str]:
        """The table's column -> the DataFrame's column."""
        if isinstance(self.columns, Mapping):
            return dict(self.columns)
        return {name: name for name in self.columns}


TIME_ZONE = "spark.sql.session.timeZone"
_MICROSECONDS = "yyyy-MM-dd HH:mm:ss.SSSSSS"
Refuse = Callable[[str], Column]
"""Makes an expression that fails the job with a text and the row's place."""


@dataclass(frozen=True, slots=True)
class TypedRoute:
    """A route that was found to fit; `zone` is the time zone in which timestamps are written.

    Rows are JSON objects or, with `csv`, lines; `op` says that lines have the operation at their end.
    """

    table: str
    fields: tuple[TypedField, ...]
    zone: str
    csv: bool = False
    op: bool = False

    @classmethod
    def of(cls, route: TableRoute, frame: T.StructType, zone: str, options: SinkOptions, tables: Tables) -> TypedRoute:
        """Join `route` with the frame's types, the session's time zone and the table's columns, as far as known.

        Raises InputError that names every column which is missing, unknown, or would lose something.
        """
        columns = None if tables.columns is None else tables.columns.get(route.table, ())
        properties, zones = options.properties_of(route.table), (zone, options.timestamp_zone or zone)
        own, csv = properties.get("columns"), properties.get("format") == "csv"
        if columns is not None and not columns:
            raise InputError(
                f"There is no table {route.table}.",
                hint="Create it, or give the TableRoute keys and set schema_changes='apply'.",
            )
        complaints = [*_missing(route, columns, properties)] if columns is not None and own is None else []
        known = {column.name.lower(): column for column in columns or ()}
        fields = []
        for name, source in route.sources.items():
            if source not in frame.names:
                complaints.append(f"the input has no column {source}")
                continue
            target = known.get(name.lower())
            if target is None and options.schema_changes is SchemaChanges.IGNORE and own is None:
                continue
            if target is None and columns is not None and not own:
                complaints.append(f"the table has no column {name}")
                continue
            made = typed_field(name, source, frame[source].dataType, target, zones, csv=csv)
            if isinstance(made, TypedField):
                fields.append(made)
            else:
                complaints.append(made)
        op = csv and OP in frame.names and (columns is None or any(column.key for column in columns))
        if csv:
            complaints += _unfit_for_csv(fields, own, op=op)
        elif own is not None:
            complaints += _unmentioned(fields, own)
        if complaints:
            raise InputError(
                f"The TableRoute of {route.table} does not fit: {'; '.join(complaints)}.",
                hint="Cast or rename the columns before the sink, correct the route, or alter the table.",
                table=route.table,
            )
        return cls(route.table, tuple(fields), zones[1], csv, op)

    def row(self, refuse: Refuse, *, guarded: bool, deleted: Column | None, placeholders: Mapping[str, str]) -> Column:
        """The row as a JSON object or a line; a value that the server would take for another one fails the job.

        With `guarded` one that it would reject, or turn into NULL, fails it too. A `deleted` row may be NULL in the
        fields of `placeholders`: a line has those values then, an object gets them later (`rows.columns`).
        """
        filled = {} if deleted is None else placeholders
        forms = {"ignoreNullFields": "false", "timestampFormat": _MICROSECONDS, "timestampNTZFormat": _MICROSECONDS}
        forms |= {"dateFormat": "yyyy-MM-dd", "timeZone": self.zone}
        if self.csv:
            texts = (field.csv(forms, filled.get(field.key), deleted) for field in self.fields if field.text)
            row = F.concat_ws(CSV_COLUMN, *texts)
        else:
            values = [field.fit.written(field.column).alias(field.key) for field in self.fields]
            row = F.to_json(F.struct(*values), forms)
        for field in reversed(self.fields):
            for fault in field.faults:
                if not guarded and not fault.silent:
                    continue
                found = fault.found(field.column)
                if fault is NOT_NULL and deleted is not None and field.key in filled:
                    found &= ~deleted
                text = f"column {field.name} of table {self.table} {fault.text}"
                row = F.when(F.coalesce(found, F.lit(False)), refuse(text)).otherwise(row)
        return row

    @property
    def columns(self) -> str:
        """The header `columns`: what is not named takes its DEFAULT (wire contract 5.5)."""
        plain = [identifier(field.key) for field in self.fields]
        derived = [
            f"{identifier(field.name)}={function.name}({identifier(field.key)}{function.more})"
            for field in self.fields
            if (function := field.fit.function)
        ]
        return ",".join((*plain, *(["__op"] if self.op else []), *derived))


def _unfit_for_csv(fields: Sequence[TypedField], own: str | None, *, op: bool) -> Iterator[str]:
    if own is not None:
        yield "with format csv the sink writes the property columns itself, in the order of the route; remove yours"
    if len(fields) + op < 2:
        yield "a line of CSV with one column may be empty, which the server skips; set format to json"


def _missing(route: TableRoute, columns: Sequence[TargetColumn], properties: Mapping[str, str]) -> Iterator[str]:
    there = {name.lower() for name in route.sources}
    partial = properties.get("partial_update") == "true"
    for column in columns:
        if column.name.lower() in there:
            continue
        if partial and column.key:
            yield f"partial_update needs the key column {column.name}"
        elif not partial and column.required:
            yield f"column {column.name} is NOT NULL without a DEFAULT, and the route leaves it out"


def _unmentioned(fields: Iterable[TypedField], header: str) -> Iterator[str]:
    """Fields that the user's own `columns` header does not name: they would be dropped in silence."""
    words = {word.lower() for word in re.findall(r"\w+", header)}
    for field in fields:
        if field.key.lower() not in words:
            yield f"the property columns does not name {field.key}"
