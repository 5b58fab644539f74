"""A model of StarRocks' transaction interface in memory: the server's state table, without HTTP, SQL or types.

It implements `wire.Transport`, so the pure core runs against it, with faults: `faults` sees every request and may name
one of `Fault`. Rows are JSON arrays; a table's rows are kept in the order of their commits, like a DUPLICATE KEY table,
except the ledger's, which is a PRIMARY KEY table. Multi-table mode only, generations B and C (wire contract 3.2).

A simulator takes the long things apart: `start_commit`, `finish_commit`, `publish`, with anything in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import NotSent, ReplyLost
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from tests.support.model_store import Change, ModelStore


class Fault(Enum):
    """What may go wrong with one request."""

    NOT_SENT = "not_sent"  # surely no effect
    LOST_BEFORE = "lost_before"  # no effect, and no reply
    LOST_AFTER = "lost_after"  # effect, but no reply
    BUSY = "busy"  # TXN_IN_PROCESSING
    REFUSED = "refused"  # FAILED; a load's label is aborted by it
    BACKEND = "backend"  # load: the backend refuses, the frontend does not know, a commit goes through without the rows
    COLLIDED = "collided"  # load: another first load of the table is being planned, and the label is cancelled
    LIMIT = "limit"  # the running-transaction limit: C at the first load, B at the commit, with an OK (the hole)
    EXISTS = "exists"  # begin: takes effect, but the answer is LABEL_ALREADY_EXISTS
    ROLLED_BACK = "rolled_back"  # commit: rolled back at last; generation B says OK to it all the same
    INVISIBLE = "invisible"  # commit: OK, but only COMMITTED until `publish`
    LENGTHY = "lengthy"  # commit: takes longer than a client waits for its reply
    FOREIGN = "foreign"  # load, commit: another client rolls the label back just before


Faults = Callable[[Request], Fault | None]
_PREFIX = "class com.starrocks.common.StarRocksException: "
_LIMIT = "current running txns on db shop is 1000, larger than limit 1000"
NO_ROWS = "No rows were imported from upstream"  # whatever the cause: bad rows, or the server's own trouble
_LIVE = ("BEGIN", "COMMITING")


@dataclass(slots=True)
class Task:
    """A label the server knows; `fate` is what get_load_state says of it once it is registered.

    Generation B registers it at a commit whose loads are right; before that, and after any other end, it says UNKNOWN
    (wire contract 6.2).
    """

    txn_id: int
    state: str = "BEGIN"
    loads: list[tuple[str, bytes]] = field(default_factory=list)
    deadline: float = 0.0
    fate: LabelState = LabelState.UNKNOWN
    broken: set[str] = field(default_factory=set)  # tables whose backend has given up
    cause: str = ""  # of its end; none for a rollback

    def cancel(self, cause: str = "") -> None:
        committed = self.state == "COMMITED" and self.fate in (LabelState.COMMITTED, LabelState.VISIBLE)
        self.state, self.cause = "CANCELLED", self.cause or cause
        if self.fate is not LabelState.UNKNOWN and not committed:
            self.fate = LabelState.ABORTED


class ModelServer:
    """One leader frontend and its backends; `store` holds what a reader sees, `now` its own clock in seconds."""

    def __init__(self, generation: str = "B", faults: Faults | None = None) -> None:
        self.generation = generation
        self.faults = faults or plan_faults({})
        self.now = 0.0
        self.tasks: dict[str, Task] = {}
        self.history: dict[str, Task] = {}
        self.store = ModelStore(self._became_visible)
        self.tables = self.store.tables
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
        reply = self.execute(request, fault)
        if fault is Fault.LOST_AFTER:
            raise ReplyLost("lost after its effect", label=request.label)
        return reply

    def close(self) -> None:
        """Nothing to close."""

    # --- what tests look at and do ---

    def open_labels(self) -> list[str]:
        return [label for label, task in self.tasks.items() if task.state == "BEGIN"]

    def unfinished(self) -> list[str]:
        """Labels in information_schema.loads that have not ended; it has a row a table, so none before a load."""
        return [label for label, task in self.tasks.items() if task.state in _LIVE and task.loads]

    def forget(self, label: str) -> None:
        """Label retention: the server no longer knows the label, as it does with old ones on a busy cluster."""
        self.tasks.pop(label, None)
        self.history.pop(label, None)

    def publish(self, label: str) -> None:
        """Make a COMMITTED transaction visible, once everything before it in its tables is."""
        self.store.publish(label)

    def restart(self, forget: bool) -> None:
        """The frontend starts again: each label is cancelled, committed ones too (wire contract 10.5).

        What get_load_state says of committed ones stays, because it is in the journal. With `forget`, what was live is
        unknown from now on.
        """
        for label, task in list(self.tasks.items()):
            live = task.state in _LIVE
            task.cancel("cancelled after FE restart")
            if forget and live:
                del self.tasks[label]

    def expire(self) -> None:
        """The cleaner: transactions past their timeout are cancelled."""
        for task in self.tasks.values():
            if task.state == "BEGIN" and self.now > task.deadline:
                task.cancel("transaction timeout")

    # --- the state table ---

    def execute(self, request: Request, fault: Fault | None = None) -> Reply:
        """The effect of `request`, whole, and its reply."""
        label = request.label
        if fault is Fault.FOREIGN:
            self.roll_back(label)
        if request.operation is Operation.LOAD_STATE:
            past_task = self.history.get(label)
            return Reply(Status.OK, state=past_task.fate if past_task else LabelState.UNKNOWN)
        if request.operation is Operation.BEGIN:
            return self._begin(request, fault)
        task = self.tasks.get(label)
        match request.operation:
            case Operation.LOAD:
                return self._load(request, task, fault)
            case Operation.COMMIT:
                return self._commit(label, fault)
            case _:
                return self.roll_back(label)

    def _begin(self, request: Request, fault: Fault | None) -> Reply:
        label, past_task = request.label, self.history.get(request.label)
        if label in self.tasks or (past_task is not None and past_task.fate is not LabelState.ABORTED):
            return _used(label)
        if fault is Fault.REFUSED:
            return _failed(_LIMIT)
        lifetime = float(request.headers.get("timeout", "20"))
        self.tasks[label] = Task(next(self._txn_ids), deadline=self.now + lifetime)
        return _used(label) if fault is Fault.EXISTS else Reply(Status.OK)

    def _load(self, request: Request, task: Task | None, fault: Fault | None) -> Reply:
        label, table = request.label, request.table or ""
        if task is None:
            return _failed(f"stream load task {label} does not exist")
        if fault is Fault.BUSY:
            return Reply(Status.TXN_IN_PROCESSING, "Transaction is in processing", label)
        if task.state == "COMMITING":
            return _failed(f"stream load task {label} is committing, can not accept new loads")
        if task.state != "BEGIN":
            return _failed(f"stream load task {label} has already been {task.state.lower()}: {task.cause}")
        if (refusal := self._refuse_load(task, fault)) is not None:
            task.cancel(refusal)
            return _failed(refusal)
        if fault is Fault.BACKEND or table in task.broken:
            task.broken.add(table)
            return Reply(Status.INTERNAL_ERROR, "the backend gave the load up", label)
        body = b"".join(bytes(piece) for piece in request.body or ())
        task.loads.append((table, body))
        if self.generation == "C" and task.fate is LabelState.UNKNOWN:
            task.fate = LabelState.PREPARE
            self.history[label] = task
        return Reply(Status.OK, label=label, txn_id=task.txn_id)

    def _refuse_load(self, task: Task, fault: Fault | None) -> str | None:
        if self.now > task.deadline:
            return "Load timeout. Increase the timeout and retry"
        if fault is Fault.LIMIT and self.generation == "C" and not task.loads:
            return _LIMIT
        if fault is Fault.COLLIDED:
            return _cancelled("channel id 0 for label L already exist backend [id=10001] [")
        return _cancelled("no room") if fault is Fault.REFUSED else None

    # --- commit, in its three parts ---

    def _commit(self, label: str, fault: Fault | None) -> Reply:
        reply = self.start_commit(label) or self.finish_commit(label, fault) or _failed("the frontend is gone")
        if fault is not Fault.INVISIBLE:
            self.store.publish(label)
        return reply

    def start_commit(self, label: str) -> Reply | None:
        """Begin to commit; None when that is under way now, else the reply."""
        task = self.tasks.get(label)
        if task is None:
            return _failed(f"stream load task {label} does not exist")
        if task.state == "COMMITED":
            text = f"Transaction {task.txn_id} has already committed, label is {label}"
            return Reply(Status.OK, text, label, task.txn_id)
        if task.state == "COMMITING":
            return _failed(f"Transaction {task.txn_id} is already committing, label is {label}")
        if task.state != "BEGIN":
            return _failed(f"Can not commit CANCELLED transaction {task.txn_id}, label is {label}")
        task.state = "COMMITING"
        return None

    def finish_commit(self, label: str, fault: Fault | None = None) -> Reply | None:
        """End a commit under way: durable now (visible after `publish`), or cancelled; None when it was lost."""
        task = self.tasks.get(label)
        if task is None or task.state != "COMMITING":
            return None
        cause = self._refuse_commit(task, fault)
        if cause is not None:
            task.cancel(_cancelled(cause))
            return _failed(task.cause)
        task.state = "COMMITED"
        if self.generation == "B" and fault is Fault.LIMIT:
            return Reply(Status.OK, "", label, task.txn_id)
        if task.loads:
            self.history[label] = task
        if self.generation == "B" and fault is Fault.ROLLED_BACK:
            task.fate = LabelState.PREPARE
        elif task.loads:
            task.fate = LabelState.COMMITTED
            self.store.commit(Change(label, task.loads))
        return Reply(Status.OK, "", label, task.txn_id)

    def _refuse_commit(self, task: Task, fault: Fault | None) -> str | None:
        if self.now > task.deadline:
            return "coordinator could not finished before job timeout"
        empty = {table for table, _ in task.loads} - {table for table, body in task.loads if len(body) > len("[]")}
        if empty:
            return NO_ROWS
        reported = self.generation == "C" and fault is Fault.ROLLED_BACK
        return NO_ROWS if reported or fault is Fault.REFUSED else None

    def _became_visible(self, label: str) -> None:
        self.commits.append(label)
        if label in self.history:
            self.history[label].fate = LabelState.VISIBLE

    def roll_back(self, label: str) -> Reply:
        """The effect of a rollback, by whichever client."""
        task = self.tasks.get(label)
        if task is None:
            return _failed(f"stream load task{label}does not exist")
        if task.state == "COMMITING":
            return _failed(f"Can not abort transaction {task.txn_id} during committing, label is {label}")
        if task.state == "COMMITED":
            return _failed(f"Can not abort VISIBLE transaction {task.txn_id}, label is {label}")
        again = task.state == "CANCELLED"
        task.cancel()
        return Reply(
            Status.OK, f"Transaction {task.txn_id} has already aborted" if again else f"stream load {label} abort"
        )


def _failed(text: str) -> Reply:
    return Reply(Status.FAILED, text if text.startswith("STREAM_LOAD_TASK") else _PREFIX + text)


def _cancelled(cause: str) -> str:
    return f"STREAM_LOAD_TASK:1, label{{L}}, error_msg{{cancel stream task for exception: {cause}}}"


def _used(label: str) -> Reply:
    return Reply(Status.LABEL_ALREADY_EXISTS, f"Label [{label}] has already been used.")


def plan_faults(plan: dict[tuple[Operation, int], Fault]) -> Faults:
    """Faults by operation and how often it was asked for, counted from 0."""
    counts: dict[Operation, Iterator[int]] = {operation: iter(range(10**9)) for operation in Operation}

    def choose(request: Request) -> Fault | None:
        return plan.get((request.operation, next(counts[request.operation])))

    return choose
