"""The table of values against what a real server keeps: nothing that it changes in silence is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from starrocks_txn_sink.rows.json_members import Number, value_at
from starrocks_txn_sink.rows.target import TargetType, parse_type
from starrocks_txn_sink.rows.values.rules import TABLE, Unfit, Value, fitted
from tests.support.recorded_values import REFUSED, recorded_values

RECORDED = recorded_values()
_NUMBERS = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "FLOAT", "DOUBLE", "DECIMAL")


def pairs() -> Iterator[tuple[str, TargetType, str, Any]]:
    """Each pair with the type, but for values that are NULL."""
    for name, values in RECORDED.items():
        kind = parse_type(re.sub(r" (NOT NULL|DEFAULT .*)$", "", name))
        for sent, kept in values.items():
            if sent != "null":
                yield name, kind, sent, kept


def judged(kind: TargetType, sent: str) -> str | None:
    try:
        return fitted(kind, Value(value_at(sent, 0)[0], sent))
    except Unfit:
        return None


def is_same(kind: TargetType, sent: str, kept: str) -> bool:
    """Whether what the server shows for a value is the value that was sent."""
    value = value_at(sent, 0)[0]
    if kind.name in _NUMBERS:
        number = {"true": "1", "false": "0"}.get(str(value).lower(), str(value).strip())
        if kind.name in ("FLOAT", "DOUBLE"):  # shown with the digits that tell it from its neighbours
            digits = len(Decimal(number).normalize().as_tuple().digits)
            binary = float(np.float32(kept)) if kind.name == "FLOAT" else float(kept)
            return Decimal(f"{binary:.{digits - 1}e}") == Decimal(number)
        return Decimal(kept) == Decimal(number)
    if kind.name in ("DATE", "DATETIME"):
        midnight = "" if kind.name == "DATE" or len(value) > 10 else " 00:00:00"
        return as_time(value.replace("T", " ") + midnight) == as_time(kept)
    if kind.name in ("CHAR", "VARCHAR", "VARBINARY"):
        return bytes.fromhex(kept).decode() == str(value)
    if kind.name == "JSON":
        return bool(as_document(kept) == as_document(sent))
    return bool(as_document(kept.replace("'", ""), texts=True) == as_document(sent, texts=True))


def as_time(text: str) -> str:
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.ljust(6, '0')}"


def as_document(text: str, *, texts: bool = False) -> Any:
    """A document to compare: numbers by their value; with `texts` also a text that has one is the number."""
    number = (lambda digits: str(Decimal(digits))) if texts else Decimal
    return json.loads(text, parse_int=number, parse_float=number)


def test_the_recording_has_every_type_of_the_table() -> None:
    names = {kind.name for _, kind, _, _ in pairs()}
    assert names >= TABLE.keys() - {"STRING"}  # a STRING is the server's VARCHAR(65533)
    assert sum(1 for _ in pairs()) > 900


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_sent_as_it_is_is_kept_as_it_is(name: str) -> None:
    for type_name, kind, sent, kept in pairs():
        if type_name == name and judged(kind, sent) == sent:
            assert kept is not REFUSED, sent
            assert is_same(kind, sent, kept), (sent, kept)


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_written_in_another_spelling_is_sent_as_it_is_then(name: str) -> None:
    """Converted twice is converted once, and the recording has what becomes of most of the new spellings."""
    for type_name, kind, sent, _ in pairs():
        if type_name != name or (converted := judged(kind, sent)) in (None, sent):
            continue
        assert converted is not None
        assert judged(kind, converted) == converted, sent
        kept = RECORDED[name].get(converted)
        assert kept is None or is_same(kind, converted, str(kept)), (sent, converted, kept)


def test_what_the_server_refuses_is_refused_or_converted() -> None:
    refused = [(kind, sent) for _, kind, sent, kept in pairs() if kept is REFUSED]
    assert len(refused) > 300
    for kind, sent in refused:
        assert judged(kind, sent) != sent, (kind, sent)


CONVERTED = [
    ("INT", "true", "1"),
    ("LARGEINT", "1.0", "1"),
    ("LARGEINT", "1e2", "100"),
    ("BIGINT", "9007199254740993.0", "9007199254740993"),
    ("BIGINT", '" 7 "', "7"),
    ("DOUBLE", "false", "0"),
    ("DOUBLE", '"+1"', "1"),
    ("DOUBLE", "340282366920938463463374607431768211456", "340282366920938463463374607431768211456.0"),
    ("DECIMAL(10,2)", "1.500", "1.5"),
    ("DECIMAL(10,2)", '"1200.000000000000"', '"1200"'),
    ("DATE", '"2024-02-29T00:00:00Z"', '"2024-02-29"'),
    ("DATETIME", '"2024-02-29T12:34:56.789+05:30"', '"2024-02-29 07:04:56.789000"'),
    ("DATETIME", '"2024-02-29 12:34:56.1234560"', '"2024-02-29 12:34:56.123456"'),
    ("DATETIME", '"2024-12-31T23:30:00-01"', '"2025-01-01 00:30:00"'),
    ("VARCHAR(9)", "false", '"false"'),
    ("VARCHAR(99)", '{"a": [1.10, "x y"]}', '"{\\"a\\":[1.10,\\"x y\\"]}"'),
    ("ARRAY<VARCHAR(20)>", '[{"a": 1}, null]', '["{\\"a\\":1}", null]'),
    ("STRUCT<x INT, y DATE>", '{"Y": "2024/2/9", "x":1.0}', '{"y":"2024-02-09","x":1}'),
    ("MAP<VARCHAR(3),INT>", '{"a": 1.0, "b":2}', '{"a": 1, "b":2}'),
]


@pytest.mark.parametrize(("type_", "sent", "converted"), CONVERTED)
def test_a_plain_meaning_is_written_as_the_column_keeps_it(type_: str, sent: str, converted: str) -> None:
    assert judged(parse_type(type_), sent) == converted


UNFIT = [
    ("BOOLEAN", "5"), ("INT", "1.5"), ("INT", '"1.5"'), ("BIGINT", "9223372036854775808"),
    ("LARGEINT", "-170141183460469231731687303715884105728"), ("INT", "1e1000000000000"), ("FLOAT", "16777217"),
    ("FLOAT", "3.5e38"), ("DOUBLE", "9007199254740993"), ("DOUBLE", "1e-400"), ("DOUBLE", '"NaN"'),
    ("DECIMAL(10,2)", "1.235"), ("DECIMAL(10,2)", "100000000"), ("DATE", '"2024-02-29 12:34:56"'), ("DATE", "20240229"),
    ("DATE", '"24-02-29"'), ("DATE", '"2023-02-29"'), ("DATE", '"0000-02-29"'), ("DATETIME", '"2024-02-29T25:00:00"'),
    ("DATETIME", '"2024-02-29 12:34:56.1234567"'), ("DATETIME", '"0001-01-01T00:00:00+05:00"'),
    ("DATETIME", '"2024-02-29 12:34:56 BC"'), ("DATETIME", '"2024-02-29 12:34:56 Asia/Shanghai"'),
    ("VARCHAR(3)", '"äö"'), ("VARCHAR(3)", '"\\ud83d"'), ("CHAR(3)", '"a\\u0000"'), ("VARBINARY(3)", '"abcd"'),
    ("JSON", '{"a": [0.12345678901234567890]}'), ("JSON", '{"a": "\\udc00"}'), ("JSON", "18446744073709551616001"),
    ("JSON", "18446744073709551617"), ("JSON", "[-9223372036854775809]"),
    ("ARRAY<INT>", '[1, "x"]'), ("ARRAY<INT>", '"[1]"'), ("MAP<VARCHAR(1),INT>", '{"aa": 1}'),
    ("MAP<VARCHAR(9),INT>", '{"a": 1, "a": 1}'), ("STRUCT<x INT>", "{}"), ("STRUCT<x INT>", '{"x": 1, "z": 1}'),
    ("STRUCT<x INT>", '{"x": 1, "X": 1}'),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "sent"), UNFIT)
def test_what_a_column_would_not_keep_is_refused(type_: str, sent: str) -> None:
    assert judged(parse_type(type_), sent) is None


@pytest.mark.parametrize(
    ("type_", "most"),
    [("VARCHAR(1048576)", 1_048_576), ("STRING", 65_533), ("VARBINARY", 1_048_576), ("CHAR(255)", 255)],
)
def test_a_text_has_the_bytes_of_its_column_at_most(type_: str, most: int) -> None:
    for size, fits in ((most, True), (most + 1, False)):
        text = '"' + "a" * size + '"'
        assert (judged(parse_type(type_), text) == text) == fits
    escaped = '"' + "\\u00e4" * (most // 2) + '"'
    assert judged(parse_type(type_), escaped) == escaped


def test_a_document_has_1_mib_at_most_whatever_is_in_it() -> None:
    for inside in ('{"a":"%s"}', "[%s]", '"%s"'):
        filler = "1" if inside == "[%s]" else "a"
        fitting = inside % (filler * 10 if filler == "1" else filler * (1_048_576 - len(inside) + 2))
        assert judged(TargetType("JSON"), fitting) == fitting
        assert judged(TargetType("JSON"), inside % (filler * 1_048_576)) is None


def test_numbers_in_a_deep_document_are_judged() -> None:
    assert judged(TargetType("JSON"), "[" * 3_000 + "1" + "]" * 3_000) is not None
    assert judged(TargetType("JSON"), "[" * 3_000 + "1" * 30 + "]" * 3_000) is None


def test_a_type_without_rules_is_not_judged() -> None:
    assert judged(TargetType("OTHER"), "1.5") == "1.5"
    assert isinstance(value_at("1.5", 0)[0], Number)
