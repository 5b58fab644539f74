"""The compiled loop judges and writes rows as `RowRules` does, and leaves few of them to it."""

from __future__ import annotations

import base64
import json
import random
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from starrocks_txn_sink.compiled.values import ValueJudge
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.rows.values.judgement import RowRules, UnfitColumn
from tests.support.depth import scaled
from tests.support.recorded_values import recorded_values

TYPES = [
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,10)",
    "DECIMAL(5,5)", "DATE", "DATETIME", "VARCHAR(10)", "VARCHAR(400)", "CHAR(5)", "VARBINARY(8)", "JSON", "ARRAY<INT>",
    "ARRAY<VARCHAR(5)>", "ARRAY<ARRAY<DECIMAL(10,2)>>", "ARRAY<DATETIME>", "MAP<VARCHAR(10),INT>",
    "MAP<BIGINT,VARCHAR(5)>", "MAP<DATE,JSON>", "STRUCT<x INT>", "STRUCT<x INT, y VARCHAR(10)>",
    "ARRAY<STRUCT<a DATETIME, b MAP<VARCHAR(3),BOOLEAN>>>", "BITMAP",
]  # fmt: skip
VALUES = sorted({sent for values in recorded_values().values() for sent in values})

pytestmark = pytest.mark.usefixtures("loop")


def expected(rules: RowRules, row: str) -> tuple[str, UnfitColumn | None]:
    try:
        return rules.fit(row), None
    except UnfitColumn as fault:
        return row, fault


def check(rules: RowRules, rows: list[str], kind: pa.DataType) -> None:
    judge = ValueJudge([rules])
    written, faults = judge.fit(pa.array(rows, kind), np.zeros(len(rows), np.int32))
    assert written.type == kind
    for number, (row, text) in enumerate(zip(rows, written.to_pylist(), strict=True)):
        new, fault = expected(rules, row)
        assert text == new, (rules.columns, row)
        assert str(faults.get(number)) == str(fault), (rules.columns, row)


def table(*types: str, **more: Any) -> RowRules:
    return RowRules.of(TargetColumn(f"c{number}", parse_type(kind), **more) for number, kind in enumerate(types))


@pytest.mark.parametrize("type_", TYPES)
def test_each_recorded_value_is_judged_alike_in_each_type(type_: str) -> None:
    rules = table(type_)
    check(rules, [f',{{"c0":{value}}}' for value in VALUES], pa.string())
    for value in VALUES:
        check(rules, [f',{{"c0":{value}}}'], pa.large_string())
    check(rules, [f',{{"c0" : [{value} ,null, {value}]  }}' for value in VALUES], pa.string())


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_rows_of_bytes_are_judged_as_texts(kind: pa.DataType) -> None:
    rules, rows = table("INT"), [',{"c0":1}', ',{"c0":true}']
    written, faults = ValueJudge([rules]).fit(pa.array(rows, kind), np.zeros(len(rows), np.int32))
    assert (written.type, faults) == (kind, {})
    assert written.to_pylist() == [rules.fit(row).encode() for row in rows]


def random_number(rng: random.Random) -> str:
    digits = "".join(rng.choices("0123456789", k=rng.choice((1, 2, 5, 9, 15, 16, 17, 18, 19, 20, 38, 39))))
    text = digits.lstrip("0") or "0"
    if rng.random() < 0.6:
        place = rng.randint(0, len(text) - 1)
        text = f"{text[:place] or '0'}.{text[place:]}"
    if rng.random() < 0.2:
        text += rng.choice(("e0", "E5", "e-7", "e+30", "e-330", "e1000", "e22", "e-22"))
    if rng.random() < 0.4:
        number = rng.choice((rng.random(), rng.gauss(0, 1e6), rng.random() * 10 ** rng.randint(-30, 30)))
        text = rng.choice((repr(number), f"{number:.17g}", f"{float(np.float32(number)):.9g}", f"{number:.16g}"))
    return rng.choice(("", "-")) + text.lstrip("-") if "inf" not in text else "1"


