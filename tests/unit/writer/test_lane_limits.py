"""The limits of a lane and of a round, from the options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from starrocks_txn_sink.coordinator.model import RECYCLE_AT, LaneLimits
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.writer.lane_try import limits
from starrocks_txn_sink.writer.pipe import Stop
from starrocks_txn_sink.writer.task import LaneTask
from tests.support.manual_clock import ManualClock

OPTIONS = SinkOptions(load_url="fe", database="shop", delivery="at-least-once")
TASK = LaneTask(OPTIONS, "job", "e1", "c1", 7, label="L")


def test_the_limits_of_a_lane_are_those_of_the_options() -> None:
    options = replace(OPTIONS, timeout=90, buffer_bytes=1 << 26, load_parallelism=3)
    lane_limits = limits(options)
    assert {name: getattr(options, name) for name in LaneLimits.__slots__ if name != "body_bytes"} == {
        name: getattr(lane_limits, name) for name in LaneLimits.__slots__ if name != "body_bytes"
    }
    assert (lane_limits.timeout, lane_limits.buffer_bytes, lane_limits.load_parallelism) == (90, 1 << 26, 3)


def seconds(**changes: Any) -> float:
    return replace(TASK, options=replace(OPTIONS, **changes)).longest_round


def test_a_round_ends_before_any_limit_of_its_label() -> None:
    assert seconds() == RECYCLE_AT * 300.0  # released servers end a transaction then, whatever `timeout` says
    assert seconds(timeout=100) == RECYCLE_AT * 100.0
    assert seconds(batch_deadline=60.0) == RECYCLE_AT * 60.0
    assert replace(TASK, seconds=50.0).longest_round == RECYCLE_AT * 50.0


@pytest.mark.parametrize(("interval", "expected"), [(5.0, 5.0), (50.0, 48.0)])
def test_a_commit_interval_ends_a_round_earlier(interval: float, expected: float) -> None:
    assert seconds(timeout=100, batch_deadline=60.0, commit_interval=interval) == expected


def test_a_lane_on_a_host_with_another_clock_reads_no_longer_than_a_round() -> None:
    assert Stop.of(TASK, ManualClock()).due() is False
    for ends, seconds in ((1e6, 240.0), (100.0, 100.0), (-1e6, 0.0)):
        clock = ManualClock()
        task = replace(TASK, round_ends=clock.wall() + ends, round_seconds=240.0)
        assert seconds_left(Stop.of(task, clock), clock) == seconds


def seconds_left(end: Stop | None, clock: ManualClock) -> float | None:
    """The seconds until `end`; None without one."""
    assert end is not None
    waited = 0.0
    while not end.due():
        if waited > 300.0:
            return None
        clock.advance(1.0)
        waited += 1.0
    return waited


@pytest.mark.parametrize(("age", "left"), [(0.0, 240.0), (100.0, 140.0), (300.0, 0.0)])
def test_the_round_of_a_lane_that_may_begin_its_label_counts_from_its_first_input_or_from_the_begin_before(
    age: float, left: float
) -> None:
    clock = ManualClock()
    task = replace(TASK, round_ends=clock.wall(), round_seconds=240.0, lane_begins=True)
    end = Stop.of(task, clock)
    assert end is not None
    assert seconds_left(replace(end), clock) is None  # however long it waits for its source
    end.start(age)
    end.start()  # only the first input counts
    assert seconds_left(end, clock) == left
