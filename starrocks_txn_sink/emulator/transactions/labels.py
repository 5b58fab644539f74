"""The task state machine of a multi-table label: one table of answers, one table of moves (contract section 3.2).

Pure: no clock, no locks, no input or output. The key of a task is its label alone; `COMMITING` and `COMMITED` are the
server's own spelling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from starrocks_txn_sink.emulator.transactions.replies import Body, Thrown, label_already_exists
from starrocks_txn_sink.wire import Operation

LABEL_REGEX = r"^[-\w]{1,128}$"


class TaskState(Enum):
    """State of a label's task, spelled as the server spells it."""

    BEGIN = "BEGIN"
    COMMITING = "COMMITING"
    ABORTING = "ABORTING"
    COMMITED = "COMMITED"
    FINISHED = "FINISHED"
    CANCELLED = "CANCELLED"


FINAL = frozenset({TaskState.COMMITED, TaskState.FINISHED, TaskState.CANCELLED})

MOVES: Mapping[TaskState, frozenset[TaskState]] = MappingProxyType(
    {
        TaskState.BEGIN: frozenset({TaskState.COMMITING, TaskState.ABORTING}),
        TaskState.COMMITING: frozenset({TaskState.COMMITED, TaskState.ABORTING}),
        TaskState.ABORTING: frozenset({TaskState.CANCELLED}),
        TaskState.COMMITED: frozenset({TaskState.FINISHED}),
        TaskState.FINISHED: frozenset(),
        TaskState.CANCELLED: frozenset(),
    }
)


class IllegalMove(Exception):
    """A defect of the stand-in itself: a state change that the table of moves does not know."""


@dataclass(slots=True)
class Task:
    """One label on the leader frontend. Times are seconds of the stand-in's clock; `deadline` counts from begin."""

    task_id: int
    label: str
    database: str
    txn_id: int
    begun_at: float
    deadline: float
    state: TaskState = TaskState.BEGIN
    error: str = ""
    abort_reason: str = ""
    ended_at: float | None = None
    tables: dict[str, Any] = field(default_factory=dict)

    def move(self, to: TaskState) -> None:
        if to not in MOVES[self.state]:
            raise IllegalMove(f"{self.state.name} -> {to.name}")
        self.state = to

    @property
    def final(self) -> bool:
        return self.state in FINAL

    def expired(self, now: float) -> bool:
        return not self.final and now > self.deadline


@dataclass(frozen=True, slots=True)
class Answer:
    """What a state says to an operation. `proceed` means: nothing stands against it, do it."""

    status: str = "OK"
    template: str = ""
    entries: tuple[str, ...] = ()
    thrown: bool = False
    proceed: bool = False


_GO = Answer(proceed=True)
_STARTED = Answer("LABEL_ALREADY_EXISTS", "Transaction already started with label [{label}], txnId: {txn}", ("TxnId",))
_USED = Answer("LABEL_ALREADY_EXISTS", "Label [{label}] has already been used.")
_ABSENT = Answer("FAILED", "stream load task {label} does not exist", thrown=True)
_COMMITTED = Answer("OK", "Transaction {txn} has already committed, label is {label}", ("Label", "TxnId"))
_ABORTED = Answer("OK", "Transaction {txn} has already aborted, label is {label}", ("Label", "TxnId"))
_VISIBLE = Answer("FAILED", "Can not abort VISIBLE transaction {txn}, label is {label}")

ANSWERS: Mapping[tuple[TaskState | None, Operation], Answer] = MappingProxyType(
    {
        (None, Operation.BEGIN): _GO,
        (None, Operation.LOAD): _ABSENT,
        (None, Operation.COMMIT): _ABSENT,
        (None, Operation.ROLLBACK): Answer("FAILED", "stream load task{label}does not exist", thrown=True),
        #
        (TaskState.BEGIN, Operation.BEGIN): _STARTED,
        (TaskState.BEGIN, Operation.LOAD): _GO,
        (TaskState.BEGIN, Operation.COMMIT): _GO,
        (TaskState.BEGIN, Operation.ROLLBACK): _GO,
        #
        (TaskState.COMMITING, Operation.BEGIN): _STARTED,
        (TaskState.COMMITING, Operation.LOAD): Answer(
            "FAILED", "stream load task {label} is committing, can not accept new loads"
        ),
        (TaskState.COMMITING, Operation.COMMIT): Answer(
            "FAILED", "Transaction {txn} is already committing, label is {label}"
        ),
        (TaskState.COMMITING, Operation.ROLLBACK): Answer(
            "FAILED", "Can not abort transaction {txn} during committing, label is {label}"
        ),
        #
        (TaskState.ABORTING, Operation.BEGIN): _STARTED,
        (TaskState.ABORTING, Operation.LOAD): Answer("FAILED", "stream load task {label} is aborting: {reason}"),
        (TaskState.ABORTING, Operation.COMMIT): Answer(
            "FAILED", "Transaction {txn} is aborting (reason: {reason}), label is {label}"
        ),
        (TaskState.ABORTING, Operation.ROLLBACK): Answer(
            "OK",
            "Transaction {txn} abort is already in progress, label is {label}. Background retry will continue.",
        ),
        #
        (TaskState.COMMITED, Operation.BEGIN): _USED,
        (TaskState.COMMITED, Operation.LOAD): Answer("FAILED", "stream load task {label} has already been commited"),
        (TaskState.COMMITED, Operation.COMMIT): _COMMITTED,
        (TaskState.COMMITED, Operation.ROLLBACK): _VISIBLE,
        #
        (TaskState.FINISHED, Operation.BEGIN): _USED,
        (TaskState.FINISHED, Operation.LOAD): Answer("FAILED", "stream load task {label} has already been finished"),
        (TaskState.FINISHED, Operation.COMMIT): _COMMITTED,
        (TaskState.FINISHED, Operation.ROLLBACK): _VISIBLE,
        #
        (TaskState.CANCELLED, Operation.BEGIN): _STARTED,
        (TaskState.CANCELLED, Operation.LOAD): Answer(
            "FAILED", "stream load task {label} has already been cancelled: {error}"
        ),
        (TaskState.CANCELLED, Operation.COMMIT): Answer(
            "FAILED", "Can not commit CANCELLED transaction {txn}, label is {label}"
        ),
        (TaskState.CANCELLED, Operation.ROLLBACK): _ABORTED,
    }
)


def refusal(task: Task | None, label: str, operation: Operation) -> Body | None:
    """The reply that the label's state alone gives, or None when the operation may go on.

    Raises `Thrown` where the server raises, so that the reply carries the Java class.
    """
    answer = ANSWERS[task.state if task else None, operation]
    if answer.proceed:
        return None
    if task is None:
        raise Thrown(answer.template.format(label=label))
    text = answer.template.format(label=label, txn=task.txn_id, reason=task.abort_reason, error=task.error)
    known = {"Label": label, "TxnId": task.txn_id}
    entries = {name: known[name] for name in answer.entries}
    if answer.status == "LABEL_ALREADY_EXISTS":
        return label_already_exists(text, task.state.value, **entries)
    return {"Status": answer.status, "Message": text, **entries}


def check_label(label: str) -> None:
    """The check that fires when a transaction is registered, not at begin (contract section 7)."""
    if re.fullmatch(r"[-\w]{1,128}", label, re.ASCII) is None:
        raise Thrown(f"Label format error. regex: {LABEL_REGEX}, label: {label}")
