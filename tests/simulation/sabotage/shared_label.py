# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of a label that all lanes share."""

from __future__ import annotations

from typing import Any

from starrocks_txn_sink.coordinator import shared_label
from starrocks_txn_sink.coordinator.ownership import LaneOwnership
from starrocks_txn_sink.coordinator.shared_label import LaneShare
from starrocks_txn_sink.errors import CommitFailed
from starrocks_txn_sink.protocol import fencing
from starrocks_txn_sink.protocol.label import Aborted, Committed, Unknown, labels
from starrocks_txn_sink.rows.segments import Replay
from starrocks_txn_sink.sink import lanes
from starrocks_txn_sink.writer.messages import LaneReport, of_kind
from starrocks_txn_sink.writer.task import LaneTask

from .. import shared_driver
from .outcomes import commit_with
from .registry import nothing, shared_bug


@shared_bug
def a_task_that_spark_runs_again_loads_under_the_shared_label(put: Any) -> None:
    put(LaneTask, "answer", lambda self, attempt, clock, run: run())


@shared_bug
def a_source_partition_in_two_tasks_is_not_noticed(put: Any) -> None:
    put(shared_label, "find_shared_partition", lambda shares: None)


@shared_bug
def the_shared_label_is_committed_although_a_lane_has_failed(put: Any) -> None:
    right = lanes.judge

    def broken(messages: Any, task: Any) -> Any:
        some = of_kind(messages, LaneShare)
        return right([each for each in messages if not (some and isinstance(each, LaneReport) and each.error)], task)

    put(shared_driver, "judge", broken)


@shared_bug
def the_owner_is_not_checked_before_a_shared_label_is_committed(put: Any) -> None:
    put(LaneOwnership, "check", nothing)


@shared_bug
def a_shared_label_is_committed_without_its_positions(put: Any) -> None:
    right = shared_label.commit_shared

    def broken(label: Any, contents: Any, entries: Any, fenced: Any) -> Any:
        del entries
        return right(label, contents, (), fenced=fenced)

    put(shared_driver, "commit_shared", broken)


@shared_bug
def an_unknown_outcome_of_a_shared_label_counts_as_committed(put: Any) -> None:
    commit_with(put, lambda outcome: Committed(outcome.label, None) if isinstance(outcome, Unknown) else outcome)


@shared_bug
def a_shared_label_of_unknown_outcome_is_not_ended_before_the_ledger_is_read(put: Any) -> None:
    put(fencing, "roll_back_until_confirmed", nothing)


@shared_bug
def an_unknown_outcome_of_a_shared_label_counts_as_failure(put: Any) -> None:
    def change(outcome: Any) -> Any:
        return Aborted(outcome.label, CommitFailed("unknown")) if isinstance(outcome, Unknown) else outcome

    commit_with(put, change)


@shared_bug
def lanes_of_a_shared_label_write_what_the_ledger_has(put: Any) -> None:
    put(Replay, "new_rows", lambda *_: None)


@shared_bug
def a_failed_shared_label_is_used_again(put: Any) -> None:
    put(shared_driver, "labels", lambda job, epoch, lane, batch, attempt: labels(job, epoch, lane, batch, 0))
    put(shared_driver, "roll_back", nothing)
