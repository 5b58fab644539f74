"""Keys of rows, and which rows are sent: against simple references in Python."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.rows import keys
from starrocks_txn_sink.rows.keys import KeyColumn, KeyType, read_keys
from starrocks_txn_sink.rows.target import parse_type

INTEGER, TEXT = KeyColumn.of("id", "BIGINT", None), KeyColumn.of("name", "VARCHAR", None)


def text_and_starts(
    rows: Sequence[bytes],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    lines = [b"," + row for row in rows]
    starts = np.array([0, *itertools.accumulate(map(len, lines))])
    return np.frombuffer(b"".join(lines), np.uint8), starts  # read-only, as rows in a file are


def keys_of(rows: Sequence[str | bytes], *key: KeyColumn) -> list[Any]:
    content = [row.encode() if isinstance(row, str) else row for row in rows]
    keys: list[Any] = read_keys(*text_and_starts(content), key).to_pylist()
    return keys


# --- one form for all texts of a value ---


@pytest.mark.parametrize(
    ("kind", "same", "other_texts", "not_comparable"),
    [
        ("INT", ["1", " 1 ", "1.0", "+1", "001", "true"], ["-1", "10", "0"], ["1.5", "1e0", "", "one", "-"]),
        ("BIGINT", ["0", "-0", "0.000", "false"], ["1"], ["0x0"]),
        ("LARGEINT", [str(2**127 - 1), f"{2**127 - 1}.0"], [str(2**127 - 2)], ["1e38"]),
        ("BOOLEAN", ["1", "true", "TRUE", "7"], ["0", "false"], ["yes"]),
        ("DECIMAL", ["1.5", "1.50", "01.500"], ["1.51", "-1.5"], ["1.505", "15e-1"]),
        ("VARCHAR", ["a"], ["A", "a ", " a", ""], []),
        ("DATE", ["2026-01-02", "2026/1/2", "20260102", "2026-01-02 00:00:00"], ["2026-01-20"], ["02.01.2026"]),
        (
            "DATETIME",
            ["2026-01-02 03:04:05", "2026-01-02T03:04:05.0", "2026-1-2 3:4:5.000000", "20260102030405"],
            ["2026-01-02 03:04:05.1", "2026-01-02"],
            ["2026-01-02 03:04:05.0000001", "2026-01-02 03:04:05+01"],
        ),
    ],
)
def test_texts_of_one_value(kind: str, same: list[str], other_texts: list[str], not_comparable: list[str]) -> None:
    column = KeyColumn.of("k", kind, 2)
    forms = {column.comparable(text) for text in same}
    assert len(forms) == 1
    assert None not in forms
    assert not forms & {column.comparable(text) for text in other_texts}
    assert {column.comparable(text) for text in not_comparable} <= {None}


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-99999, max_value=99999), st.integers(0, 3)
)
def test_numbers_are_the_same_key_exactly_when_they_are_equal(number: Decimal, zeros: int) -> None:
    column = KeyColumn("k", KeyType.DECIMAL, 4)
    form = column.comparable(f"{number:f}" + "0" * zeros)
    assert form is not None
    assert Decimal(form) == number
    assert form == column.comparable(form)


@given(st.sampled_from(list(KeyType)), st.text(max_size=12) | st.from_regex(r"[0-9+\-. :/T]{0,20}", fullmatch=True))
def test_any_text_has_a_form_that_is_its_own_form_or_none(key_type: KeyType, text: str) -> None:
    column = KeyColumn("k", key_type, 3)
    form = column.comparable(text)
    assert form is None or column.comparable(form) == form


@given(
    st.sampled_from(list(KeyType)),
    st.lists(st.from_regex(r"[0-9+\-. :/T]{0,6}|2026-01-0[12]( 03:04:05(\.0{1,6})?)?|true|false", fullmatch=True)),
)
def test_many_texts_have_the_forms_that_each_has_alone(key_type: KeyType, texts: list[str]) -> None:
    column = KeyColumn("k", key_type, 2, "k")
    rows = [json.dumps({"k": text}) for text in texts]
    if rows:
        forms = [column.comparable(text) for text in texts]
        expected = [f"?{text}" if form is None else form for form, text in zip(forms, texts, strict=True)]
        assert list(map(str, keys_of(rows, column))) == expected


# --- keys in rows ---

NUMBERS = st.integers(-5, 5) | st.integers(-(2**70), 2**70)
SPELLED = NUMBERS | NUMBERS.map(str) | st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=5) | st.sampled_from(["a", "1:a", ""])


def expected_key(row: dict[str, Any], *key: KeyColumn) -> list[str] | None:
    """The key's values in one form; None for a row without a key."""
    forms = []
    for column in key:
        value = json.loads(json.dumps(row.get(column.field)), parse_int=str, parse_float=str)
        text = str(value).lower() if isinstance(value, bool) else value
        if not isinstance(text, str):
            return None
        form = column.comparable(text)
        forms.append(f"?{text}" if form is None else form)
    return forms


@given(st.lists(st.fixed_dictionaries({}, optional={"id": SPELLED, "name": TEXTS, "v": TEXTS}), min_size=1, max_size=8))
def test_two_rows_have_one_key_exactly_if_its_values_have_one_form(rows: list[dict[str, Any]]) -> None:
    for key in ((INTEGER,), (TEXT,), (INTEGER, TEXT), (TEXT, INTEGER)):
        keys_read = keys_of([json.dumps(row) for row in rows], *key)
        expected_keys = [expected_key(row, *key) for row in rows]
        assert [key_ is None for key_ in keys_read] == [key_ is None for key_ in expected_keys]
        for first, second in itertools.combinations(range(len(rows)), 2):
            if expected_keys[first] is not None:
                assert (keys_read[first] == keys_read[second]) == (expected_keys[first] == expected_keys[second])


