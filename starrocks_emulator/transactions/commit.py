"""Commit of a multi-table transaction, generations B and C (wire contract 2.2, 3.2, 4.9, 4.10, 4.11, 4.12, 4.13).

Steps: 1. state check, COMMITING; 2. wait until the backends have read what was loaded, and close their contexts;
3. registration (B) or its proof (C); 4. the store judges and commits all tables in one; 5. COMMITED, or CANCELLED with
the failing table's cause. A fault plan may hold a commit between COMMITTED and VISIBLE.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from starrocks_emulator.settings import Generation
from starrocks_emulator.tables.partitions import CHUNK_ROWS, Opening, finishing_order
from starrocks_emulator.tables.store import NO_ROWS, CommitRejected
from starrocks_emulator.transactions.backend import ContextLost, LoadContext
from starrocks_emulator.transactions.frontend import LOAD_TIMEOUT, refresh_committed, register
from starrocks_emulator.transactions.labels import LabelState, Operation, Registered, Task, TaskState, refusal
from starrocks_emulator.transactions.memory import FrontendMemory, TableLoad
from starrocks_emulator.transactions.messages import (
    Body,
    Thrown,
    TransactionParameters,
    cancelled_task,
    committed_answer,
    failed_answer,
    ok,
)

_DEADLINE_CAUSE = "coordinator could not finished before job timeout"
_NO_CONTEXT = 'Cannot invoke "com.starrocks.qe.ConnectContext.getTxnId()" because "context" is null'
_FAILED_TABLE = "commit failed: waitCoordFinish failed"
NO_ROWS_OF_B = (
    f"{NO_ROWS}. Possible causes: 1) all rows were filtered by load conditions, 2) all rows failed data "
    "quality/validation checks, or 3) upstream has no data. If this is acceptable, set `ADMIN SET FRONTEND CONFIG "
    "('empty_load_as_error' = 'false')` to ignore empty loads"
)


class Publisher:
    """Publishes held transactions after their time, or at `release`. One timer thread per timed hold."""

    def __init__(self, publish: Callable[[int], None]) -> None:
        self._publish = publish
        self._timers: dict[int, threading.Timer | None] = {}
        self._guard = threading.Lock()

    def hold(self, txn_id: int, seconds: float) -> None:
        """Publish `txn_id` in `seconds`; infinity: only when released."""
        timer = None if math.isinf(seconds) else threading.Timer(seconds, self._due, (txn_id,))
        with self._guard:
            self._timers[txn_id] = timer
        if timer is not None:
            timer.daemon = True
            timer.start()

    def _due(self, txn_id: int) -> None:
        with self._guard:
            if txn_id not in self._timers:
                return
            del self._timers[txn_id]
        self._publish(txn_id)

    def release(self) -> list[int]:
        """Publish everything held, oldest first; the ids that were held."""
        released = self._take_all()
        for txn_id in released:
            self._publish(txn_id)
        return released

    def stop(self) -> None:
        """Stop waiting; what is held stays COMMITTED until the store is opened again."""
        self._take_all()

    def _take_all(self) -> list[int]:
        with self._guard:
            timers, self._timers = self._timers, {}
        for timer in timers.values():
            if timer is not None:
                timer.cancel()
        return sorted(timers)


@dataclass(frozen=True, slots=True)
class CommitFaults:
    """What the fault plan wants of one commit. `hold` is in seconds; infinity waits for a release. `apart`: its tables
    become visible one after the other, so many seconds apart."""

    hold: float | None = None
    rolled_back: bool = False
    running_limit: bool = False
    apart: float | None = None


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
        """The reply to a commit; returns once readers see it, or as the faults say.

        Raises `Thrown` where the server throws. Waits for backends without the memory's lock (wire contract 4.16).
        """
        memory, label = self._memory, parameters.label
        with memory.lock:
            memory.sweep()
            task = memory.tasks.get(label)
            refused = refusal(task, label, Operation.COMMIT)
            if refused is not None or task is None:
                return refused or {}
            task.move(TaskState.COMMITING)
            if task.inherited:
                return self._lose(task)
            if not task.tables:
                self._settle(task)
                return ok()
            if task.expired(memory.clock.monotonic()):
                return self._fail(task, TableFailed("", LOAD_TIMEOUT))
            if self._second_clock_passed(task):
                return self._fail(task, TableFailed("", _DEADLINE_CAUSE))
            lost_tables = [table for table in task.tables if not memory.storage.has_table(task.database, table)]
            if lost_tables:
                return self._lose(task, lost_tables[0])
        if not self._read_to_the_end(task):
            with memory.lock:
                if task.state is TaskState.COMMITING:
                    return self._fail(task, TableFailed("", _DEADLINE_CAUSE))
        with memory.commit_under_way():
            return self._commit_tables(task, faults)

    def _read_to_the_end(self, task: Task) -> bool:
        """End the loads and wait for their backends; False if the label's timeout passes (wire contract 4.16).

        B ends a load when those before it are read, C all of them first. Other requests of the label are answered
        meanwhile, but for those that read its loads.
        """
        memory, one_by_one = self._memory, self._memory.settings.generation is Generation.B
        loads = [(task.tables[table].backend.threads, (task.label, table)) for table in sorted(task.tables)]
        if not one_by_one:
            for threads, key in loads:
                threads.end(key)
        with memory.waiting_commits.at(task.database, task.label):
            for threads, key in loads:
                threads.end(key)
                if threads.wait(key, memory.clock.monotonic()):
                    continue
                with memory.lock:
                    if task.state is TaskState.COMMITING and memory.history.get(task.txn_id) is None:
                        memory.history.register(task.txn_id, task.label, task.database)
                threads.wait(key, task.deadline)
                if memory.stopped() or memory.clock.monotonic() >= task.deadline:
                    return False
        return True

    def _second_clock_passed(self, task: Task) -> bool:
        """Generation B: whether the loads' own timeout has passed, which begin does not set (wire contract 4.12)."""
        memory = self._memory
        counts = memory.settings.second_clock and memory.settings.generation is Generation.B
        return counts and memory.clock.monotonic() - task.begun_at > memory.limits.query_timeout

    def _lose(self, task: Task, table: str = "") -> Body:
        """CANCELLED: another frontend's task, or `table` was dropped (wire contract 3.2, 10.5). Lock held."""
        memory = self._memory
        error = Thrown(_NO_CONTEXT, "java.lang.NullPointerException")
        if table:
            numbers = memory.number_of(f"{task.database}.{table}"), memory.number_of(task.database)
            message = "Failed to find table {} in db {}".format(*numbers)
            error = Thrown(message, "com.starrocks.common.MetaNotFoundException")
        memory.abort(task, f"commit failed: {error.message}", error.message)
        return failed_answer(error.text)

    def _commit_tables(self, task: Task, faults: CommitFaults) -> Body:
        contexts: list[LoadContext] = []
        try:
            with self._memory.lock:
                if task.state is not TaskState.COMMITING:
                    return failed_answer("Transaction state not found, possibly lost due to FE leader switch")
                contexts = self._close_contexts(task)
                refused = self._registration(task, faults)
            if refused is not None:
                return refused
            self._store(task, contexts, faults)
            return committed_answer(task.label, task.txn_id)
        except TableFailed as failure:
            with self._memory.lock:
                return self._fail(task, failure)
        finally:
            for context in contexts:
                self._memory.storage.drop_bodies(context.files)

    def _close_contexts(self, task: Task) -> list[LoadContext]:
        contexts = []
        for table, load in task.tables.items():
            load.prepared_at = self._memory.clock.wall()
            try:
                contexts.append(load.backend.take(task.label, table))
            except ContextLost as error:
                for context in contexts:
                    self._memory.storage.drop_bodies(context.files)
                raise TableFailed(table, str(error)) from error
        return contexts

    def _registration(self, task: Task, faults: CommitFaults) -> Body | None:
        """None when the transaction may be committed; in B it is registered here, and checked for the limit.

        A failing commit statement is answered OK in B all the same (the B hole). What B registers here is entered into
        the history once the store has it, so that no lookup sees it early.
        """
        generation_b = self._memory.settings.generation is Generation.B
        try:
            entry = register(self._memory, task, faults.running_limit and generation_b)
        except Thrown as error:
            self._memory.abort(task, f"commit failed: {error.message}", error.message)
            return failed_answer(error.text)
        if faults.rolled_back and not generation_b:
            raise TableFailed("", "commit failed")
        if faults.rolled_back:
            self._roll_back_silently(task, entry)
            return committed_answer(task.label, task.txn_id)
        if generation_b:
            self._memory.history.drop([entry])
        return None

    def _roll_back_silently(self, task: Task, entry: Registered) -> None:
        """The hole of B: CANCELLED, its transaction PREPARE until the inner timeout (wire contract 3.2). Lock held."""
        memory = self._memory
        memory.abort(task, "commit failed: fail to execute commit task", "fail to execute commit task")
        entry.state, entry.reason = LabelState.PREPARE, ""
        memory.holes[task.txn_id] = task.begun_at + memory.limits.query_timeout

    def _store(self, task: Task, contexts: list[LoadContext], faults: CommitFaults) -> None:
        memory = self._memory
        by_table = dict(zip(task.tables, contexts, strict=True))
        order = finishing_order([*by_table])
        loads = [(by_table[name].plan, tuple(by_table[name].files)) for name in order]
        at_once = faults.hold is None and faults.apart is None
        opening = Opening()
        if memory.settings.generation is Generation.B:
            opening = Opening(
                lambda table, rows: table != order[0] and rows <= CHUNK_ROWS,
                memory.limits.max_load_initial_open_partition_number,
            )
        try:
            counts = memory.storage.commit(
                task.database, task.txn_id, task.label, loads, visible=at_once, opening=opening
            )
        except CommitRejected as rejected:
            raise TableFailed(rejected.table, rejected.cause, rejected) from rejected
        with memory.lock:
            entry = memory.history.register(task.txn_id, task.label, task.database, LabelState.COMMITTED)
            entry.finished_at = memory.clock.monotonic()
            self._settle(task)
            for table, load in task.tables.items():
                load.state, load.counts = memory.final_load_state("COMMITED"), counts.get(table)
        finish_commit(memory, self._publisher, task.txn_id, faults)

    def _settle(self, task: Task) -> None:
        task.move(TaskState.COMMITED)
        task.ended_at = self._memory.clock.monotonic()

    def _fail(self, task: Task, failure: TableFailed) -> Body:
        """CANCELLED, with the cause in the server's form (wire contract 2.2, 4.9, 6.2). Lock held.

        C names the table. B says of no row whether it was filtered, tells all tables the same, and has registered the
        transaction if a table before the failing one, in its own order, was in order.
        """
        memory, cause = self._memory, failure.cause
        generation_b = memory.settings.generation is Generation.B
        if failure.table and not generation_b:
            cause = f"Failed to load table {failure.table}: {cause}"
        elif cause.startswith(NO_ROWS):
            cause = NO_ROWS_OF_B
        load: TableLoad | None = task.tables.get(failure.table)
        if load is not None:
            load.error = "" if generation_b else cause
        if failure.rejected is not None:
            for table, sub_task in task.tables.items():
                sub_task.counts = failure.rejected.counts.get(table)
        message = cancelled_task(load.job_id if load else task.task_id, task.label, cause)
        if generation_b and failure.table and finishing_order([*task.tables])[0] != failure.table:
            memory.history.register(task.txn_id, task.label, task.database)
        memory.abort(task, _FAILED_TABLE if generation_b else f"commit failed: {cause}", message)
        if generation_b:
            for table in task.tables.values():
                table.error = _FAILED_TABLE
        started = -int(memory.clock.wall() * 1000)
        return {**committed_answer(task.label, task.txn_id), **failed_answer(message), "Cancelled time": started}


def finish_commit(memory: FrontendMemory, publisher: Publisher, txn_id: int, faults: CommitFaults) -> None:
    """What follows the store's commit: publish now, later or table by table, and forget what is too old."""
    if faults.hold is not None:
        publisher.hold(txn_id, faults.hold)
    elif faults.apart is not None:
        memory.storage.publish(txn_id, faults.apart)
    refresh_committed(memory)
    with memory.lock:
        memory.evict_transactions()
    memory.forget_durably()
