"""Rows whose source left values out because they did not change: each such column keeps its value.

The server can keep a column only in a partial update, and the loads of a table under one label are all partial ones, of
the same columns, or none is (wire contract 4.6). So the lane completes such a row before it sends it: with the value of
the key's row before it under the label, else with the value in the table, which has all StarRocks transactions before.

A row says it with its last member, UNCHANGED. A deleted row that stays keeps all of its values: also those of columns
that came into the table after the start of the query. `rows.body` asks for the rows of a load; one key is in one lane.

A change of a key is a delete and, right behind it in the source transaction, an insert: its unchanged columns are those
of the row that the delete takes away. An insert has no other reason to leave values out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.errors import InputError, QueryRefused
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.options.table_rules import DELETED
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows.columns import DELETING, OWN_OP, UNCHANGED
from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.rows.keys import ROOM, KeyType, TableKey, read_keys
from starrocks_txn_sink.rows.target import TargetColumn

MARK: Final = f'"{UNCHANGED}":'.encode()
"""In each row with unchanged columns, and in no other one: inside of a string its quotes are escaped."""

INSERTED: Final = ""
"""The first of the names in UNCHANGED, which is no column's, says that the row is an insert."""
_DELETE: Final = f"{SEPARATOR}{DELETING}".encode()
_INSERT: Final = MARK + json.dumps([INSERTED])[:-1].encode()

Query = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]
"""Executes a statement with parameters; returns its rows, and raises QueryFailed or QueryRefused."""

ColumnsNow = Callable[[str], Sequence[TargetColumn]]
"""The columns that a table has at the moment of the call; none if the user may not see any."""

