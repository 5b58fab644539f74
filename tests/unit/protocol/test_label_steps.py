"""Every answer to every operation of a label has a defined result; unknown is never taken for a failure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import (
    BadReply,
    BeginFailed,
    CommitFailed,
    DeadlineExceeded,
    LoadFailed,
    NotSent,
    ReplyLost,
    RowsRejected,
    ServerRefused,
    StarRocksSinkError,
    TooManyTransactions,
    TransactionTimedOut,
    TransportError,
)
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.label import (
    Aborted,
    Backoff,
    Committed,
    Label,
    Loaded,
    RetryPolicy,
    Steps,
    Unknown,
    run,
)
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from tests.support.manual_clock import ManualClock

LABEL = Label("shop", "job-1")
OK = Reply(Status.OK)
LOST = ReplyLost("lost")


def failed(text: str) -> Reply:
    return Reply(Status.FAILED, f"class com.starrocks.common.StarRocksException: {text}")


COMMITTING = failed("Transaction 1 is already committing, label is L")
DURING = failed("Can not abort transaction 1 during committing, label is L")


def state(name: str) -> Reply:
    return Reply(Status.OK, state=LabelState[name])


class Script:
    """Answers each operation from its own list; the last answer repeats."""

    def __init__(self, **answers: list[Reply | TransportError]) -> None:
        self.answers = {Operation(name): list(replies) for name, replies in answers.items()}
        self.asked: list[Operation] = []

    def send(self, request: Request, deadline: Deadline) -> Reply:
        del deadline
        self.asked.append(request.operation)
        replies = self.answers[request.operation]
        answer = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(answer, TransportError):
            raise answer
        return answer

    def close(self) -> None: ...


def outcome_of(script: Script, seconds: float = 60.0) -> Any:
    return play(protocol.commit(LABEL, RetryPolicy(), random.Random(1)), script, seconds)


def play(steps: Steps[Any], script: Script, seconds: float = 60.0) -> Any:
    clock = ManualClock()
    return run(steps, script, clock, Deadline.after(seconds, clock))


@pytest.mark.parametrize(
    ("commit", "states", "rollback", "expected"),
    [
        ([OK], ["VISIBLE"], [OK], Committed),
        ([OK], ["COMMITTED", "COMMITTED", "VISIBLE"], [OK], Committed),
        ([OK], ["ABORTED"], [OK], Aborted),  # generation B says OK to a commit that rolled back
        ([OK], ["UNKNOWN"], [OK], Unknown),
        ([OK], ["UNKNOWN", "VISIBLE"], [OK], Committed),
        ([LOST], ["VISIBLE"], [OK], Committed),
        ([LOST], ["ABORTED"], [OK], Aborted),
        ([LOST, OK], ["UNKNOWN", "VISIBLE"], [OK], Committed),  # the commit never arrived: it is repeated
        ([LOST, OK], ["PREPARE", "VISIBLE"], [OK], Committed),
        ([LOST, failed("Transaction 1 is already committing, label is L")], ["UNKNOWN", "VISIBLE"], [OK], Committed),
        ([LOST, failed("Can not commit CANCELLED transaction 1, label is L")], ["UNKNOWN"], [OK], Aborted),
        ([LOST, failed("stream load task L does not exist")], ["UNKNOWN"], [OK], Unknown),
        ([LOST, LOST], ["UNKNOWN"], [OK], Unknown),
        ([BadReply("html")], ["VISIBLE"], [OK], Committed),
        ([NotSent("refused"), OK], ["UNKNOWN", "VISIBLE"], [OK], Committed),
        ([failed("Transaction 1 is already committing, label is L")], ["VISIBLE"], [OK], Committed),
        ([failed("cancel stream task for exception: no quorum")], ["UNKNOWN"], [OK], Aborted),
        ([failed("no quorum")], ["VISIBLE"], [OK], Committed),  # the new leader's OK lies, and the state does not
        ([failed("no quorum")], ["COMMITTED", "VISIBLE"], [OK], Committed),
        ([LOST, failed("Can not commit CANCELLED")], ["UNKNOWN", "VISIBLE"], [OK], Committed),
        ([LOST, *[COMMITTING] * 20, OK], [*["UNKNOWN"] * 21, "VISIBLE"], [OK], Committed),
        ([failed("no quorum"), COMMITTING], ["UNKNOWN", "UNKNOWN", "VISIBLE"], [DURING], Committed),
        ([failed("cancel stream task for exception: no quorum")], ["ABORTED"], [LOST], Aborted),
        ([failed("no quorum")], ["VISIBLE"], [failed("Can not abort VISIBLE transaction 1")], Committed),
        ([failed("no quorum")], ["COMMITTED", "VISIBLE"], [LOST], Committed),
        ([failed("no quorum")], ["UNKNOWN"], [LOST], Unknown),
        (
            [failed("stream load task L does not exist")],
            ["UNKNOWN"],
            [failed("stream load taskLdoes not exist")],
            Unknown,
        ),
        ([Reply(Status.INTERNAL_ERROR, "x")], ["VISIBLE"], [OK], Committed),
    ],
)
def test_what_became_of_a_commit(commit: Any, states: list[str], rollback: Any, expected: type) -> None:
    script = Script(commit=commit, get_load_state=[state(name) for name in states], rollback=rollback)
    assert type(outcome_of(script)) is expected


@pytest.mark.parametrize("rollback", [OK, LOST])
def test_with_a_ledger_a_refused_commit_is_settled_by_the_ledger(rollback: Any) -> None:
    """After a change of the leader a visible label is rolled back with OK, and its state is ABORTED."""
    script = Script(commit=[failed("Can not commit CANCELLED")], get_load_state=[state("ABORTED")], rollback=[rollback])
    outcome = play(protocol.commit(LABEL, RetryPolicy(commit_again=False), random.Random(1)), script)
    assert isinstance(outcome, Unknown)
    assert "Can not commit CANCELLED" in str(outcome.refusal)


def test_already_committing_is_waited_for_until_the_deadline() -> None:
    """Wire contract 3.2: the server's word that its answer is still to come; it is no unknown outcome."""
    script = Script(commit=[LOST, COMMITTING], get_load_state=[state("UNKNOWN")])
    with pytest.raises(DeadlineExceeded):
        outcome_of(script, seconds=1200)
    assert script.asked.count(Operation.COMMIT) < 1200  # with growing pauses


