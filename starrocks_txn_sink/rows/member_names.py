"""The names of members in JSON rows: each row's names are compared with the columns of its table before a load.

The server drops a member without a column in silence, and a column that a row does not name is NULL (wire contract
5.4). Rows of one *shape* (the same table and the same names in the same order) are looked at once a lane. If the driver
may add columns, a lane that misses one looks at all rows that follow, and so knows the kinds of all values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.coordinator.model import ColumnNeeds, MissingColumns
from starrocks_txn_sink.errors import UnknownColumn
from starrocks_txn_sink.options.table_rules import UNCHANGED_COLUMNS
from starrocks_txn_sink.protocol.ledger import quote
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.alterations import alteration
from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.rows.places import place_of
from starrocks_txn_sink.rows.target import TEXT
from starrocks_txn_sink.rows.unchanged import UnchangedValues, refuse_unchanged, unchanged_names
from starrocks_txn_sink.rows.value_kinds import ValueKind, kind_of, members_of, type_for

NewRows = Callable[[pa.RecordBatch], list[int] | None]
"""Numbers of the rows whose shape is new, and of rows without one; None without the loop."""

ColumnsOf = Callable[[str, bool], Set[str] | None]
"""The names of a table's columns, None if nothing is known about the table; with True the server is asked again."""

TypesOf = Callable[[str, str], Sequence[str]]
"""The types of a table's column by the source's schema, in the order of the messages; none if it does not say."""


Filled = Callable[[str, str], bool]
"""Whether the source fills a new column of a table in rows that it has: it has a DEFAULT, or is NOT NULL."""

Dropped = Callable[[str], Mapping[str, float]]
"""The columns that a table has lost, or got again, since it was read; and how many seconds ago each was seen last."""


def _none_dropped(_table: str) -> Mapping[str, float]:
    return {}


def never_filled(_table: str, _name: str) -> bool:
    """`Filled` where no schema says more."""
    return False


def no_types(_table: str, _name: str) -> Sequence[str]:
    """`TypesOf` where no schema says more."""
    return ()


_SURROGATES = re.compile("[\ud800-\udfff]")
_SHOWN = 5  # names in an error


