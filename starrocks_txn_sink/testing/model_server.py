"""A model of StarRocks' transaction interface in memory: the contract's state table, without HTTP, SQL or types.

It implements `wire.Transport`, so the pure core runs against it, with faults: `faults` sees every request and may name
one of `Fault`. Rows are JSON arrays; a table's rows are kept in the order of their commits, like a DUPLICATE KEY table.
Multi-table mode only, generations B and C (contract section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import NotSent, ReplyLost
from starrocks_txn_sink.wire import LabelState, Operation, Reply, Request, Status


class Fault(Enum):
    """What may go wrong with one request."""

    NOT_SENT = "not_sent"  # surely no effect
    LOST_BEFORE = "lost_before"  # no effect, and no reply
    LOST_AFTER = "lost_after"  # effect, but no reply
    BUSY = "busy"  # TXN_IN_PROCESSING
    REFUSED = "refused"  # FAILED; a load's label is aborted by it
    ROLLED_BACK = "rolled_back"  # commit: generation B's OK to a commit that rolled back
    INVISIBLE = "invisible"  # commit: OK, but only COMMITTED until `publish`


Faults = Callable[[Request], Fault | None]
_PREFIX = "class com.starrocks.common.StarRocksException: "


@dataclass(slots=True)
class Task:
    """A label the server knows."""

    txn_id: int
    state: str = "BEGIN"
    loads: list[tuple[str, bytes]] = field(default_factory=list)
    deadline: float = 0.0
    fate: LabelState = LabelState.UNKNOWN


class ModelServer:
    """One leader frontend and its backends; `tables` holds what a reader sees, `now` its own clock in seconds."""

    def __init__(self, generation: str = "B", faults: Faults | None = None) -> None:
        self.generation = generation
        self.faults = faults or plan_faults({})
        self.now = 0.0
        self.tasks: dict[str, Task] = {}
        self.tables: dict[str, list[Any]] = {}
        self.commits: list[str] = []
        self.requests: list[Request] = []
        self._txn_ids = iter(range(1000, 10**9))

    def send(self, request: Request, deadline: Deadline) -> Reply:
        """Answer as the server would, or as the fault plan says; raises NotSent or ReplyLost."""
        del deadline
        self.requests.append(request)
        fault = self.faults(request)
        if fault is Fault.NOT_SENT:
            raise NotSent("refused by the fault plan", label=request.label)
        if fault is Fault.LOST_BEFORE:
            raise ReplyLost("lost before its effect", label=request.label)
        reply = self._answer(request, fault)
        if fault is Fault.LOST_AFTER:
            raise ReplyLost("lost after its effect", label=request.label)
        return reply

    def close(self) -> None:
        """Nothing to close."""

    # --- what tests look at and do ---

    def open_labels(self) -> list[str]:
        return [label for label, task in self.tasks.items() if task.state == "BEGIN"]

    def forget(self, label: str) -> None:
        """Label retention: the server no longer knows the label, as it does with old ones on a busy cluster."""
        self.tasks.pop(label, None)

    def publish(self, label: str) -> None:
        """Make a COMMITTED transaction visible."""
        task = self.tasks[label]
        if task.fate is LabelState.COMMITTED:
            self._make_visible(label, task)

    # --- the state table ---

    def _answer(self, request: Request, fault: Fault | None) -> Reply:
        if request.operation is Operation.LOAD_STATE:
            task = self.tasks.get(request.label)
            return Reply(Status.OK, state=task.fate if task else LabelState.UNKNOWN)
        if request.operation is Operation.BEGIN:
            return self._begin(request, fault)
        task = self.tasks.get(request.label)
        if task is None:
            return _failed(f"stream load task {request.label} does not exist")
        match request.operation:
            case Operation.LOAD:
                return self._load(request, task, fault)
            case Operation.COMMIT:
                return self._commit(request, task, fault)
            case _:
                return self._rollback(request, task)

    def _begin(self, request: Request, fault: Fault | None) -> Reply:
        if request.label in self.tasks:
            return Reply(Status.LABEL_ALREADY_EXISTS, f"Label [{request.label}] has already been used.")
        if fault is Fault.REFUSED:
            return _failed("current running txns on db shop is 1000, larger than limit 1000")
        lifetime = float(request.headers.get("timeout", "20"))
        self.tasks[request.label] = Task(next(self._txn_ids), deadline=self.now + lifetime)
        return Reply(Status.OK)

    def _load(self, request: Request, task: Task, fault: Fault | None) -> Reply:
        if fault is Fault.BUSY:
            return Reply(Status.TXN_IN_PROCESSING, "Transaction is in processing", request.label)
        if task.state != "BEGIN":
            return _failed(f"stream load task {request.label} has already been {task.state.lower()}: ")
        if fault is Fault.REFUSED or self.now > task.deadline:
            task.state = "CANCELLED"
            return _failed("Load timeout. Increase the timeout and retry" if self.now > task.deadline else "no room")
        body = b"".join(bytes(piece) for piece in request.body or ())
        task.loads.append((request.table or "", body))
        if self.generation == "C":
            task.fate = LabelState.PREPARE
        return Reply(Status.OK, label=request.label, txn_id=task.txn_id, load_bytes=len(body))

    def _commit(self, request: Request, task: Task, fault: Fault | None) -> Reply:
        if task.state == "COMMITED":
            text = f"Transaction {task.txn_id} has already committed, label is {request.label}"
            return Reply(Status.OK, text, request.label, task.txn_id)
        if task.state != "BEGIN":
            return _failed(f"Can not commit CANCELLED transaction {task.txn_id}, label is {request.label}")
        if fault is Fault.REFUSED or self.now > task.deadline:
            task.state, task.fate = "CANCELLED", LabelState.ABORTED
            return _failed("STREAM_LOAD_TASK:1, error_msg{cancel stream task for exception: no quorum}")
        task.state = "COMMITED"
        if fault is Fault.ROLLED_BACK:
            task.fate = LabelState.ABORTED
        elif fault is Fault.INVISIBLE:
            task.fate = LabelState.COMMITTED
        elif task.loads:
            self._make_visible(request.label, task)
        return Reply(Status.OK, "", request.label, task.txn_id)

    def _make_visible(self, label: str, task: Task) -> None:
        task.fate = LabelState.VISIBLE
        self.commits.append(label)
        for table, body in task.loads:
            self.tables.setdefault(table, []).extend(orjson.loads(body))

    def _rollback(self, request: Request, task: Task) -> Reply:
        if task.state == "COMMITED":
            return _failed(f"Can not abort VISIBLE transaction {task.txn_id}, label is {request.label}")
        again = task.state == "CANCELLED"
        task.state = "CANCELLED"
        if task.fate is not LabelState.UNKNOWN:
            task.fate = LabelState.ABORTED
        text = f"Transaction {task.txn_id} has already aborted" if again else f"stream load {request.label} abort"
        return Reply(Status.OK, text)


def _failed(text: str) -> Reply:
    return Reply(Status.FAILED, _PREFIX + text)


def plan_faults(plan: dict[tuple[Operation, int], Fault]) -> Faults:
    """Faults by operation and how often it was asked for, counted from 0."""
    counts: dict[Operation, Iterator[int]] = {operation: iter(range(10**9)) for operation in Operation}

    def choose(request: Request) -> Fault | None:
        return plan.get((request.operation, next(counts[request.operation])))

    return choose
