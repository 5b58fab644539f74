"""TableRoute: which typed columns of the DataFrame make the rows of which StarRocks table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import SchemaChanges, SinkOptions, TableOptions, load_properties
from starrocks_txn_sink.options.load_properties import CSV_COLUMN, CSV_ROW, RENAMING
from starrocks_txn_sink.options.sink_options import OWN_TABLES, is_own_table
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.columns import OP, OWN_OP, Placeholders
from starrocks_txn_sink.rows.keys import KeyColumn, TableKey
from starrocks_txn_sink.sink.typed.fit import Fit, ValueFault, fit, natural
from starrocks_txn_sink.sink.typed.target import PRIMARY_KEYS, Columns, Tables, TargetColumn, TargetType
from starrocks_txn_sink.spark_version import VariantType
from starrocks_txn_sink.telemetry import get_logger

_log = get_logger("sink")


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


NULL = r"\N"
Forms = Mapping[str, str]
"""Options of to_json: the forms of dates and timestamps, and the time zone."""
Text = Callable[[Column, Forms], Column]
"""Turns a column of the frame into texts."""

NOT_NULL = ValueFault(lambda column: column.isNull(), "is NULL, but the column is NOT NULL")
UNWRITABLE = ValueFault(
    lambda column: column.contains(CSV_COLUMN) | column.contains(CSV_ROW) | (column == NULL),
    r"holds a separator of CSV (character 1 or 2), or is \N",
    silent=True,
)


def csv_text(source: T.DataType, target: TargetType, fitted: Fit) -> Text | str:
    """How values of `source` are written into a column of type `target`, or why they are not.

    A text for a JSON column is written raw, without being parsed.
    """
    if target.name in ("ARRAY", "MAP", "STRUCT"):
        return "arrays, maps and structs are written as JSON only; set the property format of this table to json"
    if target.name == "JSON":
        if isinstance(source, T.StringType):
            return lambda column, _: column
        if isinstance(source, (VariantType, T.ArrayType, T.MapType, T.StructType)):
            return lambda column, forms: F.to_json(fitted.written(column), dict(forms))
        return "only documents are written into JSON columns as CSV; set the property format of this table to json"
    if isinstance(source, (T.DateType, T.TimestampType, T.TimestampNTZType)):
        return lambda column, forms: F.get_json_object(
            F.to_json(F.struct(fitted.written(column).alias("v")), dict(forms)), "$.v"
        )
    if isinstance(source, T.BooleanType):
        return lambda column, _: fitted.written(column).cast("int").cast("string")
    return lambda column, _: fitted.written(column).cast("string")


@dataclass(frozen=True, slots=True)
class TypedField:
    """One column of a route: the table's name for it, the frame's, and how its values are written."""

    name: str
    source: str
    fit: Fit
    faults: tuple[ValueFault, ...]
    text: Text | None = None  # of its CSV

    @property
    def key(self) -> str:
        """The key in the JSON row."""
        return f"{self.fit.function.prefix}{self.name}" if self.fit.function else self.name

    @property
    def column(self) -> Column:
        return F.col(identifier(self.source))


def typed_field(
    name: str, source: str, kind: T.DataType, target: TargetColumn | None, zones: tuple[str, str], *, csv: bool
) -> TypedField | str:
    """The field, or the complaint about it; `target` None is a column that is unknown or not there."""
    if target is not None and target.generated:
        return f"column {target.name} is generated by the server and cannot be written"
    wanted, called = (natural(kind), name) if target is None else (target.type, target.name)
    found = fit(kind, wanted, zones)
    if isinstance(found, str):
        return f"column {called}: {found}"
    text = csv_text(kind, wanted, found) if csv else None
    if isinstance(text, str):
        return f"column {called}: {text}"
    takes_null = target is None or target.nullable or (found.function is not None and found.function.takes_null)
    null = () if takes_null else (NOT_NULL,)
    separators = (UNWRITABLE,) if csv and isinstance(kind, T.StringType) else ()
    return TypedField(called, source, found, (*null, *found.faults, *separators), text)


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
            texts = [
                _filled(field.text(field.column, forms), filled.get(field.key), deleted)
                for field in self.fields
                if field.text
            ]
            row = F.concat_ws(CSV_COLUMN, *(F.coalesce(text, F.lit(NULL)) for text in texts))
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


@dataclass(frozen=True)
class TableTerms:
    """How rows of one schema are written into the tables: their routes, and `options` with the header `columns`.

    A delete that lacks a NOT NULL column gets one of `placeholders`.
    """

    options: SinkOptions
    placeholders: Placeholders
    tables: Tables = Tables()  # noqa: RUF009 - frozen
    routes: Sequence[TypedRoute] = ()

    @classmethod
    def of(
        cls, routes: Sequence[TableRoute], schema: T.StructType, zone: str, options: SinkOptions, tables: Tables
    ) -> TableTerms:
        """The terms for frames of this `schema`; `zone` is the session's time zone, which only `routes` need.

        Raises InputError that names each column which does not fit.
        """
        fitted = [TypedRoute.of(route, schema, zone, options, tables) for route in routes]
        placeholders = _delete_placeholders(tables.required, options, fitted)
        return cls(with_columns(options, fitted), placeholders, tables, fitted)

    @property
    def encoder(self) -> PayloadEncoder:
        """Makes payloads of JSON texts over Arrow."""
        return PayloadEncoder(self.options.database, self.keyless, self.placeholders)

    @cached_property
    def keyless(self) -> tuple[str, ...]:
        """Tables without deletes."""
        return tuple(sorted(name for name, model in self.tables.models.items() if model != PRIMARY_KEYS))

    @cached_property
    def keys(self) -> dict[str, TableKey]:
        """The primary keys of tables (from their NOT NULL columns), as rows have them.

        A table is left out, and all of its rows are sent, if `compact` is off, if a later row of a key may not replace
        an earlier one (`why_not_compacted`), and if the rows have no key that can be read.
        """
        if not self.options.compact:
            return {}
        routed = {route.table: route for route in self.routes}
        found: dict[str, TableKey] = {}
        for table, columns in self.tables.required.items():
            key = [column for column in columns if column.key]
            if not key or is_own_table(table):
                continue
            properties = self.options.properties_of(table)
            why = load_properties.why_not_compacted(properties, [column.name for column in key])
            written = _as_written(key, routed.get(table))
            if why or written is None:
                _log.info("compact.skipped", table=table, why=why or "the rows lack the key")
            else:
                found[table] = written
        return found


def with_columns(options: SinkOptions, routes: Sequence[TypedRoute]) -> SinkOptions:
    """`options` with the header `columns` for each route's table.

    The user's own properties win. New options are validated as a whole, so without routes they stay the same object.
    """
    if not routes:
        return options
    tables = dict(options.tables)
    for route in routes:
        given = tables.get(route.table)
        own = dict(given.properties) if isinstance(given, TableOptions) else {}
        tables[route.table] = TableOptions(properties={"columns": route.columns, **options.properties, **own})
    return replace(options, tables=tables)


def _filled(text: Column, placeholder: str | None, deleted: Column | None) -> Column:
    """A field of a line, its JSON `placeholder` in place of a NULL in a deleted row."""
    if placeholder is None or deleted is None:
        return text
    return F.coalesce(text, F.when(deleted, F.lit(str(json.loads(placeholder)))))


def _delete_placeholders(required: Columns, options: SinkOptions, routes: Sequence[TypedRoute]) -> Placeholders:
    """Placeholders for the `required` columns of tables; `options` are the user's own.

    A table is left out if its load properties give the keys of a JSON row another meaning.
    """
    routed = {route.table: {field.name.lower(): field.key for field in route.fields} for route in routes}
    found: dict[str, dict[str, str]] = {}
    for table, columns in required.items():
        if RENAMING & options.properties_of(table).keys():
            continue
        values = {column.name: column.type.placeholder for column in columns if not column.key}
        keys = routed.get(table, {name.lower(): name for name in values})
        fields = {keys[name.lower()]: value for name, value in values.items() if value and name.lower() in keys}
        if fields:
            found[table] = fields
    return found


def _as_written(key: Sequence[TargetColumn], route: TypedRoute | None) -> TableKey | None:
    """The key's columns as the rows of `route`, or JSON texts, have them; None if they lack one."""
    columns = [KeyColumn.of(column.name, column.type.name, column.type.scale) for column in key]
    if route is None:
        return columns
    places = {field.name.lower(): (place, field) for place, field in enumerate(route.fields) if not field.fit.function}
    found = [(column, *places[column.name.lower()]) for column in columns if column.name.lower() in places]
    if len(found) < len(columns):
        return None
    return [replace(column, field=field.key, place=place) for column, place, field in found]


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
