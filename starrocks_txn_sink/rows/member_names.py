"""The names of members in JSON rows: each row's names are compared with the columns of its table before a load.

The server drops a member without a column in silence, and a column that a row does not name is NULL (wire contract
5.4). Rows of one *shape* (the same table and the same names in the same order) are looked at once a lane.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field

import orjson
import pyarrow as pa

from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.errors import UnknownColumn
from starrocks_txn_sink.rows import columns, segments

NewRows = Callable[[pa.Array, pa.Array], list[int] | None]
"""Numbers of the rows (tables, payloads) whose shape is new, and of rows without one; None without the loop."""

ColumnsOf = Callable[[str, bool], Set[str] | None]
"""The names of a table's columns, None if nothing is known about the table; with True the server is asked again."""

_SEPARATOR = SEPARATOR.encode()
_PLACE = (columns.PARTITION, columns.POSITION)
_SHOWN = 5  # names in an error


@dataclass(slots=True)
class MemberNames:
    """Compares the names in the JSON rows of one lane with the columns of their tables; call it for each batch.

    `new_rows` finds the rows of a new shape. `wants` says of a table whether its names are columns. With `refuse` a
    name without a column raises UnknownColumn; the driver compares `news` otherwise. Deletes do not count: only their
    key matters. Nor does text that is no JSON: the server rejects it. `compared` has the names that the driver knows
    by table; None if it does not want to know any.
    """

    new_rows: NewRows
    columns_of: ColumnsOf
    wants: Callable[[str], bool]
    refuse: bool
    compared: Mapping[str, Set[str]] | None = None
    by_table: dict[str, set[str]] = field(default_factory=dict)
    """The names by table, of tables with a row that is no delete."""
    _shapes: set[tuple[str, ...]] = field(default_factory=set)  # without the compiled loop

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Look at the rows of a batch; raises UnknownColumn with the place of the first row at fault."""
        tables, payload = batch.column(columns.TABLE), batch.column(columns.PAYLOAD)
        numbers = self.new_rows(tables, payload)
        if numbers is None:
            numbers = list(self._new_by_python(tables, payload))
        for row in numbers:
            self._look_at(batch, row)

    def news(self) -> dict[str, tuple[str, ...]]:
        """The names by table for the driver; none where they are those that it knows."""
        if self.compared is None:
            return {}
        known = self.compared
        return {
            table: () if names == known.get(table) else tuple(sorted(names)) for table, names in self.by_table.items()
        }

    def _new_by_python(self, tables: pa.Array, payload: pa.Array) -> Iterator[int]:
        texts = payload.cast(pa.large_binary()).to_pylist()
        for row, (table, text) in enumerate(zip(tables.to_pylist(), texts, strict=True)):
            names = _names_in(text)
            if names is not None and (shape := (table, *names)) not in self._shapes:
                self._shapes.add(shape)
                yield row

    def _look_at(self, batch: pa.RecordBatch, row: int) -> None:
        table = str(batch.column(columns.TABLE)[row].as_py())
        names = _names_in(batch.column(columns.PAYLOAD)[row].cast(pa.large_binary()).as_py())
        if names is None or columns.OWN_OP in names or not self.wants(table):
            return
        self.by_table.setdefault(table, set()).update(names)
        if self.refuse and self._unknown(table, names, False) and (unknown := self._unknown(table, names, True)):
            raise _unknown_column(table, unknown, segments.place_of(batch, row, " at ", _PLACE))

    def _unknown(self, table: str, names: tuple[str, ...], again: bool) -> list[str]:
        known = self.columns_of(table, again)
        return [] if known is None else sorted(set(names) - known)


def _names_in(payload: bytes) -> tuple[str, ...] | None:
    """The names of a row's members; None for CSV, and for text that is no JSON object."""
    if payload[:1] != _SEPARATOR:
        return None
    try:
        row = orjson.loads(memoryview(payload)[1:])
    except orjson.JSONDecodeError:
        return _names_of_odd(payload[1:])
    return tuple(row) if isinstance(row, dict) else None


def _names_of_odd(text: bytes) -> tuple[str, ...] | None:
    """The names in a row that orjson does not take: it may be nested deep, or have a lone surrogate."""
    try:
        row = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return tuple(name.encode("utf-8", "replace").decode() for name in row) if isinstance(row, dict) else None


def _unknown_column(table: str, unknown: list[str], place: str) -> UnknownColumn:
    names = ", ".join(unknown[:_SHOWN]) + (f", and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else "")
    added = ", ".join(f"ADD COLUMN `{name.replace('`', '``')}` <type>" for name in unknown[:_SHOWN])
    return UnknownColumn(
        f"A row names {'a column' if len(unknown) == 1 else 'columns'} that table {table} does not have"
        f"{place}: {names}.",
        hint=f"Run ALTER TABLE `{table}` {added}, and start the query again; or set schema_changes='ignore', with "
        "which the server drops such values.",
        table=table,
    )
