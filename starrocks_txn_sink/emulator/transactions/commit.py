"""Commit of a multi-table transaction, generations B and C (contract sections 2.2, 3.2, 4.9–4.13).

Steps: 1. state check, COMMITING; 2. close the backends' contexts; 3. registration (B) or its proof (C); 4. the store
judges and commits all tables in one; 5. COMMITED, or CANCELLED with the failing table's cause.
"""

from __future__ import annotations

from dataclasses import dataclass

from starrocks_txn_sink.emulator.settings import Generation
from starrocks_txn_sink.emulator.tables.store import CommitRejected
from starrocks_txn_sink.emulator.transactions.backend import ContextLost
from starrocks_txn_sink.emulator.transactions.context import LoadContext
from starrocks_txn_sink.emulator.transactions.frontend import refresh_committed, register
from starrocks_txn_sink.emulator.transactions.labels import Task, TaskState, refusal
from starrocks_txn_sink.emulator.transactions.memory import FrontendMemory, TableLoad
from starrocks_txn_sink.emulator.transactions.publisher import Publisher
from starrocks_txn_sink.emulator.transactions.replies import Body, Thrown, cancelled_task, committed, failed, ok
from starrocks_txn_sink.emulator.transactions.request import TransactionParameters
from starrocks_txn_sink.wire import LabelState, Operation

_DEADLINE_CAUSE = "coordinator could not finished before job timeout"


@dataclass(frozen=True, slots=True)
class CommitFaults:
    """What the fault plan wants of one commit. `hold` is in seconds; infinity waits for a release."""

    hold: float | None = None
    rolled_back: bool = False
    running_limit: bool = False


class TableFailed(Exception):
    """A commit failed at one table."""

    def __init__(self, table: str, cause: str, rejected: CommitRejected | None = None) -> None:
        self.table, self.cause, self.rejected = table, cause, rejected
        super().__init__(cause)


class Committer:
    """Judges a commit and hands it to the publisher."""

    def __init__(self, memory: FrontendMemory, publisher: Publisher) -> None:
        self._memory = memory
        self._publisher = publisher

    def commit(self, parameters: TransactionParameters, faults: CommitFaults) -> Body:
        memory, label = self._memory, parameters.label
        with memory.lock:
            memory.sweep()
            task = memory.tasks.get(label)
            refused = refusal(task, label, Operation.COMMIT)
            if refused is not None or task is None:
                return refused or {}
            task.move(TaskState.COMMITING)
            if task.expired(memory.clock.monotonic()):
                return self._fail(task, TableFailed("", _DEADLINE_CAUSE))
            if not task.tables:
                self._settle(task)
                return ok()
        with memory.commit_under_way():
            return self._commit_tables(task, faults)

    def _commit_tables(self, task: Task, faults: CommitFaults) -> Body:
        contexts: list[LoadContext] = []
        try:
            with self._memory.lock:
                if task.state is not TaskState.COMMITING:
                    return failed("Transaction state not found, possibly lost due to FE leader switch")
                contexts = self._close_contexts(task)
                refused = self._registration(task, faults)
            if refused is not None:
                return refused
            self._store(task, contexts, faults)
            return committed(task.label, task.txn_id)
        except TableFailed as failure:
            with self._memory.lock:
                return self._fail(task, failure)
        finally:
            for context in contexts:
                self._memory.storage.drop_bodies(context.files)

    def _close_contexts(self, task: Task) -> list[LoadContext]:
        contexts = []
        for table, load in task.tables.items():
            try:
                contexts.append(load.backend.take(task.label, table))
            except ContextLost as lost:
                for context in contexts:
                    self._memory.storage.drop_bodies(context.files)
                raise TableFailed(table, str(lost)) from lost
        return contexts

    def _registration(self, task: Task, faults: CommitFaults) -> Body | None:
        """None when the transaction may be committed. In B a failing commit statement is answered OK (the B hole).

        What B registers here is entered into the history once the store has it, so that no lookup sees it early.
        """
        generation_b = self._memory.settings.generation is Generation.B
        entry = None
        try:
            entry = register(self._memory, task, faults.running_limit and generation_b)
            if faults.rolled_back:
                raise Thrown("commit failed")
        except Thrown as error:
            if not generation_b:
                raise TableFailed("", error.message) from error
            self._roll_back_silently(task, error.message)
            return committed(task.label, task.txn_id)
        if generation_b:
            self._memory.history.drop([entry])
        return None

    def _roll_back_silently(self, task: Task, reason: str) -> None:
        memory = self._memory
        entry = memory.history.get(task.txn_id)
        if entry is not None:
            entry.state, entry.reason, entry.finished_at = LabelState.ABORTED, reason, memory.clock.monotonic()
        self._settle(task)
        for load in task.tables.values():
            load.state, load.error, load.finished_at = "CANCELLED", reason, memory.clock.wall()

    def _store(self, task: Task, contexts: list[LoadContext], faults: CommitFaults) -> None:
        memory = self._memory
        loads = [(context.plan, tuple(context.files)) for context in contexts]
        try:
            counts = memory.storage.commit(task.database, task.txn_id, task.label, loads, visible=faults.hold is None)
        except CommitRejected as rejected:
            raise TableFailed(rejected.table, rejected.cause, rejected) from rejected
        with memory.lock:
            entry = memory.history.register(task.txn_id, task.label, task.database, LabelState.COMMITTED)
            entry.finished_at = memory.clock.monotonic()
            self._settle(task)
            for table, load in task.tables.items():
                load.state, load.counts = "COMMITED", counts.get(table)
        if faults.hold is not None:
            self._publisher.hold(task.txn_id, faults.hold)
        refresh_committed(memory)
        with memory.lock:
            memory.evict_transactions()
        memory.forget_durably()

    def _settle(self, task: Task) -> None:
        task.move(TaskState.COMMITED)
        task.ended_at = self._memory.clock.monotonic()

    def _fail(self, task: Task, failure: TableFailed) -> Body:
        """CANCELLED, with the cause in the server's form; C names the table (section 2.2). Lock held."""
        cause = failure.cause
        if failure.table and self._memory.settings.generation is Generation.C:
            cause = f"Failed to load table {failure.table}: {cause}"
        load: TableLoad | None = task.tables.get(failure.table)
        if load is not None:
            load.error = cause
            if failure.rejected is not None:
                load.filtered, load.reasons = failure.rejected.filtered, failure.rejected.reasons
        message = cancelled_task(load.job_id if load else task.task_id, task.label, cause)
        self._memory.abort(task, f"commit failed: {cause}", message)
        return failed(message)
