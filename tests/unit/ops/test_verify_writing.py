"""What a repair sends for a text of the source: the column keeps it, and `verify` takes it for the same value."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_ops.verify.rules.pairs import MYSQL, POSTGRESQL, Pair, masked, pair_of
from starrocks_txn_ops.verify.rules.writing import NotWritable, Shape, json_of
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.options.table_rules import Mask, MaskKind
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.rows.values.judgement import RowRules


def kept(pair: Pair, column: TargetColumn, text: str | None, decoded: Encoding | None = None) -> object:
    """The JSON value that is sent behind the sink's own judgement."""
    rules = RowRules.of([column], encodes_bytes=True, decoded={} if decoded is None else {column.name: decoded})
    row = f'{{"c":{json_of(pair, column.type.name, text, decoded)}}}'
    return json.loads(rules.fit(row))["c"]


VALUES = [
    (POSTGRESQL, "bigint", "bigint(20)", "42", "42"),
    (POSTGRESQL, "text", "varchar(100)", 'a "é" \\ \n', 'a "é" \\ \n'),
    (POSTGRESQL, "numeric(10,2)", "decimal(12,3)", "1.50", "1.50"),
    (POSTGRESQL, "real", "float", "1.100000023841858", "1.1"),
    (POSTGRESQL, "double precision", "double", "0.1", "0.1"),
    (POSTGRESQL, "boolean", "tinyint(1)", "1", True),
    (POSTGRESQL, "boolean", "varchar(10)", "0", "false"),
    (POSTGRESQL, "boolean", "int", "1", 1),
    (POSTGRESQL, "timestamp without time zone", "datetime", "2024-02-29 12:34:56.5", "2024-02-29 12:34:56.5"),
    (POSTGRESQL, "timestamp(6) with time zone", "datetime", "2024-02-29 12:34:56.5", "2024-02-29 12:34:56.5"),
    (POSTGRESQL, "timestamp with time zone", "varchar(40)", "2024-02-29 12:34:56.5", "2024-02-29T12:34:56.5Z"),
    (POSTGRESQL, "time with time zone", "varchar(40)", "12:34:56.5", "12:34:56.5Z"),
    (POSTGRESQL, "time without time zone", "varchar(40)", "12:34:56.5", "12:34:56.5"),
    (POSTGRESQL, "date", "date", "2024-02-29", "2024-02-29"),
    (POSTGRESQL, "jsonb", "json", '{"a": [1, "é"]}', {"a": [1, "é"]}),
    (POSTGRESQL, "jsonb", "json", "null", None),
    (POSTGRESQL, "jsonb", "varchar(100)", '{"a": 1}', '{"a": 1}'),
    (POSTGRESQL, "integer[]", "array<int(11)>", "[1, null, 3]", [1, None, 3]),
    (POSTGRESQL, "integer[]", "varchar(100)", "[1, 3]", "[1,3]"),
    (POSTGRESQL, "bytea", "varchar(100)", "AP8B", "AP8B"),
    (POSTGRESQL, "bytea[]", "json", '["\\\\x00ff", null]', ["AP8=", None]),
    (POSTGRESQL, "text[]", "json", '["\\\\x00ff"]', ["\\x00ff"]),
    (POSTGRESQL, "bit varying(5)", "bigint(20)", "101", 5),
    (POSTGRESQL, "interval", "bigint(20)", "P1DT2H", 93_600_000_000),
    (POSTGRESQL, "uuid", "varchar(36)", "00112233-4455-6677-8899-aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"),
    (POSTGRESQL, "integer", "json", "7", 7),
    (POSTGRESQL, "text", "json", "7", "7"),
    (MYSQL, "date", "date", "0000-00-00", None),
    (MYSQL, "decimal(10,2)", "decimal(10,2)", "1.50", "1.50"),
]


@pytest.mark.parametrize(("database", "source", "target", "text", "expected"), VALUES)
def test_a_value_of_each_type(database: str, source: str, target: str, text: str, expected: object) -> None:
    pair = pair_of(database, "c", source, "c", parse_type(target))
    assert kept(pair, TargetColumn("c", parse_type(target)), text) == expected
    assert kept(pair, TargetColumn("c", parse_type(target)), None) is None


@pytest.mark.parametrize(("encoding", "expected"), [(Encoding.BASE64, "AP8B"), (Encoding.HEX, "00ff01")])
def test_bytes_are_sent_as_the_server_decodes_them(encoding: Encoding, expected: str) -> None:
    pair = pair_of(POSTGRESQL, "c", "bytea", "c", parse_type("varbinary"))
    assert kept(pair, TargetColumn("c", parse_type("varbinary")), "00FF01", encoding) == expected


def test_a_point_is_debeziums_document() -> None:
    pair = pair_of(POSTGRESQL, "c", "point", "c", parse_type("json"))
    sent = json_of(pair, "JSON", "(1,2.5)")
    assert pair.agree("(1,2.5)", sent)
    with pytest.raises(NotWritable):
        json_of(pair, "JSON", "nowhere")


def test_a_mask_is_applied() -> None:
    hashed = masked(Mask(MaskKind.SHA256, "pepper"), POSTGRESQL, "text", "c", "c")
    assert json.loads(json_of(hashed, "VARCHAR", "a@b")) == hashlib.sha256(b"peppera@b").hexdigest()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_is_written_as_it_is(text: str) -> None:
    pair = pair_of(POSTGRESQL, "c", "text", "c", parse_type("varchar(1000)"))
    assert kept(pair, TargetColumn("c", parse_type("varchar(1000)")), text) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_number_of_32_bits_comes_back(number: float) -> None:
    pair = pair_of(POSTGRESQL, "c", "real", "c", parse_type("float"))
    sent = kept(pair, TargetColumn("c", parse_type("float")), repr(number))
    assert pair.agree(repr(number), str(sent))


def shape(*, keyed: bool = True, marks: bool = False) -> Shape:
    columns = {
        name: TargetColumn(name, parse_type(kind), key=name == "id")
        for name, kind in (("id", "int"), ("n", "int"), ("own", "int"), ("_deleted", "boolean"))
        if marks or name != "_deleted"
    }
    pairs = [pair_of(POSTGRESQL, name, "integer", name, parse_type("int")) for name in ("id", "n")]
    return Shape("t", columns, pairs[:1], pairs[1:], keyed=keyed, marks=marks)


def test_columns_without_a_pair_keep_their_values_in_a_row_that_is_there() -> None:
    unchanged = '"__starrocks_txn_sink_unchanged":["own"]'
    assert shape().upsert(("1",), ("2",), present=True) == f'{{"id":"1","n":"2",{unchanged}}}'
    assert shape().upsert(("1",), ("2",), present=False) == '{"id":"1","n":"2"}'
    assert shape(keyed=False).upsert(("1",), ("2",), present=True) == '{"id":"1","n":"2"}'


def test_a_row_is_deleted_or_marked() -> None:
    assert shape().delete(("1",)) == '{"__op":1,"id":"1"}'
    marked = json.loads(shape(marks=True).delete(("1",)))
    assert marked == {"id": "1", "_deleted": True, "__starrocks_txn_sink_unchanged": ["n", "own"]}
    assert json.loads(shape(marks=True).upsert(("1",), ("2",), present=False))["_deleted"] is False
