"""Sources that are recreated with the same ids, positions or offsets: 0 lost, 0 doubled, 0 dropped in silence."""

from __future__ import annotations

import pytest

from tests.support.depth import scaled

from .sabotage import seeds_needed
from .sabotage.registry import RECREATED
from .schedules import run_recreated

SEEDS = 60  # a third of them in each world

_FIRST = {
    "what waits stays with the source whose ids come again": 1,
    "a transaction that comes again is believed": 9,
    "what is left of a transaction is of the one that has its id again": 25,
    "transactions that come again are not compared": 9,
    "what else is read of a cut transaction goes with its release": 196,
    "a begin whose rows are unread goes with the transaction of its id": 196,
    "a run does not know what the one before has asked": 198,
}
"""Rare ones: the schedule that notices them, so that a test takes seconds."""


def test_schedules_with_recreated_sources_keep_every_promise() -> None:
    histories = [run_recreated(seed) for seed in range(scaled(SEEDS))]
    assert [(history.seed, history.violations[0]) for history in histories if history.violations] == []
    assert sum(history.faults for history in histories) > SEEDS


@pytest.mark.parametrize("seed", [629, 784, 940, 4548])
def test_schedules_that_have_found_a_fault_keep_every_promise(seed: int) -> None:
    """A new source whose BEGIN was read with the old one's END; events, and drivers, of before an error was told.

    Markers that came twice, of a repeat that had gone with its release: nobody sends its rows again.
    """
    assert not run_recreated(seed).violations


@pytest.mark.parametrize("name", RECREATED)
def test_a_planted_bug_is_noticed(name: str) -> None:
    _, seeds, text, _ = seeds_needed(name, 2 * SEEDS, _FIRST.get(name, 0))
    assert seeds is not None, text
