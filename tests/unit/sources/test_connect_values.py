"""Values of Kafka Connect's JSON with a schema: what a connector's modes make of a value is one text for StarRocks.

Each rule holds with the compiled loop and without it.
"""

from __future__ import annotations

import base64
import datetime
import json
import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from starrocks_txn_sink.compiled.layout import ConversionKind as Kind
from starrocks_txn_sink.sources.formats import connect_values
from starrocks_txn_sink.sources.formats.connect_values import (
    MALFORMED,
    Conversion,
    PlansOfValues,
    convert_row,
    convert_rows,
    plans_of,
)
from tests.support.depth import scaled

DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."


pytestmark = pytest.mark.usefixtures("loop")


def field(kind: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": True, "field": "x", **({"name": name} if name else {}), **more}


def decimal(scale: int) -> dict[str, Any]:
    return field("bytes", CONNECT + "Decimal", parameters={"scale": str(scale)})


def schema_of(*fields: Mapping[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": list(fields), "optional": False})


def encoded(number: int) -> str:
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def written(of: Mapping[str, Any], *values: str) -> list[str | None]:
    """The value `x`, as it stands in a row, after the conversion for a field; None for a row that does not fit."""
    plan = plans_of(schema_of(of)).get("", {})
    rows = pa.array([f'{{"id":1,"x":{value},"n":{{"x":1}}}}' for value in values])
    rows_found, fits = convert_rows(rows, [plan], np.zeros(len(rows), dtype=np.int32))
    rows_found.validate(full=True)
    texts = [text[len('{"id":1,"x":') : -len(',"n":{"x":1}}')] for text in rows_found.to_pylist()]
    return [text if is_sound else None for text, is_sound in zip(texts, fits.tolist(), strict=True)]


TIMES = [
    (field("int32", DEBEZIUM + "Date"), "19782", "2024-02-29"),
    (field("int32", CONNECT + "Date"), "-719162", "0001-01-01"),
    (field("int32", DEBEZIUM + "Date"), "2932897", "+10000-01-01"),
    (field("int32", DEBEZIUM + "Date"), "-719528", "0000-01-01"),
    (field("int32", DEBEZIUM + "Date"), "-735160", "-0043-03-15"),
    (field("int32", DEBEZIUM + "Date"), "-2147472692", "infinity"),
    (field("int32", DEBEZIUM + "Date"), "-2147472691", "-infinity"),
    (field("int32", DEBEZIUM + "Date"), "-622191234", "infinity"),  # of a snapshot
    (field("int32", DEBEZIUM + "Date"), "-622191235", "infinity"),  # … of a connector in another zone
    (field("int32", DEBEZIUM + "Date"), "-622191236", "-1701532-04-03"),
    (field("int32", DEBEZIUM + "Date"), "-625821272", "-infinity"),
    (field("int32", DEBEZIUM + "Time"), "45296123", "12:34:56.123000"),
    (field("int32", CONNECT + "Time"), "0", "00:00:00"),
    (field("int64", DEBEZIUM + "MicroTime"), "86400000000", "24:00:00"),
    (field("int64", DEBEZIUM + "MicroTime"), "-3020399000001", "-838:59:59.000001"),
    (field("int64", DEBEZIUM + "NanoTime"), "45296123456789", "12:34:56.123456789"),
    (field("int64", DEBEZIUM + "Timestamp"), "-1", "1969-12-31 23:59:59.999000"),
    (field("int64", CONNECT + "Timestamp"), "1709210096000", "2024-02-29 12:34:56"),
    (field("int64", DEBEZIUM + "MicroTimestamp"), "1709210096123456", "2024-02-29 12:34:56.123456"),
    (field("int64", DEBEZIUM + "NanoTimestamp"), "1709210096123456700", "2024-02-29 12:34:56.123456700"),
    (field("int64", DEBEZIUM + "NanoTimestamp"), "-9223372036854775808", "1677-09-21 00:12:43.145224192"),
    (field("int64", DEBEZIUM + "MicroTimestamp"), "-9223372036854775808", "-290308-12-21 19:59:05.224192"),
    (field("int64", DEBEZIUM + "MicroTimestamp"), "9223372036825200000", "infinity"),
    (field("int64", DEBEZIUM + "Timestamp"), "-9223372036832400", "-infinity"),
    (field("string", DEBEZIUM + "IsoDate"), '"2024-02-29Z"', "2024-02-29"),
    (field("string", DEBEZIUM + "IsoDate"), '"-5877611-06-21Z"', "infinity"),
    (field("string", DEBEZIUM + "IsoDate"), '"+292278994-08-16Z"', "infinity"),
    (field("string", DEBEZIUM + "IsoDate"), '"+292269055-12-02Z"', "-infinity"),
    (field("string", DEBEZIUM + "IsoDate"), '"2024-02-29+01:00"', "2024-02-29+01:00"),
    (field("string", DEBEZIUM + "IsoTime"), '"12:34:56.1Z"', "12:34:56.100000"),
    (field("string", DEBEZIUM + "IsoTime"), '"PT-1H"', "PT-1H"),
    (field("string", DEBEZIUM + "IsoTimestamp"), '"2024-02-29T12:34:56.123456Z"', "2024-02-29 12:34:56.123456"),
    (field("string", DEBEZIUM + "IsoTimestamp"), '"+12024-02-29T12:34:56Z"', "+12024-02-29 12:34:56"),
    (field("string", DEBEZIUM + "IsoTimestamp"), '"+294247-01-10T04:00:25.2Z"', "infinity"),
    (field("string", DEBEZIUM + "IsoTimestamp"), '"-290308-12-21T19:59:27.6Z"', "-infinity"),
    (field("string", DEBEZIUM + "ZonedTimestamp"), '"2024-03-01T00:30:00.5+01:00"', "2024-02-29 23:30:00.500000"),
    (field("string", DEBEZIUM + "ZonedTimestamp"), '"2023-12-31T23:30:00-05:30"', "2024-01-01 05:00:00"),
    (field("string", DEBEZIUM + "ZonedTimestamp"), '"infinity"', "infinity"),
    (field("string", DEBEZIUM + "ZonedTimestamp"), r'"2024-02-29T12:34:56\u005a"', "2024-02-29 12:34:56"),
]


@pytest.mark.parametrize(("of", "value", "text"), TIMES)
def test_dates_and_times_are_texts(of: dict[str, Any], value: str, text: str) -> None:
    assert written(of, value, "null", value) == [f'"{text}"', "null", f'"{text}"']


@pytest.mark.parametrize(
    ("of", "value", "text"),
    [
        (decimal(2), json.dumps(encoded(123456789012)), '"1234567890.12"'),
        (decimal(2), '"/w=="', '"-0.01"'),
        (decimal(0), '"gA=="', '"-128"'),
        (decimal(3), '"AA=="', '"0.000"'),
        (decimal(-2), json.dumps(encoded(-5)), '"-500"'),
        (decimal(-2), '"AA=="', '"0"'),
        (decimal(2), "1.50", "1.50"),  # decimal.format=NUMERIC of the converter
        (decimal(2), "1E+3", "1E+3"),
        (decimal(1), json.dumps(encoded(-(10**600))), f'"-1{"0" * 599}.0"'),
        (field("struct", "io.debezium.data.VariableScaleDecimal"), '{ "scale": 1, "value": "+w==" }', '"-0.5"'),
        (field("struct", "io.debezium.data.VariableScaleDecimal"), '{"value":"AYag","scale":0}', '"100000"'),
        (field("bytes", "io.debezium.data.Bits", parameters={"length": "12"}), '"qgo="', "2730"),
        (field("bytes", "io.debezium.data.Bits", parameters={"length": "9"}), '""', "0"),
        (field("array", items=decimal(3)), '["BNI=", null ,"7Hg="]', '["1.234", null ,"-5.000"]'),
        (field("array", items=decimal(3)), "[ ]", "[ ]"),
        (field("array", items=field("array", items=field("int32", DEBEZIUM + "Date"))), "[[0],[1,null]]",
         '[["1970-01-01"],["1970-01-02",null]]'),
        (field("map", keys=field("string"), values=field("int32", DEBEZIUM + "Date")), '{"a": 0, "b": null}',
         '{"a":"1970-01-01","b":null}'),
        (field("struct", fields=[field("int32", DEBEZIUM + "Date"), field("string") | {"field": "é"}]),
         '{"x":0,"é":"ü\\n"}', '{"x":"1970-01-01","é":"ü\\n"}'),
    ],
)  # fmt: skip
def test_decimals_bits_and_what_holds_them_are_exact(of: dict[str, Any], value: str, text: str) -> None:
    assert written(of, value, "null", value) == [text, "null", text]


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (field("int64", DEBEZIUM + "Timestamp"), "1709210096123"),
        (field("int64", DEBEZIUM + "MicroTimestamp"), "1709210096123456"),
        (field("int64", DEBEZIUM + "NanoTimestamp"), "1709210096123456000"),
        (field("int64", "org.apache.kafka.connect.data.Timestamp"), "1709210096123"),
        (field("int32", DEBEZIUM + "Time"), "43200123"),
        (field("int64", DEBEZIUM + "MicroTime"), "43200123456"),
        (field("int64", DEBEZIUM + "NanoTime"), "43200123456000"),
        (field("int32", DEBEZIUM + "Date"), "19782"),
        (field("string", DEBEZIUM + "ZonedTimestamp"), '"2024-02-29T12:34:56.123Z"'),
        (decimal(3), '"BNI="'),
    ],
)
def test_an_element_is_written_as_the_same_value_alone(of: dict[str, Any], value: str) -> None:
    """Also its unit: a timestamp(3) in an array has milliseconds, as one outside of it."""
    (alone,) = written(of, value)
    assert alone != value
    assert written(field("array", items=of), f"[{value},null]") == [f"[{alone},null]"]
    assert written(field("map", keys=field("string"), values=of), f'{{"k":{value}}}') == [f'{{"k":{alone}}}']
    assert written(field("struct", fields=[of]), f'{{"x":{value}}}') == [f'{{"x":{alone}}}']


@pytest.mark.parametrize(
    "of",
    [
        field("int64"), field("double"), field("string"), field("bytes"), field("boolean"),
        field("string", "io.debezium.data.Xml"), field("string", DEBEZIUM + "ZonedTime"),
        field("int64", DEBEZIUM + "MicroDuration"), field("int32", DEBEZIUM + "Year"),
        field("struct", "io.debezium.data.geometry.Point", fields=[field("double"), field("bytes")]),
        field("array", items=field("int32")), field("map", keys=field("string"), values=field("string")),
    ],
)  # fmt: skip
def test_other_values_stay_as_they_came(of: dict[str, Any]) -> None:
    assert plans_of(schema_of(of)) == {}


_WKB, _SRID = {"field": "wkb", "type": "bytes"}, {"field": "srid", "type": "int32", "optional": True}
_BESIDE_A_DATE = {
    "geometry": (
        field("struct", "io.debezium.data.geometry.Geometry", fields=[_WKB, _SRID]),
        '{"wkb":"AQEAACDmEAAAAAAAAAAA8D8AAAAAAAAAQA==","srid":4326}',
    ),
    "geography": (
        field("struct", "io.debezium.data.geometry.Geography", fields=[_WKB, _SRID]),
        '{"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAABA","srid":null}',
    ),
    "hstore": (field("map", keys=field("string"), values=field("string")), '{"a":"1","b":null,"d":"2"}'),
    "hstore as JSON": (field("string", "io.debezium.data.Json"), r'"{\"a\":\"1\"}"'),
    "range": (field("string"), '"[2024-02-29,infinity)"'),
    "ranges": (field("array", items=field("string")), '["[1,5)",null,"empty"]'),
}


@pytest.mark.parametrize("kind", _BESIDE_A_DATE)
def test_geometries_hstores_and_ranges_stay_as_they_came_beside_a_date(kind: str) -> None:
    """As the connector for PostgreSQL writes them; a document of JSON alone stands in the row as itself."""
    of, value = _BESIDE_A_DATE[kind]
    plan = plans_of(schema_of(of, {**field("int32", DEBEZIUM + "Date"), "field": "d"}))[""]
    rows_found, fits = convert_rows(pa.array([f'{{"x":{value},"d":19782}}']), [plan], np.zeros(1, dtype=np.int32))
    expected = json.loads(value) if kind == "hstore as JSON" else value
    assert rows_found.to_pylist() == [f'{{"x":{expected},"d":"2024-02-29"}}']
    assert fits.all()


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (field("int32", DEBEZIUM + "Date"), '"2024-02-29"'),
        (field("int32", DEBEZIUM + "Date"), "2147483648"),
        (field("int64", DEBEZIUM + "Timestamp"), "1.5"),
        (field("int64", DEBEZIUM + "Timestamp"), "9223372036854775808"),
        (field("string", DEBEZIUM + "IsoDate"), "1"),
        (decimal(2), '"not base64"'), (decimal(2), '"AB=="'), (decimal(2), '""'), (decimal(2), "[]"),
        (field("struct", "io.debezium.data.VariableScaleDecimal"), '{"scale":1}'),
        (field("struct", "io.debezium.data.VariableScaleDecimal"), '{"scale":99999999,"value":"AA=="}'),
        (field("array", items=decimal(3)), '"BNI="'),
        (field("map", keys=field("string"), values=decimal(3)), "[1]"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_schema_is_refused(of: dict[str, Any], value: str) -> None:
    assert written(of, "null", value, "null") == ["null", None, "null"]


def test_dates_agree_with_the_calendar() -> None:
    rng, day = random.Random(5), datetime.date(1970, 1, 1)
    days = [rng.randrange(-719162, 2932897) for _ in range(scaled(2_000))]
    expected = [f'"{(day + datetime.timedelta(number)).isoformat()}"' for number in days]
    assert written(field("int32", DEBEZIUM + "Date"), *map(str, days)) == expected


def test_decimals_agree_with_pythons() -> None:
    rng = random.Random(6)
    for _ in range(scaled(200)):
        scale, number = rng.randrange(0, 60), rng.randrange(-(1 << rng.randrange(1, 520)), 1 << rng.randrange(1, 520))
        (text,) = written(decimal(scale), json.dumps(encoded(number)))
        assert text is not None
        sign, digits, exponent = Decimal(json.loads(text)).as_tuple()
        assert int("".join(map(str, digits))) * (-1 if sign else 1) == number
        assert exponent == -scale


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": [1, 2.50], "b": "x\\"\\u00e9"}', None),
        ('"text"', None),
        (" [true ]\n", None),
        ("-0.5e-3", None),
        ("null", None),
        ('{"😀": "\t"}', '{"😀": "\t"}'),
        ("", '""'),
        ("__debezium_unavailable_value", '"__debezium_unavailable_value"'),
        ("{} {}", '"{} {}"'),
        ("NaN", '"NaN"'),
        ('{"a": "\x00"}', None),
    ],
)
def test_a_document_stands_in_the_row_as_itself(text: str, expected: str | None) -> None:
    """However its text is escaped; a text that is no JSON stays a text."""
    column = field("string", "io.debezium.data.Json")
    spellings = json.dumps(text), json.dumps(text, ensure_ascii=False)
    for spelling, text_found in zip(spellings, written(column, *spellings), strict=True):
        if expected is None and "\x00" not in text:
            assert text_found == text
        elif "\t" in text or "\x00" in text:
            assert text_found == spelling  # a control character within a string is no JSON
        else:
            assert text_found == expected