@pytest.mark.parametrize("block_bytes", [1, 30, 64])
def test_members_anywhere_are_read_in_blocks(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block ends with a whole row, also where one row is larger than it."""
    monkeypatch.setattr(keys, "BLOCK_BYTES", block_bytes)
    rows = [json.dumps({"v": "x" * (number % 9), "id": number, "name": f"n{number}"}) for number in range(40)]
    text, starts = text_and_starts([row.encode() for row in rows])
    assert read_keys(text, starts, [INTEGER]).equals(pa.array(range(40), pa.int64()))
    assert keys_of(rows, INTEGER, TEXT) == [f"{len(str(n))}:{n}{len(str(n)) + 1}:n{n}" for n in range(40)]
    cut_rows = [b'{"v":"a","id":1}', b'{"v":"b', b'c","id":2}']  # Arrow would count other rows than came
    assert keys_of(cut_rows, INTEGER) == ["1", None, None]


def test_integers_stay_numbers_and_need_no_python_per_row() -> None:
    text, starts = text_and_starts([b'{"v":"x","id":%d}' % number for number in (3, 1, 2)])
    assert read_keys(text, starts, [INTEGER]).type == pa.int64()


VALUES = (
    st.integers(-(10**19), 10**19).map(str)
    | st.integers(-9, 99).map(str)
    | st.sampled_from(
        ["-0", "0", "1.0", "1e3", '"7"', "null", "true", "{}", "-1.5", "01", "-", "", '""', '"a\\"b"', '"1']
    )
    | st.text(st.sampled_from('ab":,}é\\'), max_size=70).map(json.dumps)
    | st.text("x", min_size=60, max_size=70).map(json.dumps)
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(['{"id":', '{"__op":1,"id":', '{"idx":1,"id":', '{"v":2,"id":', '{ "id":']),
            VALUES,
            st.sampled_from([',"name":', ',"v":1,"name":', ' ,"name":']),
            VALUES,
            st.sampled_from(["}", ',"v":1}', ' ,"id2":3}', " }", ',"v":{"id":5}}']),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([(INTEGER,), (TEXT,), (INTEGER, TEXT), (TEXT, INTEGER)]),
)
def test_members_that_come_first_are_read_as_any_others(
    parts: list[tuple[str, ...]], key: tuple[KeyColumn, ...]
) -> None:
    """Of a row that is no JSON nothing is asked: the server rejects it, whatever its key."""
    rows = ["".join(part) for part in parts]
    expected_keys: dict[int, Any] = {}
    for number, row in enumerate(rows):
        with contextlib.suppress(ValueError):
            expected_keys[number] = expected_key(json.loads(row, parse_int=str, parse_float=str), *key)
    keys_read = keys_of(rows, *key)
    for first, second in itertools.product(expected_keys, repeat=2):
        assert (keys_read[first] is None) == (expected_keys[first] is None)
        if expected_keys[first] is not None:
            assert (keys_read[first] == keys_read[second]) == (expected_keys[first] == expected_keys[second])
    if len(key) == 1:
        read = {number: None if keys_read[number] is None else [str(keys_read[number])] for number in expected_keys}
        assert read == expected_keys


@pytest.mark.parametrize("key", [(TEXT,), (TEXT, INTEGER)])
def test_an_escaped_quote_does_not_end_a_key(key: tuple[KeyColumn, ...]) -> None:
    """Else the keys `a",1` and `a",2` were one key, and only the last of their rows would be sent."""
    rows = [json.dumps({"name": name, "id": 1}, separators=(",", ":")) for name in ('a",1', 'a",2', 'a"}', "a\\")]
    keys_read = keys_of(rows, *key)
    assert len(set(keys_read)) == len(rows)
    assert None not in keys_read


@pytest.mark.parametrize("value", ["01", "1.", "+1", "1-2", "-", "1e", "--1"])
def test_a_number_that_json_does_not_have_is_no_key(value: str) -> None:
    assert keys_of([f'{{"id":{value}}}', '{"id":7}'], INTEGER) == [None, "7"]


def test_a_long_name_is_read_to_the_end() -> None:
    column = KeyColumn.of("n" * 500, "BIGINT", None)
    assert keys_of([f'{{"{column.name}":{number}}}' for number in range(3)], column) == [0, 1, 2]


def test_a_text_that_is_no_json_has_no_key() -> None:
    assert keys_of(['{"id":1}', '{"id":', "", '{"id":2}{"id":3}', "[1]"], INTEGER) == ["1", None, None, None, None]


def test_a_row_longer_than_a_block_is_read() -> None:
    long = json.dumps({"v": "x" * (9 << 20), "id": 7})
    assert keys_of([*['{"id":1}'] * 999, long], INTEGER)[-2:] == [1, 7]


@pytest.mark.parametrize(
    ("text", "kind", "scale"),
    [
        ("bigint(20)", KeyType.INTEGER, None),
        ("bigint(20) unsigned", KeyType.INTEGER, None),
        ("tinyint(1)", KeyType.BOOLEAN, None),
        ("tinyint(4)", KeyType.INTEGER, None),
        ("decimal64(9, 2)", KeyType.DECIMAL, 2),
        ("decimal(10)", KeyType.DECIMAL, 0),
        ("datetime", KeyType.DATETIME, None),
        ("varchar(20)", KeyType.TEXT, None),
    ],
)
def test_the_type_of_a_key_is_read_from_its_column_type(text: str, kind: KeyType, scale: int | None) -> None:
    column_type = parse_type(text)
    assert KeyColumn.of("id", column_type.name, column_type.scale) == KeyColumn("id", kind, scale, "id")