_TYPES: Final = (
    "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.columns WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)
_KEYS_A_QUERY: Final = 500
_ENCODINGS: Final = tuple(encoding.value for encoding in Encoding)
_NESTED: Final = ("array", "map", "struct")
OPAQUE: Final = ("varbinary", "binary", "bitmap", "hll", "percentile")
"""Types whose values no query returns as a load takes them, but bytes where the load decodes texts."""
_OPAQUE_TYPE: Final = re.compile(rf"(?:^|[<,:(\s])(?:{'|'.join(OPAQUE)})\b")
"""One of them as a column's type, or inside of a nested one."""
_REMEDY: Final = (
    "At the source, give each change all values (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL), or leave the column "
    'out; see docs/guides/debezium.md, "Values that did not change". To pass messages that are in the topic already, '
    'set unavailable_value = "" (in Python None) until the query is behind them: such rows have the placeholder then, '
    "until `starrocks-txn-sink resync`, or a snapshot of the table (Debezium's signal `execute-snapshot`)."
)


def with_unchanged(
    members_of_row: Mapping[str, tuple[Any, str]], unchanged: Sequence[str], *, inserted: bool = False
) -> str:
    """A row of these members, as text, but for the `unchanged` ones, which it names in its last member."""
    named_members = {name: raw for name, (_, raw) in members_of_row.items() if name not in unchanged}
    names = [*([INSERTED] if inserted else []), *unchanged]
    return _row({**named_members, UNCHANGED: json.dumps(names, ensure_ascii=False)})


def unchanged_names(text: bytes) -> list[str]:
    """The columns that a row with the member UNCHANGED leaves out."""
    names: list[str] = json.loads(members(text[len(SEPARATOR) :].decode())[UNCHANGED][1])
    return [name for name in names if name != INSERTED]


def refuse_unchanged(table: str, text: bytes, place: str) -> None:
    """Raise InputError for a row of a table whose key the sink does not know."""
    names = ", ".join(unchanged_names(text))
    state = f"has columns without a value, because it did not change ({names})" if names else "is deleted, and stays"
    raise InputError(
        f"A row of table {table} {state}{place}, and the sink cannot look its values up: the table has no primary key, "
        "or the sink does not know it.",
        hint="Start the query again if the table is new. Make it a PRIMARY KEY table, without `compact=False` and "
        "without load properties that rename columns. " + _REMEDY,
        table=table,
    )


@dataclass(frozen=True, slots=True)
class RowsOfKey:
    """The rows of one key under a label up to the one to send, in their order, each with its separator.

    `place` says where the last one came from. `former` has the rows of the key from which its last insert with
    unchanged columns came, up to their delete; None where that is not right in front.
    """

    rows: Sequence[bytes]
    place: Callable[[], str] = lambda: ""
    former: Callable[[], RowsOfKey | None] = lambda: None


def histories_of(
    rows: pa.Array, keys: pa.Array, last: Sequence[int], place: Callable[[int], str] = lambda _: ""
) -> list[RowsOfKey]:
    """For each of the rows `last` (numbers) the rows of its key up to it; a row without a key is alone.

    Rows of one source transaction are at the same `place`.
    """
    codes = pc.dictionary_encode(keys).indices.fill_null(-1).to_numpy()
    by_key: dict[int, list[int]] = {}
    for row in np.flatnonzero(np.isin(codes, codes[last])).tolist():
        by_key.setdefault(int(codes[row]), []).append(row)

    def history(row: int) -> RowsOfKey:
        of_key = by_key.get(int(codes[row])) if codes[row] >= 0 else [row]
        numbers = [number for number in of_key or np.flatnonzero(codes == codes[row]).tolist() if number <= row]
        texts = [rows[number].as_py() for number in numbers]
        origin: int | None = None  # the insert since the last delete in front of the row
        for number, text in zip(numbers, texts, strict=True):
            if text.startswith(_DELETE) and number < row:
                origin = None
            elif origin is None and _INSERT in text:
                origin = number
        return RowsOfKey(texts, partial(place, row), partial(former, -1 if origin is None else origin - 1))

    def former(row: int) -> RowsOfKey | None:
        is_boundary = row < 0 or codes[row] < 0 or place(row) != place(row + 1)
        return None if is_boundary or not _deletes(rows[row].as_py()) else history(row)

    return [history(row) for row in last]


@dataclass(slots=True)
class UnchangedValues:
    """Completes rows of `tables`, the `keyed` ones that have had a row with unchanged columns; see the module.

    `columns_now` is for deleted rows that stay. `decoded` has the columns of a table whose texts the server decodes.
    """

    database: str
    query: Query
    keyed: Collection[str]
    tables: set[str] = field(default_factory=set)
    columns_now: ColumnsNow = lambda _: ()
    decoded: Callable[[str], Mapping[str, Encoding]] = lambda _: {}

    def complete(self, table: str, key: TableKey, histories: Sequence[RowsOfKey]) -> list[bytes | None]:
        """The last row of each history, with all values; None for a delete of a row that is nowhere.

        Such a delete has nothing to say, and no values for NOT NULL columns. Raises InputError if a value is nowhere.
        """
        folded = self._folded(table, key, histories)
        for row, history in zip(folded, histories, strict=True):
            if row.moved:
                self._take_over(table, key, row, history)
        lacking = [number for number, row in enumerate(folded) if row.open_names]
        nowhere = set[int]()
        for number in lacking:
            if folded[number].was_deleted or not _has_key(folded[number].values, key):
                raise _no_row(table, folded[number].open_names, histories[number].place())
        columns = sorted({name for number in lacking for name in folded[number].open_names})
        for low in range(0, len(lacking), _KEYS_A_QUERY):
            part = lacking[low : low + _KEYS_A_QUERY]
            read = self._read(table, key, columns, [folded[number].values for number in part])
            for number, values in zip(part, read, strict=True):
                row = folded[number]
                if values is None and row.is_marked:
                    nowhere.add(number)
                elif values is None:
                    raise _no_row(table, row.open_names, histories[number].place())
                else:
                    row.values |= {name: values[name] for name in row.open_names}
        return [
            None if number in nowhere else f"{SEPARATOR}{_row(row.values)}".encode()
            for number, row in enumerate(folded)
        ]

    def _take_over(self, table: str, key: TableKey, row: _Folded, history: RowsOfKey) -> None:
        """Give an inserted row the values that the row of its former key had.

        None where there is no such row any more: the source sends the change again, and the table has the new one.
        """
        former = history.former()
        if former is None:
            return
        deleted = members(former.rows[-1][len(SEPARATOR) :].decode())
        of_key = {column.field: deleted[column.field] for column in key if column.field in deleted}
        question = f"{SEPARATOR}{with_unchanged(of_key, row.open_names)}".encode()
        with contextlib.suppress(InputError):
            (answer,) = self.complete(
                table, key, [RowsOfKey([*former.rows[:-1], question], history.place, former.former)]
            )
            values = members((answer or b",{}")[len(SEPARATOR) :].decode())
            row.values |= {name: values[name][1] for name in row.open_names if name in values}
            row.open_names = [name for name in row.open_names if name not in values]

    def _folded(self, table: str, key: TableKey, histories: Sequence[RowsOfKey]) -> list[_Folded]:
        """The last row of each history, which names all columns that it lacks."""
        folded = [_fold(history.rows) for history in histories]
        if any(row.keeps_all for row in folded):
            names = [column.name for column in self.columns_now(table) if not column.generated]
            for row in folded:
                if row.keeps_all:
                    row.open_names += [name for name in names if name not in row.values and name not in row.open_names]
        for row in folded:
            if row.open_names and row.is_marked and row.was_deleted:
                row.delete(key)
        return folded

    def _read(
        self, table: str, key: TableKey, columns: Sequence[str], rows: Sequence[Mapping[str, str]]
    ) -> list[dict[str, str] | None]:
        """The values of `columns` in the table, as JSON, for the key of each row; None where it has no such row."""
        types = {str(name): str(kind).lower() for name, kind in self.query(_TYPES, (self.database, table))}
        decoded = self.decoded(table)
        types |= {name: encoding.value for name, encoding in decoded.items() if name in types}
        for name in columns:
            if name not in types or _OPAQUE_TYPE.search(types[name]):
                lacks = f"of type {types[name]}" if name in types else "not in the table"
                raise InputError(
                    f"A row of table {table} leaves out column {name}, because its value did not change, and the sink "
                    f"cannot look it up: the column is {lacks}.",
                    hint=_REMEDY,
                    table=table,
                )
        selected = [f"CAST({_quoted(column.name)} AS VARCHAR)" for column in key]
        selected += [_expression(name, types[name]) for name in columns]
        maps = [name for name in columns if types[name].startswith("map")]
        selected += [f"map_size({_quoted(name)})" for name in maps]
        condition = " AND ".join(f"{_quoted(column.name)} = %s" for column in key)
        parameters = tuple(_parameter(column.key_type, row[column.field]) for row in rows for column in key)
        statement = (
            f"SELECT {', '.join(selected)} FROM {_quoted(self.database, table)} "
            f"WHERE {' OR '.join([f'({condition})'] * len(rows))}"
        )
        try:
            rows_read = self.query(statement, parameters)
        except QueryRefused as error:
            raise QueryRefused(
                f"Rows of table {table} leave out {', '.join(columns)}, because the value did not change, and "
                f"StarRocks refused to read it from the table: {error.message}",
                hint=f"Let the user SELECT from the table. {_REMEDY}",
                table=table,
                **error.context,
            ) from error
        names = [column.field for column in key]
        read = [_row(dict(zip(names, map(json.dumps, map(str, values)), strict=False))) for values in rows_read]
        key_rows = [_row({name: row[name] for name in names}) for row in rows]
        forms = _forms([*key_rows, *read], key)
        for values in rows_read:
            sizes = dict(zip(maps, values[len(key) + len(columns) :], strict=True))
            _check_maps(table, dict(zip(columns, values[len(key) :], strict=False)), sizes)
        by_key = {
            form: {name: _json(value, types[name]) for name, value in zip(columns, values[len(key) :], strict=False)}
            for form, values in zip(forms[len(key_rows) :], rows_read, strict=True)
        }
        return [by_key.get(form) for form in forms[: len(key_rows)]]


@dataclass(slots=True)
class _Folded:
    """The last row of a key as raw JSON by name; none of its rows has a value of `open_names`.

    With `keeps_all` the row is deleted and stays, and no row in front of it has all values. Those of one that is
    `inserted` are under another key.
    """

    values: dict[str, str]
    open_names: list[str]
    was_deleted: bool
    keeps_all: bool = False
    inserted: bool = False

    @property
    def moved(self) -> bool:
        """Whether the values that lack are those of another key."""
        return self.inserted and bool(self.open_names)

    @property
    def is_marked(self) -> bool:
        """Whether the source has deleted the row, and it stays in the table."""
        return self.values.get(DELETED) == "true"

    def delete(self, key: TableKey) -> None:
        """Delete the row: the table has none that could stay."""
        self.values = {OWN_OP: "1", **{column.field: self.values.get(column.field, "null") for column in key}}
        self.open_names = []


def _fold(rows: Sequence[bytes]) -> _Folded:
    """The last row, with values of the rows before it."""
    previous: dict[str, str] | None = None
    open_names: list[str] = []
    was_deleted = keeps_all = inserted = False
    for text in rows:
        row = {name: raw for name, (_, raw) in members(text[len(SEPARATOR) :].decode()).items()}
        names: list[str] = json.loads(row.pop(UNCHANGED, "[]"))
        if names[:1] == [INSERTED]:
            names, inserted = names[1:], inserted or previous is None  # else the source sends it again
        elif OWN_OP in row:
            inserted = False
        if previous is not None:
            row |= {name: previous.get(name, "null") for name in names if name not in open_names}
            names = [name for name in names if name in open_names]
        keeps_all = row.get(DELETED) == "true" and (previous is None or keeps_all)
        if previous is not None and row.get(DELETED) == "true":
            row = {**previous, **row}
            names += [name for name in open_names if name not in row and name not in names]
        open_names = names
        if OWN_OP in row:
            previous, was_deleted = None, True
        else:
            previous = row
    return _Folded(previous or {}, open_names, was_deleted, keeps_all, inserted)


def _deletes(text: bytes) -> bool:
    """Whether a row takes the one of its key away."""
    row = members(text[len(SEPARATOR) :].decode())
    return OWN_OP in row or row.get(DELETED, (None, ""))[1] == "true"


def _has_key(row: Mapping[str, str], key: TableKey) -> bool:
    return all(row.get(column.field, "null") != "null" for column in key)


def _forms(rows: Sequence[str], key: TableKey) -> list[object]:
    """The keys of JSON rows, equal for equal keys."""
    pieces = [f"{SEPARATOR}{row}".encode() for row in rows]
    starts = np.cumsum([0, *map(len, pieces)])
    content = np.frombuffer(b"".join((*pieces, bytes(ROOM))), np.uint8)
    forms: list[object] = [str(form) for form in read_keys(content, starts, key).to_pylist()]
    return forms


def _row(row: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{raw}" for name, raw in row.items()) + "}"


def _quoted(*names: str) -> str:
    return identifier(*names).replace("%", "%%")  # the statement has parameters


def _expression(name: str, kind: str) -> str:
    """The SQL for a column's value: JSON as JSON, because a cast of it to text may take a string's quotes away.

    The bare column of an ARRAY, MAP or STRUCT is no JSON where a text has a control character (wire contract 5.12).
    """
    if kind.startswith("json"):
        return _quoted(name)
    if kind in _ENCODINGS:
        return f"hex({_quoted(name)})"
    if kind.startswith("array"):  # StarRocks makes no JSON of an ARRAY, but of a STRUCT with one (wire contract 5.12)
        return f"json_query(to_json(row({_quoted(name)})), '$.col1')"
    return f"to_json({_quoted(name)})" if kind.startswith(_NESTED) else f"CAST({_quoted(name)} AS VARCHAR)"


def _check_maps(table: str, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    """Raise InputError for a MAP whose JSON lacks an entry: the server leaves out one whose key is an empty text."""
    for name, size in sizes.items():
        if values[name] is not None and len(json.loads(values[name])) != int(size):
            raise InputError(
                f"A row of table {table} leaves out column {name}, because its value did not change, and the sink "
                "cannot look it up: the server makes no JSON of a MAP with an empty key.",
                hint=_REMEDY,
                table=table,
            )


def _parameter(kind: KeyType, raw: str) -> object:
    """A key's value of a row as a parameter of its column's type."""
    value = json.loads(raw, parse_float=str, parse_int=str)
    return int(value) if kind is KeyType.INTEGER else str(value).lower() if isinstance(value, bool) else value


def _json(value: Any, kind: str) -> str:
    """A value of the table as JSON for a load."""
    if value is None:
        return "null"
    if kind == Encoding.BASE64.value:
        value = base64.b64encode(bytes.fromhex(value)).decode()
    return str(value) if kind.startswith(("json", *_NESTED)) else json.dumps(str(value), ensure_ascii=False)


def _no_row(table: str, names: Sequence[str], place: str) -> InputError:
    return InputError(
        f"A row of table {table} leaves out {', '.join(names)}, because the value did not change{place}, but the table "
        "has no row with this key to take it from.",
        hint=f"{_REMEDY} A change that the connector has sent again is followed by the delete of its row.",
        table=table,
    )
