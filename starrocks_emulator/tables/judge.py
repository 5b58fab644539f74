"""Judging rows: from texts to typed values, and for a row that does not fit the reason why (wire contract 4.9, 5.7).

A value that does not fit its column becomes NULL, or filters the row when `strict_mode` is on; NULL in a NOT NULL
column filters the row. A key that is missing in a JSON row is NULL too; only a column that `columns` leaves out takes
its default (5.4, 5.5). Reasons name the column and the rule, never the value.
A backend keeps a line for each filtered row, bounded, as the logs that `tracking_url` names; as the server's, these
lines show the row as far as it could be read (5.10).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from starrocks_emulator.tables.catalog import Column, literal, quote
from starrocks_emulator.tables.mapping import OP_COLUMN, field_name
from starrocks_emulator.tables.partitions import OUT_OF_RANGES, Bounds
from starrocks_emulator.tables.plan import JsonLayout, Plan
from starrocks_emulator.tables.reading import Field, Reader
from starrocks_emulator.tables.types import ColumnType

MOST_REASONS = 50
MOST_LINES = 1_000
NO_SOURCE = "SELECT CAST(NULL AS VARCHAR[]) AS fields, CAST(NULL AS VARCHAR) AS raw, CAST(NULL AS VARCHAR) AS fault"

OPERATION = ColumnType("TINYINT", "tinyint")
"""The type in which `__op` is read."""

_MOST_LOGS = 1000


@dataclass(frozen=True, slots=True)
class TrackingLog:
    """Why rows of one table in one transaction were filtered."""

    id: str
    label: str
    database: str
    table: str
    lines: Sequence[str]

    @property
    def text(self) -> str:
        """The lines as the server's page shows them."""
        return "\n".join(self.lines) + "\n"


class TrackingLogs:
    """The newest thousand logs; they live as long as the process."""

    def __init__(self) -> None:
        self._logs: OrderedDict[str, TrackingLog] = OrderedDict()
        self._guard = threading.Lock()

    def add(self, log: TrackingLog) -> None:
        """Keep a log, and drop the oldest beyond the limit."""
        with self._guard:
            self._logs[log.id] = log
            while len(self._logs) > _MOST_LOGS:
                self._logs.popitem(last=False)

    def text(self, log_id: str) -> str:
        """The log's lines; empty when it is unknown or gone."""
        with self._guard:
            log = self._logs.get(log_id)
        return log.text if log else ""

    def all(self) -> Sequence[TrackingLog]:
        """The logs that are kept, oldest first."""
        with self._guard:
            return list(self._logs.values())


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many rows fit, were filtered or left out by `where`; bounded reasons, and lines for the log."""

    loaded: int
    filtered: int
    unselected: int
    reasons: tuple[str, ...]
    lines: tuple[str, ...] = ()

    def too_many_filtered(self, max_filter_ratio: float) -> bool:
        """Whether more rows were filtered than the ratio allows, of all but the unselected (wire contract 4.9)."""
        return self.filtered > (self.filtered + self.loaded) * max_filter_ratio


def written_columns(plan: Plan) -> tuple[Column, ...]:
    """The columns that the load writes: all, or with `partial_update` those that the mapping fills."""
    columns = plan.table.columns
    return tuple(column for column in columns if plan.mapping.fills(column.name)) if plan.partial else columns


def judged_sql(plan: Plan, source: str) -> str:
    """The SELECT that judges the rows of `source` (shape: see `bodies`).

    Yields the written columns by name, `__op` (0 upsert, 1 delete), `__reason` (NULL when the row fits), `__selected`.
    """
    columns = written_columns(plan)
    values = ", ".join(f"{_value_sql(plan, column)} AS {_value(column)}" for column in columns)
    texts = ", ".join(f"{_text_sql(plan, column)} AS {_text(column)}" for column in columns)
    names = ", ".join(f"{_value(column)} AS {quote(column.name)}" for column in columns)
    with_fields = f"SELECT *{_fields_sql(plan)} FROM ({_read_sql(plan, source)})"
    with_texts = f"SELECT *, {texts}, {_operation_text(plan)} AS op_text FROM ({with_fields})"
    with_values = f"SELECT *, {values}, {_operation_sql(plan)} AS op_value FROM ({with_texts})"
    selected = f"coalesce({plan.selection}, false)" if plan.selection else "true"
    return (
        f"SELECT {names}, op_value AS __op, {_reason_sql(plan, columns)} AS __reason, {selected} AS __selected,"
        f" CASE WHEN __reason IS NOT NULL THEN coalesce(shown_row, {_row_sql(plan, columns)}) END AS __row"
        f" FROM ({with_values})"
    )


def _read_sql(plan: Plan, source: str) -> str:
    """`source` with its fields as values, `slot_1` and so on, and `shown_row`, the row as the reader has it.

    The values of a row are read by DuckDB if each of them is a plain one, and by `reading` step by step if not.
    """
    layout = plan.layout
    if not isinstance(layout, JsonLayout):
        return f"SELECT *, CAST(NULL AS VARCHAR) AS shown_row FROM ({source})"
    columns = [_column_of_field(plan, name) for name in plan.mapping.fields]
    reader = _reader(plan, layout, columns)
    texts, plain, odd, slots = [], [], [], []
    for place, (column, path) in enumerate(zip(columns, layout.paths, strict=True), start=1):
        texts.append(f"{_json_text(column, place, path)} AS text_{place}")
        plain.append(f"{column.type.plain_of(f'text_{place}') if column else f'text_{place}'} AS plain_{place}")
        odd.append(f"text_{place} IS NOT NULL AND plain_{place} IS NULL")
        read = column.type.read_of(f"told[{place}]") if column else f"told[{place}]"
        slots.append(f"CASE WHEN told IS NULL THEN plain_{place} ELSE {read} END AS slot_{place}")
    if (operation := plan.mapping.place_of(OP_COLUMN)) is not None:
        text = f"text_{operation + 1}"
        missing = f"{text} IS NULL AND NOT contains(raw, '{OP_COLUMN}')"
        plain[operation] = (
            f"CASE WHEN regexp_full_match({text}, '-?[0-9]{{1,2}}') THEN {text} WHEN {missing} THEN '0' END"
            f" AS plain_{operation + 1}"
        )
        odd[operation] = f"plain_{operation + 1} IS NULL"
    width = len(columns)
    told = f"CASE WHEN raw IS NOT NULL AND fault IS NULL AND (fields IS NULL OR {_LOOSE} OR {any_of(odd)})"
    told += f" THEN read_row({literal(reader)}, raw) END AS told"
    with_texts = f"SELECT *, {', '.join(texts)} FROM ({source})"
    with_plain = f"SELECT *, {', '.join(plain)} FROM ({with_texts})"
    with_told = f"SELECT *, {told} FROM ({with_plain})"
    return (
        f"SELECT raw, {', '.join(slots)}, coalesce(fault, told[{width + 1}]) AS fault, told[{width + 2}] AS shown_row"
        f" FROM ({with_told})"
    )


def any_of(conditions: Sequence[str]) -> str:
    """Whether one of the conditions holds; halved, because DuckDB refuses a chain of a thousand columns as too deep."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return f"(({any_of(conditions[:half])}) OR ({any_of(conditions[half:])}))"


