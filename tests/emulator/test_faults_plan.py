"""Reading and matching a fault plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_emulator.faults import Action, Call, FaultPlan, parse_rule
from starrocks_emulator.settings import SettingError

COMMIT = Call("commit", "fe", "job-1", "")


def hits(rule: dict[str, Any], calls: int = 10, call: Call = COMMIT, seed: int = 0) -> list[int]:
    """The numbers (from 1) of the calls that the rule picks."""
    plan = FaultPlan({"seed": seed, "rules": [{"action": "drop", **rule}]})
    return [number for number in range(1, calls + 1) if plan.select(call)]


@pytest.mark.parametrize(
    ("rule", "indexes"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({"nth": 3}, [3]),
        ({"every": 4}, [4, 8]),
        ({"times": 2}, [1, 2]),
        ({"every": 3, "times": 2}, [3, 6]),
        ({"probability": 0.0}, []),
        ({"probability": 1.0}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_which_calls_a_rule_picks(rule: dict[str, Any], indexes: list[int]) -> None:
    assert hits(rule) == indexes


def test_chance_follows_the_seed() -> None:
    rule = {"probability": 0.5}
    assert hits(rule, 50, seed=1) == hits(rule, 50, seed=1)
    assert hits(rule, 50, seed=1) != hits(rule, 50, seed=2)
    assert 0 < len(hits(rule, 50, seed=1)) < 50


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ({"operation": "commit"}, True),
        ({"operation": "begin"}, False),
        ({"listener": "fe"}, True),
        ({"listener": "be"}, False),
        ({"label": "^job-"}, True),
        ({"label": "^other"}, False),
        ({"table": "t"}, False),
    ],
)
def test_what_a_rule_matches(rule: dict[str, Any], matches: bool) -> None:
    assert bool(hits(rule, 1)) is matches


def test_only_matching_calls_count_for_nth() -> None:
    plan = FaultPlan([{"action": "drop", "operation": "commit", "nth": 2}])
    begin = Call("begin", "fe")
    assert [bool(plan.select(call)) for call in (begin, COMMIT, begin, COMMIT, COMMIT)] == [False] * 3 + [True, False]


def test_several_rules_apply_in_their_order() -> None:
    plan = FaultPlan([{"action": "delay", "seconds": 1}, {"action": "reset", "when": "after"}])
    assert [rule.action for rule in plan.select(COMMIT)] == [Action.DELAY, Action.RESET]


def test_the_report_counts_and_names_what_was_applied() -> None:
    plan = FaultPlan([{"action": "drop", "every": 2}])
    for _ in range(4):
        plan.select(COMMIT)
    report = plan.report()
    assert report["rules"] == [{"action": "drop", "every": 2, "matched": 4, "applied": 2}]
    assert report["applied"] == 2
    assert report["recent"][0] == {"rule": 0, "action": "drop", "operation": "commit", "label": "job-1", "table": ""}
    assert json.dumps(report)


@pytest.mark.parametrize(
    "document",
    [
        "rules",
        {"rule": []},
        {"rules": {}},
        {"rules": ["drop"]},
        [{}],
        [{"action": "explode"}],
        [{"action": ["drop"]}],
        [{"action": "drop", "nht": 1}],
        [{"action": "drop", "nth": "1"}],
        [{"action": "drop", "nth": True}],
        [{"action": "drop", "every": 0}],
        [{"action": "drop", "when": "during"}],
        [{"action": "drop", "label": "("}],
        [{"action": "answer", "headers": []}],
    ],
)
def test_a_wrong_plan_is_refused_and_the_old_one_stays(document: object) -> None:
    plan = FaultPlan([{"action": "drop"}])
    with pytest.raises(SettingError):
        plan.replace(document)
    assert plan.select(COMMIT)


@given(st.dictionaries(st.text(max_size=10), st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5))))
def test_any_object_is_a_rule_or_an_option_error(source: dict[str, Any]) -> None:
    try:
        parse_rule(source)
    except SettingError:
        return
    assert "action" in source
