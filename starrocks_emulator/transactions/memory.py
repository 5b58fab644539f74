"""What lives in the leader frontend's memory: tasks by label, registered transactions, and what is forgotten when."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from starrocks_emulator.settings import Configuration, Limits, Settings
from starrocks_emulator.transactions.backend import Backend, Counts, Storage
from starrocks_emulator.transactions.labels import (
    LabelState,
    Registered,
    Task,
    TaskState,
    TransactionHistory,
    tasks_too_many,
    tasks_too_old,
    timed_out,
    timeout_check_interval,
)
from starrocks_emulator.transactions.scan_threads import ScanThreads, WaitingCommits

_RESTART_PATIENCE = 60.0


class Clock(Protocol):
    """Seconds: `monotonic` never goes back, `wall` counts from the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds since some moment, for deadlines and ages."""

    def wall(self) -> float:
        """Seconds since the Unix epoch, for times that clients see."""


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Seconds since some moment, for deadlines and ages."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the Unix epoch, for times that clients see."""
        return time.time()


@dataclass(slots=True)
class TableLoad:
    """One (label, table) of a task: its backend, and what `information_schema.loads` shows of it."""

    job_id: int
    table: str
    backend: Backend
    created_at: float
    state: str = "LOADING"
    error: str = ""
    counts: Counts | None = None
    prepared_at: float | None = None
    finished_at: float | None = None


