"""A load's plan: what a table's first load headers say about reading and judging its bodies (wire contract 5)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from starrocks_emulator.tables.catalog import Table
from starrocks_emulator.tables.mapping import (
    OP_COLUMN,
    ColumnMapping,
    MappingError,
    all_columns,
    field_name,
    read_columns,
    read_filter,
)
from starrocks_emulator.tables.sets import LOADED_BY

_CSV_FORMATS = {"csv": "", "gzip": "gzip", "bzip2": "bz2", "lz4": "lz4", "deflate": "zlib", "zstd": "zstd"}
_COMPRESSIONS = {
    "no_compression": "",
    "lz4": "lz4",
    "lz4_frame": "lz4",
    "zlib": "zlib",
    "deflate": "zlib",
    "zstd": "zstd",
    "gzip": "gzip",
    "bzip2": "bz2",
}


class PlanRejected(Exception):
    """The first load of a table is refused; `message` and `java_class` go into the frontend's reply."""

    def __init__(self, message: str, java_class: str = "com.starrocks.common.StarRocksException") -> None:
        super().__init__(message)
        self.message = message
        self.java_class = java_class


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """How CSV bodies are cut into fields."""

    column_separator: str = "\t"
    row_delimiter: str = "\n"
    enclose: str = ""
    escape: str = ""
    skip_header: int = 0
    trim_space: bool = False


@dataclass(frozen=True, slots=True)
class JsonLayout:
    """How JSON bodies are cut into rows and fields; a plan's `paths` has one JSON path per source field."""

    strip_outer_array: bool = False
    paths: tuple[str, ...] = ()
    root: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """How all bodies of one table of one transaction are read, judged and applied.

    `compression` is "", gzip, bz2, lz4, zlib or zstd; `selection` a DuckDB condition; `partial` says that columns
    which the mapping does not fill keep the old row's values; `merge_column` that only rows at least as new win.
    `field_type` is the DuckDB type that expressions see in a source field which is no column of the table.
    """

    table: Table
    layout: CsvLayout | JsonLayout
    mapping: ColumnMapping
    compression: str = ""
    strict: bool = False
    max_filter_ratio: float = 0.0
    selection: str = ""
    partial: bool = False
    merge_column: str = ""
    field_type: str = "VARCHAR"

    @property
    def database(self) -> str:
        """The database of the table."""
        return self.table.database


def make_plan(table: Table, headers: Mapping[str, str]) -> Plan:
    """The plan for `table` that the load headers (names in lower case) ask for; raises PlanRejected."""
    try:
        layout, compression = _layout(headers)
        partial = headers.get("partial_update", "") == "true"
        mapping = _mapping(table, headers, layout)
        if isinstance(layout, JsonLayout) and not layout.paths:
            layout = replace(layout, paths=tuple(_path_of_key(name) for name in mapping.fields))
        plan = Plan(
            table=table,
            layout=layout,
            mapping=mapping,
            compression=compression,
            strict=_flag(headers, "strict_mode"),
            max_filter_ratio=_ratio(headers),
            selection=_selection(table, headers, mapping),
            partial=partial,
            merge_column=headers.get("merge_condition", "").strip().strip("`"),
        )
    except MappingError as error:
        raise PlanRejected(str(error)) from error
    _check_columns(plan)
    _check_sets(plan)
    _check_merge(plan)
    return plan


def _layout(headers: Mapping[str, str]) -> tuple[CsvLayout | JsonLayout, str]:
    name = headers.get("format", "csv").strip()
    kind = name.lower()
    codec = headers.get("compression", "").strip()
    if codec and codec.lower() not in _COMPRESSIONS:
        raise PlanRejected(f"Unsupported compression type: {codec}")
    compression = _COMPRESSIONS.get(codec.lower(), "")
    if kind == "json":
        return _json_layout(headers), compression
    if kind not in _CSV_FORMATS:
        raise PlanRejected(f"Unknown data format {name}")
    return _csv_layout(headers), compression or _CSV_FORMATS[kind]


def _json_layout(headers: Mapping[str, str]) -> JsonLayout:
    paths: tuple[str, ...] = ()
    if headers.get("jsonpaths"):
        try:
            listed = json.loads(headers["jsonpaths"])
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
            raise PlanRejected("Invalid json paths: jsonpaths should be a JSON array of strings")
        paths = tuple(listed)
    return JsonLayout(_flag(headers, "strip_outer_array"), paths, headers.get("json_root", "").strip())