@pytest.mark.parametrize(("patience", "expected"), [(0.0, Unknown), (30.0, Committed)])
def test_with_a_ledger_a_commit_may_take_longer_than_the_wait_for_its_reply(patience: float, expected: type) -> None:
    states: list[Reply | TransportError] = [*[state("UNKNOWN")] * 10, state("VISIBLE")]
    policy = RetryPolicy(commit_again=False, patience=patience)
    steps = protocol.commit(LABEL, policy, random.Random(1))
    assert type(play(steps, Script(commit=[LOST], get_load_state=states))) is expected


def test_a_commit_takes_one_request_and_one_question_when_all_is_well() -> None:
    script = Script(commit=[OK], get_load_state=[state("VISIBLE")])
    assert outcome_of(script) == Committed("job-1", None)
    assert script.asked == [Operation.COMMIT, Operation.LOAD_STATE]


def test_a_committed_label_is_waited_for_until_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="becoming visible"):
        outcome_of(Script(commit=[OK], get_load_state=[state("COMMITTED")]), seconds=5)


def test_a_server_that_cannot_be_asked_is_asked_until_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded):
        outcome_of(Script(commit=[OK], get_load_state=[LOST]), seconds=5)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("abnormal data more than max filter rate, tracking_url: http://be/log", RowsRejected),
        ("too many filtered rows", RowsRejected),
        ("No rows were imported from upstream, tracking_url: http://be/log", RowsRejected),
        ("No rows were imported from upstream", CommitFailed),
        ("primary key size exceed the limit", RowsRejected),
        ("current running txns on db 1 is 1000, larger than limit 1000", TooManyTransactions),
        ("coordinator could not finished before job timeout", TransactionTimedOut),
        ("something new", CommitFailed),
    ],
)
def test_why_a_commit_failed(text: str, kind: type[StarRocksSinkError]) -> None:
    outcome = outcome_of(Script(commit=[failed(text)], rollback=[OK], get_load_state=[state("UNKNOWN")]))
    assert isinstance(outcome, Aborted)
    assert type(outcome.error) is kind
    assert "job-1" in str(outcome.error)


