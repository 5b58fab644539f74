"""The leader frontend without HTTP: begin, load, rollback, get_load_state, _cancel (wire contract 3.2, 4, 6, 7).

Commit lives in `commit`. Every method may be called from many threads.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from starrocks_emulator.settings import Generation
from starrocks_emulator.tables.plan import PlanRejected
from starrocks_emulator.transactions.backend import Backend, LoadContext
from starrocks_emulator.transactions.labels import (
    LabelState,
    Operation,
    Planning,
    Registered,
    Task,
    TaskState,
    check_label,
    refusal,
)
from starrocks_emulator.transactions.memory import FrontendMemory, TableLoad
from starrocks_emulator.transactions.messages import (
    Body,
    Request,
    Thrown,
    TransactionParameters,
    cancelled_task,
    failed_answer,
    label_already_exists,
    load_state,
    ok,
    plain_failed,
    plain_ok,
)

_CHANNEL_SHARE = 0.05
"""Of the time of planning: another first load is fatal then. A real server cancelled for one in ten that met."""
DEFAULT_WAREHOUSE = "default_warehouse"
"""The one warehouse that there is."""
LOAD_TIMEOUT = "Load timeout. Increase the timeout and retry"
"""The cause past begin's timeout, of a load and of a commit (wire contract 4.12)."""


