"""One backend: load contexts and the bodies spooled for them, without HTTP (contract sections 2.5, 4.4–4.8)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from starrocks_emulator.settings import Limits
from starrocks_emulator.transactions.context import LoadContext, LoadRefused
from starrocks_emulator.transactions.replies import Body, loaded
from starrocks_emulator.transactions.request import Request
from starrocks_emulator.transactions.storage import Storage

PIECE = 1024 * 1024
"""Bytes read and spooled at once."""


class BodyBroken(Exception):
    """The body ended before its announced end."""


class BodySource(Protocol):
    """A request body on the wire; nothing of it is read before `readinto` is called."""

    @property
    def length(self) -> int | None: ...

    def readinto(self, view: memoryview) -> int:
        """Fill part of `view`; 0 at the end of the body. Raises `BodyBroken`."""
        ...


class ContextLost(Exception):
    """A commit's table has no context on its backend, or the context is at work."""


class Backend:
    """Holds the contexts of its tables and spools bodies into the storage's folder. Thread-safe."""

    def __init__(self, storage: Storage, limits: Limits, names: Callable[[], str]) -> None:
        self.address = ("127.0.0.1", 0)
        self._storage = storage
        self._limits = limits
        self._names = names
        self._contexts: dict[tuple[str, str], LoadContext] = {}
        self._guard = threading.Lock()

    def open(self, context: LoadContext) -> None:
        """Called by the frontend at a table's first load."""
        with self._guard:
            self._contexts[context.label, context.table] = context

    def load(self, request: Request, body: BodySource, *, busy: bool = False, cut_after: int | None = None) -> Body:
        """Take one body. Raises `LoadRefused` with nothing read, `BodyBroken` when the connection broke.

        `busy` and `cut_after` come from the fault plan.
        """
        context = self._context(request)
        if busy or not context.busy.acquire(blocking=False):
            raise LoadRefused("TXN_IN_PROCESSING", "Transaction is in processing")
        try:
            context.admit(request, body.length, self._limits)
            started = time.monotonic()
            size = self._ingest(context, body, cut_after)
            return loaded(context.label, context.txn_id, size, time.monotonic() - started)
        finally:
            context.busy.release()

    def _context(self, request: Request) -> LoadContext:
        label, database, table = request.header("label"), request.header("db"), request.header("table")
        if not label:
            raise LoadRefused("INVALID_ARGUMENT", "Invalid label ")
        with self._guard:
            context = self._contexts.get((label, table))
        if context is None:
            raise LoadRefused("TXN_NOT_EXISTS", f"Transaction with label {label} not exists")
        if context.database != database:
            raise LoadRefused(
                "INVALID_ARGUMENT",
                f"Request database {database} not equal transaction database {context.database}",
            )
        return context

    def _ingest(self, context: LoadContext, body: BodySource, cut_after: int | None) -> int:
        path = self._storage.spool_dir / self._names()
        size, kept = 0, False
        try:
            size = self._spool(context, body, path, cut_after)
            kept = self._keep(context, path)
        except BodyBroken:
            # What a broken CSV body had already sent is in the pipe; a JSON body is buffered whole and lost.
            context.failed = True
            kept = context.streams_pieces and self._keep(context, path)
            raise
        except LoadRefused:
            context.failed = True
            raise
        finally:
            if not kept:
                path.unlink(missing_ok=True)
        if not kept:
            raise LoadRefused("ABORTED", "transaction is aborted")
        return size

    def _spool(self, context: LoadContext, body: BodySource, path: Path, cut_after: int | None) -> int:
        view = memoryview(bytearray(PIECE if body.length is None else max(1, min(PIECE, body.length))))
        size = 0
        with path.open("wb", buffering=0) as file:
            while count := body.readinto(view):
                if cut_after is not None and size + count >= cut_after:
                    file.write(view[: max(0, cut_after - size)])
                    raise BodyBroken("cut by the fault plan")
                file.write(view[:count])
                size += count
                context.check_received(self._limits, size)
        return size

    def _keep(self, context: LoadContext, path: Path) -> bool:
        """Add the spooled body to the context, unless the context was closed meanwhile."""
        with self._guard:
            if context.closed:
                return False
            size = path.stat().st_size
            context.received_bytes += size
            context.files.append(path)
            if len(context.files) == 1:
                self._storage.judge_ahead(context.plan, path)
            return True

    def take(self, label: str, table: str) -> LoadContext:
        """Close a table's context for commit and hand it over; its files are the caller's to delete.

        Raises `ContextLost`. A load still at work refuses the commit, as the backend's own lock does.
        """
        with self._guard:
            context = self._contexts.get((label, table))
            if context is None:
                raise ContextLost(f"Transaction with label {label} not exists")
            if not context.busy.acquire(blocking=False):
                raise ContextLost("Transaction is in processing")
            context.closed = True
            context.busy.release()
            del self._contexts[label, table]
            return context

    def discard(self, label: str) -> None:
        """Forget every context of the label and its bodies; a load at work finds its context closed."""
        with self._guard:
            doomed = [key for key in self._contexts if key[0] == label]
            contexts = [self._contexts.pop(key) for key in doomed]
            for context in contexts:
                context.closed = True
        for context in contexts:
            self._storage.drop_bodies(context.files)

    def crash(self) -> None:
        """Lose every context, as a backend that was restarted does."""
        for label in {label for label, _ in list(self._contexts)}:
            self.discard(label)


def body_names() -> Callable[[], str]:
    """File names for bodies, unique in one process."""
    counter = itertools.count(1)
    return lambda: f"body-{next(counter)}"