def load_of(script: Script, retry_policy: RetryPolicy | None = None) -> Any:
    steps = protocol.load(LABEL, "orders", [b"[]"], {}, retry_policy or RetryPolicy(), random.Random(1))
    return play(steps, script)


def test_a_busy_table_is_tried_again_and_counted() -> None:
    busy = Reply(Status.TXN_IN_PROCESSING, "Transaction is in processing")
    assert load_of(Script(load=[busy, busy, Reply(Status.OK, txn_id=7)])) == Loaded(7, 2)
    with pytest.raises(LoadFailed, match="stayed busy"):
        load_of(Script(load=[busy]), RetryPolicy(busy_tries=3))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (LOST, LoadFailed),
        (NotSent("refused"), LoadFailed),
        (BadReply("html"), LoadFailed),
        (failed("Load timeout. Increase the timeout and retry"), TransactionTimedOut),
        (failed("Failed to find table T in db D"), ServerRefused),
        (failed("Request database X not equal transaction database Y"), ServerRefused),
        (failed("Unknown data format X"), ServerRefused),
        (failed("Column has no default value. column: C"), ServerRefused),
        (failed("current running txns on db 1 is 3, larger than limit 3"), TooManyTransactions),
        (failed("stream load task L has already been cancelled: x"), LoadFailed),
        (Reply(Status.ABORTED, "transaction is aborted"), LoadFailed),
        (Reply(Status.TXN_NOT_EXISTS, "Transaction with label L not exists"), LoadFailed),
        (Reply(Status.INTERNAL_ERROR, "load request not equal last."), LoadFailed),
        (Reply(Status.LABEL_ALREADY_EXISTS, "x"), LoadFailed),
    ],
)
def test_why_a_load_failed_and_that_it_is_sent_once(answer: Any, kind: type[StarRocksSinkError]) -> None:
    script = Script(load=[answer])
    with pytest.raises(kind) as failure:
        load_of(script)
    assert type(failure.value) is kind
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (LOST, BeginFailed),
        (Reply(Status.LABEL_ALREADY_EXISTS, "Label [L] has already been used."), BeginFailed),
        (failed("current running txns on db 1 is 3, larger than limit 3"), TooManyTransactions),
        (failed("Database[shop] does not exist"), ServerRefused),
        (failed("whatever"), BeginFailed),
    ],
)
def test_why_a_begin_failed(answer: Any, kind: type[StarRocksSinkError]) -> None:
    with pytest.raises(kind) as failure:
        play(protocol.begin(LABEL, {"timeout": "600"}), Script(begin=[answer]))
    assert type(failure.value) is kind


@pytest.mark.parametrize(
    ("answers", "confirmed"),
    [
        ([OK], True),
        ([LOST, OK], True),
        ([LOST], False),
        ([failed("Can not abort VISIBLE transaction 1, label is L")], False),
        ([failed("Can not abort transaction 1 during committing, label is L"), OK], True),
        ([failed("stream load taskLdoes not exist")], False),
    ],
)
def test_a_rollback_never_raises(answers: Any, confirmed: bool) -> None:
    reason = play(protocol.roll_back(LABEL, RetryPolicy(), random.Random(1)), Script(rollback=answers))
    assert (reason is None) is confirmed


def test_backoff_grows_to_its_bound_and_spreads() -> None:
    backoff, rng = Backoff(0.05, 2.0), random.Random(3)
    waits = [[backoff.seconds(attempt, rng) for _ in range(50)] for attempt in (0, 3, 99)]
    assert all(0.025 <= wait <= 0.05 for wait in waits[0])
    assert all(0.2 <= wait <= 0.4 for wait in waits[1])
    assert all(1.0 <= wait <= 2.0 for wait in waits[2])
    assert len(set(waits[2])) > 40


def test_steps_are_closed_when_the_deadline_ends_them() -> None:
    closed: list[bool] = []

    def steps() -> Steps[None]:
        try:
            while True:
                yield LABEL.request(Operation.COMMIT)
                yield protocol.Wait(1.0, "nothing")
        finally:
            closed.append(True)

    make: Callable[[], Steps[None]] = steps
    with pytest.raises(DeadlineExceeded):
        play(make(), Script(commit=[OK]), seconds=3)
    assert closed == [True]
