"""Labels on the leader frontend: tasks, registered transactions, and what is forgotten when (wire contract 3).

Pure: no clock, no locks, no input or output; the frontend's lock guards what is here. A task is known by its label
alone, from begin on. A label enters the history when its transaction is registered: at commit in generation B, at the
first load in C. `COMMITING` and `COMMITED` are the server's own spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from starrocks_emulator.settings import Generation, Limits
from starrocks_emulator.transactions.messages import Body, Thrown, label_already_exists

LABEL_REGEX = r"^[-\w]{1,128}$"


class Operation(Enum):
    """What a request asks of a label; the value is the server's own word."""

    BEGIN = "begin"
    LOAD = "load"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class LabelState(Enum):
    """`state` of a registered transaction, as get_load_state answers it (wire contract 6)."""

    PREPARE = "PREPARE"
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    VISIBLE = "VISIBLE"
    ABORTED = "ABORTED"


class Planning(Enum):
    """How far the plan of a table's first load is."""

    BEGIN = "begin"
    CHANNEL = "channel"


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
    """A defect of the emulator itself: a state change that the table of moves does not know."""


@dataclass(slots=True)
class Task:
    """One label on the leader frontend. Times are seconds of the emulator's clock; `deadline` counts from begin."""

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
    planning: dict[str, Planning] = field(default_factory=dict)
    inherited: bool = False

    def move(self, to: TaskState) -> None:
        """Change the state; raises IllegalMove for a change that is not in MOVES."""
        if to not in MOVES[self.state]:
            raise IllegalMove(f"{self.state.name} -> {to.name}")
        self.state = to

    def recover(self) -> None:
        """What a restarted frontend makes of the task: CANCELLED, in whatever state it was (wire contract 10.5)."""
        self.state = TaskState.CANCELLED
        self.error = self.error or "cancelled after FE restart"
        self.tables = {}

    def inherit(self) -> None:
        """What another frontend that leads from now on makes of the task: BEGIN, ended or not (wire contract 10.5)."""
        self.state, self.inherited, self.ended_at = TaskState.BEGIN, True, None
        self.error = self.abort_reason = ""
        self.tables = {}

    @property
    def final(self) -> bool:
        """Whether it has ended: COMMITED, FINISHED or CANCELLED."""
        return self.state in FINAL

    def expired(self, now: float) -> bool:
        """Whether it is past its deadline, and has not ended."""
        return not self.final and now > self.deadline

    def too_late_to_plan(self, now: float) -> bool:
        """Whether no whole second is left for a load: with a timeout of 1 at once (wire contract 4.12)."""
        return self.deadline - now <= 1


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a state says to an operation. `proceed` means: nothing stands against it, do it."""

    status: str = "OK"
    template: str = ""
    entries: tuple[str, ...] = ()
    thrown: bool = False
    proceed: bool = False


_GO = Ruling(proceed=True)
_STARTED = Ruling("LABEL_ALREADY_EXISTS", "Transaction already started with label [{label}], txnId: {txn}", ("TxnId",))
_USED = Ruling("LABEL_ALREADY_EXISTS", "Label [{label}] has already been used.")
_ABSENT = Ruling("FAILED", "stream load task {label} does not exist", thrown=True)
_COMMITTED = Ruling("OK", "Transaction {txn} has already committed, label is {label}", ("Label", "TxnId"))
_ABORTED = Ruling("OK", "Transaction {txn} has already aborted, label is {label}", ("Label", "TxnId"))
_VISIBLE = Ruling("FAILED", "Can not abort VISIBLE transaction {txn}, label is {label}")

RULINGS: Mapping[tuple[TaskState | None, Operation], Ruling] = MappingProxyType(
    {
        (None, Operation.BEGIN): _GO,
        (None, Operation.LOAD): _ABSENT,
        (None, Operation.COMMIT): _ABSENT,
        (None, Operation.ROLLBACK): Ruling("FAILED", "stream load task{label}does not exist", thrown=True),
        #
        (TaskState.BEGIN, Operation.BEGIN): _STARTED,
        (TaskState.BEGIN, Operation.LOAD): _GO,
        (TaskState.BEGIN, Operation.COMMIT): _GO,
        (TaskState.BEGIN, Operation.ROLLBACK): _GO,
        #
        (TaskState.COMMITING, Operation.BEGIN): _STARTED,
        (TaskState.COMMITING, Operation.LOAD): Ruling(
            "FAILED", "stream load task {label} is committing, can not accept new loads"
        ),
        (TaskState.COMMITING, Operation.COMMIT): Ruling(
            "FAILED", "Transaction {txn} is already committing, label is {label}"
        ),
        (TaskState.COMMITING, Operation.ROLLBACK): Ruling(
            "FAILED", "Can not abort transaction {txn} during committing, label is {label}"
        ),
        #
        (TaskState.ABORTING, Operation.BEGIN): _STARTED,
        (TaskState.ABORTING, Operation.LOAD): Ruling("FAILED", "stream load task {label} is aborting: {reason}"),
        (TaskState.ABORTING, Operation.COMMIT): Ruling(
            "FAILED", "Transaction {txn} is aborting (reason: {reason}), label is {label}"
        ),
        (TaskState.ABORTING, Operation.ROLLBACK): Ruling(
            "OK",
            "Transaction {txn} abort is already in progress, label is {label}. Background retry will continue.",
        ),
        #
        (TaskState.COMMITED, Operation.BEGIN): _USED,
        (TaskState.COMMITED, Operation.LOAD): Ruling("FAILED", "stream load task {label} has already been commited"),
        (TaskState.COMMITED, Operation.COMMIT): _COMMITTED,
        (TaskState.COMMITED, Operation.ROLLBACK): _VISIBLE,
        #
        (TaskState.FINISHED, Operation.BEGIN): _USED,
        (TaskState.FINISHED, Operation.LOAD): Ruling("FAILED", "stream load task {label} has already been finished"),
        (TaskState.FINISHED, Operation.COMMIT): _COMMITTED,
        (TaskState.FINISHED, Operation.ROLLBACK): _VISIBLE,
        #
        (TaskState.CANCELLED, Operation.BEGIN): _STARTED,
        (TaskState.CANCELLED, Operation.LOAD): Ruling(
            "FAILED", "stream load task {label} has already been cancelled: {error}"
        ),
        (TaskState.CANCELLED, Operation.COMMIT): Ruling(
            "FAILED", "Can not commit CANCELLED transaction {txn}, label is {label}"
        ),
        (TaskState.CANCELLED, Operation.ROLLBACK): _ABORTED,
    }
)


def refusal(task: Task | None, label: str, operation: Operation) -> Body | None:
    """The reply that the label's state alone gives, or None when the operation may go on.

    Raises `Thrown` where the server raises, so that the reply carries the Java class.
    """
    answer = RULINGS[task.state if task else None, operation]
    if answer.proceed:
        return None
    if task is None:
        raise Thrown(answer.template.format(label=label))
    text = answer.template.format(label=label, txn=task.txn_id, reason=task.abort_reason, error=task.error)
    fields = {"Label": label, "TxnId": task.txn_id}
    entries = {name: fields[name] for name in answer.entries}
    if answer.status == "LABEL_ALREADY_EXISTS":
        return label_already_exists(text, task.state.value, **entries)
    return {"Status": answer.status, "Message": text, **entries}


def check_label(label: str) -> None:
    """The check that fires when a transaction is registered, not at begin (wire contract 7)."""
    if re.fullmatch(r"[-\w]{1,128}", label, re.ASCII) is None:
        raise Thrown(f"Label format error. regex: {LABEL_REGEX}, label: {label}")


_FINAL = frozenset({LabelState.VISIBLE, LabelState.ABORTED})


@dataclass(slots=True)
class Registered:
    """One transaction of the history. `begun_at` and `finished_at` are in seconds of the emulator's clock, timeouts in
    seconds; `source` is the server's word for the kind of load."""

    txn_id: int
    label: str
    database: str
    state: LabelState = LabelState.PREPARE
    reason: str = ""
    finished_at: float = 0.0
    source: str = "MULTI_STATEMENT_STREAMING"
    begun_at: float = 0.0
    timeout: float = 0.0
    prepared_timeout: float = 0.0

    @property
    def live(self) -> bool:
        """Neither committed nor aborted."""
        return self.state in (LabelState.PREPARE, LabelState.PREPARED)


