"""One table: every answer of the server, to every operation on a label, in every state of the label.

Rows are answers: each `Status`, each message (wire contract 2.2, 2.5, 3.2, 4, 7), and what is no
reply at all. Columns are what comes of it:

- `begin`, `load`: ok, or the code of the error that is raised.
- `commit` in each state that get_load_state may tell (`lost`: it cannot be asked): C committed, A aborted, U unknown,
  D asked until the deadline. The answer of the row is the first one to the commit; a rollback is answered as the
  label's state demands. First with a ledger (the lane is taken over when nobody knows), then without one (the commit
  is repeated).
- `roll back`: done, or the code of the reason why not. `insist`: ended, or again until the deadline.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import BadReply, DeadlineExceeded, NotSent, ReplyLost, StarRocksSinkError, TransportError
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.fencing import roll_back_until_confirmed
from starrocks_txn_sink.protocol.label import Aborted, Committed, Label, RetryPolicy, Steps, Unknown, run
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from tests.support.manual_clock import ManualClock

LABEL = Label("shop", "L")
_JAVA = "class com.starrocks.common.StarRocksException: "


def failed(text: str) -> Reply:
    return Reply(Status.FAILED, text)


MESSAGES: dict[str, Reply | TransportError] = {
    "already committed": Reply(Status.OK, "Transaction 7 has already committed, label is L", "L", 7),
    "abort pending": Reply(
        Status.OK, "stream load L abort initiated, rollback pending (background retry will continue)"
    ),
    "already aborted": Reply(Status.OK, "Transaction 7 has already aborted, label is L"),
    "live label": Reply(Status.LABEL_ALREADY_EXISTS, "Transaction already started with label [L], txnId: 7"),
    "used label": Reply(Status.LABEL_ALREADY_EXISTS, "Label [L] has already been used."),
    "no such task": failed(_JAVA + "stream load task L does not exist"),
    "no such task, rollback": failed(_JAVA + "stream load taskLdoes not exist"),
    "committing, no loads": failed(_JAVA + "stream load task L is committing, can not accept new loads"),
    "already committing": failed("Transaction 7 is already committing, label is L"),
    "during committing": failed("Can not abort transaction 7 during committing, label is L"),
    "task committed": failed(_JAVA + "stream load task L has already been commited"),
    "cannot abort visible": failed("Can not abort VISIBLE transaction 7, label is L"),
    "aborting, load": failed(_JAVA + "stream load task L is aborting: timeout"),
    "aborting, commit": failed("Transaction 7 is aborting (reason: timeout), label is L"),
    "task cancelled": failed(_JAVA + "stream load task L has already been cancelled: timeout"),
    "cannot commit cancelled": failed("Can not commit CANCELLED transaction 7, label is L"),
    "load timeout": failed("Load timeout. Increase the timeout and retry"),
    "coordinator timeout": failed("coordinator could not finished before job timeout"),
    "leader switch": failed("Transaction state not found, possibly lost due to FE leader switch"),
    "fe restart": failed("cancelled after FE restart"),
    "no rows": failed("error_msg{cancel stream task for exception: No rows were imported from upstream}"),
    "filtered": failed("abnormal data more than max filter rate, tracking_url: http://be/log"),
    "too many running": failed("current running txns on db shop is 1000, larger than limit 1000"),
    "no database": failed(_JAVA + "Database[shop] does not exist"),
    "no table": failed("class com.starrocks.common.MetaNotFoundException: Failed to find table T in db D"),
    "other database": failed(_JAVA + "Request database X not equal transaction database Y"),
    "access denied": failed("Access denied for user@ip"),
    "bad label": failed(r"Label format error. regex: ^[-\w]{1,128}$, label: X"),
    "parameters": Reply(Status.INTERNAL_ERROR, "load request not equal last."),
    "unknown text": failed("something new"),
    "reply lost": ReplyLost("lost"),
    "not sent": NotSent("refused"),
    "no reply": BadReply("HTTP 502 with an HTML page came back."),
}
ANSWERS: dict[str, Reply | TransportError] = {**{status.value: Reply(status) for status in Status}, **MESSAGES}
STATES = [*LabelState.__members__, "lost"]

# In the columns of commits each letter stands for a state, in this order:
# UNKNOWN PREPARE PREPARED COMMITTED VISIBLE ABORTED lost; first with a ledger, then without one.
TABLE = """
answer                  | begin                 | load                  | commit          | roll back   | insist
OK                      | ok                    | ok                    | UUUCCUD UUUCCAD | done        | ended
FAILED                  | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
LABEL_ALREADY_EXISTS    | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
CANCELLED               | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
ANALYSIS_ERROR          | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
NOT_IMPLEMENTED_ERROR   | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
RUNTIME_ERROR           | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
MEM_LIMIT_EXCEEDED      | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
INTERNAL_ERROR          | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
THRIFT_RPC_ERROR        | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
TIMEOUT                 | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
PUBLISH_TIMEOUT         | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
TOO_MANY_TASKS          | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
INVALID_ARGUMENT        | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
NOT_AUTHORIZED          | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
ABORTED                 | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
SERVICE_UNAVAILABLE     | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
DATA_QUALITY_ERROR      | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
UNKNOWN                 | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
TXN_NOT_EXISTS          | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
TXN_IN_PROCESSING       | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
SHUTDOWN                | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
already committed       | ok                    | ok                    | UUUCCUD UUUCCAD | done        | ended
abort pending           | ok                    | ok                    | UUUCCUD UUUCCAD | done        | again
already aborted         | ok                    | ok                    | UUUCCUD UUUCCAD | done        | ended
live label              | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
used label              | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
no such task            | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | ended
no such task, rollback  | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | ended
committing, no loads    | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
already committing      | begin_failed          | load_failed           | UUUCCUD DDDCCAD | load_failed | again
during committing       | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
task committed          | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
cannot abort visible    | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | ended
aborting, load          | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
aborting, commit        | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
task cancelled          | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
cannot commit cancelled | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
load timeout            | begin_failed          | transaction_timed_out | UUUCCUU UAACCAD | load_failed | again
coordinator timeout     | begin_failed          | transaction_timed_out | UUUCCUU UAACCAD | load_failed | again
leader switch           | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
fe restart              | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
no rows                 | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
filtered                | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
too many running        | too_many_transactions | too_many_transactions | UUUCCUU UAACCAD | load_failed | again
no database             | refused               | refused               | UUUCCUU UAACCAD | load_failed | again
no table                | refused               | refused               | UUUCCUU UAACCAD | load_failed | again
other database          | refused               | refused               | UUUCCUU UAACCAD | load_failed | again
access denied           | refused               | refused               | UUUCCUU UAACCAD | load_failed | again
bad label               | refused               | refused               | UUUCCUU UAACCAD | load_failed | again
parameters              | begin_failed          | load_failed           | UUUCCUD UUUCCAD | load_failed | again
unknown text            | begin_failed          | load_failed           | UUUCCUU UAACCAD | load_failed | again
reply lost              | begin_failed          | load_failed           | UUUCCUD UUUCCAD | reply_lost  | again
not sent                | begin_failed          | load_failed           | UUUCCUD UUUCCAD | not_sent    | again
no reply                | begin_failed          | load_failed           | UUUCCUD UUUCCAD | bad_reply   | again
"""


class Server:
    """Answers the first request of `operation` with `answer`; everything else as a label in `state` is answered."""

    def __init__(self, operation: Operation, answer: Any, state: str, rollback: Any = None, again: Any = None) -> None:
        self.operation = operation
        self.answer: Reply | TransportError = answer
        self.state = state
        self.rollback: Reply | TransportError = rollback if rollback is not None else _rollback(state)
        self.again: Reply | TransportError = again if again is not None else answer
        self.asked: list[Operation] = []

    def send(self, request: Request, deadline: Deadline) -> Reply:
        del deadline
        self.asked.append(request.operation)
        answer = self._answer(request.operation)
        if isinstance(answer, TransportError):
            raise answer
        return answer

    def _answer(self, operation: Operation) -> Reply | TransportError:
        if operation is self.operation:
            return self.answer if self.asked.count(operation) == 1 else self.again
        if operation is Operation.ROLLBACK:
            return self.rollback
        if self.state == "lost":
            return ReplyLost("lost")
        # COMMITTED is published in the end
        state = "VISIBLE" if self.state == "COMMITTED" and len(self.asked) > 4 else self.state
        return Reply(Status.OK, state=LabelState[state])

    def close(self) -> None: ...


def _rollback(state: str) -> Reply | TransportError:
    """What a label in `state` answers to a rollback."""
    return {
        "UNKNOWN": MESSAGES["no such task, rollback"],
        "COMMITTED": MESSAGES["cannot abort visible"],
        "VISIBLE": MESSAGES["cannot abort visible"],
        "ABORTED": MESSAGES["already aborted"],
        "lost": ReplyLost("lost"),
    }.get(state, Reply(Status.OK, "stream load L abort"))


def play(steps: Steps[Any], server: Server) -> Any:
    clock = ManualClock()
    return run(steps, server, clock, Deadline.after(30.0, clock))


def rng() -> random.Random:
    return random.Random(1)


def word(result: Any) -> str:
    return {Committed: "C", Aborted: "A", Unknown: "U"}[type(result)]


def code_of(steps: Steps[Any], server: Server) -> str:
    try:
        play(steps, server)
    except StarRocksSinkError as error:
        return error.code
    return "ok"


def commit_word(server: Server, *, ledger: bool) -> str:
    try:
        return word(play(protocol.commit(LABEL, RetryPolicy(commit_again=not ledger), rng()), server))
    except DeadlineExceeded:
        return "D"


def row_of(name: str) -> str:
    """The table's row of an answer, as the code has it."""
    answer = ANSWERS[name]

    def server(operation: Operation, state: str = "UNKNOWN") -> Server:
        return Server(operation, answer, state)

    begin_code = code_of(protocol.begin(LABEL, {}), server(Operation.BEGIN))
    loaded = code_of(protocol.load(LABEL, "t", [b"[]"], {}, RetryPolicy(busy_tries=3), rng()), server(Operation.LOAD))
    fates = [
        "".join(commit_word(server(Operation.COMMIT, s), ledger=ledger) for s in STATES) for ledger in (True, False)
    ]
    try:
        reason = play(protocol.roll_back(LABEL, RetryPolicy(), rng()), server(Operation.ROLLBACK))
    except DeadlineExceeded:
        rolled_back = "deadline"
    else:
        rolled_back = "done" if reason is None else reason.code
    insisted = code_of(roll_back_until_confirmed(LABEL, rng()), server(Operation.ROLLBACK))
    insisted = {"ok": "ended", "deadline": "again"}[insisted]
    return f"{name:24}| {begin_code:22}| {loaded:22}| {fates[0]} {fates[1]} | {rolled_back:12}| {insisted}"