def random_time(rng: random.Random) -> str:
    year = rng.choice(("2024", "0000", "0001", "9999", "1900", "24"))
    date = f"{year}-{rng.choice(('02', '12', '01', '13', '00'))}-{rng.choice(('29', '28', '01', '31', '00'))}"
    clock = f"{rng.choice(('00', '23', '24', '12'))}:{rng.choice(('00', '59', '60'))}:{rng.choice(('00', '59', '61'))}"
    clock = rng.choice((clock, clock, "00:00:00"))
    fraction = rng.choice(("", "", ".1", ".123456", ".1234560", ".123456789", ".", ".000000000"))
    zone = rng.choice(("", "", "Z", "+05:30", "-18:00", "+00:00", "+19:00", " UTC", " +01", "+0100", " Z"))
    return (
        f'"{date}{rng.choice((" ", "T", "T", ""))}{clock}{fraction}{zone}"' if rng.random() < 0.9 else f'"{date}{zone}"'
    )


def random_text(rng: random.Random) -> str:
    letters = (
        "a",
        "ä",
        "😀",
        "\\n",
        '\\"',
        "\\\\",
        "\\u00e4",
        "\\u0000",
        "\\ud83d\\ude00",
        "\\ud83d",
        "\\ude00",
        "\\ud83dx",
        " ",
    )
    return f'"{"".join(rng.choices(letters, k=rng.randint(0, 8)))}"'


