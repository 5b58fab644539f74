"""One backend: load contexts and the bodies spooled for them, without HTTP (wire contract 2.5, 4.4, 4.8).

A context belongs to one (label, table), or in single mode to one label: one load at a time, the first load's parameters
pinned.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from starrocks_emulator.settings import JSON_PAYLOAD_LIMIT, Limits
from starrocks_emulator.tables.partitions import Opening
from starrocks_emulator.tables.plan import PlanRejected
from starrocks_emulator.transactions.messages import Body, Request, RowCounts, loaded_answer
from starrocks_emulator.transactions.scan_threads import ScanThreads

_MEBIBYTE = 1024 * 1024
_FORMATS = frozenset({"csv", "json", "gzip", "bzip2", "lz4", "deflate", "zstd"})
PIECE = 1024 * 1024
"""Bytes read and spooled at once."""


class RecordedTransaction(Protocol):
    """One entry of the durable history; `state` is COMMITTED or VISIBLE."""

    @property
    def label(self) -> str:
        """The label as begin had it."""

    @property
    def db(self) -> str:
        """The name of its one database."""

    @property
    def txn_id(self) -> int:
        """Its number, which only grows over all databases."""

    @property
    def state(self) -> str:
        """COMMITTED while readers do not see it, then VISIBLE."""


class Counts(RowCounts, Protocol):
    """Row counts of one table in one commit, the bytes of its bodies, and where the log of filtered rows is."""

    @property
    def bytes(self) -> int:
        """Bytes of its bodies as they arrived, so perhaps compressed."""

    @property
    def log(self) -> str:
        """URL of the log of filtered rows; empty without a log (wire contract 5.10)."""


class Storage(Protocol):
    """The part of `store.Store` that the frontend calls. Plans are opaque values here."""

    @property
    def spool_dir(self) -> Path:
        """Folder for the bodies that backends take in; emptied at each start."""

    def has_database(self, db: str) -> bool:
        """Whether the database is there."""

    def has_table(self, db: str, table: str) -> bool:
        """Whether the database and its table are there."""

    def plan(self, db: str, table: str, headers: Mapping[str, str]) -> Any:
        """The plan of a table's first load; header names in lower case. Raises PlanRejected (wire contract 4.7)."""

    def judge(self, txn_id: int, label: str, plan: Any, paths: Sequence[Path]) -> Counts:
        """What a commit of one table's bodies would find; raises CommitRejected, and commits nothing."""

    def judge_ahead(self, plan: Any, path: Path) -> None:
        """Begin to judge a table's first body in the background."""

    def drop_bodies(self, paths: Sequence[Path]) -> None:
        """Delete the files, and what was judged of them ahead."""

    def commit(
        self,
        db: str,
        txn_id: int,
        label: str,
        loads: Sequence[tuple[Any, Sequence[Path]]],
        *,
        visible: bool = True,
        opening: Opening = ...,
    ) -> Mapping[str, Counts]:
        """Judge and commit the tables' loads (plan, bodies) in one, durable on return; counts by table.

        Without `visible` readers see them from `publish` on. Raises CommitRejected, and keeps nothing then.
        """

    def publish(self, txn_id: int, apart: float | None = None) -> None:
        """Let readers see a commit, at once or its tables `apart` seconds from each other."""

    def transactions(self) -> Sequence[RecordedTransaction]:
        """The durable history, oldest first."""

    def forget(self, label: str) -> None:
        """Drop the visible transactions of a label from the history."""

    def next_txn_id(self) -> int:
        """A number above those of all earlier transactions."""


class LoadRefused(Exception):
    """What the backend does not do; `status` is a TStatusCode name, `url` leads to the log of filtered rows, `rows` are
    those that fit and those that were filtered."""

    def __init__(self, status: str, message: str, url: str = "", rows: tuple[int, int] = (0, 0)) -> None:
        self.status = status
        self.message = message
        self.url = url
        self.rows = rows
        super().__init__(message)


