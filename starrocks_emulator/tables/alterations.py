"""Changes of columns as the server makes them (wire contract 10.15): without a rewrite of rows at once, else in the
background, one a table at a time. Half of its `seconds` a change is PENDING, then RUNNING.

A change in the background shows at the first statement or load after its end, which see the old columns until then.
The jobs are kept in memory: a restart forgets them, and with them a change that was under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from starrocks_emulator.tables.catalog import Table

PENDING, RUNNING, FINISHED, CANCELLED = "PENDING", "RUNNING", "FINISHED", "CANCELLED"
_ENDED = (FINISHED, CANCELLED)


@dataclass(frozen=True, slots=True)
class AlterJob:
    """One change of a table's columns, as SHOW ALTER TABLE COLUMN lists it; times in Unix seconds."""

    number: int
    database: str
    table: str
    created: float
    state: str = PENDING
    finished: float | None = None
    message: str = ""


class Alterations:
    """The changes of all tables, the oldest first."""

    def __init__(self, seconds: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._jobs: list[AlterJob] = []
        self._waiting: dict[int, tuple[float, Callable[[], None]]] = {}  # by job: when it is due, and the change

    def is_running(self, table: Table) -> bool:
        """Whether a change of the table is under way, so that the server takes no other one."""
        return any(job.state not in _ENDED and job.table == table.name for job in self.jobs(table.database))

    def make(self, table: Table, change: Callable[[], None], *, rewrites: bool) -> None:
        """Make a change, later if it `rewrites` rows; an error of a later change is its message, another is raised."""
        later = rewrites and self.seconds > 0.0
        if not later:
            change()
        with self._lock:
            job = AlterJob(10_100 + len(self._jobs), table.database, table.name, time.time())
            if later:
                self._waiting[len(self._jobs)] = (self._monotonic() + self.seconds, change)
            else:
                job = replace(job, state=FINISHED, finished=time.time())
            self._jobs.append(job)

    def finish_due(self) -> None:
        """Make the changes whose time has come."""
        with self._lock:
            due = {place: change for place, (at, change) in self._waiting.items() if at <= self._monotonic()}
            for place in due:
                del self._waiting[place]
        for place, change in due.items():
            state, message = FINISHED, ""
            try:
                change()
            except Exception as error:
                state, message = CANCELLED, str(error)
            with self._lock:
                job = self._jobs[place]
                self._jobs[place] = replace(job, state=state, finished=time.time(), message=message)

    def jobs(self, database: str, table: str | None = None) -> list[AlterJob]:
        """The changes in a database, or of one table."""
        half = self._monotonic() + self.seconds / 2
        with self._lock:
            running = {place for place, (at, _) in self._waiting.items() if at <= half}
            jobs = [replace(job, state=RUNNING) if place in running else job for place, job in enumerate(self._jobs)]
            return [job for job in jobs if job.database == database and table in (None, job.table)]