class Frontend:
    """Operations on labels. `Thrown` is raised where the server throws."""

    def __init__(self, memory: FrontendMemory, backends: Sequence[Backend]) -> None:
        self._memory = memory
        self._turns, self._backends = itertools.cycle(backends), len(backends)

    def begin(self, parameters: TransactionParameters) -> Body:
        """Make a task for the label, or say what it has already; raises `Thrown` (wire contract 2.2, 3.2, 4.2)."""
        memory, label, database = self._memory, parameters.label, parameters.database
        if parameters.warehouse not in ("", DEFAULT_WAREHOUSE):
            message = f"Warehouse name: {parameters.warehouse} not exist."
            raise Thrown(message, "com.starrocks.common.ErrorReportException")
        if not memory.storage.has_database(database):
            raise Thrown(f"Database[{database}] does not exist")
        txn_id = memory.storage.next_txn_id()
        with memory.lock:
            memory.sweep()
            memory.evict_transactions()
            refused = refusal(memory.tasks.get(label), label, Operation.BEGIN)
            if refused is not None:
                return refused
            entry = memory.history.blocking(database, label)
            if entry is not None:
                message = f"Label [{label}] has already been used."
                return label_already_exists(message, entry.state.value, Db=database)
            memory.make_room()
            now = memory.clock.monotonic()
            timeout = memory.limits.default_timeout_second if parameters.timeout is None else parameters.timeout
            memory.tasks[label] = Task(next(memory.ids), label, database, txn_id, now, now + timeout)
            return ok()

    def load(
        self, parameters: TransactionParameters, request: Request, *, running_limit: bool = False
    ) -> Backend | Body:
        """State check, and at the table's first load its plan; the backend to go to, or the refusal.

        Whatever raises here aborts the transaction (wire contract 4.8). `running_limit` comes from the fault plan.
        """
        memory = self._memory
        with memory.lock:
            memory.sweep()
            task = memory.tasks.get(parameters.label)
            refused = refusal(task, parameters.label, Operation.LOAD)
        if refused is not None or task is None:
            return refused or {}
        try:
            return self._route(task, parameters, request, running_limit)
        except Thrown as error:
            self._abort_after(task, error)
            raise
        except PlanRejected as rejected:
            return self._unplanned(task, parameters.table, rejected)

    def _route(
        self, task: Task, parameters: TransactionParameters, request: Request, running_limit: bool
    ) -> Backend | Body:
        memory, table = self._memory, parameters.table
        if parameters.database != task.database:
            raise Thrown(f"Request database {parameters.database} not equal transaction database {task.database}")
        if not table:
            missing = 'Cannot invoke "Object.hashCode()" because "key" is null'
            raise Thrown(missing, "java.lang.NullPointerException")
        if table in task.tables and not task.inherited:
            return _backend_of(task, table)
        if not memory.storage.has_table(task.database, table):
            message = f"Failed to find table {table} in db {task.database}"
            raise Thrown(message, "com.starrocks.common.MetaNotFoundException")
        if task.inherited:
            raise PlanRejected(f"Transaction {task.txn_id} does not exist")
        if task.too_late_to_plan(memory.clock.monotonic()):
            raise PlanRejected(LOAD_TIMEOUT)
        backend = self._next_backend()
        met = self._meet_planning(task, table, backend)
        if met is not None:
            return met
        try:
            return self._plan(task, backend, parameters, request, running_limit)
        finally:
            with memory.lock:
                task.planning.pop(table, None)

    def _meet_planning(self, task: Task, table: str, backend: Backend) -> Backend | Body | None:
        """What a first load gets while another one is being planned (wire contract 4.5); None: this one plans.

        Raises `PlanRejected`, which cancels the task, when the other one has its channel already.
        """
        memory = self._memory
        with memory.lock:
            if table in task.tables:
                return _backend_of(task, table)
            phase = task.planning.get(table)
            if phase is None:
                task.planning[table] = Planning.BEGIN
                return None
            if phase is Planning.CHANNEL:
                host, port = backend.address
                message = f"channel id 0 for label {task.label} already exist backend [id={port}] [host={host}]"
                raise PlanRejected(message)
        return ok("stream load task is in unexpected state BEGIN")

    def _plan(
        self, task: Task, backend: Backend, parameters: TransactionParameters, request: Request, running_limit: bool
    ) -> Backend | Body:
        memory, table = self._memory, parameters.table
        seconds = memory.settings.planning_seconds
        plan = memory.storage.plan(task.database, table, request.headers)
        time.sleep(seconds * (1.0 - _CHANNEL_SHARE))
        with memory.lock:
            task.planning[table] = Planning.CHANNEL
        time.sleep(seconds * _CHANNEL_SHARE)
        with memory.lock:
            refused = refusal(task, task.label, Operation.LOAD)
            if refused is not None:
                return refused
            if table not in task.tables:
                if memory.settings.generation is Generation.C:
                    register(memory, task, running_limit)
                properties = request.load_properties()
                context = LoadContext(task.label, task.database, table, task.txn_id, properties, plan)
                context.ends_at = task.deadline
                context.overdue = lambda: memory.clock.monotonic() >= task.deadline
                backend.open(context)
                task.tables[table] = TableLoad(next(memory.ids), table, backend, memory.clock.wall())
            return _backend_of(task, table)

    def _next_backend(self) -> Backend:
        """A backend that is alive; raises `PlanRejected` if there is none."""
        alive = (backend for backend in itertools.islice(self._turns, self._backends) if backend.alive)
        backend = next(alive, None)
        if backend is None:
            raise PlanRejected("No available backends: {warehouseId=0}")
        return backend

    def _unplanned(self, task: Task, table: str, rejected: PlanRejected) -> Body:
        """A first load without a plan: the task is CANCELLED, and its table is listed so (wire contract 2.2, 4.7)."""
        memory, now = self._memory, self._memory.clock.wall()
        load = TableLoad(next(memory.ids), table, next(self._turns), now)
        message = cancelled_task(load.job_id, task.label, rejected.message)
        load.error = f"LOAD exception: {message}"
        with memory.lock:
            refused = refusal(task, task.label, Operation.LOAD)
            if refused is not None:
                return refused
            task.tables.setdefault(table, load)
            memory.abort(task, load.error, message)
        return {**failed_answer(message), "Cancelled time": -int(now * 1000)}

    def _abort_after(self, task: Task, error: Thrown) -> None:
        with self._memory.lock:
            if task.state is TaskState.BEGIN:
                self._memory.abort(task, f"LOAD exception: {error.message}", error.message)

    def rollback(self, parameters: TransactionParameters, *, pending: bool = False) -> Body:
        """Abort the task; with `pending`, from the fault plan, only begin to, until a rollback comes without it."""
        memory = self._memory
        with memory.lock:
            memory.sweep()
            task = memory.tasks.get(parameters.label)
            if task is not None and task.state is TaskState.ABORTING and not pending:
                memory.abort(task, "manual abort", "")
            refused = refusal(task, parameters.label, Operation.ROLLBACK)
            if refused is not None or task is None:
                return refused or {}
            if pending:
                task.move(TaskState.ABORTING)
                return ok(
                    f"stream load {task.label} abort initiated, rollback pending (background retry will continue), "
                    f"label is {task.label}, txnId is {task.txn_id}"
                )
            memory.abort(task, "manual abort", "")
            return ok(f"stream load {parameters.label} abort")

    def load_state(self, database: str, label: str) -> Body:
        """The fate of a label as far as it is registered (wire contract 6)."""
        memory = self._memory
        if not memory.storage.has_database(database):
            return plain_failed(f"unknown database, database={database}")
        if not label:
            return plain_failed("No label selected.")
        refresh_committed(memory)
        with memory.lock:
            memory.sweep()
            entry = memory.history.of_label(database, label)
            return load_state("UNKNOWN", None) if entry is None else load_state(entry.state.value, entry.reason)

    def cancel(self, database: str, label: str) -> Body:
        """Cancel a registered transaction that is still PREPARE (wire contract 6)."""
        memory = self._memory
        if not label:
            return plain_failed("No label selected.")
        with memory.lock:
            entry = memory.history.of_label(database, label)
            if entry is None or entry.state in (LabelState.COMMITTED, LabelState.VISIBLE):
                return plain_failed(f"transaction not found: {label}")
            task = memory.tasks.get(label)
            if entry.state is not LabelState.PREPARE or task is None or task.state is not TaskState.BEGIN:
                return plain_failed(f"running transaction not found, label={label}")
            memory.abort(task, "user cancel", "user cancel")
            return plain_ok()


