"""Where a micro-batch ends, over logs that are plain lists of event times."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Set

import pytest
from hypothesis import given, strategies as st

from starrocks_spark_stages.balanced.rules.plan import (
    BatchEnd,
    BatchLimits,
    Idleness,
    PartitionEnds,
    common_time,
    plan_batch,
    slice_bounds,
)
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets, offsets_of, parse_offsets
from tests.support.manual_clock import ManualClock

Times = Mapping[KafkaPartition, list[int]]
A, B = ("a", 0), ("b", 0)


def log(times: Times) -> PartitionEnds:
    return PartitionEnds(
        {p: len(times_of_partition) for p, times_of_partition in times.items()},
        {p: max(times_of_partition, default=None) for p, times_of_partition in times.items()},
    )


def lookup(times: Times, questions: list[int] | None = None) -> Callable[[int], Offsets]:
    def offsets_from(time: int) -> Offsets:
        if questions is not None:
            questions.append(time)
        return {
            place: next((n for n, at in enumerate(times_of_place) if at >= time), len(times_of_place))
            for place, times_of_place in times.items()
        }

    return offsets_from


def ends(
    times: Times,
    limits: BatchLimits,
    idle: Set[KafkaPartition] = frozenset(),
    start: Offsets | None = None,
    since: int = -1,
) -> tuple[Offsets, int | None]:
    begin = start or dict.fromkeys(times, 0)
    batch_end = plan_batch(begin, since, log(times), idle, limits, lookup(times))
    return dict(batch_end.offsets), batch_end.time


def test_it_ends_where_the_slowest_awake_partition_is() -> None:
    times = {A: [1, 2, 3, 4, 5], B: [2, 3]}
    assert ends(times, BatchLimits()) == ({A: 3, B: 2}, 3)


def test_an_idle_partition_is_left_out_and_all_idle_flushes() -> None:
    times = {A: [1, 2, 5], B: [2]}
    assert ends(times, BatchLimits(), {B}) == ({A: 3, B: 1}, 5)
    assert ends(times, BatchLimits(), {A, B}) == ({A: 3, B: 1}, 5)
    assert common_time(log({A: [], B: []}), {A, B}) is None


def test_an_empty_partition_holds_the_others_back_until_it_is_idle() -> None:
    times = {A: [1, 2], B: []}
    assert ends(times, BatchLimits()) == ({A: 0, B: 0}, None)
    assert ends(times, BatchLimits(), {B}) == ({A: 2, B: 0}, 2)


def test_rows_are_limited_at_one_event_time_for_all() -> None:
    times = {A: list(range(1000)), B: list(range(0, 1000, 10))}
    end, time = ends(times, BatchLimits(rows=110))
    assert time is not None
    assert (end[A], end[B]) == (time + 1, time // 10 + 1)
    assert 90 <= end[A] + end[B] <= 110


def test_bytes_are_limited_by_the_mean_size_of_rows() -> None:
    times = {A: list(range(1000)), B: list(range(1000))}
    end, _ = ends(times, BatchLimits(bytes=11_000, row_bytes={A: 100, B: 10}))
    assert 9000 <= 110 * end[A] <= 11_000


def test_one_millisecond_above_the_limit_is_cut_in_proportion() -> None:
    times = {A: [7] * 900, B: [7] * 100}
    assert ends(times, BatchLimits(rows=100), since=6) == ({A: 90, B: 10}, 6)
    assert ends({A: [7], B: []}, BatchLimits(bytes=1, row_bytes={A: 50}), {B}, since=6) == ({A: 1, B: 0}, 6)


def test_time_never_goes_back_and_late_rows_are_taken_at_once() -> None:
    times = {A: [1, 2, 9], B: [1, 2, 3]}
    assert ends(times, BatchLimits(), start={A: 3, B: 1}, since=9) == ({A: 3, B: 3}, 9)


def test_a_millisecond_that_was_cut_is_not_read_again_when_a_partition_comes_back_late() -> None:
    times = {A: [10, 10, 10, 10], B: [5]}
    assert ends(times, BatchLimits(), start={A: 2, B: 0}, since=9) == ({A: 2, B: 1}, 9)


def test_slices_are_about_equal_and_in_order_of_time() -> None:
    times = {A: list(range(0, 10_000, 1)), B: list(range(0, 10_000, 5))}
    start, end = {A: 0, B: 0}, {A: 10_000, B: 2000}
    cuts = slice_bounds(start, end, -1, 9999, 4, lookup(times))
    sizes = [sum(high[p] - low[p] for p in start) for low, high in itertools.pairwise(cuts)]
    assert (len(sizes), sum(sizes), cuts[0], cuts[-1]) == (4, 12_000, start, end)
    assert all(2400 <= size <= 3600 for size in sizes)


def test_few_questions_are_asked() -> None:
    questions: list[int] = []
    times = {A: list(range(0, 86_400_000, 1000))}
    plan_batch({A: 0}, -1, log(times), set(), BatchLimits(rows=10_000), lookup(times, questions))
    assert len(questions) <= 30


def test_idle_is_who_was_silent_for_the_timeout() -> None:
    clock = ManualClock()
    idleness = Idleness(10, clock)
    assert idleness.update({A: 1, B: 1}) == set()
    clock.sleep(9)
    assert idleness.update({A: 1, B: 2}) == set()
    clock.sleep(1)
    assert idleness.update({A: 1, B: 2}) == {A}
    assert idleness.update({A: 2, B: 2}) == set()


TIMES = st.fixed_dictionaries(
    {(name, 0): st.lists(st.integers(0, 60), max_size=40).map(sorted) for name in ("a", "b", "c")}
)


UNORDERED = st.fixed_dictionaries({(name, 0): st.lists(st.integers(0, 60), max_size=20) for name in ("a", "b", "c")})


def batches(times: Times, rows: int) -> Iterator[tuple[Offsets, BatchEnd]]:
    """Where each micro-batch begins, and its plan, until all rows were in one: never empty, too full or back."""
    start: Offsets = dict.fromkeys(times, 0)
    since, limits, idle = -1, BatchLimits(rows=rows), set(times)
    while dict(start) != {place: len(times_of_place) for place, times_of_place in times.items()}:
        batch_end = plan_batch(start, since, log(times), idle, limits, lookup(times))
        assert batch_end.time is not None
        assert 0 < sum(batch_end.offsets[p] - start[p] for p in start) <= rows
        assert all(batch_end.offsets[p] >= start[p] for p in start)
        assert batch_end.time >= since
        yield start, batch_end
        start, since = batch_end.offsets, batch_end.time


@given(TIMES, st.integers(1, 30))
def test_all_rows_come_in_batches_that_end_at_one_time_within_the_limit(times: Times, rows: int) -> None:
    for start, batch_end in batches(times, rows):
        assert batch_end.time is not None
        for place, times_of_place in times.items():
            batch = times_of_place[start[place] : batch_end.offsets[place]]
            assert all(time <= batch_end.time + 1 for time in batch)  # a millisecond that is cut is the one after
            assert all(time > batch_end.time for time in times_of_place[batch_end.offsets[place] :])


@given(UNORDERED, st.integers(1, 30))
def test_rows_that_are_behind_in_their_own_partition_come_late_and_none_is_left_behind(times: Times, rows: int) -> None:
    counts = [batch_end.offsets[place] - start[place] for start, batch_end in batches(times, rows) for place in times]
    assert sum(counts) == sum(map(len, times.values()))


@pytest.mark.parametrize(
    "offset", ['{"t": {"x": 1}}', '{"t": {"0": null}}', '{"t": 3}', "7", "[]", '{"t": {"0": 1e999}}']
)
def test_an_offset_in_another_form_is_refused_as_a_whole(offset: str) -> None:
    """A partition that was left out would be read again, or from its end."""
    with pytest.raises((ValueError, TypeError, AttributeError, OverflowError)):
        parse_offsets(offset)
    assert offsets_of(offset) == {}
    assert parse_offsets('{"t": {"0": 5}, "@time": 3}') == {("t", 0): 5}
