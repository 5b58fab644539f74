"""The driver's judgement of a shared label: commit, sort first, or the error that explains the most."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext

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
    LaneDied,
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
from starrocks_txn_sink.sink.failures import Failure, FailureKind, outage_of, reason_of_task
from starrocks_txn_sink.sink.lanes import LanePlan, judge
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges
from starrocks_txn_sink.writer.messages import (
    LaneReport,
    Message,
    OrderViolation,
    attach_report,
    attached_report,
    envelope,
)
from starrocks_txn_sink.writer.task import LaneTask, place_of_first
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.manual_clock import ManualClock


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


class Attempts:
    """Attempts that end with `errors`, one after the other, and then succeed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: StarRocksSinkError) -> None:
        self.clock, self.tries, self._errors = ManualClock(), 0, list(errors)
        self.reports: list[LaneReport] = []
        monkeypatch.setattr(lanes, "LabelAttempt", lambda *_: self)
        monkeypatch.setattr(lanes, "SystemClock", lambda: self.clock)
        monkeypatch.setattr(lanes, "reason_of_task", lambda stage, lane, _: f"crashed in stage {stage}, task {lane}")

    def run(self, _: object) -> list[Message]:
        self.tries += 1
        self.clock.sleep(10.0)
        if self._errors:
            raise self._errors.pop(0)
        return []


def repeated(stage: int = 4) -> TaskRepeated:
    error = TaskRepeated("again", lane=1, stage=stage, reads="ev-0 offsets 7 to 9")
    attach_report(error, failure(error, 5.0))
    return error


def test_a_lane_that_dies_three_times_in_a_row_ends_the_micro_batch_with_reason_and_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = Attempts(monkeypatch, *(repeated(stage) for stage in range(9)))
    with pytest.raises(LaneDied) as caught:
        lanes.run_shared(task(max_attempts=1), lambda _: [])
    assert attempts.tries == 3
    said = "The task of lane 1 ended early, 3 times in a row. Spark's reason: crashed in stage 2, task 1"
    assert (caught.value.message, caught.value.context) == (said, {"lane": 1, "reads": "ev-0 offsets 7 to 9"})
    report = attached_report(caught.value)
    assert report is not None
    assert str(report.lane_error()) == str(caught.value)  # what a client of Spark Connect gets
    assert outage_of(caught.value) is None
    assert Failure.of(caught.value).kind is FailureKind.UNKNOWN


def test_without_sparks_reason_the_error_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    Attempts(monkeypatch, *(TaskRepeated("again", lane=1) for _ in range(3)))
    with pytest.raises(LaneDied, match=r"3 times in a row\. The executors' logs have the reason\. \[lane=1\]"):
        lanes.run_shared(task(), lambda _: [])


def test_a_lane_that_lives_in_between_may_die_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(monkeypatch, repeated(), repeated())
    lanes.run_shared(task(), lambda _: [])
    assert attempts.tries == 3
    attempts = Attempts(monkeypatch, repeated(), repeated(), NotSent("nobody"), repeated(), repeated())
    lanes.run_shared(task(max_attempts=9), lambda _: [])
    assert attempts.tries == 6


def test_lanes_that_die_are_no_outage_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(monkeypatch, *(repeated() for _ in range(9)))
    with pytest.raises(LaneDied, match="2 times in a row"):
        lanes.run_shared(replace(task(), seconds=15.0), lambda _: [])
    assert attempts.tries == 2


def test_an_outage_explains_more_than_a_task_that_was_repeated() -> None:
    with pytest.raises(NotSent):
        judge([failure(repeated(), 1.0), failure(NotSent("nobody"), 2.0)], task())


class Store:
    """Spark's store of tasks, which knows of a failed try a little later."""

    def __init__(self, *tries: tuple[int, str | None], late: int = 0) -> None:
        self._tries, self._late = tries, late

    def statusStore(self) -> Store:  # noqa: N802
        return self

    def lastStageAttempt(self, stage: int) -> Any:  # noqa: N802
        assert stage == 4
        return SimpleNamespace(attemptId=lambda: 0)

    def taskList(self, stage: int, attempt: int, _: int) -> Any:  # noqa: N802
        assert (stage, attempt) == (4, 0)
        self._late -= 1
        tries = [] if self._late >= 0 else [self._try(*one) for one in self._tries]
        return SimpleNamespace(iterator=lambda: SimpleNamespace(hasNext=lambda: bool(tries), next=lambda: tries.pop(0)))

    def _try(self, task: int, message: str | None) -> Any:
        text = SimpleNamespace(isDefined=lambda: message is not None, get=lambda: message)
        return SimpleNamespace(index=lambda: task, errorMessage=lambda: text)


def test_the_reason_is_that_of_the_first_failed_try_at_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = "ExecutorLostFailure (executor 2 exited): Container from a bad node. Exit status: 137\n\tat org.apache"
    traced = "PythonException: Traceback (most recent call last):\n  File\nValueError: no such day\n"

    def reason(store: Any) -> str:
        monkeypatch.setattr(
            SparkContext, "_active_spark_context", SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: store))
        )
        return reason_of_task(4, 1, ManualClock())

    assert reason(Store((0, "another task"), (1, lost), (1, None), late=3)) == lost.splitlines()[0]
    assert reason(Store((1, traced))) == "ValueError: no such day"
    assert reason(Store((0, "another task"), (1, None))) == ""
    assert reason(None) == ""  # another release of Spark
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    assert reason_of_task(4, 1, ManualClock()) == ""


def test_a_lane_is_named_by_what_it_reads() -> None:
    ranges = {("ev", number): (10 * number, 10 * number + 5) for number in range(10)}
    assert OffsetRanges(dict(list(ranges.items())[:2]), 1.0, {}).place == "ev-0 offsets 0 to 4, ev-1 offsets 10 to 14"
    assert OffsetRanges(ranges, 1.0, {}).place.endswith("ev-7 offsets 70 to 74 and 2 partitions more")
    batch = pa.RecordBatch.from_pydict({"source_partition": ["p-0", "p-0"], "position": [7, 8]})
    assert place_of_first(iter([batch.slice(0, 0), batch])) == "from source partition p-0, position 7"
    in_json = batch.set_column(1, "position", pa.nulls(2, pa.int64()))
    for batches in ([], [batch.select(["source_partition"])], [in_json]):
        assert place_of_first(batches) is None


def test_a_failure_that_this_process_does_not_know_is_one_all_the_same() -> None:
    with pytest.raises(StarRocksSinkError, match="Lane 1 failed with the code of_a_newer_release"):
        judge([share("0"), LaneReport("job", 1, 0, error="of_a_newer_release")], task())


def test_a_task_that_spark_runs_again_does_not_load() -> None:
    def load() -> list[Message]:
        raise AssertionError("It loads.")

    (said,) = task().answer(Attempt(1, 7, True, 4), SystemClock(), load, lambda: "ev-0")
    assert isinstance(said, LaneReport)
    error = said.lane_error()
    assert isinstance(error, TaskRepeated)
    assert error.context == {"lane": 1, "stage": 4, "reads": "ev-0"}
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