def test_long_documents_find_room() -> None:
    texts = ["[" + ",".join(['"' + "\u00e9" * 500 + '"'] * size) + "]" for size in (1, 40, 400)]
    assert written(field("string", "io.debezium.data.Json"), *map(json.dumps, texts)) == texts


def test_an_array_of_documents() -> None:
    of = field("array", items={"type": "string", "name": "io.debezium.data.Json"})
    assert written(of, r'["{\"a\":1}", null, "x"]') == ['[{"a":1}, null, "x"]']


# --- rows ---

PLAN = {
    "d": Conversion(Kind.DATE), "t": Conversion(Kind.TIMESTAMP, 6), "m": Conversion(Kind.DECIMAL, 2),
    "a": Conversion(Kind.DATE, array=True), "v": Conversion(Kind.VARIABLE_DECIMAL), "k": Conversion(),
    "o": Conversion(Kind.ODD, inner=Conversion(Kind.DATE)), "z": Conversion(Kind.ISO_TIMESTAMP),
    "b": Conversion(Kind.BITS), "j": Conversion(Kind.DOCUMENT), "l": Conversion(Kind.DOCUMENT, array=True),
    "bd": Conversion(Kind.DATE, bare=True), "bt": Conversion(Kind.TIMESTAMP, 3, bare=True),
    "bu": Conversion(Kind.TIMESTAMP, -1, bare=True), "bv": Conversion(Kind.VARIABLE_DECIMAL, bare=True),
    "ba": Conversion(Kind.TIMESTAMP, 9, array=True, bare=True), "u": Conversion(Kind.UNSIGNED),
    "ua": Conversion(Kind.UNSIGNED, array=True),
}  # fmt: skip
_VALUES = {
    "d": ("1", "-1", "null", "1e2", '"x"'), "t": ("0", "-1", "9223372036825200000", "-0", "00"),
    "m": ('"AQ=="', "1.5", "null", r'"\u0041Q=="', '"="', '"AQ="'),
    "a": ("[1, 2]", "[]", "[ 1,]", "null", "{}", "[[1]]"),
    "v": ('{"scale":2,"value":"AQ=="}', '{"value":"AQ==","scale":2}', "{}", '{"scale":2,"scale":1,"value":"AQ=="}',
          "7"),
    "k": ('{"d":1}', '"é\\n"', "[" * 70 + "]" * 70, "tru"), "o": ("[1,2]", '{"a":1}', "null"),
    "z": ('"2024-01-01T00:00:00Z"', '"2024-01-01T00:00:00.0000000001Z"', '"2024-02-31T00:00:00Z"', '"2024-1-1"'),
    "b": ('"AQA="', '"AQB="', '""'),
    "j": (json.dumps('{"a": ["é", 1e2, "\\n"]}'), "null", '" 7 "', '"x"', r'"\ud83d\ude00"',
          r'"{\"\ud83d\ude00\":\n1}"', "7", r'"\"\ud83d\""', json.dumps("[" * 70 + "]" * 70)),
    "l": (r'["{}", null, "\"\""]', "[]", '"{}"', "[7]", '["]"]'), r"\u0064": ("1",),
    "bd": ("19782", '"2024-02-29"', "null", "1e2", "3000000000", "[1]"),
    "bt": ("1709210096123", "0", "-719163", "-719162", "2932897", "2932896", "true", "1.5", '"' + "é" * 500 + '"'),
    "bu": ('"x"', "null", "1"),
    "bv": ("1.5", '{"scale":2,"value":"AQ=="}', '"1.5"', '"1234"', r'"\u0031234"', "{}", "7"),
    "ba": ("[1709210096123456789, null]", "[]", '["x", "y"]', "[ 0 , 5 ]", "7", '["x",1709210096123456000]', "[{]"),
    "u": ("7", "-1", "null", "-9223372036854775808", "-9223372036854775809", "-1.5", "-", '"-1"', "[-1]"),
    "ua": ("[7, 8]", "[-1,null,-2]", "7"),
 "other": ("1", "{}"),
}  # fmt: skip


