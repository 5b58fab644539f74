"""The reader counts samples, torn ones and failures, and measures freshness; a fake answers it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from starrocks_demo.reader import Freshness, Reader, Sample, glance, percentile
from tests.support.manual_clock import ManualClock


def script(clock: ManualClock, stop: threading.Event, *steps: Sample | Exception) -> Callable[[], Sample]:
    """A look that takes 0.25 s each and plays `steps`, then stops the reader."""
    remaining = list(steps)

    def look() -> Sample:
        clock.advance(0.25)
        step = remaining.pop(0)
        if not remaining:
            stop.set()
        if isinstance(step, Exception):
            raise step
        return step

    return look


def read(*steps: Sample | Exception, freshness: Freshness | None = None) -> tuple[Reader, ManualClock]:
    clock, stop = ManualClock(), threading.Event()
    reader = Reader(script(clock, stop, *steps), freshness or Freshness(), clock=clock, rest=1.0)
    reader.run(stop)
    return reader, clock


def test_counts_samples_and_torn_ones_with_evidence() -> None:
    reader, _ = read(Sample(), Sample(("partial = 2 in partition 0", "order_totals = 1")), Sample())
    assert (reader.samples, reader.torn, reader.errors) == (3, 1, 0)
    assert reader.evidence == ["sample 2: partial = 2 in partition 0; order_totals = 1"]


def test_keeps_little_evidence_of_much() -> None:
    reader, _ = read(*[Sample(("partial = 1",))] * 50)
    assert reader.torn == 50
    assert len(reader.evidence) == 5


def test_an_error_is_counted_and_is_no_sample() -> None:
    reader, _ = read(ConnectionResetError("gone"), Sample(("torn",)), TimeoutError())
    assert (reader.samples, reader.torn, reader.errors) == (1, 1, 2)
    assert reader.last_error == "TimeoutError: "


@pytest.mark.parametrize(
    ("pause", "rest_seconds", "slept"),
    [(0.2, 4.0, 1.0), (0.4, 1.0, 0.4), (0.2, 9.0, 2.0)],
    ids=["a share of its time", "a while after a quick look", "not for long"],
)
def test_rests(pause: float, rest_seconds: float, slept: float) -> None:
    clock, stop = ManualClock(), threading.Event()
    Reader(script(clock, stop, Sample(), Sample()), Freshness(), clock=clock, pause=pause, rest=rest_seconds).run(stop)
    assert clock.slept == [slept, slept]


def test_a_glance_tells_how_far_each_source_partition_is() -> None:
    assert glance([["0", "3"], [12, 1]]) == Sample(newest={0: 3, 12: 1})


def test_keeps_the_latest_sample_and_tells_freshness() -> None:
    freshness = Freshness()
    freshness.record_written([(0, 1), (0, 2), (1, 1)], at=0.0)
    reader, _ = read(Sample(newest={0: 1}), Sample(newest={0: 2, 1: 1}, rows={"orders": 9}), freshness=freshness)
    assert reader.latest.rows == {"orders": 9}
    assert freshness.visible == 3
    assert freshness.percentiles(0.3, 0.99) == (0.25, 0.75)


def test_freshness_counts_each_transaction_once() -> None:
    freshness = Freshness()
    freshness.record_written([(0, 1)], at=1.0)
    freshness.record_written([(0, 2)], at=2.0)
    freshness.record_seen({0: 1}, at=4.0)
    freshness.record_seen({0: 1}, at=9.0)
    freshness.record_seen({0: 2}, at=10.0)
    assert freshness.percentiles(0.5, 1.0) == (3.0, 8.0)


def test_freshness_ignores_what_was_never_written() -> None:
    freshness = Freshness()
    freshness.record_seen({0: 5, 3: 1, 1: -4}, at=1.0)
    assert freshness.visible == 0
    assert freshness.percentiles(0.5) == (None,)


def test_freshness_of_what_is_not_timed() -> None:
    freshness = Freshness()
    freshness.record_written([(0, 1)], at=None)
    freshness.record_written([(0, 2)], at=5.0)
    freshness.record_seen({0: 2}, at=6.0)
    assert freshness.visible == 2
    assert freshness.percentiles(0.01, 1.0) == (1.0, 1.0)


def test_freshness_of_the_last_ones() -> None:
    freshness = Freshness()
    freshness.record_written([(0, 1), (0, 2)], at=0.0)
    freshness.record_seen({0: 1}, at=9.0)
    freshness.record_seen({0: 2}, at=10.0)
    assert freshness.percentiles(0.5, last=1) == (10.0,)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_percentile_is_one_of_the_values_with_enough_below(values: list[float], share: float) -> None:
    values.sort()
    percentile_ = percentile(values, share)
    assert percentile_ in values
    assert sum(value <= percentile_ for value in values if percentile_ is not None) >= share * len(values) - 1e-9


def test_percentile_of_nothing() -> None:
    assert percentile([], 0.5) is None
    assert percentile([1.0], 0.5) == pytest.approx(1.0)
