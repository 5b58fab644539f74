"""Maxwell's messages as its documentation has them, as events: with the compiled loop and without it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import MaxwellAssembly
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sources.formats.maxwell import MaxwellMessages
from starrocks_txn_sink.sources.formats.tables import TableMapping
from tests.support.change_events import parse, rows_of
from tests.support.maxwell_feed import Message, batch, row, transaction

INSERTED = {"id": 1, "m": 4.2341, "c": "2016-10-21 05:33:37.523000", "comment": "I am a creature of light."}
UPDATED = {"id": 1, "m": 5.444, "c": "2016-10-21 05:33:54.631000", "comment": "I am a creature of light."}
DDL: list[Message] = [
    {
        "type": "table-create",
        "database": "test",
        "table": "e",
        "def": {"database": "test", "table": "e", "columns": [{"type": "int", "name": "id"}], "primary-key": ["id"]},
        "ts": 1477053126000,
        "sql": "create table test.e ( id int(10) not null primary key )",
        "position": "master.000006:800050",
    },
    {"type": "table-alter", "database": "test", "table": "e", "old": {}, "def": {}, "ts": 1, "sql": "alter …"},
    {"type": "table-drop", "database": "test", "table": "e", "ts": 1, "sql": "drop table e"},
    {"type": "database-create", "database": "test", "charset": "utf8", "ts": 1, "sql": "create database test"},
]


pytestmark = pytest.mark.usefixtures("loop")

parsed = partial(parse, MaxwellMessages)
rows = partial(rows_of, MaxwellMessages)


def test_a_row_of_each_kind_with_the_columns_of_its_transaction() -> None:
    """Binlog's position, ids of server and thread and the key's values are read by nobody."""
    about: dict[str, Any] = {"position": "master.000006:800911", "server_id": 23042, "thread_id": 108, "gtid": None}
    keys: dict[str, Any] = {"primary_key": [1, "2016-10-21 05:33:37.523000"], "primary_key_columns": ["id", "c"]}
    changes = batch(
        row("insert", INSERTED, commit=True, **about, **keys),
        row("update", UPDATED, old={"m": 4.2341}, xoffset=0, **about),
        row("delete", UPDATED, xid=5, commit=True),
        row("bootstrap-insert", INSERTED, xid=None),
    )
    events = parsed(changes, whole=True, source_time=True).events
    assert events.to_pylist() == [
        {
            "source_partition": "0",
            "txn_id": txn_id,
            "collection": "test.e",
            "position": position,
            "seq": 0,
            "database": None,
            "table": "e",
            "op": op,
            "row": json.dumps(fields),
            "source_time": 1477053217000,
            "number": number,
            "commit": commit,
        }
        for position, txn_id, op, fields, number, commit in [
            (7, "23396", "c", INSERTED, None, True),
            (8, "23396", "u", UPDATED, 0, False),
            (9, "5", "d", UPDATED, None, True),
            (10, None, "r", INSERTED, None, True),
        ]
    ]


def test_messages_without_a_row_are_passed_over() -> None:
    ends = [row(f"bootstrap-{kind}", {}, xid=None) for kind in ("start", "complete")]
    messages = batch(*DDL, *ends, None, row("insert", {"id": 1}))
    assert rows(messages) == [(14, 0, "e", "c", {"id": 1})]
    assert parsed(messages, on_malformed="drop").malformed == 0


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        '{"database":"test","table":"e","type":"insert","data":{"id":1}} {}',
        {"op": "c", "after": {"id": 1}, "source": {"table": "e"}},
        row("insert", {"id": 1}, table="e") | {"data": None},
        row("replace", {"id": 1}),
        row("insert", {"id": 1}, xid=None, xoffset="0"),
        row("insert", {"id": 1}) | {"encrypted": {"iv": "…", "bytes": "…"}, "data": None},
        {"database": "test", "table": "e", "type": "insert", "reason": "RecordTooLargeException", "data": {"id": 1}},
    ],
    ids=["cut", "list", "two", "debezium", "no data", "type", "text for a number", "encrypted", "not sent"],
)
def test_other_messages_are_malformed(value: Any) -> None:
    messages = batch(row("insert", {"id": 8}), value, row("insert", {"id": 9}))
    with pytest.raises(InputError, match=r"not a message of Maxwell's.* at source_partition=0 position=8\.") as error:
        parsed(messages)
    assert "8}" not in error.value.message
    dropped = parsed(messages, on_malformed="drop")
    assert (dropped.events["position"].to_pylist(), dropped.malformed) == ([7, 9], 1)


@pytest.mark.parametrize("keys", ["value", "hash", "array", "odd hash", "colon", "lower case"])
def test_an_update_of_a_key_deletes_the_old_row_first(keys: str) -> None:
    """The names of key columns come from the value or from Kafka's key, there in lower case."""
    name, data, old = "id", {"id": 2, "b": 1, "m": 7}, {"id": 1, "m": None}
    if keys == "odd hash":
        name, data, old = 'a:"b,{', {'a:"b,{': 2, "m": 7}, {'a:"b,{': 1}
    elif keys == "colon":
        name, data, old = "a:b", {"a:b": 2, "m": 7}, {"a:b": 1}
    elif keys == "lower case":
        name, data, old = "Id", {"Id": 2, "b": 1, "m": 7}, {"Id": 1, "m": None}
    more: dict[str, Any] = {"primary_key_columns": ["id", "b"]} if keys == "value" else {}
    text = {
        "value": None,
        "hash": '{"database":"test","table":"e","pk.id":2,"pk.b":1}',
        "array": '["test","e",[{"id":2},{"b":"x:\\"{"}]]',
        "odd hash": json.dumps({"database": "t", "table": "e:{", f"pk.{name}": 2}),
        "colon": '{"database":"test","table":"e","pk.a:b":2}',
        "lower case": '{"database":"test","table":"e","pk.id":2}',
    }[keys]
    messages = batch(row("update", data, old=old, **more), row("update", data, old={"m": 1}, **more))
    messages = messages.set_column(1, "key", pa.array([text, text]).cast(pa.binary()))
    assert rows(messages) == [
        (7, 0, "e", "d", data | old),
        (7, 1, "e", "u", data),
        (8, 0, "e", "u", data),
    ]
    assert name in data