def _random_row(rng: random.Random) -> str:
    names = rng.sample(list(_VALUES), rng.randrange(6)) * rng.choice((1, 1, 1, 2))
    blank = rng.choice(("", "", " ", "\n"))
    members = [
        f'{blank}"{name}"{blank}:{blank}{rng.choice(_VALUES[name][: rng.choice((2, 9))])}{blank}' for name in names
    ]
    row = f"{rng.choice(('', '', ','))}{{{','.join(members)}}}"
    if rng.random() < 0.1:
        at = rng.randrange(len(row))
        row = row[:at] + rng.choice('"{}[],: 1\\') + row[at + rng.randrange(2) :]
    return row


def test_random_rows_are_written_as_python_writes_each_of_them() -> None:
    rng = random.Random(11)
    for _ in range(scaled(300)):
        rows = [_random_row(rng) if rng.random() < 0.95 else None for _ in range(rng.choice((1, 3, 30)))]
        plan_numbers = np.array([rng.choice((-1, 0, 0, 0, 1)) for _ in rows], dtype=np.int32)
        expected: list[str | None] = []
        for row, plan in zip(rows, plan_numbers.tolist(), strict=True):
            try:
                expected.append(row if plan < 0 or row is None else convert_row(row, (PLAN, {"d": PLAN["d"]})[plan]))
            except (ValueError, IndexError):
                expected.append("malformed")
        rows_found, fits = convert_rows(pa.array(rows, pa.string()), [PLAN, {"d": PLAN["d"]}], plan_numbers)
        rows_found.validate(full=True)
        outcomes = [
            row if is_sound else "malformed"
            for row, is_sound in zip(rows_found.to_pylist(), fits.tolist(), strict=True)
        ]
        assert outcomes == expected


