"""Writers of one job inside one sink: one after the other, and none comes back after another has taken its job.

Between processes the ledger's owner rows exclude writers. Within a sink they share a session and its claim, so two
threads that write at once would both be the owner; and a query whose job was taken over by another one of the same sink
would take it over again with its next micro-batch, instead of being told.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from starrocks_txn_sink.errors import DeadlineExceeded, Fenced


class Turns:
    """Whose turn it is, by job. Thread-safe; travels without what it knows, as the sink's sessions do."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._replaced: dict[tuple[str, str], str] = {}

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()

    @contextlib.contextmanager
    def one_at_a_time(self, job: str, seconds: float) -> Iterator[None]:
        """Wait until nobody else writes `job`; raises DeadlineExceeded after `seconds`."""
        lock = self._locks.setdefault(job, threading.Lock())
        if not lock.acquire(timeout=seconds):
            raise DeadlineExceeded(f"Another write of the job {job} in this process was waited for {seconds:g} s.")
        try:
            yield
        finally:
            lock.release()

    def replaced(self, job: str, run: str, by: str) -> None:
        """A query's `run` has lost `job` to the writer with the checkpoint `by`."""
        self._replaced[job, run] = by

    def refuse_replaced(self, job: str, run: str) -> None:
        """Raise Fenced when another writer of this sink has taken `job` from that run of a query."""
        by = self._replaced.get((job, run))
        if by is not None:
            raise Fenced("The job was taken over by another writer, which uses the same sink.", checkpoint=by)
