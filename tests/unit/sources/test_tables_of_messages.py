"""What one message says about its table: Canal's types of MySQL, and Maxwell's messages, which say none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sink.assembly import message_formats
from starrocks_txn_sink.sources.formats.connect_types import columns_of, table_of_message
from tests.support import canal_feed, maxwell_feed
from tests.support.connect_schema import change, field, key

TYPES = {
    "tinyint(1)": "TINYINT",
    "tinyint(3) unsigned": "SMALLINT",
    "smallint": "SMALLINT",
    "smallint unsigned": "INT",
    "mediumint(8) unsigned": "INT",
    "INT(11)": "INT",
    "int(10) unsigned zerofill": "BIGINT",
    "int zerofill": "BIGINT",
    "bigint(20)": "BIGINT",
    "bigint unsigned": "LARGEINT",
    "year(4)": "SMALLINT",
    "decimal(10,2)": "DECIMAL(10,2)",
    "decimal": "STRING",
    "decimal(10)": "DECIMAL(10,0)",
    "decimal(65,30)": "STRING",
    "float": "FLOAT",
    "float(24)": "FLOAT",
    "float(53)": "DOUBLE",
    "float(30,2)": "FLOAT",
    "double(8,3)": "DOUBLE",
    "date": "DATE",
    "datetime(6)": "DATETIME",
    "timestamp": "DATETIME",
    "time(3)": "STRING",
    "bit(1)": "BIGINT",
    "bit(64)": "LARGEINT",
    "bit": "LARGEINT",
    "enum('a (b','c')": "INT",
    "set('a','b')": "LARGEINT",
    "char(3)": "VARCHAR(12)",
    "varchar(32)": "VARCHAR(128)",
    "varchar": "STRING",
    "text": "STRING",
    "json": "STRING",
    "varbinary(9)": "STRING",
    "geometry": "STRING",
    "vector(3)": "STRING",
    "": "STRING",
}


def described(message: dict[str, Any], of: bytes | None = None) -> Any:
    tables = (kind.described(of, json.dumps(message).encode()) for kind in message_formats().values())
    return next((table for table in tables if table is not None), None)


def test_canals_types_become_those_that_hold_its_texts() -> None:
    names = {f"c{number}": kind for number, kind in enumerate(TYPES)}
    table = described(canal_feed.flat("INSERT", [{"c0": "1"}], mysqlType=names, pkNames=["c0", "c9"]))
    assert (table.collection, table.keys) == ("shop.orders", ("c0", "c9"))
    columns = columns_of(table.schema)
    assert {names[column.name]: column.type for column in columns} == TYPES
    assert not any(column.refusal for column in columns)


@pytest.mark.parametrize("kind", ["blob", "LONGBLOB", "varbinary(9)", "binary(4)"])
def test_bytes_are_letters_and_said_to_be(kind: str) -> None:
    (column,) = columns_of(described(canal_feed.flat("INSERT", [{"c": "ÿ"}], mysqlType={"c": kind})).schema)
    assert (column.new_type, column.stands_for_bytes) == ("VARCHAR(1048576)", False)
    assert "ISO-8859-1" in column.note


def test_types_that_ticdc_writes_without_their_length_say_nothing_certain() -> None:
    """No column that is there is too narrow or too wide for them, and a new text column has all room."""
    names = {kind: kind for kind in ("decimal", "varchar", "char")}
    columns = columns_of(described(canal_feed.flat("INSERT", [{"char": "1"}], mysqlType=names, pkNames=[])).schema)
    assert all(column.vague for column in columns)
    assert [column.new_type for column in columns] == ["STRING", "VARCHAR(1048576)", "VARCHAR(1048576)"]


def test_a_table_without_a_key_and_a_delete() -> None:
    assert described(canal_feed.flat("DELETE", [{"id": "1"}], pkNames=None)).keys == ()


@pytest.mark.parametrize(
    "message",
    [
        canal_feed.flat("CREATE", None, isDdl=True, sql="…", mysqlType=None),
        canal_feed.flat("TRUNCATE", None, isDdl=True),
        {"type": "bootstrap-start", "database": "shop", "table": "orders", "ts": 1, "data": {}},
        {"type": "table-create", "database": "shop", "table": "orders", "ts": 1, "def": {}},
        {"type": "INSERT", "table": "orders", "data": [{}]},
        {"id": 1},
    ],
)
def test_other_messages_describe_nothing(message: dict[str, Any]) -> None:
    assert described(message) is None


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (canal_feed.flat("INSERT", [{"id": "1"}], mysqlType=None), "shop.orders do not say their types"),
        (maxwell_feed.row("insert", {"id": 1}), "test.e are Maxwell's, which do not say"),
        (maxwell_feed.row("bootstrap-insert", {"id": 1}), "test.e are Maxwell's, which do not say"),
    ],
)
def test_messages_without_types_are_refused_by_name_with_a_way_out(message: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text) as refused:
        described(message)
    assert "by hand" in refused.value.advice


def test_debeziums_changes_are_described_by_their_schema() -> None:
    message = change("orders", {"id": field("int64")}), key({"id": field("int64")})
    assert described(json.loads(message[0]), message[1]) == table_of_message(message[1], message[0])
