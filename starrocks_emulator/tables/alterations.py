"""Changes of columns as the server makes them: at once, or with `seconds` in the background, one a table at a time.

A change that takes its time shows at the first statement after its end. Loads see the old columns until then. The jobs
are kept in memory: a restart forgets them, and with them a change that was under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from starrocks_emulator.tables.catalog import Table

RUNNING, FINISHED, CANCELLED = "RUNNING", "FINISHED", "CANCELLED"


@dataclass(frozen=True, slots=True)
class AlterJob:
    """One change of a table's columns, as SHOW ALTER TABLE COLUMN lists it; times in Unix seconds."""

    number: int
    database: str
    table: str
    created: float
    state: str = RUNNING
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
        return any(job.state == RUNNING and job.table == table.name for job in self.jobs(table.database))

    def make(self, table: Table, change: Callable[[], None]) -> None:
        """Make a change, now or later; an error of a change now leaves this call, one of a later change its message."""
        if not self.seconds:
            change()
        with self._lock:
            job = AlterJob(10_100 + len(self._jobs), table.database, table.name, time.time())
            if self.seconds:
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
        with self._lock:
            return [job for job in self._jobs if job.database == database and table in (None, job.table)]
