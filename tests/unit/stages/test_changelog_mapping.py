"""op_mapping and state_ttl: what may be written, and what is refused before a query starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from starrocks_spark_stages.changelog.rules.conversions import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    RowKind,
    code_to_kinds,
    codes_are_flags,
    kinds_to_code,
    pairs_updates,
)
from starrocks_spark_stages.changelog.rules.keyed import Retention
from starrocks_txn_sink.errors import OptionError


def test_by_default_a_kind_is_its_own_code() -> None:
    assert code_to_kinds(None) == {kind.name: (kind,) for kind in RowKind}
    assert kinds_to_code(None) == {kind: kind.name for kind in RowKind if kind is not UPDATE_BEFORE}


@pytest.mark.parametrize(
    "mapping",
    [
        {"c, r": "INSERT", "u": "UPDATE_BEFORE, UPDATE_AFTER", "d": "DELETE"},
        {(" c", "r"): ("INSERT",), ("u",): ("UPDATE_AFTER", "UPDATE_BEFORE"), ("d",): ("DELETE",)},
    ],
)
def test_text_and_tuples_mean_the_same(mapping: Any) -> None:
    assert code_to_kinds(mapping) == {
        "c": (INSERT,),
        "r": (INSERT,),
        "u": (UPDATE_BEFORE, UPDATE_AFTER),
        "d": (DELETE,),
    }


def test_a_mapping_replaces_the_defaults_and_codes_are_case_sensitive() -> None:
    assert code_to_kinds({"C": "INSERT"}) == {"C": (INSERT,)}
    assert kinds_to_code({"INSERT, UPDATE_AFTER": "false", "DELETE": "true"}) == {
        INSERT: "false",
        UPDATE_AFTER: "false",
        DELETE: "true",
    }
    one_code: dict[tuple[str, ...], tuple[str, ...]] = {("INSERT",): ("c",)}
    assert kinds_to_code(one_code) == {INSERT: "c"}


def test_updates_are_paired_only_where_one_entry_names_both_halves() -> None:
    assert pairs_updates({"UPDATE_BEFORE, UPDATE_AFTER": "u"})
    of_three: dict[tuple[str, ...], tuple[str, ...]] = {("INSERT", "UPDATE_BEFORE", "UPDATE_AFTER"): ("u",)}
    assert pairs_updates(of_three)
    assert not pairs_updates({"UPDATE_BEFORE": "u", "UPDATE_AFTER": "u"})
    assert not pairs_updates(None)


@pytest.mark.parametrize(
    "kinds", ["UPDATE_BEFORE, UPDATE_AFTER", "INSERT, UPDATE_AFTER", "INSERT, UPDATE_BEFORE, UPDATE_AFTER"]
)
def test_the_groups_that_one_code_may_have(kinds: str) -> None:
    assert len(code_to_kinds({"x": kinds})["x"]) == kinds.count(",") + 1
    assert len(kinds_to_code({kinds: "x"})) == kinds.count(",") + 1


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({"x": "INSERT, DELETE"}, "INSERT, DELETE into one entry"),
        ({"x": "UPDATE_AFTER, DELETE"}, "UPDATE_AFTER, DELETE into one entry"),
        ({"x": "INSERT, UPDATE_BEFORE"}, "into one entry"),
        ({"MY_INSERT": "NEW_INSERT"}, "row kind 'NEW_INSERT'.*Row kinds are INSERT, UPDATE_BEFORE"),
        ({"x": "insert"}, "row kind 'insert'"),
        ({"c": "INSERT", "r": "INSERT"}, "names INSERT in more than one entry.*'c, r'"),
        ({"c": "INSERT", "x": "INSERT, UPDATE_AFTER"}, "names INSERT in more than one entry"),
        ({"c, c": "INSERT"}, "the code 'c' twice"),
        ({"c": "INSERT", " c": "DELETE"}, "the code 'c' twice"),
        ({"c,": "INSERT"}, "the part '' in 'c,'"),
        ({"c": ""}, "the part '' in ''"),
        ({1: "INSERT"}, "the part 1 in 1"),
        ({(): "INSERT"}, "empty tuple"),
        ({"c": "INSERT, INSERT"}, "a row kind twice"),
        ({}, "op_mapping is {}"),
        ("c=INSERT", "op_mapping is 'c=INSERT'"),
    ],
)
def test_a_mapping_that_cannot_work_is_refused_with_its_value(mapping: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        code_to_kinds(mapping)


def test_the_other_direction_is_checked_too() -> None:
    with pytest.raises(OptionError, match="row kind 'MY_INSERT'"):
        kinds_to_code({"MY_INSERT": "NEW_INSERT"})
    with pytest.raises(OptionError, match=r"2 codes \(c, r\) to one entry"):
        kinds_to_code({"INSERT": "c, r"})
    with pytest.raises(OptionError, match="DELETE in more than one entry"):
        kinds_to_code({"DELETE": "d", ("DELETE",): "x"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 minutes", 600),
        ("10 MINUTE", 600),
        ("1 h", 3600),
        ("7 days", 604_800),
        ("500ms", 0.5),
        ("0", 0),
        ("0 MINUTE", 0),
        (90, 90),
        (timedelta(hours=36), 129_600),
        (None, 0),
    ],
)
def test_state_ttl_in_every_spelling(text: Any, seconds: float) -> None:
    assert Retention.of(text).seconds == seconds


@pytest.mark.parametrize("value", ["soon", "10 fortnights", "", -1, float("inf"), float("nan"), True, timedelta(-1)])
def test_a_state_ttl_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="state_ttl is"):
        Retention.of(value)


def test_state_expires_at_its_ttl_and_not_before() -> None:
    assert not Retention(10).has_expired(100, 109.9)
    assert Retention(10).has_expired(100, 110)
    assert not Retention(0).has_expired(0, 1e12)


def test_codes_may_be_flags() -> None:
    flags = {"INSERT, UPDATE_AFTER": False, "DELETE": True}
    assert codes_are_flags(flags)
    assert kinds_to_code(flags) == {INSERT: "false", UPDATE_AFTER: "false", DELETE: "true"}
    assert code_to_kinds({False: "INSERT", True: "DELETE"}) == {"false": (INSERT,), "true": (DELETE,)}
    assert not codes_are_flags({"INSERT": "c"})
    assert not codes_are_flags(None)
    with pytest.raises(OptionError, match="only some are True or False"):
        codes_are_flags({"INSERT": "c", "DELETE": True})  # type: ignore[arg-type]
