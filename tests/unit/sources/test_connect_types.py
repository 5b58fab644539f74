"""The types of StarRocks for fields of a Connect schema: each type, and what has none."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.target import parse_type
from starrocks_txn_sink.sources.formats.connect_types import column_of, columns_of, table_of_message
from tests.support.connect_schema import CONNECT, DATA, TIME, Field, change, decimal, field, key, schema

KEY_TEXT = "VARCHAR(65533)"
NOTHING = ""

TYPES: list[tuple[Field, str, str]] = [
    (field("boolean"), "BOOLEAN", "BOOLEAN"),
    (field("int8"), "TINYINT", "TINYINT"),
    (field("int16"), "SMALLINT", "SMALLINT"),
    (field("int32"), "INT", "INT"),
    (field("int64"), "BIGINT", "BIGINT"),
    (field("int64", source_type="BIGINT UNSIGNED"), "LARGEINT", "LARGEINT"),
    (field("int64", source_type="bigint unsigned zerofill"), "LARGEINT", "LARGEINT"),
    (field("int64", source_type="INT UNSIGNED"), "BIGINT", "BIGINT"),
    (field("float"), "FLOAT", NOTHING),
    (field("double"), "DOUBLE", NOTHING),
    (field("string"), "STRING", KEY_TEXT),
    (field("string", source_type="VARCHAR", source_length=40), "VARCHAR(160)", "VARCHAR(160)"),
    (field("string", source_type="character varying", source_length=40), "VARCHAR(160)", "VARCHAR(160)"),
    (field("string", source_type="BPCHAR", source_length=2), "VARCHAR(8)", "VARCHAR(8)"),
    (field("string", source_type="VARCHAR", source_length=20_000), "VARCHAR(80000)", KEY_TEXT),
    (field("string", source_type="VARCHAR", source_length=2_147_483_647), "VARCHAR(1048576)", KEY_TEXT),
    (field("string", source_type="TEXT", source_length=5), "STRING", KEY_TEXT),
    (field("string", DATA + "Enum", source_type="ENUM", source_length=1), "STRING", KEY_TEXT),
    (field("string", source_type="NUMERIC", source_length=10, source_scale=2), "DECIMAL(10,2)", NOTHING),
    (field("string", source_type="NUMERIC", source_length=131_089, source_scale=0), "STRING", KEY_TEXT),
    (field("string", DATA + "Uuid"), "STRING", KEY_TEXT),
    (field("string", DATA + "Json"), "JSON", NOTHING),
    (field("bytes"), "STRING", KEY_TEXT),
    (field("struct", DATA + "geometry.Point"), "JSON", NOTHING),
    (field("struct", DATA + "geometry.Geometry"), "JSON", NOTHING),
    (field("struct", DATA + "geometry.Geography"), "JSON", NOTHING),
    (field("map", keys=field("string"), values=field("string")), "JSON", NOTHING),
    (decimal(2, 10), "DECIMAL(10,2)", NOTHING),
    (decimal(0, 10), "DECIMAL(10,0)", "LARGEINT"),
    (decimal(0, 38), "DECIMAL(38,0)", "LARGEINT"),
    (decimal(0, 39), "STRING", KEY_TEXT),
    (decimal(30, 60), "STRING", KEY_TEXT),
    (decimal(5, 2), "DECIMAL(5,5)", NOTHING),
    (decimal(-3, 2), "DECIMAL(5,0)", "LARGEINT"),
    (decimal(0), "LARGEINT", "LARGEINT"),
    (decimal(4), "DECIMAL(38,4)", NOTHING),
    (decimal(0, source_type="BIGINT UNSIGNED", source_length=20), "LARGEINT", "LARGEINT"),
    (decimal(2, source_type="DECIMAL", source_length=9), "DECIMAL(9,2)", NOTHING),
    (field("struct", DATA + "VariableScaleDecimal"), "STRING", NOTHING),
    (field("int32", TIME + "Date"), "DATE", "DATE"),
    (field("int32", CONNECT + "Date"), "DATE", "DATE"),
    (field("string", TIME + "IsoDate"), "DATE", "DATE"),
    (field("int64", TIME + "Timestamp"), "DATETIME", "DATETIME"),
    (field("int64", TIME + "MicroTimestamp"), "DATETIME", "DATETIME"),
    (field("int64", CONNECT + "Timestamp"), "DATETIME", "DATETIME"),
    (field("string", TIME + "IsoTimestamp"), "DATETIME", "DATETIME"),
    (field("string", TIME + "ZonedTimestamp"), "DATETIME", "DATETIME"),
    (field("int64", TIME + "NanoTimestamp"), "STRING", KEY_TEXT),
    (field("int64", TIME + "MicroTime"), "STRING", KEY_TEXT),
    (field("string", TIME + "ZonedTime"), "STRING", KEY_TEXT),
    (field("int32", TIME + "Year"), "INT", "INT"),
    (field("int64", TIME + "MicroDuration"), "BIGINT", "BIGINT"),
    (field("bytes", DATA + "Bits", length=9), "BIGINT", "BIGINT"),
    (field("bytes", DATA + "Bits", length=63), "BIGINT", "BIGINT"),
    (field("bytes", DATA + "Bits", length=64), "LARGEINT", "LARGEINT"),
    (field("bytes", DATA + "Bits", length=65), NOTHING, NOTHING),
    (field("bytes", DATA + "Bits"), NOTHING, NOTHING),
    (field("array", items=field("int32")), "ARRAY<INT>", NOTHING),
    (field("array", items=decimal(2, 10)), "ARRAY<DECIMAL(10,2)>", NOTHING),
    (field("array", items=field("int32", TIME + "Date")), "ARRAY<DATE>", NOTHING),
    (field("array", items=field("array", items=field("string"))), "ARRAY<ARRAY<STRING>>", NOTHING),
    (field("array", items=field("bytes", DATA + "Bits")), NOTHING, NOTHING),
    (field("odd"), NOTHING, NOTHING),
]


@pytest.mark.parametrize(("of", "type_", "key_type"), TYPES, ids=lambda part: json.dumps(part)[:60])
def test_every_type_has_its_own_for_values_and_for_keys(of: Field, type_: str, key_type: str) -> None:
    column, in_key = column_of(of), column_of(of, key=True)
    assert (column.type, in_key.type) == (type_, key_type)
    assert bool(column.refusal) == (not type_)
    assert bool(in_key.refusal) == (not key_type)


@pytest.mark.parametrize(
    ("of", "type_"),
    [
        (field("string"), "VARCHAR(1048576)"),
        (field("string", source_type="TEXT", source_length=5), "VARCHAR(1048576)"),
        (field("string", source_type="LONGTEXT"), "VARCHAR(1048576)"),
        (field("string", source_type="BYTEA"), "VARCHAR(1048576)"),
        (field("bytes"), "VARCHAR(1048576)"),
        (field("string", source_type="VARCHAR", source_length=9), "VARCHAR(36)"),
        (field("string", DATA + "Uuid"), "STRING"),
        (field("int64", TIME + "MicroTime"), "STRING"),
        (field("array", items=field("string")), "ARRAY<STRING>"),
    ],
)
def test_a_new_column_holds_what_a_text_without_a_length_can_have(of: Field, type_: str) -> None:
    assert column_of(of).new_type == type_
    assert column_of(of, key=True).new_type in (KEY_TEXT, type_, NOTHING)


@pytest.mark.parametrize(
    ("of", "note"),
    [
        (field("int64", TIME + "NanoTimestamp"), "declare DATETIME"),
        (field("int64", TIME + "Time"), "no type for a time"),
        (field("bytes"), "base64"),
        (field("struct", TIME + "StructuredDate"), "another time.precision.mode than structured"),
        (decimal(0, 50), "more digits than the 38"),
        (decimal(4), "does not say how many digits"),
        (field("struct", DATA + "VariableScaleDecimal"), "has no scale"),
        (field("array", items=field("bytes")), "base64"),
        (field("double", source_type="NUMERIC", source_length=10), "set decimal.handling.mode to precise"),
        (field("string", source_type="BYTEA"), "set binary.handling.mode to bytes"),
        (field("string", source_type="LONGBLOB"), "base64 or hexadecimal digits"),
        (field("string", source_type="VARBINARY(9)", source_length=9), "base64 or hexadecimal digits"),
    ],
)
def test_a_type_that_is_not_the_closest_one_is_said(of: Field, note: str) -> None:
    assert note in column_of(of).note


def test_a_key_of_dates_in_parts_is_refused_with_the_setting() -> None:
    refusal = column_of(field("struct", TIME + "StructuredDate"), key=True).refusal
    assert "a key of JSON" in refusal
    assert "another time.precision.mode than structured" in refusal


@given(st.integers(-20, 60), st.integers(1, 80), st.data())
def test_a_decimal_holds_every_number_of_its_precision(scale: int, precision: int, data: st.DataObject) -> None:
    """The digits of the largest number, with the scale's zeros, have room in the DECIMAL."""
    kind = parse_type(column_of(decimal(scale, precision)).type)
    if kind.name == "STRING":
        assert max(precision - scale, 0) + max(scale, 0) > 38
        return
    digits = data.draw(st.integers(1, precision))
    whole = max(digits - scale, 0)
    assert kind.scale >= max(scale, 0)
    assert kind.precision - kind.scale >= whole


