"""ARRAY, MAP and STRUCT over the query port, as real servers show them (wire contract 5.12)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from starrocks_emulator.sql.mysql import QueryListener
from starrocks_emulator.tables.store import Store
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.columns import UNCHANGED
from starrocks_txn_sink.rows.keys import KeyColumn
from starrocks_txn_sink.rows.unchanged import RowsOfKey, UnchangedValues
from tests.support import query_port
from tests.support.store_setup import load, with_tables

TYPES = {
    "numbers": "ARRAY<INT>",
    "texts": "ARRAY<ARRAY<VARCHAR(100)>>",
    "prices": "ARRAY<DECIMAL(10,2)>",
    "days": "ARRAY<DATE>",
    "big": "LARGEINT",
    "bigs": "ARRAY<LARGEINT>",
    "flags": "ARRAY<BOOLEAN>",
    "documents": "ARRAY<JSON>",
    "pairs": "MAP<VARCHAR(100),INT>",
    "point": "STRUCT<x INT, y VARCHAR(100), z ARRAY<DATETIME>>",
}
TEXT = "a\"b'c\\d\n\t\x01é"
VALUES: dict[str, Any] = {
    "numbers": [1, None, 3],
    "texts": [[TEXT, ""], [], None, [None]],
    "prices": ["0.01", 1.5, None],
    "days": ["2024-02-29", None],
    "big": str(2**100),
    "bigs": [str(2**100), None],
    "flags": [True, False, None],
    "documents": [{"a": TEXT}, "x", None],
    "pairs": {TEXT: 1, "b": None},
    "point": {"x": None, "y": TEXT, "z": ["2024-02-29 12:00:00"]},
}
ESCAPED = TEXT.replace("\\", "\\\\").replace('"', '\\"')


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = with_tables(Store(tmp_path / "data"))
    yield store
    store.close()


@pytest.fixture
def asked(store: Store) -> Iterator[pymysql.cursors.Cursor]:
    listener = QueryListener(
        store, user="root", password="", version="4.1.1", leader=lambda: True, be_http_ports=lambda: (1,)
    )
    listener.start()
    connection = query_port.connect(listener.port, password="", database="test")
    with connection, connection.cursor() as cursor:
        columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
        cursor.execute(f"CREATE TABLE nested (id INT NOT NULL, {columns}) PRIMARY KEY(id)")
        yield cursor
    listener.stop()


def ask(cursor: pymysql.cursors.Cursor, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    cursor.execute(sql, parameters or None)
    return list(cursor.fetchall())


def test_they_are_shown_in_a_form_of_their_own(store: Store, asked: pymysql.cursors.Cursor) -> None:
    load(store, "nested", [{"id": 1, **VALUES}, {"id": 2}])
    rows = ask(asked, "SELECT * FROM nested ORDER BY id")
    assert dict(zip(TYPES, rows[0][1:], strict=True)) == {
        "numbers": "[1,null,3]",
        "texts": f'[["{ESCAPED}",""],[],null,[null]]',
        "prices": "[0.01,1.50,null]",
        "days": '["2024-02-29",null]',
        "big": str(2**100),
        "bigs": f"[{2**100},null]",
        "flags": "[1,0,null]",
        "documents": "['{}','\"x\"',null]".format(
            json.dumps({"a": TEXT}, ensure_ascii=False).replace("\\", "\\\\").replace("'", "\\'")
        ),
        "pairs": f'{{"{ESCAPED}":1,"b":null}}',
        "point": f'{{"x":null,"y":"{ESCAPED}","z":["2024-02-29 12:00:00"]}}',
    }
    assert rows[1][1:] == (None,) * len(TYPES)
    with pytest.raises(ValueError, match="Invalid control character"):
        json.loads(ask(asked, "SELECT texts AS t FROM nested WHERE id = 1")[0][0])


@pytest.mark.parametrize(
    ("expression", "column_type"),
    [
        ("CAST(numbers AS JSON)", "array<int(11)>"),
        ("to_json(texts)", "array<array<varchar(100)>>"),
        ("CAST(numbers AS VARCHAR)", "array<int(11)>"),
        ("CAST(pairs AS JSON)", "map<varchar(100),int(11)>"),
        ("CAST(point AS JSON)", "struct<x int(11), y varchar(100), z array<datetime>>"),
    ],
)
def test_casts_that_the_server_does_not_have(asked: pymysql.cursors.Cursor, expression: str, column_type: str) -> None:
    with pytest.raises(pymysql.err.ProgrammingError) as failure:
        ask(asked, f"SELECT {expression} FROM nested")
    number, text = failure.value.args
    assert number == 1064
    assert f"Invalid type cast from {column_type} to " in text
    assert "in sql `test.nested." in text


def test_values_that_an_update_leaves_out_are_written_back_as_they_were(
    store: Store, asked: pymysql.cursors.Cursor
) -> None:
    key = [KeyColumn.of("id", "INT", None)]
    unchanged = UnchangedValues("test", lambda sql, values: ask(asked, sql, values), {"nested": key})
    load(store, "nested", [{"id": 1, **VALUES}, {"id": 2, "numbers": []}])
    before = ask(asked, "SELECT * FROM nested ORDER BY id")
    histories = [RowsOfKey([f",{json.dumps({'id': key, UNCHANGED: list(TYPES)})}".encode()]) for key in (1, 2)]
    completed = unchanged.complete("nested", key, histories)
    load(store, "nested", b"[" + b"".join(row for row in completed if row)[1:] + b"]")
    assert ask(asked, "SELECT * FROM nested ORDER BY id") == before
    load(store, "nested", [{"id": 3, "pairs": {"": 1, "a": 2}}])
    with pytest.raises(InputError, match=r"table nested leaves out column pairs.*MAP with an empty key"):
        unchanged.complete("nested", key, [RowsOfKey([f',{{"id":3,"{UNCHANGED}":["pairs"]}}'.encode()])])


def test_insert_and_update_make_them(asked: pymysql.cursors.Cursor) -> None:
    ask(
        asked,
        "INSERT INTO nested (id, numbers, texts, documents, pairs, point) VALUES "
        "(1, [1,NULL], [['a'],[]], [parse_json('{\"b\":1}')], map{'k':1}, row(1,'x\"y',NULL))",
    )
    assert ask(asked, "SELECT numbers, texts, documents, pairs, point FROM nested") == [
        ("[1,null]", '[["a"],[]]', "['{\"b\": 1}']", '{"k":1}', '{"x":1,"y":"x\\"y","z":null}')
    ]
    ask(asked, "UPDATE nested SET numbers = [NULL,2], texts = [['b\"c']], point = row(2,'z',NULL) WHERE id = 1")
    assert ask(asked, "SELECT numbers, texts, point FROM nested") == [
        ("[null,2]", '[["b\\"c"]]', '{"x":2,"y":"z","z":null}')
    ]
