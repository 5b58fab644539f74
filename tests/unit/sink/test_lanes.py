"""The driver's judgement of a shared label: commit, sort first, or the error that explains the most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.coordinator.model import (
    CheckAction,
    Chunk,
    CommitAction,
    LoadAction,
    RecoverAction,
    RollbackAction,
)
from starrocks_txn_sink.coordinator.shared_label import LaneShare, SharedContents, commit_shared, perform_all
from starrocks_txn_sink.errors import (
    CommitFailed,
    Fenced,
    InputError,
    KeyRepeated,
    LoadFailed,
    NotSent,
    OptionError,
    OutcomeUnknown,
    StarRocksSinkError,
    TaskRepeated,
    notes_of,
)
from starrocks_txn_sink.protocol.label import Aborted, Committed, Unknown
from starrocks_txn_sink.sink import lanes
from starrocks_txn_sink.sink.lanes import LanePlan, judge
from starrocks_txn_sink.writer.messages import (
    LaneReport,
    Message,
    OrderViolation,
    attach_report,
    attached_report,
    envelope,
)
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt


def task(*, marked: bool = True, **changes: Any) -> LaneTask:
    options = SinkOptions(load_url="fe", database="shop", delivery="at-least-once", lanes=2, **changes)
    return LaneTask(options, "job", "e1", "c1", 0, marked=marked, label="L")


def failure(error: StarRocksSinkError, at: float = 0.0) -> LaneReport:
    return LaneReport("job", 0, 0).fail(error, at)


def share(*partitions: str) -> LaneShare:
    return LaneShare(partitions=partitions)


def test_lanes_with_source_partitions_of_their_own_are_committed() -> None:
    assert judge([share("0", "2"), LaneReport("job", 0, 0), share("1"), share()], task()) == []


def test_a_source_partition_in_two_lanes_is_sorted_first() -> None:
    (violation,) = judge([share("0", "1"), share("1", "2")], task())
    assert violation.why == "Source partition 1 came in two tasks."


def test_an_error_about_the_input_is_no_verdict_as_long_as_rows_may_be_sorted() -> None:
    messages: list[Message] = [share("0"), failure(InputError("torn", hint="…"))]
    assert judge(messages, task()) == [OrderViolation("torn")]
    for final in (task(transactions="batch"), task(shuffle=False), task(marked=False), replace(task(), whole=True)):
        with pytest.raises(InputError, match="torn"):
            judge(messages, final)


@pytest.mark.parametrize("changes", [{"shuffle": True}, {"on_bad_rows": "quarantine"}, {"transactions": "lane"}])
def test_options_that_exclude_a_shared_label_leave_each_lane_its_own(changes: dict[str, Any]) -> None:
    frame: Any = None  # the options alone decide
    options = task(query_url="fe", **changes).options
    assert LanePlan.of(frame, options, positioned=True) == LanePlan(2)
    reading = TransactionAssembly(lines=TxnEventLines(reader="librdkafka"))
    with pytest.raises(OptionError, match="Spark then reads the topic"):
        StarRocksSink(replace(options, lanes=None), assemble=reading)
    if "transactions" not in changes:
        with pytest.raises(OptionError, match="transactions is batch, and"):
            replace(options, transactions="batch")


def test_disorder_is_shown_whatever_the_options_say() -> None:
    messages: list[Message] = [OrderViolation("back"), failure(LoadFailed("rolled back"))]
    assert judge(messages, task(transactions="batch")) == [OrderViolation("back")]


def test_the_failure_is_raised_that_no_repetition_cures_and_else_the_first() -> None:
    later, first = failure(LoadFailed("the label is gone"), 2.0), failure(LoadFailed("no backend", table="t"), 1.0)
    with pytest.raises(LoadFailed, match=r"no backend \[table=t\]") as caught:
        judge([later, first, share("0")], task())
    assert attached_report(caught.value) is first
    with pytest.raises(Fenced):
        judge([first, failure(Fenced("other"), 3.0)], task())


@pytest.mark.parametrize("cause", [KeyRepeated("again"), Fenced("other"), TaskRepeated("again"), NotSent("nobody")])
def test_a_clock_that_is_ahead_does_not_make_a_consequence_the_cause(cause: StarRocksSinkError) -> None:
    with pytest.raises(type(cause)):
        judge([failure(cause, 101.0), failure(LoadFailed("the label has already been cancelled"), 100.0)], task())


def test_repeated_keys_make_the_lanes_hold_rows_whatever_else_failed() -> None:
    with pytest.raises(KeyRepeated):
        judge([failure(InputError("no column"), 1.0), failure(KeyRepeated("again"), 2.0)], task(shuffle=False))


def test_after_repeated_keys_the_lanes_run_once_more_and_hold_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    class Attempt:
        def __init__(self, task: LaneTask, *_: object) -> None:
            self.reports: list[LaneReport] = []
            self._task = task

        def run(self, _: object) -> list[Message]:
            held.append(self._task.hold)
            if len(held) > 4:
                raise AssertionError("The lanes run without end.")
            raise KeyRepeated("again")

    monkeypatch.setattr(lanes, "LabelAttempt", Attempt)
    with pytest.raises(KeyRepeated):
        lanes.run_shared(task(), lambda _: [])
    assert held == [False, True]


def test_a_failure_that_this_process_does_not_know_is_one_all_the_same() -> None:
    with pytest.raises(StarRocksSinkError, match="Lane 1 failed with the code of_a_newer_release"):
        judge([share("0"), LaneReport("job", 1, 0, error="of_a_newer_release")], task())


def test_a_task_that_spark_runs_again_does_not_load() -> None:
    def load() -> list[Message]:
        raise AssertionError("It loads.")

    (said,) = task().answer(Attempt(1, 7, True), SystemClock(), load)
    assert isinstance(said, LaneReport)
    error = said.lane_error()
    assert isinstance(error, TaskRepeated)
    assert error.retryable


def test_errors_under_a_shared_label_are_messages_and_bugs_are_not() -> None:
    def fail(error: Exception) -> list[Message]:
        return task().answer(Attempt(1, 7, False), SystemClock(), lambda: _raise(error))

    (said,) = fail(LoadFailed("no backend", label="L"))
    assert isinstance(said, LaneReport)
    assert (said.error, said.failure["place"]) == ("load_failed", {"label": "L"})
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())


def test_a_report_goes_into_the_text_of_an_error_only_where_it_leaves_the_task() -> None:
    report = LaneReport("job", 1, 0, requests=(("load", "OK", 3),))
    within, leaving = LoadFailed("no backend"), LoadFailed("no backend")
    for error in (within, leaving):
        attach_report(error, report)
    attempt, clock = Attempt(1, 7, False), SystemClock()
    (said,) = task().answer(attempt, clock, lambda: _raise(within))
    assert isinstance(said, LaneReport)
    assert (said.error, said.requests, notes_of(within)) == ("load_failed", report.requests, [])
    with pytest.raises(LoadFailed):
        replace(task(), label=None).answer(attempt, clock, lambda: _raise(leaving))
    assert notes_of(leaving) == [envelope(report)]


def _raise(error: Exception) -> list[Message]:
    raise error


# --- the commit ---


def chunk(label: str, contents: Any) -> Chunk:
    del label, contents
    return Chunk("", "ledger")


def perform(*results: object) -> tuple[list[type], Any]:
    """An interpreter of actions that answers with `results`, and the kinds of actions that it was given."""
    seen: list[type] = []
    answers = iter(results)

    def act(action: object) -> object:
        seen.append(type(action))
        answer = next(answers)
        if isinstance(answer, StarRocksSinkError):
            raise answer
        return answer

    return seen, act


def commit(act: Any) -> Committed:
    return perform_all(commit_shared("L", SharedContents(()), [chunk], fenced=True), act)


def test_the_sinks_rows_are_loaded_the_owner_checked_and_then_it_is_committed() -> None:
    seen, act = perform(None, None, Committed("L", 1))
    assert commit(act) == Committed("L", 1)
    assert seen == [LoadAction, CheckAction, CommitAction]


def test_an_unknown_outcome_is_settled() -> None:
    seen, act = perform(None, None, Unknown("L", OutcomeUnknown("?")), Committed("L", None))
    assert commit(act) == Committed("L", None)
    assert seen[-1] is RecoverAction


def test_a_refused_commit_ends_with_its_reason_once_the_ledger_shows_nothing() -> None:
    unknown = Unknown("L", OutcomeUnknown("?"), CommitFailed("no quorum"))
    seen, act = perform(None, None, unknown, Aborted("L", CommitFailed("The ledger does not have it.")))
    with pytest.raises(CommitFailed, match="no quorum"):
        commit(act)
    assert seen[-1] is RecoverAction
    seen, act = perform(None, None, unknown, Committed("L", None))
    assert commit(act) == Committed("L", None)


def test_a_fenced_driver_rolls_back_and_does_not_commit() -> None:
    seen, act = perform(None, Fenced("other"), LoadFailed("and that fails, too"))
    with pytest.raises(Fenced):
        commit(act)
    assert seen == [LoadAction, CheckAction, RollbackAction]
