"""A repair beside a job that goes on, in every order of their steps: no newer change is overwritten."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from starrocks_txn_ops.verify import repair
from starrocks_txn_ops.verify.held import Held
from starrocks_txn_ops.verify.rules import core
from starrocks_txn_sink.errors import Fenced
from starrocks_txn_sink.protocol.dead_letters import DeadLetterRow
from tests.support.repair_model import KEYS, World, faults_of, repair_of, repaired


@pytest.mark.parametrize("busy", [0.0, 0.4, 0.8])
def test_no_newer_change_is_overwritten_and_all_is_equal_in_the_end(busy: float) -> None:
    for seed in range(300):
        world = World(seed, busy)
        work = repaired(world)
        assert faults_of(world, work) == [], seed
        if not busy:
            assert not work.left


def test_a_repair_that_does_not_hold_the_job_is_noticed() -> None:
    found = 0
    for seed in range(300):
        world = World(seed, 0.8)

        @contextlib.contextmanager
        def no_hold(world: World = world) -> Iterator[Held]:
            world.pass_time()
            yield cast(Held, world)

        world.hold = no_hold  # type: ignore[method-assign]
        found += bool(faults_of(world, repaired(world)))
    assert found


def test_what_changes_at_each_look_is_left_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "ROUNDS", 1)
    works = [repaired(World(seed, 0.9)) for seed in range(50)]
    assert any(work.left[repair.MOVING] for work in works)


@pytest.mark.parametrize(("most", "letters"), [(2, 10**6), (6, 1), (6, 12)])
def test_more_than_one_transaction_takes_is_written_in_parts(
    monkeypatch: pytest.MonkeyPatch, most: int, letters: int
) -> None:
    """By the number of keys, or by the letters of the source's rows."""
    monkeypatch.setattr(core, "KEYS", 1)
    monkeypatch.setattr(repair, "MOST_KEYS", most)
    monkeypatch.setattr(repair, "MOST_LETTERS", letters)
    for seed in range(150):
        world = World(seed, 0.5 if seed % 2 else 0.0)
        work = repaired(world)
        assert faults_of(world, work) == [], seed
        assert max(map(len, world.writes), default=0) <= most
        if not world.busy:  # a row has at least six letters
            assert max(map(sum, world.writes), default=0) <= max(1, letters // 6)


def test_a_hold_that_is_too_short_gets_fewer_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "KEYS", 1)

    class Slow(World):
        """Its hold ends in front of more than one row."""

        def write(self, rows: Sequence[DeadLetterRow]) -> str:
            if len(rows) > 1:
                raise Fenced("The hold has ended.")
            return super().write(rows)

    world = Slow(1, 0.0)
    world.table = dict.fromkeys(KEYS, "wrong")
    work = repaired(world)
    assert not work.left
    assert faults_of(world, work) == []
    assert {*map(len, world.writes)} == {1}


def test_a_repair_says_whether_it_goes_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    for passes in (True, False):
        world = World(1, 0.0)
        if not passes:
            monkeypatch.setattr(world, "passed", lambda _: False)
        mending, work = repair_of(world)
        wrong = [(work, (key,)) for key in KEYS if world.table.get(key) != world.state(len(world.log)).get(key)]
        assert mending.mend(wrong) is passes
        assert work.done == (len(wrong) if passes else 0)
        assert mending.mend([]) is False