@dataclass(slots=True)
class MemberNames:
    """Compares the names in the JSON rows of one lane with the columns of their tables; call it for each batch.

    `new_rows` finds the rows of a new shape. `wants` says of a table whether its names are columns. With `refuse` a
    name without a column raises UnknownColumn, or with `lacking` waits there for its column; the driver compares `news`
    otherwise. Deletes do not count: only their key matters. Nor does text that is no JSON: the server rejects it.
    `compared` has the names that the driver knows by table; None if it does not want to know any. Rows that leave
    unchanged values out are `completed`, in the tables with a key. A column that was `replaced` has lost values, which
    is an UnknownColumn, too.
    """

    new_rows: NewRows
    columns_of: ColumnsOf
    wants: Callable[[str], bool]
    refuse: bool
    compared: Mapping[str, Set[str]] | None = None
    lacking: LackingColumns | None = None
    types_of: TypesOf = no_types
    completed: UnchangedValues | None = None
    dropped: Dropped = _none_dropped
    replaced: Dropped = _none_dropped
    by_table: dict[str, set[str]] = field(default_factory=dict)
    """The names by table, of tables with a row that is no delete."""
    _shapes: set[tuple[str, ...]] = field(default_factory=set)  # without the compiled loop

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Look at the rows of a batch; raises UnknownColumn with the place of the first row at fault."""
        numbers = self.new_rows(batch)
        if numbers is None:
            numbers = list(self._new_by_python(batch.column(columns.TABLE), batch.column(columns.PAYLOAD)))
        for row in numbers:
            self._look_at(batch, row)
        if self.lacking is not None:
            self.lacking.look_at(batch)

    def news(self) -> dict[str, tuple[str, ...]]:
        """The names by table for the driver; none where they are those that it knows."""
        if self.compared is None:
            return {}
        names_before = self.compared
        return {
            table: () if names == names_before.get(table) else tuple(sorted(names))
            for table, names in self.by_table.items()
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
        text = batch.column(columns.PAYLOAD)[row].cast(pa.large_binary()).as_py()
        names = _names_in(text)
        place = place_of(batch, row)
        unchanged: Sequence[str] = ()
        if names is not None and names[-1:] == (columns.UNCHANGED,):
            if self.lacking is None or self.columns_of(table, False) is not None:  # else it is to be created first
                self._note_unchanged(table, text, place)
            names, unchanged = names[:-1], unchanged_names(text)
        if names is None or not self.wants(table):
            return
        if columns.OWN_OP in names:
            if self.lacking is not None and self.columns_of(table, False) is None:  # where could it delete?
                self.lacking.watch(table, [name for name in names if name != columns.OWN_OP], deletes=True)
            return
        logged = _unchanged_in(text) if UNCHANGED_COLUMNS in names else ()  # in a history
        self.by_table.setdefault(table, set()).update(names, unchanged, logged)  # the source has those columns, too
        if self.refuse and self._unknown(table, names, False) and (unknown := self._unknown(table, names, True)):
            if otherwise := _spelled_otherwise(unknown, self.columns_of(table, False) or ()):
                raise _other_case(table, otherwise, place)
            if self.lacking is None:
                had = {*unknown} & {*(self.compared or {}).get(table, ())}  # refused names never were among them
                raise _unknown_column(table, unknown, text, place, self.types_of, self.dropped(table), had)
            self.lacking.watch(table, unknown, deletes=self.columns_of(table, False) is None)
        self._refuse_replaced(table, {*names, *unchanged}, place)

    def _refuse_replaced(self, table: str, names: Set[str], place: str) -> None:
        replaced = {name: index for name, index in self.replaced(table).items() if name in names}
        if replaced:
            raise _replaced_column(table, replaced, place)

    def _note_unchanged(self, table: str, text: bytes, place: str) -> None:
        if self.completed is None or table not in self.completed.keyed or not self.wants(table):
            refuse_unchanged(table, text, place)
        else:
            self.completed.tables.add(table)

    def _unknown(self, table: str, names: tuple[str, ...], again: bool) -> list[str]:
        column_names = self.columns_of(table, again)
        if column_names is None:  # no such table, or none that the user may see
            return sorted(names) if self.lacking is not None else []
        return sorted(set(names) - column_names)


@dataclass(slots=True)
class LackingColumns:
    """Columns that rows of a lane name and their tables lack, and the kinds of their values.

    A column is `missing` with its first value that is not NULL: until then nothing is lost, and no value has a kind.
    """

    types_of: TypesOf = no_types
    filled: Filled = never_filled
    watched: dict[str, set[str]] = field(default_factory=dict)
    with_deletes: set[str] = field(default_factory=set)  # tables that are not there, for a delete's key too
    kinds: dict[str, dict[str, set[ValueKind]]] = field(default_factory=dict)

    def watch(self, table: str, names: Iterable[str], *, deletes: bool = False) -> None:
        """From this batch on look at the values of these names, also in deletes if asked for."""
        self.watched.setdefault(table, set()).update(names)
        if deletes:
            self.with_deletes.add(table)

    def look_at(self, batch: pa.RecordBatch) -> None:
        """Take the kinds of all values of watched names in a batch; UnknownColumn for a value that cannot be read."""
        if not self.watched:
            return
        table_names = batch.column(columns.TABLE)
        rows_with_values = pc.indices_nonzero(
            pc.is_in(table_names, value_set=pa.array([*self.watched], table_names.type))
        )
        rows_with_values = rows_with_values.filter(
            self._may_have_values(batch.column(columns.PAYLOAD).take(rows_with_values))
        )
        texts = batch.column(columns.PAYLOAD).take(rows_with_values).cast(pa.large_binary()).to_pylist()
        for number, table, text in zip(
            rows_with_values.to_pylist(), table_names.take(rows_with_values).to_pylist(), texts, strict=True
        ):
            names = _names_in(text) or ()
            if columns.OWN_OP in names and table not in self.with_deletes:
                continue
            row = members_of(memoryview(text)[1:])
            for name in names:
                if name not in self.watched[table]:
                    continue
                if row is None or name not in row:  # nested too deep, or a name that is no text
                    raise _unknown_column(table, [name], text, place_of(batch, number))
                kind = kind_of(row[name])
                if kind is not None:
                    self.kinds.setdefault(table, {}).setdefault(name, set()).add(kind)

    def _may_have_values(self, texts: pa.Array) -> pa.Array:
        """A mask of rows in which a watched name may have a value: a column may be NULL in all rows for weeks.

        A name that a row writes with an escape is in none of the patterns, nor is one with a lone surrogate, which has
        no other form: rows with a backslash count.
        """
        names = {name for watched in self.watched.values() for name in watched if not _SURROGATES.search(name)}
        value = rf'"(?:{"|".join(map(re.escape, sorted(names)))})"[ \t\n\r]*:[ \t\n\r]*[^n \t\n\r]'
        return pc.or_(pc.match_substring_regex(texts, value), pc.match_substring(texts, "\\"))

    def missing(self) -> MissingColumns:
        """The columns with a value."""
        return {
            table: {
                name: ColumnNeeds(
                    tuple(sorted(kind.name for kind in kinds)),
                    tuple(self.types_of(table, name)),
                    self.filled(table, name),
                )
                for name, kinds in columns.items()
            }
            for table, columns in self.kinds.items()
        }


def _names_in(payload: bytes) -> tuple[str, ...] | None:
    """The names of a row's members; None for text that is no JSON object."""
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


