"""The pace of commits: the goal is kept, with the fewest commits, and what changes that.

The source has rows at each moment, and Spark plans a micro-batch as soon as the one before has ended.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from starrocks_txn_sink.coordinator.pace import LONGEST_PAUSE, MOST_STRETCH, WINDOW, Pace, Reason, Step, Strain

PERCENT = 0.01
Needs = Callable[[float], tuple[float, float]]
"""Of the interval whose rows a micro-batch has: seconds from the end of the one before to its planning, and from there
to its rows' visibility."""


@dataclass(frozen=True)
class Written:
    """A micro-batch of a run."""

    planned: float
    visible: float
    step: Step


def run(
    freshness: float,
    needs: Needs,
    seconds: float,
    *,
    backlog: Callable[[float], bool] = lambda _: False,
    strain: Callable[[float], Strain] = lambda _: Strain(),
    known: bool = True,
) -> list[Written]:
    """All micro-batches of so many seconds; `known`: whether Spark shows when it plans."""
    pace, planned, before, written = Pace(freshness), 0.0, 0.0, list[Written]()
    while planned < seconds:
        _, duration = needs(planned - before)
        visible = planned + duration
        step = pace.step(
            planned=planned if known else None,
            begun=planned + (0.0 if known else 0.01),
            now=visible,
            backlog=backlog(planned),
            strain=strain(planned),
        )
        written.append(Written(planned, visible, step))
        ended = visible + step.pause
        pace.ended(ended)
        before, planned = planned, ended + needs(0.0)[0]
    return written


def late_share(written: Sequence[Written], freshness: float) -> float:
    """The share of rows that were visible later than the goal."""
    intervals = late = 0.0
    for before, this in itertools.pairwise(written):
        intervals += this.planned - before.planned
        late += min(this.planned - before.planned, max(0.0, this.visible - before.planned - freshness))
    return late / intervals


@settings(max_examples=60, deadline=None)
@given(
    freshness=st.sampled_from([0.6, 1.0, 5.0, 60.0]),
    wait=st.floats(0.005, 0.06),
    duration=st.floats(0.02, 0.25),
    growth=st.floats(0.0, 0.4),
    noise=st.floats(0.0, 0.3),
    known=st.booleans(),
    seed=st.integers(0, 999),
)
def test_the_goal_is_kept_for_durations_that_fit(
    freshness: float, wait: float, duration: float, growth: float, noise: float, known: bool, seed: int
) -> None:
    """Rows of a longer interval take longer, and each micro-batch takes more or less than the one before."""
    rng = random.Random(seed)

    def needs(interval: float) -> tuple[float, float]:
        return wait * rng.uniform(1, 1 + noise), (duration + growth * interval) * rng.uniform(1, 1 + noise)

    # Without any pause the oldest row waits for two micro-batches.
    worst = (wait + 2 * duration) * (1 + noise) / (1 - growth * (1 + noise)) + 0.05
    if worst < freshness * 0.95:
        assert late_share(run(freshness, needs, 200 * freshness, known=known), freshness) <= PERCENT


def fewest(freshness: float, wait: float, duration: float, seconds: float) -> int:
    """The fewest micro-batches that keep the goal for all rows of so many seconds, of all schedules on a grid."""
    grid = 0.05
    last = round(seconds / grid)
    shortest, longest = round((wait + duration) / grid), int((freshness - duration) / grid + 1e-9)

    @cache
    def more(at: int) -> int:
        if at >= last:
            return 0
        return 1 + min(more(at + step) for step in range(shortest, longest + 1))

    return more(0)


@pytest.mark.parametrize(("freshness", "wait", "duration"), [(1.0, 0.05, 0.2), (0.6, 0.05, 0.1), (3.0, 0.1, 0.4)])
def test_no_more_commits_than_the_best_schedule_needs(freshness: float, wait: float, duration: float) -> None:
    """Some more at the start, before anything is known, and those of the margin of a twentieth of the goal."""
    seconds = 20.0
    best = fewest(freshness, wait, duration, seconds)
    written = run(freshness, lambda _: (wait, duration), seconds)
    assert late_share(written, freshness) == 0.0
    margin = (freshness - duration) / (0.95 * freshness - duration)
    assert len(written) <= best * margin + 4
    assert len(run(freshness / 1e9, lambda _: (wait, duration), seconds)) > 1.5 * best  # what comes without pauses


def test_a_slow_one_now_and_then_does_not_cost_commits() -> None:
    """One in a hundred takes a third of a second longer: its late rows are within the share that may be late."""
    number = itertools.count()

    def needs(_: float) -> tuple[float, float]:
        return 0.03, 0.55 if next(number) % 200 == 100 else 0.2

    written = run(1.0, needs, 200.0)
    assert late_share(written, 1.0) <= PERCENT
    assert len(written) < 1.03 * len(run(1.0, lambda _: (0.03, 0.2), 200.0))


@pytest.mark.parametrize("known", [True, False])
def test_waits_for_rows_are_no_work(known: bool) -> None:
    """One row each 40 s, freshness of 60 s: the pause does not become shorter, because Spark waits for rows."""
    pace, now = Pace(60.0), 0.0
    for number in range(30):
        planned = now if known else None
        pace.step(planned=planned, begun=now + 0.01, now=now + 0.2, backlog=False, strain=Strain())
        pace.ended(now + 0.2)
        now += 40.0 if number % 3 else 0.23
    planned = now if known else None
    step = pace.step(planned=planned, begun=now + 0.01, now=now + 0.2, backlog=False, strain=Strain())
    assert step.pause > 50.0
    assert step.late == 0.0