def test_rows_that_grow_find_room() -> None:
    days = [f'{{"a":[{",".join(["1"] * 3_000)}]}}'] * 40
    rows_found, fits = convert_rows(pa.array(days), [PLAN], np.zeros(40, dtype=np.int32))
    assert fits.all()
    assert {len(row) for row in rows_found.to_pylist()} == {len('{"a":[]}') + 3_000 * len('"1970-01-02",') - 1}


def test_a_slice_of_rows() -> None:
    rows = pa.array(['{"d":0}', None, '{"d":1}', '{"d":2}']).slice(1, 2)
    rows_found, _ = convert_rows(rows, [PLAN], np.zeros(2, dtype=np.int32))
    assert rows_found.to_pylist() == [None, '{"d":"1970-01-02"}']


def test_python_converts_no_plain_value(monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    if loop == "pure":
        pytest.skip("without the loop Python converts all")
    monkeypatch.setattr(connect_values, "convert_row", None)
    row = '{"d":1,"t":2,"m":"AQ==","a":[3],"v":{"scale":1,"value":"AQ=="},"z":"2024-01-01T00:00:00Z","b":"AQ=="}'
    row = row[:-1] + r',"j":"{\"a\":1}","l":["[]"]}'
    rows_found, fits = convert_rows(pa.array([row] * 100), [PLAN], np.zeros(100, dtype=np.int32))
    assert fits.all()
    assert len(set(rows_found.to_pylist())) == 1


# --- the schemas of values ---


def test_a_schema_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, schema = PlansOfValues(), schema_of(field("int32", DEBEZIUM + "Date") | {"field": "d"})
    text = f'{{"schema":{schema},"payload":{{"d":1}}}}'
    assert plans.numbers(text, ("", "before")) == [0, -1]
    monkeypatch.setattr(connect_values, "members", None)
    assert plans.numbers(text, ("",)) == [0]
    assert plans.numbers('{"d":1}', ("",)) == [-1]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('{"payload":{},"schema":SCHEMA}', 0),
        (r'{"\u0073chema":SCHEMA,"payload":{}}', 0),
        ('{"schema":null,"payload":{"schema":SCHEMA}}', -1),
        ('{"schema":SCHEMA,"payload":null}', -1),
        ('{"schema":SCHEMA}', -1),
        ('{"schema":{"payload":1},"payload":{},"schema":SCHEMA}', 0),
        ('{"schema":[],"payload":{}}', MALFORMED),
        ('{"schema":{"type":"struct","fields":[{"type":"int32"}]},"payload":{}}', MALFORMED),
    ],
)
def test_the_schema_of_an_odd_value(text: str, number: int) -> None:
    plans, schema = PlansOfValues(), schema_of(field("int32", DEBEZIUM + "Date"))
    usual = f'{{"schema":{schema},"payload":{{}}}}'
    for value in (usual, text.replace("SCHEMA", schema), usual):
        assert plans.numbers(value, ("",)) == [number if value is not usual else 0]
