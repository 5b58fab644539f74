"""`JobRun`: all that a sink keeps of a job while its process lives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from starrocks_txn_sink.errors import DeadlineExceeded, Fenced
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink import session as sessions
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.events_writer import EventsWriter
from starrocks_txn_sink.sink.rows_writer import RowsWriter


@dataclass(slots=True)
class JobRun:
    """A job's run in this process: the session that owns the job, the session's writer, and what is left behind.

    `served`: StarRocks has begun a transaction of the job. `ending` has failed sessions whose labels may still be open,
    by epoch. `replaced` says of a query's run that has lost the job which checkpoint's writer has it now.
    """

    job: str
    session: sessions.Session | None = None
    writer: EventsWriter | RowsWriter | None = None
    served: bool = False
    ending: dict[str, sessions.Session] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def one_at_a_time(self, seconds: float) -> Iterator[None]:
        """Wait for the job's other writes in this process; raises DeadlineExceeded after `seconds`."""
        if not self._turn.acquire(timeout=seconds):
            message = f"Another write of the job {self.job} in this process did not end within {seconds:g} s."
            raise DeadlineExceeded(message)
        try:
            yield
        finally:
            self._turn.release()

    def session_of(self, origin: BatchOrigin) -> sessions.Session | None:
        """The session of the query's run; None if there is none, or only one of another run."""
        return self.session if self.session is not None and self.session.key == origin.key else None

    def replace(self, origin: BatchOrigin) -> None:
        """The job goes to the writer `origin`; raises Fenced when another writer of this sink has taken it from there.

        Otherwise two queries that share a sink and a job would take the job from each other in turns, without an error.
        """
        if (by := self.replaced.get(origin.key)) is not None:
            raise Fenced("The job was taken over by another writer, which uses the same sink.", checkpoint=by)
        if self.session is not None and self.session.key != write_key(self.job):
            self.replaced[self.session.key] = origin.checkpoint

    def open(self, session: sessions.Session) -> None:
        """Go on with a new session, which has taken the job over."""
        self.session, self.writer = session, None

    def fail(self, session: sessions.Session, options: SinkOptions) -> None:
        """End the session, and roll back what it leaves open."""
        self.session = self.writer = None
        self.ending[session.epoch] = session
        sessions.clean_up(options, session, callback=lambda: self.ending.pop(session.epoch, None))


def write_key(job: str) -> str:
    """The session key of calls of `write`, which have no query and no run."""
    return f"write-{job}"
