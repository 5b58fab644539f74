# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of what became of a commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starrocks_txn_sink.coordinator import ownership
from starrocks_txn_sink.coordinator.ownership import Ownership
from starrocks_txn_sink.errors import CommitFailed
from starrocks_txn_sink.protocol import label as protocol, ledger
from starrocks_txn_sink.protocol.label import Aborted, Committed, Unknown
from starrocks_txn_sink.protocol.ledger import ReadPositions
from starrocks_txn_sink.protocol.wire import LabelState, Reply, Status

from .. import driver
from .registry import at_least_once_bug, bug


def commit_with(put: Any, change: Callable[[Any], Any]) -> None:
    right = protocol.commit

    def broken(label: Any, retry_policy: Any, rng: Any) -> Any:
        return change((yield from right(label, retry_policy, rng)))

    put(protocol, "commit", broken)


@bug
def an_unknown_outcome_is_taken_for_aborted(put: Any) -> None:
    def change(outcome: Any) -> Any:
        return Aborted(outcome.label, CommitFailed("unknown")) if isinstance(outcome, Unknown) else outcome

    commit_with(put, change)


@bug
def an_unknown_outcome_is_taken_for_committed(put: Any) -> None:
    commit_with(put, lambda outcome: Committed(outcome.label, None) if isinstance(outcome, Unknown) else outcome)


@at_least_once_bug
def an_aborted_commit_is_taken_for_committed(put: Any) -> None:
    """With a ledger no commit ends as Aborted: the ledger says so afterwards."""
    commit_with(put, lambda outcome: Committed(outcome.label, None) if isinstance(outcome, Aborted) else outcome)


@at_least_once_bug
def without_a_ledger_an_unknown_outcome_is_taken_for_committed(put: Any) -> None:
    an_unknown_outcome_is_taken_for_committed(put)


def _believe_the_rollback(put: Any) -> None:
    right = protocol._after_refusal

    def broken(label: Any, refusal: Any, retry_policy: Any, rng: Any) -> Any:
        return (yield from right(label, refusal, replace(retry_policy, commit_again=True), rng))

    put(protocol, "_after_refusal", broken)


@bug
def a_refused_commit_that_was_rolled_back_is_taken_for_aborted(put: Any) -> None:
    _believe_the_rollback(put)


@bug
def the_ok_to_a_commit_is_believed(put: Any) -> None:
    right = protocol.confirm

    def broken(label: Any, txn_id: Any, retry_policy: Any, rng: Any) -> Any:
        if txn_id is not None:
            return Committed(label.name, txn_id)
        return (yield from right(label, txn_id, retry_policy, rng))

    put(protocol, "confirm", broken)


@at_least_once_bug
def without_a_ledger_the_ok_to_a_commit_is_believed(put: Any) -> None:
    the_ok_to_a_commit_is_believed(put)


@bug
def committed_is_taken_for_visible(put: Any) -> None:
    state = protocol._state

    def broken(answer: Any) -> Any:
        return LabelState.VISIBLE if state(answer) is LabelState.COMMITTED else state(answer)

    put(protocol, "_state", broken)


@bug
def a_recovery_reads_positions_without_taking_over(put: Any) -> None:
    def broken(self: Any, label: str, spans: Any, rng: Any) -> Any:
        positions = yield from ledger.retry_until_answered(ReadPositions(self.job), rng)
        return ownership._outcome_of(label, spans, positions)

    put(Ownership, "recover", broken)


@bug
def labels_serve_as_locks(put: Any) -> None:
    """Labels are made from the micro-batch alone, and one that exists already is taken for one's own."""
    right = protocol.begin

    def broken(label: Any, headers: Any) -> Any:
        steps = right(label, headers)
        answer = yield next(steps)
        if isinstance(answer, Reply) and answer.status is Status.LABEL_ALREADY_EXISTS:
            return
        try:
            steps.send(answer)
        except StopIteration:
            return

    put(driver.Driver, "_labelled", lambda self, label: f"job-x-all-{label.rsplit('-', 2)[1]}-0_0")
    put(protocol, "begin", broken)
