"""What an outcome and an error say: their label, table, cause and text, which recovery and the user read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import (
    BeginFailed,
    CommitFailed,
    LoadFailed,
    LoadsCollided,
    OutcomeUnknown,
    PartitionClosed,
    ReplyLost,
    RowsRejected,
    ServerRefused,
    StarRocksSinkError,
    TooManyTransactions,
    TransactionTimedOut,
    TransportError,
)
from starrocks_txn_sink.http.transport import read_load_state, read_reply
from starrocks_txn_sink.protocol import label as protocol, refusals as refusals
from starrocks_txn_sink.protocol.label import Aborted, Backoff, Committed, Label, RetryPolicy, Steps, Unknown, run
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from tests.support.manual_clock import LongestWaits, ManualClock
from tests.support.recordings import read, recordings, records

LABEL = Label("shop", "L")
OK = Reply(Status.OK)
LOST = ReplyLost("lost on the way")
RETRY_POLICY = RetryPolicy(backoff=Backoff(first=1.0, longest=8.0))


class Server:
    """Answers in turn; remembers what was asked, and when."""

    def __init__(self, *answers: Reply | TransportError) -> None:
        self.answers = list(answers)
        self.clock = ManualClock()
        self.asked: list[Request] = []
        self.times: list[float] = []

    def send(self, request: Request, deadline: Deadline) -> Reply:
        del deadline
        self.asked.append(request)
        self.times.append(self.clock.monotonic())
        answer = self.answers.pop(0)
        if isinstance(answer, TransportError):
            raise answer
        return answer

    def close(self) -> None: ...

    @property
    def waits(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False)]


def play(steps: Steps[Any], server: Server) -> Any:
    return run(steps, server, server.clock, Deadline.after(600, server.clock))


def error_of(steps: Steps[Any], *answers: Reply | TransportError) -> StarRocksSinkError:
    with pytest.raises(StarRocksSinkError) as failure:
        play(steps, Server(*answers))
    return failure.value


def failed(text: str) -> Reply:
    return Reply(Status.FAILED, text)


def state(name: str) -> Reply:
    return Reply(Status.OK, state=LabelState[name])


UNKNOWN = state("UNKNOWN")


def committing(*answers: Reply | TransportError, retry_policy: RetryPolicy = RETRY_POLICY) -> tuple[Any, Server]:
    server = Server(*answers)
    return play(protocol.commit(LABEL, retry_policy, LongestWaits()), server), server


def test_an_outcome_carries_its_label_and_the_transaction_id_of_the_reply() -> None:
    outcome, server = committing(Reply(Status.OK, txn_id=7), state("VISIBLE"))
    assert outcome == Committed("L", 7)
    assert [(request.operation, request.database, request.label) for request in server.asked] == [
        (Operation.COMMIT, "shop", "L"),
        (Operation.LOAD_STATE, "shop", "L"),
    ]
    refused = Reply(Status.FAILED, "no quorum", txn_id=9)
    assert committing(refused, LOST, state("VISIBLE"), state("VISIBLE"))[0] == Committed("L", 9)


@pytest.mark.parametrize(
    "answers",
    [
        (failed("no quorum"), OK, state("UNKNOWN")),
        (failed("no quorum"), LOST, state("ABORTED")),
        (failed("no quorum"), OK, LOST, state("UNKNOWN")),
        (LOST, UNKNOWN, failed("Can not commit CANCELLED transaction 7, label is L: no quorum"), UNKNOWN),
        (LOST, UNKNOWN, failed("Transaction 7 is aborting (reason: no quorum), label is L"), UNKNOWN),
    ],
)
def test_an_aborted_commit_says_why(answers: tuple[Reply | TransportError, ...]) -> None:
    outcome, _ = committing(*answers)
    assert isinstance(outcome, Aborted)
    assert outcome.label == "L"
    assert type(outcome.error) is CommitFailed
    assert "no quorum" in outcome.error.message
    assert outcome.error.context == {"label": "L", "status": "FAILED"}


def test_a_commit_that_was_rolled_back_after_its_ok_says_so() -> None:
    outcome, _ = committing(OK, state("ABORTED"))
    assert isinstance(outcome, Aborted)
    assert "rolled the transaction back after accepting" in str(outcome.error)
    assert outcome.error.retryable


def test_an_unknown_outcome_repeats_what_the_commit_was_answered() -> None:
    outcome, _ = committing(failed("a strange thing"), LOST, state("UNKNOWN"))
    assert isinstance(outcome, Unknown)
    assert outcome.label == outcome.error.context["label"] == "L"
    assert "a strange thing" in outcome.error.message
    silent, _ = committing(LOST, state("UNKNOWN"), retry_policy=RetryPolicy(commit_again=False))
    assert type(silent.error) is OutcomeUnknown
    assert silent.error.message.endswith("was committed.")


def test_questions_for_the_outcome_come_at_growing_intervals() -> None:
    _, server = committing(OK, *[state("COMMITTED")] * 7, state("VISIBLE"))
    assert server.waits == [0, 1, 2, 4, 8, 8, 8, 8]


def test_without_a_ledger_a_commit_is_repeated_a_bounded_number_of_times() -> None:
    answers: list[Reply | TransportError] = [LOST]
    for _ in range(6):
        answers += [state("UNKNOWN"), LOST]
    outcome, server = committing(*answers, retry_policy=RetryPolicy(unknown_tries=6))
    assert isinstance(outcome, Unknown)
    assert [request.operation for request in server.asked].count(Operation.COMMIT) == 7


def test_a_rollback_is_tried_four_times_and_then_gives_the_reason() -> None:
    server = Server(LOST, LOST, LOST, LOST)
    assert play(protocol.roll_back(LABEL, RETRY_POLICY, LongestWaits()), server) is LOST
    assert server.waits == [1, 2, 4]
    open_still = play(
        protocol.roll_back(LABEL, RETRY_POLICY, LongestWaits()), Server(*[failed("x during committing, x")] * 4)
    )
    assert isinstance(open_still, LoadFailed)
    assert open_still.context == {"label": "L"}
    assert "did not end" in open_still.message
    refused = play(
        protocol.roll_back(LABEL, RETRY_POLICY, LongestWaits()), Server(failed("Can not abort VISIBLE" + "!" * 500))
    )
    assert isinstance(refused, LoadFailed)
    assert refused.context == {"label": "L"}
    assert 200 < len(refused.message) < 300


def test_a_lost_begin_or_load_names_its_place_and_its_cause() -> None:
    error = error_of(protocol.begin(LABEL, {}), LOST)
    assert (type(error), error.context, error.__cause__) == (BeginFailed, {"label": "L"}, LOST)
    assert "begin" in error.message
    assert "lost on the way" in error.message
    loaded = error_of(protocol.load(LABEL, "t", [b"[]"], {}, RETRY_POLICY, LongestWaits()), LOST)
    assert (type(loaded), loaded.context, loaded.__cause__) == (LoadFailed, {"label": "L", "table": "t"}, LOST)


def test_a_busy_table_is_waited_for_and_given_up_with_its_place() -> None:
    busy = Reply(Status.TXN_IN_PROCESSING)
    server = Server(busy, busy, busy, OK)
    assert play(protocol.load(LABEL, "t", [b"[]"], {"h": "v"}, RETRY_POLICY, LongestWaits()), server).retries == 3
    assert server.waits == [1, 2, 4]
    assert all((r.table, r.headers, r.body) == ("t", {"h": "v"}, [b"[]"]) for r in server.asked)
    error = error_of(protocol.load(LABEL, "t", [b"[]"], {}, RetryPolicy(busy_tries=2), LongestWaits()), busy, busy)
    assert error.context == {"label": "L", "table": "t"}
    assert "only one client" in str(error).lower()


FULL = {"label": "L", "table": "t", "status": "FAILED"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("current running txns on db shop is 3, larger than limit 3", TooManyTransactions),
        ("Failed to find table T in db D", ServerRefused),
        ("Access denied for user", ServerRefused),
        ("something new", LoadFailed),
    ],
)
def test_a_refused_load_says_what_the_server_said(text: str, kind: type[StarRocksSinkError]) -> None:
    error = refusals.load_error(failed(text), "L", "t")
    assert (type(error), error.context) == (kind, FULL)
    assert text in error.message
    assert error.advice if kind is ServerRefused else True


def test_a_table_that_is_not_found_has_the_few_causes_that_are_possible() -> None:
    for table, beyond in (("orders", False), ("größe", True)):
        advice = refusals.load_error(failed("Failed to find table T in db D"), "L", table).advice
        assert "shadow table of gh-ost" in advice
        assert ("beyond ASCII" in advice) is beyond


PLANNING = "STREAM_LOAD_TASK:10905, label{L}, error_msg{cancel stream task for exception: "


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("Column has no default value. column: n", "default"),
        ("key column id not in partial update columns", "every key column"),
        ("Mapping column is not in table. column: z", "Add the column"),
        ("Unknown data format parquet", "json"),
    ],
)
def test_a_load_without_a_plan_names_its_table_the_reason_and_a_remedy(reason: str, remedy: str) -> None:
    """Wire contract 2.2, 4.7."""
    error = refusals.load_error(failed(f"{PLANNING}{reason}}}"), "L", "t")
    assert (type(error), error.context) == (ServerRefused, FULL)
    assert error.message == f"The server refused the load into t: {reason}"
    assert remedy in error.advice


def test_first_loads_that_met_are_told_from_all_other_ends_of_a_label() -> None:
    """Wire contract 4.5: by the load that was refused first, and by all that come after it."""
    text = f"{PLANNING}channel id 0 for label L already exist backend [id=10001] [host=127.0.0.1]}}"
    for said in (text, f"stream load task L has already been cancelled: {text}"):
        error = refusals.load_error(failed(said), "L", "t")
        assert (type(error), error.retryable) == (LoadsCollided, True)


@pytest.mark.parametrize(
    "cause", [f"{PLANNING}Column has no default value. column: n}}", "Failed to find table gone in db shop"]
)
def test_a_load_after_the_end_of_its_label_is_no_fault_of_its_table(cause: str) -> None:
    """Wire contract 4.8: the load that ended the label has the error that counts, which is terminal."""
    error = refusals.load_error(failed(f"stream load task L has already been cancelled: {cause}"), "L", "t")
    assert (type(error), error.context) == (LoadFailed, {"label": "L", "status": "FAILED"})
    assert "had ended before" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "stream load task L has already been cancelled: ",
        "stream load task L has already been cancelled: manual abort",
        "stream load task L is aborting: user cancel",
    ],
)
def test_a_label_that_another_client_rolled_back_is_said_so_and_written_again(text: str) -> None:
    """Wire contract 7.3."""
    committed = "Can not commit CANCELLED transaction 7, label is L"
    for error in (refusals.load_error(failed(text), "L", "t"), refusals.commit_error(failed(committed), "L")):
        assert "rolled back by another client" in error.message
        assert "security.md" in error.advice
        assert error.retryable


def _recorded(file: str, *names: str) -> list[Reply]:
    """The recorded answers of these names, as the sink reads them."""
    (path,) = (path for path in recordings() if path.name == file)
    answers = {name: record["answer"] for name, record in records(read(path))}
    readers = [read_load_state if "state" in answers[name]["body"] else read_reply for name in names]
    return [
        reader(200, json.dumps({**answers[name]["body"], "TxnId": 7}).encode())
        for reader, name in zip(readers, names, strict=True)
    ]


def test_a_recorded_ok_without_a_quorum_is_the_servers_doing() -> None:
    """Wire contract 3.2: the hole of B, as a real frontend showed it."""
    scene = "no quorum of replicas"
    answers = _recorded("backends.json", *(f"{scene}: {name}" for name in ("commit", "state", "commit again")))
    outcome, _ = committing(*answers, state("PREPARE"))
    assert isinstance(outcome, Aborted)
    assert "after accepting the commit" in outcome.error.message
    assert "another client" not in outcome.error.message
    outcome, server = committing(*answers, retry_policy=RetryPolicy(commit_again=False))
    assert isinstance(outcome, Unknown)
    assert [request.operation for request in server.asked] == [Operation.COMMIT, Operation.LOAD_STATE]


def test_a_recorded_change_of_the_leader_is_said_so() -> None:
    """Wire contract 10.5: whatever became of the label, its new leader knows no more than its begin."""
    scene = "after a change of the leader"
    (refused,) = _recorded("leader.json", f"{scene}: commit the one to commit later")
    for said in (refused, failed("class java.lang.NullPointerException: null")):  # the same, of a JVM that is warm
        error = refusals.commit_error(said, "L")
        assert (type(error), error.retryable) == (CommitFailed, True)
        assert "Another frontend leads" in error.message


def test_a_load_after_a_recorded_commit_names_the_commit() -> None:
    """Wire contract 3.2, 7.3: every user may commit."""
    (refused,) = _recorded("loads.json", "a commit of two tables: load after")
    error = refusals.load_error(refused, "L", "t")
    assert (type(error), error.context) == (LoadFailed, {"label": "L", "status": "FAILED"})
    assert "committed by another client" in error.message
    assert "twice" in error.advice


def test_the_recorded_limit_of_transactions_is_waited_for() -> None:
    """Wire contract 4.13."""
    (refused,) = _recorded("loads.json", "a commit beyond the limit of running transactions: commit")
    assert isinstance(refusals.commit_error(refused, "L"), TooManyTransactions)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("current running txns on db shop is 3, larger than limit 3", TooManyTransactions),
        ("Database[shop] does not exist", ServerRefused),
        ("something new", BeginFailed),
    ],
)
def test_a_refused_begin_says_what_the_server_said(text: str, kind: type[StarRocksSinkError]) -> None:
    error = refusals.begin_error(failed(text), "L")
    assert (type(error), error.context) == (kind, {"label": "L", "status": "FAILED"})
    assert text in error.message


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("abnormal data more than max filter rate", RowsRejected),
        ("current running txns on db shop is 3, larger than limit 3", TooManyTransactions),
        ("automatic create partition failed. error: txn 15402 not exist", PartitionClosed),
        ("something new", CommitFailed),
    ],
)
def test_a_refused_commit_says_what_the_server_said(text: str, kind: type[StarRocksSinkError]) -> None:
    error = refusals.commit_error(failed(text), "L")
    assert (type(error), error.context) == (kind, {"label": "L", "status": "FAILED"})
    assert text in error.message


def test_a_timeout_says_so_wherever_it_is_noticed() -> None:
    for error in (
        refusals.load_error(failed("Load timeout. Increase the timeout and retry"), "L", "t"),
        refusals.commit_error(failed("coordinator could not finished before job timeout"), "L"),
    ):
        assert (type(error), error.context) == (TransactionTimedOut, {"label": "L"})
        assert "timeout" in error.message


def test_the_servers_text_is_one_line_of_bounded_length() -> None:
    error = refusals.commit_error(failed("a\n  b\t" + "x" * 2000), "L")
    assert "a b x" in error.message
    assert len(error.message) < 700
    assert "gave no message" in refusals.commit_error(failed(" \n"), "L").message


@pytest.mark.parametrize(
    ("text", "is_gone"),
    [
        ("stream load task L does not exist", True),
        ("stream load taskLdoes not exist", True),
        ("Database[shop] does not exist", False),
        ("stream load task L is committing, can not accept new loads", False),
        ("", False),
    ],
)
def test_a_label_is_gone_only_when_the_server_says_that_it_does_not_exist(text: str, is_gone: bool) -> None:
    assert refusals.is_gone(failed(text)) is is_gone