_LOOSE = "regexp_matches(raw, ',[ \\t\\r\\n]*[}\\]]')"
"""DuckDB's reader takes a comma behind the last member of an object."""


def _reader(plan: Plan, layout: JsonLayout, columns: Sequence[Column | None]) -> str:
    fields = [
        Field(name, path, column.type if column else OPERATION if name == OP_COLUMN else None)
        for name, path, column in zip(plan.mapping.fields, layout.paths, columns, strict=True)
    ]
    return Reader(tuple(fields), plan.strict, OP_COLUMN).to_json()


def _json_text(column: Column | None, place: int, path: str) -> str:
    """The text of a JSON field as DuckDB has it; of a document the document."""
    if column is None or column.type.name != "JSON":
        return f"fields[{place}]"
    document = f"CAST(json_extract(raw, {literal(path)}) AS VARCHAR)"
    return f"CASE WHEN fields[{place}] IS NOT NULL THEN {document} END"


def verdict(cursor: duckdb.DuckDBPyConnection, stage: str) -> Verdict:
    """Count the judged rows in the relation `stage` and collect the reasons, the most frequent first."""
    counts = cursor.execute(
        "SELECT count(*) FILTER (__reason IS NULL AND __selected), count(__reason),"
        f" count(*) FILTER (__reason IS NULL AND NOT __selected) FROM {stage}"
    ).fetchone()
    loaded, filtered, unselected = counts or (0, 0, 0)
    reasons: Sequence[tuple[str, int, int]] = ()
    lines: Sequence[tuple[str, str]] = ()
    if filtered:
        lines = cursor.execute(
            f"SELECT __reason, __row FROM {stage} WHERE __reason IS NOT NULL ORDER BY rowid LIMIT {MOST_LINES}"
        ).fetchall()
        reasons = cursor.execute(
            f"SELECT __reason, count(*), min(rowid) - (SELECT min(rowid) FROM {stage}) + 1 FROM {stage}"
            f" WHERE __reason IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 3 LIMIT {MOST_REASONS}"
        ).fetchall()
    return Verdict(
        loaded,
        filtered,
        unselected,
        tuple(f"{reason} ({rows} rows, first: row {row})" for reason, rows, row in reasons),
        tuple(f"Error: {reason}. Row: {row}" for reason, row in lines),
    )


def _text(column: Column) -> str:
    return quote(f"text_{column.name.lower()}")


def _value(column: Column) -> str:
    return quote(f"value_{column.name.lower()}")


def _value_sql(plan: Plan, column: Column) -> str:
    """The value of a column's text; what an expression gives for VARBINARY is bytes already, for a set the set."""
    text = _text(column)
    derived = plan.mapping.expression_of(column.name) is not None
    if derived and column.type.is_set:
        return text
    if derived and column.type.name == "VARBINARY":
        return f"CASE WHEN octet_length({text}) <= {column.type.length} THEN {text} END"
    place = plan.mapping.place_of(column.name)
    if derived or place is None or not isinstance(plan.layout, JsonLayout):
        return column.type.value_of(text)
    if column.default and column.default.counts:
        return f"coalesce(slot_{place + 1}, {column.type.value_of(text)})"
    return f"slot_{place + 1}"