_KINDS = st.sampled_from(["boolean", "int8", "int16", "int32", "int64", "float", "double", "string", "bytes", "struct"])
_NAMES = st.sampled_from(
    [None, *(TIME + name for name in ("Date", "MicroTime", "NanoTimestamp", "Year")), DATA + "Json", DATA + "Bits"]
)
_FIELDS = st.recursive(
    st.builds(lambda kind, name, length: field(kind, name, length=length), _KINDS, _NAMES, st.integers(-1, 99)),
    lambda inner: st.builds(lambda items: field("array", items=items), inner),
    max_leaves=3,
)


@given(_FIELDS)
def test_each_field_has_one_type_that_starrocks_knows_or_a_reason(of: Field) -> None:
    for key_ in (False, True):
        column = column_of(of, key=key_)
        assert bool(column.type) != bool(column.refusal)
        assert not column.type or parse_type(column.type).name != "OTHER"


_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "field", "x"]), inner),
    max_leaves=6,
)


@given(_JSON)
def test_any_other_json_is_an_error_of_ours_or_has_a_type(document: Any) -> None:
    with_name = {**document, "field": "x"} if isinstance(document, dict) else document
    with contextlib.suppress(InputError):
        columns_of(json.dumps(schema([with_name])))


# --- messages ---