def _backend_of(task: Task, table: str) -> Backend:
    load: TableLoad = task.tables[table]
    return load.backend


def register(memory: FrontendMemory, task: Task, running_limit: bool = False) -> Registered:
    """Enter a task's transaction into its database's history, once. Raises `Thrown`. Lock held.

    Only generation C looks at the label's form (wire contract 7.1).
    """
    entry = memory.history.get(task.txn_id)
    if entry is not None:
        return entry
    if memory.settings.generation is Generation.C:
        check_label(task.label)
    running, limit = memory.history.running(task.database), memory.limits.max_running_txn_num_per_db
    if running_limit:
        running = max(running, limit)
    if running >= limit:
        message = (
            f"current running txns on db {memory.number_of(task.database)} is {running}, larger than limit {limit}"
        )
        raise Thrown(message, "com.starrocks.transaction.RunningTxnExceedException")
    return memory.history.register(task.txn_id, task.label, task.database)


def refresh_committed(memory: FrontendMemory) -> None:
    """Let the history follow the store: what was COMMITTED may be VISIBLE by now."""
    with memory.lock:
        waiting = {entry.txn_id: entry for entry in memory.history.committed_transactions()}
    if not waiting:
        return
    visible = {record.txn_id for record in memory.storage.transactions() if record.state == LabelState.VISIBLE.value}
    with memory.lock:
        for txn_id in visible & waiting.keys():
            entry = waiting[txn_id]
            entry.state, entry.finished_at = LabelState.VISIBLE, memory.clock.monotonic()
            _finish_tables(memory, memory.tasks.get(entry.label), txn_id)


def _finish_tables(memory: FrontendMemory, task: Task | None, txn_id: int) -> None:
    if task is not None and task.txn_id == txn_id:
        for load in task.tables.values():
            load.state, load.finished_at = memory.final_load_state("FINISHED"), memory.clock.wall()
