"""The coordinator's limits from the options: when a lane may commit before its last row."""

from __future__ import annotations

import math

import pytest

from starrocks_txn_sink.coordinator.model import RECYCLE_AT
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.writer.task import limits


def early(lanes: int, on_bad_rows: str = "fail", *, at_end_only: bool = False) -> tuple[float | None, float, bool]:
    """Commit interval, recycle point, and whether size closes a batch."""
    options = SinkOptions(
        load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", lanes=lanes, on_bad_rows=on_bad_rows
    )
    made = limits(options, at_end_only=at_end_only)
    return made.commit_interval, made.recycle_at, made.close_bytes is not None


def test_one_lane_of_sorted_rows_commits_early_only_to_recycle_its_label() -> None:
    assert early(1) == (None, RECYCLE_AT, False)


def test_several_lanes_commit_after_the_commit_interval_too() -> None:
    assert early(2) == (1.0, RECYCLE_AT, False)


def test_a_quarantine_closes_batches_that_it_could_not_bisect() -> None:
    assert early(1, "quarantine") == (None, RECYCLE_AT, True)


@pytest.mark.parametrize("on_bad_rows", ["fail", "quarantine"])
def test_unsorted_rows_are_never_committed_early(on_bad_rows: str) -> None:
    assert early(2, on_bad_rows, at_end_only=True) == (None, math.inf, False)