def _fields_sql(plan: Plan) -> str:
    """Source fields as values for expressions: of the column's type where one has the name, else `field_type`."""
    if not plan.mapping.derived and not plan.selection:
        return ""
    parts = []
    for place, name in enumerate(plan.mapping.fields, start=1):
        column = _column_of_field(plan, name)
        if isinstance(plan.layout, JsonLayout):
            value = f"TRY_CAST(slot_{place} AS {plan.field_type})" if column is None else f"slot_{place}"
        elif column is None:
            value = f"TRY_CAST(fields[{place}] AS {plan.field_type})"
        else:
            value = column.type.value_of(f"fields[{place}]")
        parts.append(f", {value} AS {quote(field_name(name))}")
    return "".join(parts)


def _column_of_field(plan: Plan, name: str) -> Column | None:
    """The column whose type a field has; none for the text that an expression decodes into a VARBINARY of that name."""
    column = plan.table.column(name)
    decoded = column and column.type.name == "VARBINARY" and plan.mapping.expression_of(name) is not None
    return None if decoded else column


def _text_sql(plan: Plan, column: Column) -> str:
    """The text of which a column's value is made; NULL where the value is read already."""
    expression = plan.mapping.expression_of(column.name)
    if expression is not None:
        typed = column.type.is_set or column.type.name == "VARBINARY"
        return f"TRY({expression})" if typed else f"CAST({expression} AS VARCHAR)"
    default = column.default.sql if column.default else "CAST(NULL AS VARCHAR)"
    place = plan.mapping.place_of(column.name)
    if place is None:
        return default
    counts = column.default is not None and column.default.counts
    if isinstance(plan.layout, JsonLayout):
        return f"CASE WHEN slot_{place + 1} IS NULL THEN {default} END" if counts else "CAST(NULL AS VARCHAR)"
    return f"coalesce(fields[{place + 1}], {default})" if counts else f"fields[{place + 1}]"


def _operation_text(plan: Plan) -> str:
    expression = plan.mapping.expression_of(OP_COLUMN)
    if expression is not None:
        return f"CAST({expression} AS VARCHAR)"
    place = plan.mapping.place_of(OP_COLUMN)
    if place is None:
        return "'0'"
    return f"slot_{place + 1}" if isinstance(plan.layout, JsonLayout) else f"fields[{place + 1}]"


def _operation_sql(plan: Plan) -> str:
    """0 upsert, 1 delete: 1 deletes, any other whole number does not; names are for `columns` alone."""
    number = (
        "CASE WHEN TRY_CAST(op_text AS TINYINT) = 1 THEN 1 WHEN TRY_CAST(op_text AS TINYINT) IS NOT NULL THEN 0 END"
    )
    if plan.mapping.expression_of(OP_COLUMN) is None:
        return number
    return f"CASE lower(trim(op_text)) WHEN 'upsert' THEN 0 WHEN 'delete' THEN 1 ELSE {number} END"


def _row_sql(plan: Plan, columns: Sequence[Column]) -> str:
    """The row as a log of filtered rows shows it: what could not be read is NULL."""
    texts = [
        f"chr(39) || {_value(column)} || chr(39)" if column.type.duckdb == "VARCHAR" else f"{_value(column)}::VARCHAR"
        for column in columns
    ]
    if plan.mapping.fills(OP_COLUMN):
        texts.append("op_value::VARCHAR")
    shown = (f"coalesce({value}, 'NULL')" for value in texts)  # no chain of ||, for `any_of`'s reason
    return f"concat('[', concat_ws(', ', {', '.join(shown)}), ']')"


def _value_of(columns: Sequence[Column], name: str) -> str:
    return next(_value(column) for column in columns if column.name == name)


def _reason_sql(plan: Plan, columns: Sequence[Column]) -> str:
    no_operation = literal(f"NULL value in non-nullable column '{OP_COLUMN}'")
    rules = ["WHEN fault IS NOT NULL THEN fault", f"WHEN op_value IS NULL THEN {no_operation}"]
    for column in columns:
        misfit = f"{_text(column)} IS NOT NULL AND {_value(column)} IS NULL"
        message = literal(f"value does not fit type {column.type.text}, column: {column.name}")
        if plan.strict or not column.nullable:
            rules.append(f"WHEN {misfit} THEN {message}")
        if not column.nullable:
            null = literal(f"NULL value in non-nullable column '{column.name}'")
            rules.append(f"WHEN {_value(column)} IS NULL THEN {null}")
    bounds = Bounds.of(plan.table.partition_by)
    if bounds is not None and bounds.column in {column.name for column in columns}:
        rules.append(f"WHEN {bounds.leaves_out(_value_of(columns, bounds.column))} THEN {literal(OUT_OF_RANGES)}")
    return f"CASE {' '.join(rules)} END"