def _path_of_key(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'$."{escaped}"'


def _csv_layout(headers: Mapping[str, str]) -> CsvLayout:
    skip = headers.get("skip_header", "0").strip()
    if not skip.isdigit():
        raise PlanRejected(f"Invalid skip_header: {skip}")
    layout = CsvLayout(
        column_separator=_separator(headers.get("column_separator", "\t")),
        row_delimiter=_separator(headers.get("row_delimiter", "\n")),
        enclose=headers.get("enclose", "").strip(),
        escape=headers.get("escape", "").strip(),
        skip_header=int(skip),
        trim_space=_flag(headers, "trim_space"),
    )
    for name in ("enclose", "escape"):
        if len(getattr(layout, name)) > 1:
            raise PlanRejected(f"Invalid {name}: it should be a single character")
    if layout.enclose and layout.row_delimiter not in ("\n", "\r\n", "\r"):
        raise PlanRejected("enclose together with a row_delimiter other than a line break cannot be served here")
    return layout


def _separator(header: str) -> str:
    """A separator as headers write it: itself, `\\x01`, `\\n`, `\\t`, `\\r`."""
    if header[:2].lower() in (r"\x", "0x") and len(header) > 2:
        try:
            return bytes.fromhex(header[2:].replace(r"\x", "")).decode("utf-8")
        except ValueError as error:
            raise PlanRejected(f"Invalid separator: {header}") from error
    text = header.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\r", "\r")
    if not text:
        raise PlanRejected("Delimiter cannot be empty string")
    return text


def _flag(headers: Mapping[str, str], name: str) -> bool:
    text = headers.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise PlanRejected(f"Invalid {name}: should be true or false")
    return text == "true"


def _ratio(headers: Mapping[str, str]) -> float:
    text = headers.get("max_filter_ratio", "0")
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise PlanRejected(f"Invalid max_filter_ratio: {text}")
    return ratio


def _mapping(table: Table, headers: Mapping[str, str], layout: CsvLayout | JsonLayout) -> ColumnMapping:
    header = headers.get("columns", "").strip()
    mapping = read_columns(header, table) if header else all_columns(table)
    takes_operation = table.model.takes_operations
    if mapping.fills(OP_COLUMN) and not takes_operation:
        raise PlanRejected(f"{OP_COLUMN} is only supported by primary key tables")
    if isinstance(layout, CsvLayout):
        return mapping
    if layout.paths and len(layout.paths) != len(mapping.fields):
        raise PlanRejected("The number of jsonpaths differs from the number of columns")
    if takes_operation and not layout.paths and not mapping.fills(OP_COLUMN):
        return ColumnMapping((*mapping.fields, OP_COLUMN), mapping.derived)
    return mapping


def _selection(table: Table, headers: Mapping[str, str], mapping: ColumnMapping) -> str:
    header = headers.get("where", "").strip()

    def value_name(name: str) -> str | None:
        column = table.column(name)
        if column is not None:
            return f"value_{column.name.lower()}"
        return field_name(name) if mapping.place_of(name) is not None else None

    return read_filter(header, value_name) if header else ""


def _check_columns(plan: Plan) -> None:
    table = plan.table
    if plan.partial:
        if not table.model.takes_operations:
            raise PlanRejected(f"Only primary key table support partial update, but table {table.name} is not")
        for key in table.keys:
            if not plan.mapping.fills(key):
                raise PlanRejected(f"key column {key} not in partial update columns")
        return
    for column in table.columns:
        if not plan.mapping.fills(column.name) and not column.nullable and column.default is None:
            raise PlanRejected(f"Column has no default value. column: {column.name}")


def _check_sets(plan: Plan) -> None:
    """Refuse a set that no function makes: of HLL with the server's words, of BITMAP with the emulator's own."""
    for column in plan.table.columns:
        if not column.type.is_set or not plan.mapping.fills(column.name):
            continue
        functions = LOADED_BY[column.type.name]
        expression = plan.mapping.expression_of(column.name) or ""
        if expression.partition("(")[0].strip().lower() not in functions:
            like = " or ".join(f"{column.name}={name}({'' if name.endswith('empty') else 'xxx'})" for name in functions)
            raise PlanRejected(f"{column.type.name} column must use {functions[0]} function, like {like}")


def _check_merge(plan: Plan) -> None:
    if not plan.merge_column:
        return
    table, name = plan.table, plan.merge_column
    if not table.model.takes_operations:
        raise PlanRejected(f"Conditional update only support primary key table {table.name}")
    column = table.column(name)
    if column is None:
        raise PlanRejected(f"Merge condition column {name} does not exist")
    if table.is_key(column) or not column.type.is_numeric_or_date:
        raise PlanRejected(f"Merge condition column {name} should be a non-key column of a numeric or date type")
    if not plan.mapping.fills(name):
        raise PlanRejected(f"Merge condition column {name} is not among the loaded columns")
