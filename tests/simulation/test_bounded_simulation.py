"""A job that commands hold at a position, under all faults and the same checker; and it notices what is planted."""

from __future__ import annotations

import pytest

from starrocks_txn_sink.protocol.bound import EXACT
from tests.support.depth import scaled

from .bounded_world import BoundedWorld, run_bounded
from .sabotage import seeds_needed

SEEDS = 100


def test_schedules_with_bounds_keep_every_promise() -> None:
    worlds = [BoundedWorld(seed) for seed in range(scaled(SEEDS))]
    histories = [world.run() for world in worlds]
    assert [(history.seed, history.violations[0]) for history in histories if history.violations] == []
    assert sum(world.told[EXACT] for world in worlds) > 1


def test_equal_seeds_give_equal_histories() -> None:
    first: list[str] = []
    again: list[str] = []
    run_bounded(3, first.append)
    run_bounded(3, again.append)
    assert first == again


@pytest.mark.parametrize(
    "name",
    [
        "what is behind a bound is released",
        "a micro batch that is cut at a bound counts as written",
        "a bound never ends",
        pytest.param("commits that a snapshot shows in another order are exact", marks=pytest.mark.deep),
    ],
)
def test_a_planted_bug_is_noticed(name: str) -> None:
    _, seeds, text, _ = seeds_needed(name, 5 * SEEDS)
    assert seeds is not None, text