def random_value(rng: random.Random, depth: int = 2) -> str:
    words = ("true", "false", "null", "{}", "[]", "0", "1")
    if depth and rng.random() < 0.25:
        blank = rng.choice(("", " ", "\n"))
        inner = [random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.5:
            return f"[{blank}{f'{blank},'.join(inner)}{blank}]"
        pairs = (f'"{rng.choice("xXyab")}"{blank}:{value}' for value in inner)
        return f"{{{blank}{f'{blank},'.join(pairs)}{blank}}}"
    if rng.random() < 0.1:
        number = random_number(rng)
        zeros = rng.choice(("", "", "0", "000"))
        return f'"-{zeros}{number[1:]}"' if number.startswith("-") else f'"{zeros}{number}"'
    return rng.choice((random_number(rng), random_time(rng), random_text(rng), rng.choice(words)))


def random_row(rng: random.Random, rules: RowRules) -> str:
    blank = rng.choice(("", "", "", " "))
    names = [*rules.columns] if rng.random() < 0.7 else rng.sample([*rules.columns, "other", "c\\u0030"], k=2)
    members = [f'"{name}"{blank}:{blank}{random_value(rng)}' for name in names]
    if rng.random() < 0.1:
        members.insert(0, '"__op":1')
    if rng.random() < 0.05:
        members += [f'"__starrocks_txn_sink_unchanged":["{name}"]' for name in rules.columns]
    row = f",{{{blank}{','.join(members)}{blank}}}"
    if rng.random() < 0.05:
        place = rng.randint(1, len(row))
        row = row[:place] + rng.choice(('"', "}", "{", ",", "", "x")) + row[place + 1 :]
    return row


@pytest.mark.parametrize("seed", range(3))
def test_random_rows_are_judged_alike(seed: int) -> None:
    rng = random.Random(seed)
    rows = scaled(3_000)
    for type_ in TYPES:
        column = TargetColumn("c0", parse_type(type_), nullable=rng.random() < 0.7, key=rng.random() < 0.5)
        second = rng.choice(
            (TargetColumn("c1", parse_type("INT"), defaulted=True, default="7"), TargetColumn("c1", parse_type("JSON")))
        )
        rules = RowRules.of((column, second))
        check(rules, [random_row(rng, rules) for _ in range(rows // len(TYPES))], pa.string())


PLAIN = {
    "BOOLEAN": ("true", "0", '"1"', '"false"'),
    "DOUBLE": ('"001.5"', "1.5", "0.30000000000000004", "51.50740000000001", "1e5", '"2.5"', "17", "true"),
    "FLOAT": ("1.5", "0.12345679", "16777216"),
    "BIGINT": ("1", "-9223372036854775808", '"12"', "3.0", "false", '"007"', '"-00.00"', '"12.0"'),
    "DECIMAL(20,4)": ('"0012345.6700"', '"-000"', "1.5000", '"12345.6789"', "1.23456789E4", '"1.500000"'),
    "DATE": ('"2024-02-29"', '"2024-02-29Z"', '"2024-02-29 00:00:00"', '"2024-02-29T00:00:00.000Z"'),
    "DATETIME": ('"2024-02-29 12:34:56.789"', '"2024-02-29T12:34:56Z"', '"2024-02-29T12:34:56.123456000000+05:30"'),
    "VARCHAR(100)": ('"größe \\"1\\""', "\"\\ud83d\\ude00\"", "1.10", "true", '{"a": [1]}'),
    "JSON": ('{"a":[1,2.5,"\\n",null]}', "12345678901234567", '"x"'),
    "ARRAY<DATE>": ('["2024-02-29", null]', "[]", '["2024-02-29Z"]'),
    "MAP<VARCHAR(9),INT>": ('{"a": 1, "b":2.0}', "{}", '{"größe":null , "":"3"}'),
    "MAP<BIGINT,DATE>": ('{"1": "2024-02-29Z"}', '{"-9223372036854775808":null}'),
    "STRUCT<x INT, y ARRAY<INT>>": ('{"x":1, "y":[2, 3.0]}', '{ "y" : null,"x":true }'),
}  # fmt: skip


@pytest.mark.parametrize("type_", PLAIN)
def test_the_loop_judges_plain_values_by_itself(type_: str, monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    if loop == "pure":
        pytest.skip("the loop is the subject")
    rules = table(type_)
    texts = [f',{{"c0":{value}}}' for value in PLAIN[type_]]
    new = [rules.fit(text) for text in texts]
    monkeypatch.setattr(RowRules, "fit", lambda *_: pytest.fail("Python judged a row"))
    written, faults = ValueJudge([rules]).fit(pa.array(texts), np.zeros(len(texts), np.int32))
    assert (written.to_pylist(), faults) == (new, {})


def test_rows_that_are_kept_are_the_very_array_and_rows_without_rules_pass() -> None:
    judge = ValueJudge([table("INT"), table("DATE")])
    rows = pa.array([',{"c0":1}', ',{"c0":"2024-02-29"}', ',{"c0":1.5}', ",no JSON"])
    written, faults = judge.fit(rows, np.array([0, 1, -1, -1], np.int32))
    assert written.equals(rows)
    assert not faults
    written, faults = judge.fit(rows.slice(1), np.array([0, 0, 0], np.int32))
    assert written.to_pylist() == rows.to_pylist()[1:]
    assert sorted(faults) == [0, 1]


def test_texts_that_stand_for_bytes_are_judged_alike() -> None:
    columns = [TargetColumn("c0", parse_type("VARBINARY(8)"))]
    rows = [',{"c0":"AP/+"}', ',{"c0":null}', ',{"c0":1}', ",{}", ',{"__op":1,"c0":"AP/+"}']
    for encodes_bytes in (True, False):
        check(RowRules.of(columns, encodes_bytes=encodes_bytes), rows, pa.string())


TEXTS_OF_BYTES = st.one_of(
    st.binary(max_size=12).map(lambda content: base64.b64encode(content).decode()),
    st.binary(max_size=12).map(bytes.hex),
    st.text("AQgw/+=0aZ9fF-_\\\n ü", max_size=12),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS_OF_BYTES, min_size=1), hexadecimal=st.booleans(), most=st.integers(0, 9))
def test_texts_that_the_server_decodes_are_judged_alike(texts: list[str], hexadecimal: bool, most: int) -> None:
    columns = [TargetColumn("c0", parse_type(f"VARBINARY({most})"), nullable=False)]
    decoded = {"c0": Encoding.HEX if hexadecimal else Encoding.BASE64}
    rows = [f',{{"c0":{json.dumps(text, ensure_ascii=False)}}}' for text in texts]
    check(RowRules.of(columns, encodes_bytes=True, decoded=decoded), [*rows, ',{"c0":1}', ',{"c0":null}'], pa.string())


def test_bytes_as_most_connectors_write_them_are_judged_by_the_loop_alone(
    monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    if loop == "pure":
        return
    columns = [TargetColumn(name, parse_type("VARBINARY(3)")) for name in ("c0", "c1")]
    rules = RowRules.of(columns, decoded={"c0": Encoding.BASE64, "c1": Encoding.HEX})
    rows = [',{"c0":"AP/+","c1":"00fFfe"}', ',{"c0":"AA==","c1":""}', ',{"c0":"AP8=","c1":null}', ",{}"]
    monkeypatch.setattr(RowRules, "fit", lambda *_: pytest.fail("Python judged a row"))
    written, faults = ValueJudge([rules]).fit(pa.array(rows), np.zeros(len(rows), np.int32))
    assert (written.to_pylist(), faults) == (rows, {})


def test_the_loop_writes_defaults_by_itself(monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    if loop == "pure":
        pytest.skip("the loop is the subject")
    columns = [
        TargetColumn("c0", parse_type("INT")),
        TargetColumn("c1", parse_type("VARCHAR(9)"), defaulted=True, default="größe"),
        TargetColumn("c2", parse_type("INT"), defaulted=True, default="7"),
    ]
    rules = RowRules.of(columns)
    rows = [',{"c0":1.0}', ", { } ", ',{"c2":3,"x":[1]}', ',{"c1":"a","c2":null}', ',{"__op":1,"c0":5}']
    expected = [
        ',{"c1":"größe","c2":"7","c0":1}', ', {"c1":"größe","c2":"7" } ', ',{"c1":"größe","c2":3,"x":[1]}', *rows[3:],
    ]  # fmt: skip
    assert [rules.fit(row) for row in rows] == expected
    monkeypatch.setattr(RowRules, "fit", lambda *_: pytest.fail("Python judged a row"))
    written, faults = ValueJudge([rules]).fit(pa.array(rows), np.zeros(len(rows), np.int32))
    assert (written.to_pylist(), faults) == (expected, {})


def test_what_a_row_leaves_out_for_good_gets_no_default() -> None:
    columns = [TargetColumn(name, parse_type("INT"), defaulted=True, default="7") for name in ("c0", "c1")]
    check(RowRules.of(columns), [',{"c0":1,"__starrocks_txn_sink_unchanged":["c1"]}', ',{"c0":1}'], pa.string())


def test_the_loop_writes_times_and_uuids_by_itself(monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    if loop == "pure":
        pytest.skip("the loop is the subject")
    types = {
        "at": ("DATETIME", "CURRENT_TIMESTAMP"), "u": ("VARCHAR(36)", "uuid()"), "n": ("LARGEINT", "uuid_numeric()"),
    }  # fmt: skip
    columns = [
        TargetColumn(name, parse_type(kind), defaulted=True, default=default) for name, (kind, default) in types.items()
    ]
    rules = RowRules.of(columns, moment=1709210096.9)
    monkeypatch.setattr(RowRules, "fit", lambda *_: pytest.fail("Python judged a row"))
    rows = pa.array([',{"x":1}', ",{}"] * 2000)
    judge = ValueJudge([rules])
    batches = [judge.fit(rows, np.zeros(len(rows), np.int32)) for _ in range(2)]
    assert not any(faults for _, faults in batches)
    written = [json.loads(text[1:]) for texts, _ in batches for text in texts.to_pylist()]
    assert {row["at"] for row in written} == {"2024-02-29 12:34:56"}
    assert len({uuid.UUID(row["u"]) for row in written}) == len(written)
    assert {uuid.UUID(row["u"]).version for row in written} == {4}
    assert len({row["n"] for row in written}) == len(written)
    assert max(row["n"] for row in written) < 1 << 127
    assert [row.get("x") for row in written] == [1, None] * 4000


@pytest.mark.parametrize(("base", "last"), [(16, "f"), (10, "9")])
def test_the_digits_of_a_filler_carry(base: int, last: str, monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    if loop == "pure":
        pytest.skip("the loop is the subject")
    rules = table("INT", defaulted=True, default="1")
    quote = '"' if base == 16 else ""
    text = f"10{last * 11}"
    monkeypatch.setattr(RowRules, "filler", lambda *_: (f'"c0":{quote}{text}{quote}', base))
    written, _ = ValueJudge([rules]).fit(pa.array([",{}"] * 2), np.zeros(2, np.int32))
    assert written.to_pylist() == [f',{{"c0":{quote}{text}{quote}}}', f',{{"c0":{quote}11{"0" * 11}{quote}}}']


def test_deletes_without_a_part_of_their_key_are_judged_alike() -> None:
    columns = [
        TargetColumn("a", parse_type("INT"), nullable=False, key=True, defaulted=True, default="7"),
        TargetColumn("b", parse_type("BIGINT"), nullable=False, key=True),
        TargetColumn("c", parse_type("INT"), nullable=False),
    ]
    rows = [',{"__op":1,"b":2}', ',{"__op":1}', ',{"__op":1 ,"a":1}', ',{"__op":1,"a":1,"b":2}', ',{"a":1,"b":2,"c":3}']
    check(RowRules.of(columns), rows, pa.string())
    check(RowRules.of(columns), [',{"a":1,"b":2}', ',{"c":1}'], pa.string())