@dataclass(slots=True)
class LoadContext:
    """`busy` is held by the one operation at work on the context.

    In multi mode the frontend opens it at the table's first load, with that load's plan. In single mode it is there
    from begin on, the backend has its first load planned, a load that fails calls `abandon`, and `overdue` says whether
    the transaction's time has passed. `ends_at` is the end of begin's timeout on the emulator's clock, in multi mode.
    """

    label: str
    database: str
    table: str
    txn_id: int
    properties: Mapping[str, str] = field(default_factory=dict)
    plan: Any = None
    abandon: Callable[[str], None] | None = None
    overdue: Callable[[], bool] = lambda: False
    ends_at: float = math.inf
    busy: threading.Lock = field(default_factory=threading.Lock)
    files: list[Path] = field(default_factory=list)
    half: bytes = b""
    announced_bytes: int = 0
    received_bytes: int = 0
    failed: bool = False
    closed: bool = False

    @property
    def single(self) -> bool:
        """Whether its transaction is one of single mode."""
        return self.abandon is not None

    @property
    def key(self) -> tuple[str, str]:
        """What a backend finds it by: label and table, in single mode the label alone."""
        return self.label, "" if self.single else self.table

    @property
    def format(self) -> str:
        """The format of its first load in lower case; csv if that named none."""
        return self.properties.get("format", "csv").lower() or "csv"

    @property
    def streams_pieces(self) -> bool:
        """True when a body reaches the pipe piece by piece (CSV); JSON waits for its whole body."""
        return self.format != "json"

    def admit(self, request: Request, length: int | None, limits: Limits) -> None:
        """Check one load's headers against the context; any refusal fails the context for good.

        `length` is the announced body size, None when the body is chunked. Raises `LoadRefused`.
        """
        if self.failed:
            raise LoadRefused("ABORTED", "current transaction is aborted")
        try:
            self._check_size(length, limits)
            self._check_format(request)
            self._check_json_size(request, limits)
            if request.load_properties() != dict(self.properties):
                raise LoadRefused("INTERNAL_ERROR", "load request not equal last.")
        except LoadRefused:
            self.failed = True
            raise

    def check_received(self, limits: Limits, this_load: int) -> None:
        """The same limits for bodies whose size only their bytes tell. Raises `LoadRefused`."""
        total, limit = self.received_bytes + this_load, limits.streaming_load_max_mb * _MEBIBYTE
        if total > limit:
            raise self._too_large(total, limit)
        if this_load >= JSON_PAYLOAD_LIMIT and not self.streams_pieces:
            raise LoadRefused(
                "MEM_LIMIT_EXCEEDED",
                f"payload size [{this_load}] of single write beyond the JSON payload limit [{JSON_PAYLOAD_LIMIT}]",
            )

    def _check_size(self, length: int | None, limits: Limits) -> None:
        self.announced_bytes += length or 0
        limit = limits.streaming_load_max_mb * _MEBIBYTE
        if self.announced_bytes > limit:
            raise self._too_large(self.announced_bytes, limit)

    def _too_large(self, size: int, limit: int) -> LoadRefused:
        return LoadRefused(
            "INTERNAL_ERROR",
            f"body size {size} exceed limit: {limit}, label={self.label}, txn_id={self.txn_id}. "
            "You can increase the limit by setting streaming_load_max_mb in be.conf.",
        )

    def _check_format(self, request: Request) -> None:
        format_name = request.header("format").lower()
        if not self.single and not format_name and self.format != "csv":
            raise LoadRefused(
                "INTERNAL_ERROR",
                "stream load context's format is not default format TFileFormatType::FORMAT_CSV_PLAIN",
            )
        if not self.single and format_name and format_name != self.format:
            raise LoadRefused(
                "INTERNAL_ERROR", "stream load context's format is not same as format from cur http header"
            )
        if format_name and format_name not in _FORMATS:
            raise LoadRefused("INTERNAL_ERROR", f"unknown data format, format={request.header('format')}")

    def _check_json_size(self, request: Request, limits: Limits) -> None:
        limit = limits.streaming_load_max_batch_size_mb * _MEBIBYTE
        ignored = request.header("ignore_json_size").lower() == "true"
        if self.format == "json" and not ignored and self.announced_bytes > limit:
            raise LoadRefused(
                "INTERNAL_ERROR",
                f"The size of this batch exceed the max size [{limit}]  of json type data  data "
                f"[ {self.announced_bytes} ]. Set ignore_json_size to skip the check, although it may lead huge "
                "memory consuming.",
            )