def _unknown_column(
    table: str,
    unknown: list[str],
    text: bytes,
    place: str,
    types_of: TypesOf = no_types,
    dropped: Mapping[str, float] | None = None,
    had: Set[str] = frozenset(),
) -> UnknownColumn:
    names = ", ".join(unknown[:_SHOWN]) + (f", and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else "")
    row = members_of(memoryview(text)[1:]) or {}
    types = {name: (*types_of(table, name), _type_of(row.get(name)) or "<type>")[0] for name in unknown[:_SHOWN]}
    types = {name: TEXT if type_ == "STRING" else type_ for name, type_ in types.items()}  # as `apply` adds it
    lost = {name: (dropped or {})[name] for name in unknown if name in (dropped or {})}
    return UnknownColumn(
        f"A row names {'a column' if len(unknown) == 1 else 'columns'} that table {table} does not have"
        f"{place}: {names}.{_lost(lost, sorted(had))}",
        hint=f"Run {alteration(quote(table), types)}, and start the query again; or set schema_changes='apply', with "
        "which the sink does so, or schema_changes='ignore', with which the server drops such values.",
        table=table,
    )


def _replaced_column(table: str, replaced: Mapping[str, float], place: str) -> UnknownColumn:
    names, seconds = ", ".join([*replaced][:_SHOWN]), math.ceil(max(replaced.values()))
    return UnknownColumn(
        f"Table {table} has {names} in another place than {seconds} seconds ago{place}: dropped and added again since, "
        "a column is NULL in all rows, and StarRocks has dropped the values of rows that came in between.",
        hint="Run `starrocks-txn-sink resync` for the table, or have the source snapshot it, and start the query "
        "again. If the columns were only put in another order, start it again.",
        table=table,
    )


def _unchanged_in(text: bytes) -> list[str]:
    """The columns that the row of a history names as unchanged."""
    try:
        names = json.loads(members(text[1:].decode())[UNCHANGED_COLUMNS][1])
    except (ValueError, KeyError, IndexError):
        return []
    return [name for name in names if isinstance(name, str) and name] if isinstance(names, list) else []


def _spelled_otherwise(names: Iterable[str], columns_of_table: Iterable[str]) -> dict[str, str]:
    """The columns from which `names` differ in case alone, by name: no table can have both."""
    folded = {column.lower(): column for column in columns_of_table}
    return {name: folded[name.lower()] for name in names if name.lower() in folded}


def _other_case(table: str, otherwise: Mapping[str, str], place: str) -> UnknownColumn:
    shown = [*otherwise.items()][:_SHOWN]
    pairs = ", ".join(f"{name} (the column is {column})" for name, column in shown)
    rule = ", ".join(f'"{name}" = "{column}"' for name, column in shown)
    return UnknownColumn(
        f"A row names columns of table {table} in another case{place}: {pairs}. A load takes them for other names, and "
        "StarRocks would write NULL.",
        hint=f"Give them the table's names in the rules: rename = {{ {rule} }}; or create the table with the names of "
        "the rows.",
        table=table,
    )


def _lost(seconds: Mapping[str, float], had: Sequence[str]) -> str:
    """What became of rows since a column was dropped, that the table had so many `seconds` ago, or earlier."""
    if not seconds and not had:
        return ""
    since = f"{math.ceil(max(seconds.values()))} seconds ago" if seconds else "in an earlier micro-batch"
    return (
        f" The table had {', '.join([*(seconds or had)][:_SHOWN])} {since}: StarRocks has dropped the values of rows "
        "that came since then. "
        "A column that is added again is NULL in all rows: run `starrocks-txn-sink resync` for the table then, or have "
        "the source snapshot it."
    )


def _type_of(value: object) -> str | None:
    kind = kind_of(value)
    return None if kind is None else type_for([kind])