def test_a_key_that_keeps_its_value_and_a_table_without_key_have_no_delete() -> None:
    """The name of a key may also stand in a value."""
    old = {"m": '"id":1', "doc": {"id": 1}, "id": 2}
    assert [op for *_, op, _ in rows(batch(row("update", {"id": 2, "m": 1}, old=old)))] == ["u"]
    assert [op for *_, op, _ in rows(batch(row("update", {"id": 2}, old={"id": 1}), columns=()))] == ["u"]


@pytest.mark.parametrize("where", ["value", "key", "key of an insert"])
def test_the_keys_of_the_sources_tables_are_told(where: str) -> None:
    """By which rows come; a table that no rule knows has none, nor has a message without a key."""
    more: dict[str, Any] = {"primary_key_columns": ["id", "b"]} if where == "value" else {}
    old: dict[str, Any] = {} if where == "key of an insert" else {"old": {"m": 0}}
    kind = "update" if old else "insert"
    messages = batch(*(row(kind, {"id": number, "b": 1, "m": 7}, **old, **more) for number in (1, 2)))
    texts = [None if where == "value" else f'{{"database":"test","table":"e","pk.id":{n},"pk.b":1}}' for n in (1, 2)]
    messages = messages.set_column(1, "key", pa.array(texts).cast(pa.binary()))
    assert parsed(messages).keys == {("maxwell", "test.e", "e", ("id", "b"))}
    nothing = messages.set_column(1, "key", pa.nulls(2, pa.binary()))
    assert where != "key of an insert" or parsed(nothing).keys == frozenset()
    assert parsed(messages, tables=TableMapping({"test.other": "t"}, "skip")).keys == frozenset()


def test_an_update_without_the_names_of_its_key_is_an_error() -> None:
    messages = batch(row("insert", {"id": 1}), row("update", {"id": 2}, old={"id": 1}))
    messages = messages.set_column(1, "key", pa.nulls(2, pa.binary()))
    with pytest.raises(InputError, match=r"names no columns of a key.*position=8\..*output_primary_key_columns=true"):
        parsed(messages)


def test_tables_are_named_by_database_and_table() -> None:
    messages = batch(row("insert", {"id": 1}), row("delete", {"id": 2}, table="f"))
    with pytest.raises(InputError, match=r"does not know test\.f"):
        rows(messages, tables=TableMapping({"test.e": "events"}))
    skipped = rows(messages, tables=TableMapping({"test.e": "events"}, "skip"))
    assert [table for _, _, table, *_ in skipped] == ["events", None]
    letters = rows(messages, tables=TableMapping({"test.e": "events"}, "dead_letter", "letters"))
    assert letters[1][2:4] == ("letters", "c")
    letter = {"txn_id": "23396", "collection": "test.f", "position": 8, "reason": "unknown table", "op": "d"}
    assert letters[1][4] == letter | {"content": '{"id": 2}'}


def test_a_registry_is_no_argument_because_maxwell_has_none() -> None:
    with pytest.raises(Exception, match="no argument 'registry'"):
        MaxwellAssembly(registry=None)  # type: ignore[call-arg]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
DATA = st.dictionaries(st.sampled_from(["id", "a", '"', "ü", "old"]), VALUES, max_size=3)
MESSAGES = st.lists(
    st.builds(
        lambda kind, data, old, columns: row(
            kind, data, commit=True, old=old if kind == "update" else None, primary_key_columns=columns
        ),
        st.sampled_from(["insert", "update", "delete"]),
        DATA,
        st.none() | DATA,
        st.sampled_from([["id"], ["id", '"'], []]),
    ),
    min_size=1,
    max_size=6,
)


@given(messages=MESSAGES, ascii_only=st.booleans())
def test_any_messages_give_the_rows_that_plain_python_finds(messages: list[Message], ascii_only: bool) -> None:
    expected = list[tuple[str, Any]]()
    for message in messages:
        data, old = message["data"], message.get("old")
        keys = message["primary_key_columns"]
        if old is not None and any(name in keys and (name not in data or data[name] != old[name]) for name in old):
            expected.append(("d", data | old))
        expected.append(({"insert": "c", "update": "u", "delete": "d"}[message["type"]], data))
    texts = [json.dumps(message, ensure_ascii=ascii_only) for message in messages]
    assert [(op, fields) for *_, op, fields in rows(batch(*texts))] == expected


def test_xid_and_offset_come_from_any_spelling_of_numbers() -> None:
    first, last = transaction(1 << 60, ("insert", {"id": 1}), ("insert", {"id": 2}))
    events = parsed(batch(first, last), whole=True).events.to_pydict()
    assert (events["txn_id"], events["number"], events["commit"]) == ([str(1 << 60)] * 2, [0, None], [False, True])


def test_a_key_in_capitals_that_changes_takes_its_former_row_away() -> None:
    changed = row("update", {"ID": 2, "n": 1}, old={"ID": 1}, primary_key_columns=["ID"], commit=True)
    assert rows(batch(changed, columns=("ID",))) == [
        (7, 0, "e", "d", {"ID": 1, "n": 1}),
        (7, 1, "e", "u", {"ID": 2, "n": 1}),
    ]