class BodyBroken(Exception):
    """The body ended before its announced end."""


class BodySource(Protocol):
    """A request body on the wire; nothing of it is read before `readinto` is called."""

    @property
    def length(self) -> int | None:
        """The announced bytes, None for a chunked body."""

    def readinto(self, view: memoryview) -> int:
        """Fill part of `view`; 0 at the end of the body. Raises `BodyBroken`."""
        ...


class ContextLost(Exception):
    """A commit's table has no context on its backend, or the context is at work."""


class Backend:
    """Holds the contexts of its tables and spools bodies into the storage's folder. Thread-safe.

    `threads` read what it has taken; loads of one table have threads without limit (wire contract 4.16).
    """

    def __init__(self, storage: Storage, limits: Limits, names: Callable[[], str], threads: ScanThreads) -> None:
        self.address = ("127.0.0.1", 0)
        self.threads = threads
        self.alive = True
        self._storage = storage
        self._limits = limits
        self._names = names
        self._contexts: dict[tuple[str, str], LoadContext] = {}
        self._guard = threading.Lock()

    def open(self, context: LoadContext) -> None:
        """Called by the frontend at a table's first load."""
        with self._guard:
            self._contexts[context.key] = context

    def single(self, label: str) -> LoadContext | None:
        """The context of a transaction of one table."""
        with self._guard:
            return self._contexts.get((label, ""))

    def load(self, request: Request, body: BodySource, *, busy: bool = False, cut_after: int | None = None) -> Body:
        """Take one body. Raises `LoadRefused` with nothing read, `BodyBroken` when the connection broke.

        `busy` and `cut_after` come from the fault plan.
        """
        return self.receive(self._context(request), request, body, busy=busy, cut_after=cut_after)

    def receive(
        self,
        context: LoadContext,
        request: Request,
        body: BodySource,
        *,
        busy: bool = False,
        cut_after: int | None = None,
    ) -> Body:
        """As `load`, into a context that need not be known here."""
        if context.overdue():
            if not context.single:  # the backend has dropped what it held
                raise _not_exists(context.label)
            raise LoadRefused("ABORTED", "The load is timeout, and will be aborted")
        if busy or not context.busy.acquire(blocking=False):
            raise LoadRefused("TXN_IN_PROCESSING", "Transaction is in processing")
        try:
            if context.plan is None:
                self._plan(context, request)
            context.admit(request, body.length, self._limits)
            if not context.single:
                self.threads.hold(context.key, context.ends_at)
            started = time.monotonic()
            size = self._ingest(context, body, cut_after)
            table = context.database, context.table
            return loaded_answer(table, context.label, context.txn_id, size, time.monotonic() - started)
        except LoadRefused as refused:
            if context.abandon is not None:
                context.abandon(refused.message)
            raise
        finally:
            context.busy.release()

    def _plan(self, context: LoadContext, request: Request) -> None:
        """The plan of a context's first load in single mode; the format is judged before (wire contract 3.1)."""
        context.properties = request.load_properties()
        if context.format not in _FORMATS:
            raise LoadRefused("INTERNAL_ERROR", f"unknown data format, format={request.header('format')}")
        headers, encoding = dict(request.headers), request.header("content-encoding")
        if encoding and request.header("compression"):
            message = "Only one of http header content-encoding and compression can be set"
            raise LoadRefused("INVALID_ARGUMENT", message)
        if encoding:
            headers["compression"] = encoding
        try:
            context.plan = self._storage.plan(context.database, context.table, headers)
        except PlanRejected as rejected:
            raise LoadRefused("ANALYSIS_ERROR", rejected.message) from rejected

    def _context(self, request: Request) -> LoadContext:
        label, database, table = request.header("label"), request.header("db"), request.header("table")
        if not label:
            raise LoadRefused("INVALID_ARGUMENT", "Invalid label ")
        with self._guard:
            context = self._contexts.get((label, "")) or self._contexts.get((label, table))
        if context is None:
            raise _not_exists(label)
        if context.database != database:
            raise LoadRefused(
                "INVALID_ARGUMENT",
                f"Request database {database} not equal transaction database {context.database}",
            )
        if context.table != table:
            message = f"Request table {table} not equal transaction table {context.table}"
            raise LoadRefused("INVALID_ARGUMENT", message)
        return context

    def _ingest(self, context: LoadContext, body: BodySource, cut_after: int | None) -> int:
        path = self._storage.spool_dir / self._names()
        size, is_stored = 0, False
        try:
            size = self._spool(context, body, path, cut_after)
            is_stored = self._keep(context, path)
        except BodyBroken:
            # What a broken CSV body had sent is in the pipe; half a JSON waits for the next body (wire contract 4.8).
            is_stored = self._keep(context, path) if context.streams_pieces else self._buffer(context, path)
            raise
        except LoadRefused:
            context.failed = True
            raise
        finally:
            if not is_stored:
                path.unlink(missing_ok=True)
        if not is_stored and context.single:
            raise LoadRefused("ABORTED", "transaction is aborted")
        return size  # also of a label that was ended meanwhile, where the body goes nowhere (wire contract 4.8)

    def _spool(self, context: LoadContext, body: BodySource, path: Path, cut_after: int | None) -> int:
        view = memoryview(bytearray(PIECE if body.length is None else max(1, min(PIECE, body.length))))
        size = 0
        with path.open("wb", buffering=0) as file:
            file.write(context.half)
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
            size, context.half = path.stat().st_size, b""
            context.received_bytes += size
            context.files.append(path)
            if len(context.files) == 1:
                self._storage.judge_ahead(context.plan, path)
            return True

    def _buffer(self, context: LoadContext, path: Path) -> bool:
        """Half a JSON body stays in the context's buffer, in front of the next body. The file is not kept."""
        context.half = path.read_bytes()
        return False

    def take(self, label: str, table: str) -> LoadContext:
        """Close a context for commit (in single mode `table` is empty) and hand it over; its files are the caller's.

        Raises `ContextLost`. A load still at work refuses the commit in single mode, as the backend's own lock does; in
        multi mode its body is answered OK, and is in nothing (wire contract 4.8).
        """
        with self._guard:
            context = self._contexts.get((label, table))
            if context is None:
                raise ContextLost(f"Transaction with label {label} not exists")
            idle = context.busy.acquire(blocking=False)
            if not idle and context.single:
                raise ContextLost("Transaction is in processing")
            context.closed = True
            if idle:
                context.busy.release()
            del self._contexts[label, table]
            return context

    def discard(self, label: str, *, single: bool = False) -> None:
        """Forget the label's contexts in one mode and their bodies; a load at work finds its context closed."""
        with self._guard:
            doomed = [key for key in self._contexts if key[0] == label and single is not bool(key[1])]
            contexts = [self._contexts.pop(key) for key in doomed]
            for context in contexts:
                context.closed = True
        if not single:
            self.threads.drop(label)
        for context in contexts:
            self._storage.drop_bodies(context.files)

    def crash(self) -> None:
        """Lose every context, as a backend that was restarted does."""
        for label, table in list(self._contexts):
            self.discard(label, single=not table)


def _not_exists(label: str) -> LoadRefused:
    return LoadRefused("TXN_NOT_EXISTS", f"Transaction with label {label} not exists")


def body_names() -> Callable[[], str]:
    """File names for bodies, unique in one process."""
    counter = itertools.count(1)
    return lambda: f"body-{next(counter)}"
