"""Lanes that take Debezium's messages, under the same faults and the same checker; and it notices what is planted."""

from __future__ import annotations

import pytest

from tests.support.depth import scaled

from .debezium_world import run_debezium
from .sabotage import seeds_needed

SEEDS = 80


def test_schedules_with_faults_keep_every_promise() -> None:
    histories = [run_debezium(seed) for seed in range(scaled(SEEDS))]
    assert [(history.seed, history.violations[0]) for history in histories if history.violations] == []
    assert sum(history.faults for history in histories) > SEEDS


def test_equal_seeds_give_equal_histories() -> None:
    for seed in (1, 3):
        first: list[str] = []
        again: list[str] = []
        run_debezium(seed, first.append)
        run_debezium(seed, again.append)
        assert first == again


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a message that comes twice is written twice", marks=pytest.mark.deep),
        "a second begin changes nothing",
        "what comes at a lower place is a repeat whatever it is",
        pytest.param("an end alone makes a transaction whole", marks=pytest.mark.deep),
        pytest.param("the newest of the rows that wait are forgotten", marks=pytest.mark.deep),
        "the rest of a cut transaction is taken for the whole",
        pytest.param("rows that wait over a second micro batch are forgotten", marks=pytest.mark.deep),
        "a lane that dies between counting and loading has counted for the next one",
        pytest.param("of two drivers the older one publishes what waits", marks=pytest.mark.deep),
    ],
)
def test_a_planted_bug_is_noticed(name: str) -> None:
    _, seeds, text, _ = seeds_needed(name, 2 * SEEDS)
    assert seeds is not None, text