def test_the_first_micro_batch_says_nothing() -> None:
    step = Pace(10.0).step(planned=0.0, begun=0.1, now=5.0, backlog=False, strain=Strain())
    assert step == Step(0.0, 5.0, 0.0, Reason.GOAL)


def test_a_backlog_ends_the_pauses_at_once_and_they_come_back() -> None:
    written = run(1.0, lambda _: (0.03, 0.2), 30.0, backlog=lambda at: 10.0 < at < 20.0)
    for one in written[3:]:
        assert (one.step.pause == 0.0) == (one.step.reason is Reason.BACKLOG) == (10.0 < one.planned < 20.0)


def test_a_micro_batch_that_takes_longer_than_the_goal_is_followed_at_once() -> None:
    written = run(1.0, lambda _: (0.03, 1.2), 30.0)
    assert {(one.step.pause, one.step.reason) for one in written[1:]} == {(0.0, Reason.SLOW)}
    assert written[-1].step.late > 0.5


def test_slow_ones_that_come_often_do() -> None:
    """Of ten micro-batches one takes longer: pauses as long as the others allow would make 5 % of the rows late."""
    number = itertools.count()
    written = run(1.0, lambda _: (0.03, 0.55 if next(number) % 20 == 0 else 0.2), 200.0)
    assert late_share(written, 1.0) <= PERCENT


def test_after_a_slow_one_the_next_comes_at_once() -> None:
    number = itertools.count()
    written = run(1.0, lambda _: (0.03, 1.5 if next(number) == 60 else 0.2), 60.0)
    (slow,) = (one for one in written if one.visible - one.planned > 1)
    assert (slow.step.pause, slow.step.reason) == (0.0, Reason.SLOW)


def test_a_load_that_has_grown_counts_after_one_micro_batch() -> None:
    number = itertools.count()
    written = run(1.0, lambda _: (0.03, 0.2 if next(number) < 200 else 0.4), 100.0)
    slow = [one for one in written if one.visible - one.planned > 0.3]
    assert late_share(slow, 1.0) <= PERCENT


def test_the_clock_of_spark_may_jump() -> None:
    pace = Pace(1.0)
    for now, planned in ((0.0, 0.0), (1.0, 5000.0), (2.0, -5000.0), (3.0, 3.0)):
        step = pace.step(planned=planned, begun=now + 0.01, now=now + 0.2, backlog=False, strain=Strain())
        pace.ended(now + 0.3)
        assert 0.0 <= step.pause < 1.0


@pytest.mark.parametrize(
    "strain", [Strain(rowsets=0.7), Strain(transactions=0.7), Strain(rowsets=0.7, transactions=0.6)]
)
def test_a_server_that_suffers_gets_fewer_commits(strain: Strain) -> None:
    """Each tenth above half of a limit doubles the interval."""
    calm = run(1.0, lambda _: (0.03, 0.2), 60.0)[-1].step
    step = run(1.0, lambda _: (0.03, 0.2), 60.0, strain=lambda at: strain if at > 30 else Strain())[-1].step
    assert step.reason is (Reason.ROWSETS if strain.rowsets else Reason.TRANSACTIONS)
    assert step.interval > 2 * calm.interval
    assert step.late > PERCENT  # it is said


def test_up_to_a_bound() -> None:
    written = run(1.0, lambda _: (0.03, 0.2), 300.0, strain=lambda at: Strain(rowsets=0.99) if at > 30 else Strain())
    calm = next(one.step.interval for one in reversed(written) if one.planned < 30)
    assert written[-1].step.interval <= MOST_STRETCH * calm * 1.01
    slow = run(1.0, lambda _: (0.03, 30.0), 900.0, strain=lambda _: Strain(rowsets=0.99))
    assert {one.step.pause for one in slow[1:]} == {LONGEST_PAUSE}


def test_also_in_a_backlog() -> None:
    step = run(1.0, lambda _: (0.03, 0.5), 60.0, backlog=lambda _: True, strain=lambda _: Strain(rowsets=0.8))[-1].step
    assert (round(step.interval, 2), step.reason) == (round(8 * 0.53, 2), Reason.ROWSETS)


def test_below_half_of_a_limit_nothing_changes() -> None:
    calm = run(1.0, lambda _: (0.03, 0.2), 60.0)
    assert run(1.0, lambda _: (0.03, 0.2), 60.0, strain=lambda _: Strain(rowsets=0.5, transactions=0.5)) == calm


def test_a_slow_publication_makes_no_more_commits() -> None:
    """It makes micro-batches longer, and would so shorten the pauses: the server publishes a quarter of the time."""
    step = run(1.0, lambda _: (0.03, 0.7), 60.0, strain=lambda _: Strain(publish=0.5))[-1].step
    assert (round(step.interval, 2), step.reason) == (2.0, Reason.PUBLISH)


def test_what_is_gone_is_forgotten() -> None:
    number = itertools.count()
    written = run(2.0, lambda _: (0.03, 1.0 if next(number) < 100 else 0.2), 400.0)
    fast = [one for one in written if one.visible - one.planned < 0.5]
    assert fast[WINDOW + 5].step.pause > 1.4
