"""Which texts are the same key, and which row of a key is the last: against simple references."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starrocks_txn_sink.sink.compaction import KeyColumn, KeyType
from tests.support.key_forms import normal_form, survivors

Change = tuple[str, int, bool, int]  # table, key, whether it is a delete, value


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.booleans(), st.integers())),
    st.randoms(use_true_random=False),
)
def test_what_is_sent_has_the_same_effect_in_any_order(changes: list[Change], rng: random.Random) -> None:
    """The reference applies every change, in order, to a table that is a dict."""
    sent = [change for change, kept in zip(changes, survivors([each[:2] for each in changes]), strict=True) if kept]
    assert len({change[:2] for change in sent}) == len(sent)
    rng.shuffle(sent)
    assert table(sent) == table(changes)
    assert {change[:2] for change in sent} == {change[:2] for change in changes}  # deletes are sent as well


def table(changes: list[Change]) -> dict[tuple[str, int], int]:
    rows: dict[tuple[str, int], int] = {}
    for name, key, deleted, value in changes:
        if deleted:
            rows.pop((name, key), None)
        else:
            rows[(name, key)] = value
    return rows


def test_rows_without_a_key_replace_nothing() -> None:
    assert survivors([None, "k", None, "k", None]) == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("kind", "same", "other", "not_comparable"),
    [
        ("int(11)", ["1", " 1 ", "1.0", "+1", "001", "true"], ["-1", "10", "0"], ["1.5", "1e0", "", "one", "-"]),
        ("bigint(20)", ["0", "-0", "0.000", "false"], ["1"], ["0x0"]),
        ("bigint(20) unsigned", [str(2**127 - 1), f"{2**127 - 1}.0"], [str(2**127 - 2)], ["1e38"]),
        ("tinyint(1)", ["1", "true", "TRUE", "7"], ["0", "false"], ["yes"]),
        ("boolean", ["0", "false", "0.0"], ["1"], []),
        ("decimal64(18, 2)", ["1.5", "1.50", "01.500"], ["1.51", "-1.5"], ["1.505", "15e-1"]),
        ("decimal(10, 0)", ["7", "7.00"], ["70"], ["7.5"]),
        ("varchar(20)", ["a"], ["A", "a ", " a", ""], []),
        ("date", ["2026-01-02", "2026/1/2", "20260102", "2026-01-02 00:00:00"], ["2026-01-20"], ["02.01.2026"]),
        (
            "datetime",
            ["2026-01-02 03:04:05", "2026-01-02T03:04:05.0", "2026-1-2 3:4:5.000000", "20260102030405"],
            ["2026-01-02 03:04:05.1", "2026-01-02"],
            ["2026-01-02 03:04:05.0000001", "2026-01-02 03:04:05+01"],
        ),
        ("double", [], [], ["1"]),
    ],
)
def test_texts_of_one_value(kind: str, same: list[str], other: list[str], not_comparable: list[str]) -> None:
    scale = 2 if "2)" in kind else 0
    column = KeyColumn.of("k", kind, scale)
    forms = {normal_form(column, text) for text in same}
    assert len(forms) <= 1
    assert None not in forms
    assert not forms & {normal_form(column, text) for text in other}
    assert {normal_form(column, text) for text in not_comparable} <= {None}


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-99999, max_value=99999), st.integers(0, 3)
)
def test_numbers_are_the_same_key_exactly_when_they_are_equal(number: Decimal, zeros: int) -> None:
    column = KeyColumn("k", KeyType.DECIMAL, 4)
    form = normal_form(column, f"{number:f}" + "0" * zeros)
    assert form is not None
    assert Decimal(form) == number
    assert form == normal_form(column, form)


@given(st.sampled_from(list(KeyType)), st.text(max_size=12))
def test_any_text_has_a_form_that_is_its_own_form_or_none(family: KeyType, text: str) -> None:
    column = KeyColumn("k", family, 3)
    form = normal_form(column, text)
    assert form is None or normal_form(column, form) == form


def test_an_unknown_scale_compares_all_digits() -> None:
    column: Any = KeyColumn("k", KeyType.DECIMAL, None)
    assert normal_form(column, "1.23456") == "1.23456"