ROW = {"id": field("int64"), "note": field("string")}


def test_a_message_gives_the_table_its_columns_and_its_key() -> None:
    table = table_of_message(key({"id": ROW["id"]}), change("orders", ROW))
    assert table is not None
    assert (table.collection, table.keys) == ("public.orders", ("id",))
    assert [(column.name, column.type) for column in columns_of(table.schema, table.keys)] == [
        ("id", "BIGINT"),
        ("note", "STRING"),
    ]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (b'{"id": 7, "region": "eu"}', ("id", "region")),
        (b'{"schema": {"type": "struct", "fields": [{"field": "id"}]}, "payload": {"id": 7}}', ("id",)),
        (b'{"schema": null, "payload": {"id": 7}}', ("id",)),
        (b'{"schema": null, "payload": null}', ()),
        (b"null", ()),
        (None, ()),
    ],
)
def test_a_key_may_have_a_schema_or_none(text: bytes | None, keys: tuple[str, ...]) -> None:
    table = table_of_message(text, change("orders", ROW))
    assert table is not None
    assert table.keys == keys


@pytest.mark.parametrize(
    "value", [{"status": "END", "id": "1:2"}, {"ts_ms": 1}, {"schema": {}, "payload": {"ts_ms": 1}}, {"id": 7}]
)
def test_other_messages_are_passed_over(value: Any) -> None:
    assert table_of_message(None, json.dumps(value).encode()) is None


def test_a_change_without_a_schema_names_the_setting() -> None:
    payload = json.loads(change("orders", ROW))["payload"]
    for value in (payload, {"payload": payload}, {"schema": None, "payload": payload}):
        with pytest.raises(InputError, match=r"public\.orders.* no schema.*schemas\.enable=true"):
            table_of_message(None, json.dumps(value).encode())


@pytest.mark.parametrize(("text", "value"), [(b"[1]", change("orders", ROW)), (None, b"no json")])
def test_text_that_is_no_object_is_an_error(text: bytes | None, value: bytes) -> None:
    with pytest.raises(InputError, match="not one JSON object"):
        table_of_message(text, value)