@dataclass(slots=True)
class FrontendMemory:
    """Shared by the frontend's parts. `lock` guards tasks and history; it is never held over a commit or a plan.

    `stopped` says that the emulator ends; `waiting_commits` are those that wait for their backends.
    """

    settings: Settings
    storage: Storage
    clock: Clock
    tasks: dict[str, Task] = field(default_factory=dict)
    history: TransactionHistory = field(default_factory=TransactionHistory)
    lock: threading.RLock = field(default_factory=threading.RLock)
    holes: dict[int, float] = field(default_factory=dict)
    sweepers: list[Callable[[float], None]] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(10_001))
    stopped: Callable[[], bool] = lambda: False
    configuration: Configuration = field(init=False)
    waiting_commits: WaitingCommits = field(init=False)
    _numbers: dict[str, int] = field(default_factory=dict)
    _forgotten: list[str] = field(default_factory=list)
    _commits: threading.Condition = field(default_factory=threading.Condition)
    _committing: int = 0
    _restarting: bool = False
    _next_clean: float = 0.0
    _next_timeout_check: float = 0.0

    def __post_init__(self) -> None:
        self.configuration = Configuration(self.settings)
        self.waiting_commits = WaitingCommits(self.clock.monotonic, self.stopped)
        now = self.clock.monotonic()
        self._next_clean = now + self.limits.label_clean_interval_second
        self._next_timeout_check = now + self._timeout_interval
        for record in self.storage.transactions():
            entry = self.history.register(record.txn_id, record.label, record.db, LabelState(record.state))
            entry.finished_at = now

    @property
    def limits(self) -> Limits:
        """As they are now."""
        return self.configuration.limits

    @property
    def _timeout_interval(self) -> float:
        return timeout_check_interval(self.settings.generation, self.limits)

    def number_of(self, database: str) -> int:
        """The number under which some texts name a database."""
        return self._numbers.setdefault(database, next(self.ids))

    def sweep(self) -> None:
        """Do what the server's cleaners would have done by now. Call with the lock held, before any decision."""
        now = self.clock.monotonic()
        limits = self.limits
        for sweep in self.sweepers:
            sweep(now)
        self.end_holes(now)
        if now >= self._next_timeout_check:
            self._next_timeout_check = now + self._timeout_interval
            for task in timed_out(self.tasks, now):
                milliseconds = int((task.deadline - task.begun_at) * 1000)
                self.abort(task, "timeout", f"transaction timeout after {milliseconds}ms")
        if now >= self._next_clean:
            self._next_clean = now + limits.label_clean_interval_second
            self._purge(tasks_too_old(self.tasks, now, limits))

    def final_load_state(self, state: str) -> str:
        """State of a committed load in information_schema.loads (wire contract 4.15)."""
        return "PREPARING" if self.settings.loads_stay_preparing else state

    def make_room(self) -> None:
        """The purge that a new task triggers when there are too many (wire contract 3.3). Lock held."""
        limits = self.limits
        if len(self.tasks) > limits.stream_load_task_keep_max_num:
            self._purge(tasks_too_old(self.tasks, self.clock.monotonic(), limits))
        self._purge(tasks_too_many(self.tasks, limits))

    def evict_transactions(self) -> None:
        """Drop finished transactions beyond count and age. Lock held."""
        limits = self.limits
        now = self.clock.monotonic()
        self._drop(self.history.overdue(now, limits.label_keep_max_second, limits.label_keep_max_num))

    def forget(self, pattern: str) -> None:
        """Forget every finished label that matches, as if retention had come for it."""
        with self.lock:
            matches = re.compile(pattern).search
            self._purge([label for label, task in self.tasks.items() if task.final and matches(label)])
            self._drop([entry for entry in self.history.finished_transactions() if matches(entry.label)])
        self.forget_durably()

    def end_holes(self, now: float) -> None:
        """ABORTED for what a commit of generation B rolled back silently, once its inner timeout has passed."""
        for txn_id in [txn_id for txn_id, until in self.holes.items() if now >= until]:
            del self.holes[txn_id]
            self._abort_registered(txn_id, "timeout by txn manager")

    def _purge(self, labels: Sequence[str]) -> None:
        for label in labels:
            del self.tasks[label]

    def _drop(self, entries: Sequence[Registered]) -> None:
        self.history.drop(entries)
        self._forgotten += [entry.label for entry in entries]

    def forget_durably(self) -> None:
        """Let the store forget too. Not with the lock held: the store may be busy with a commit."""
        with self.lock:
            labels, self._forgotten = self._forgotten, []
        for label in labels:
            self.storage.forget(label)

    def abort(self, task: Task, reason: str, error: str) -> None:
        """Take a task to CANCELLED: its bodies are dropped, its registered transaction is ABORTED. Lock held."""
        if task.state is not TaskState.ABORTING:
            task.move(TaskState.ABORTING)
        task.abort_reason, task.error = reason, error
        for backend in {id(load.backend): load.backend for load in task.tables.values()}.values():
            backend.discard(task.label)
        task.move(TaskState.CANCELLED)
        task.ended_at = self.clock.monotonic()
        for load in task.tables.values():
            load.state, load.finished_at = "CANCELLED", self.clock.wall()
            load.error = load.error or error or reason
        self._abort_registered(task.txn_id, error or reason)

    def _abort_registered(self, txn_id: int, reason: str) -> None:
        entry = self.history.get(txn_id)
        if entry is not None and entry.live:
            entry.state, entry.reason, entry.finished_at = LabelState.ABORTED, reason, self.clock.monotonic()

    @contextmanager
    def commit_under_way(self) -> Iterator[None]:
        """Around a store commit: a restart waits for it, it waits for a restart."""
        with self._commits:
            self._commits.wait_for(lambda: not self._restarting, _RESTART_PATIENCE)
            self._committing += 1
        try:
            yield
        finally:
            with self._commits:
                self._committing -= 1
                self._commits.notify_all()

    def restart(self) -> None:
        """Cancel every task, committed ones too, as a restarted frontend does (wire contract 10.5).

        Tasks are in the journal since their begin; their tables and their states are not. Registered transactions and
        committed data stay.
        """
        with self._between_commits():
            for task in self.tasks.values():
                if not task.final:
                    self.abort(task, "recover after FE restart", "cancelled after FE restart")
                task.recover()

    def hand_over(self) -> None:
        """Let another frontend lead, which knows of each task that it was begun, and no more (wire contract 10.5)."""
        with self._between_commits():
            for task in self.tasks.values():
                for load in task.tables.values():
                    load.backend.discard(task.label)
                task.inherit()

    @contextmanager
    def _between_commits(self) -> Iterator[None]:
        """Inside no commit is at work, and the lock is held."""
        with self._commits:
            self._restarting = True
            self._commits.wait_for(lambda: self._committing == 0, _RESTART_PATIENCE)
        try:
            with self.lock:
                yield
        finally:
            with self._commits:
                self._restarting = False
                self._commits.notify_all()


def scan_threads(memory: FrontendMemory, cores: int) -> ScanThreads:
    """The threads of a backend with so many cores."""
    return ScanThreads(
        lambda: cores * memory.configuration.scan_threads_per_core, memory.clock.monotonic, memory.stopped
    )