class TransactionHistory:
    """Registered transactions by id, with the newest one of each (database, label) at hand."""

    def __init__(self) -> None:
        self._by_id: dict[int, Registered] = {}
        self._newest: dict[tuple[str, str], int] = {}

    def register(self, txn_id: int, label: str, database: str, state: LabelState = LabelState.PREPARE) -> Registered:
        """Add a transaction; a label may have several, of which the largest number counts (wire contract 6.1)."""
        entry = Registered(txn_id, label, database, state)
        self._by_id[txn_id] = entry
        key = database, label
        self._newest[key] = max(txn_id, self._newest.get(key, txn_id))
        return entry

    def get(self, txn_id: int) -> Registered | None:
        """The transaction, or None if it was never registered or is forgotten."""
        return self._by_id.get(txn_id)

    def of_label(self, database: str, label: str) -> Registered | None:
        """The transaction with the largest id for that label in that database."""
        txn_id = self._newest.get((database, label))
        return None if txn_id is None else self._by_id.get(txn_id)

    def blocking(self, database: str, label: str) -> Registered | None:
        """A transaction that forbids to begin with the label again: any that is not aborted."""
        for entry in self._by_id.values():
            if (entry.database, entry.label) == (database, label) and entry.state is not LabelState.ABORTED:
                return entry
        return None

    def running(self, database: str) -> int:
        """How many transactions of a database are neither committed nor aborted."""
        return sum(1 for entry in self._by_id.values() if entry.database == database and entry.live)

    def all(self) -> list[Registered]:
        """All transactions, in the order of their registration."""
        return list(self._by_id.values())

    def committed_transactions(self) -> list[Registered]:
        """Transactions that are durable and not visible yet."""
        return [entry for entry in self._by_id.values() if entry.state is LabelState.COMMITTED]

    def overdue(self, now: float, max_age: float, max_count: int) -> list[Registered]:
        """Finished transactions that retention does not keep: too old, or too many in their database."""
        doomed = []
        finished: dict[str, list[Registered]] = {}
        for entry in sorted(self._by_id.values(), key=lambda entry: entry.txn_id):
            if entry.state in _FINAL:
                finished.setdefault(entry.database, []).append(entry)
        for entries in finished.values():
            surplus = len(entries) - max_count
            doomed += [
                entry for place, entry in enumerate(entries) if place < surplus or now - entry.finished_at > max_age
            ]
        return doomed

    def drop(self, entries: Iterable[Registered]) -> None:
        """Forget transactions; an older one of the same label does not come back."""
        for entry in entries:
            self._by_id.pop(entry.txn_id, None)
            if self._newest.get((entry.database, entry.label)) == entry.txn_id:
                del self._newest[entry.database, entry.label]

    def finished_transactions(self) -> list[Registered]:
        """Transactions that are VISIBLE or ABORTED."""
        return [entry for entry in self._by_id.values() if entry.state in _FINAL]


def tasks_too_old(tasks: Mapping[str, Task], now: float, limits: Limits) -> list[str]:
    """Labels of final tasks beyond `stream_load_task_keep_max_second`."""
    oldest = now - limits.stream_load_task_keep_max_second
    return [
        label for label, task in tasks.items() if task.ended_at is not None and task.final and task.ended_at < oldest
    ]


def tasks_too_many(tasks: Mapping[str, Task], limits: Limits) -> list[str]:
    """All final tasks' labels when there are more tasks than allowed: the forced purge; else none."""
    if len(tasks) <= limits.stream_load_task_keep_max_num:
        return []
    return [label for label, task in tasks.items() if task.final]


def timed_out(tasks: Mapping[str, Task], now: float) -> list[Task]:
    """Tasks past their deadline that have not ended."""
    return [task for task in tasks.values() if task.expired(now)]


def timeout_check_interval(generation: Generation, limits: Limits) -> float:
    """Seconds between the sweeps that cancel idle tasks past their deadline (wire contract 4.12)."""
    if generation is Generation.B:
        return limits.label_clean_interval_second
    return limits.transaction_clean_interval_second
