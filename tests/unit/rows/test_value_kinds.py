"""Kinds of JSON values, and the types that hold them unchanged."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.rows.value_kinds import ValueKind, kind_of, members_of, type_for


def kinds(*texts: str) -> list[ValueKind]:
    members = members_of(("{" + ",".join(f'"{number}":{text}' for number, text in enumerate(texts)) + "}").encode())
    assert members is not None
    return [kind for value in members.values() if (kind := kind_of(value)) is not None]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["true", "false", "null"], "BOOLEAN"),
        (["1", "-9223372036854775808", "9223372036854775807"], "BIGINT"),
        (["1", "9223372036854775808", "-170141183460469231731687303715884105728"], "LARGEINT"),
        (["1", "1.5", "1e3", "-9007199254740992", "0.30000000000000004", "0.10000000000000001"], "DOUBLE"),
        (['"a"', '""'], "VARCHAR(1048576)"),
        (['"a"', json.dumps("ß" * 40_000)], "VARCHAR(1048576)"),
        (['{"a":1}', "[]"], "JSON"),
        (["9007199254740993", "1.5"], None),  # a DOUBLE has no such integer
        (["170141183460469231731687303715884105728"], None),
        (["1e400"], None), (["1e-400"], None), (["0.1234567890123456789"], None),
        (["1", '"1"'], None), (["true", "1"], None), (["{}", "1"], None), (['"a"', "{}"], None),
        ([json.dumps("a" * (1 << 20) + "b")], None),
        (["null"], None),
    ],
)  # fmt: skip
def test_the_narrowest_type_that_changes_no_value(values: list[str], kind: str | None) -> None:
    assert type_for(kinds(*values)) == kind


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_of_the_source_is_one_here(number: float) -> None:
    for text in (repr(number), f"{number:.17g}"):
        (kind,) = kinds(text)
        assert type_for([kind]) in ("DOUBLE", "BIGINT", "LARGEINT") or abs(number) >= 1 << 127


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**20), max_value=10**20))
def test_what_a_double_would_round_is_no_double(number: Decimal) -> None:
    text = f"{number:f}"
    if type_for(kinds(text)) == "DOUBLE":
        assert Decimal(repr(float(text))) == number or Decimal(f"{float(text):.17g}") == number


@pytest.mark.parametrize("text", ["[1]", '{"a":', "1", '{"a":' + "[" * 100_000, '{"a":' + "9" * 5000 + "}"])
def test_what_cannot_be_read_has_no_members(text: str) -> None:
    assert members_of(text.encode()) is None