ROWS = TABLE.strip().splitlines()[1:]


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[0].strip() for row in ROWS])
def test_every_answer_to_every_operation_in_every_state_has_its_result(row: str) -> None:
    assert row_of(row.split("|")[0].strip()) == row


def test_the_table_has_every_status_and_message() -> None:
    assert [row.split("|")[0].strip() for row in ROWS] == list(ANSWERS)
    assert STATES == ["UNKNOWN", "PREPARE", "PREPARED", "COMMITTED", "VISIBLE", "ABORTED", "lost"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ledger", [True, False])
def test_only_visible_is_proof_of_a_commit_and_only_evidence_of_an_abort(state: str, ledger: bool) -> None:
    """Every pair of answers to the commit and to the rollback, also such as contradict the label's state."""
    for name, answer in ANSWERS.items():
        for rollback_name in (*MESSAGES, "OK", "INTERNAL_ERROR"):
            rollback = ANSWERS[rollback_name]
            server = Server(Operation.COMMIT, answer, state, rollback, answer)
            result = commit_word(server, ledger=ledger)
            place = f"commit: {name}, rollback: {rollback_name}"
            rolled_back = (
                isinstance(rollback, Reply) and rollback.status is Status.OK and Operation.ROLLBACK in server.asked
            )
            cancelled = name in ("cannot commit cancelled", "aborting, load", "aborting, commit")
            if result == "C":
                assert state in ("VISIBLE", "COMMITTED"), place
            if result == "A":
                assert state == "ABORTED" or rolled_back or cancelled, place
            if state == "VISIBLE":  # whatever a rollback says (wire contract 10.5)
                assert result == "C", place


@pytest.mark.parametrize(
    "text", ["stream load task {} does not exist", "Transaction 7 has already been used, label is {}"]
)
def test_a_label_that_is_called_cancelled_is_not_taken_for_one_that_is(text: str) -> None:
    """The server's messages quote the label, and a job may have any name."""
    name = "CANCELLED-e-0-1-1_0"
    answer = failed(text.format(name))
    server = Server(Operation.COMMIT, ReplyLost("lost"), "UNKNOWN", again=answer)
    steps = protocol.commit(Label("shop", name), RetryPolicy(commit_again=True), rng())
    assert word(play(steps, server)) == "U"
