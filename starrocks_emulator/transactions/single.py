"""Transactions of one table: begin to commit without `transaction_type: multi`, and Stream Load, all of it at once.

A transaction is registered at begin, and its backend holds its one context. The frontend tells clients the backend, and
ends by itself what is prepared (wire contract 1.2, 2.3, 3.1, 11.1, 11.2).
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starrocks_emulator.tables.store import NO_ROWS, CommitRejected
from starrocks_emulator.transactions.backend import (
    Backend,
    BodyBroken,
    BodySource,
    ContextLost,
    Counts,
    LoadContext,
    LoadRefused as Refused,
)
from starrocks_emulator.transactions.commit import NO_ROWS_OF_B, CommitFaults, Publisher, finish_commit
from starrocks_emulator.transactions.frontend import refresh_committed
from starrocks_emulator.transactions.labels import LabelState, Registered, check_label
from starrocks_emulator.transactions.memory import FrontendMemory
from starrocks_emulator.transactions.messages import (
    Body,
    Request,
    Stopwatch,
    Thrown,
    TransactionParameters,
    backend_answer,
    ok,
    single_mode_answer,
    stream_load_answer,
)

BY_BACKEND = "BACKEND_STREAMING"
NO_DATA = f"fail to execute commit task: {NO_ROWS_OF_B}"
PUBLISH_TIMEOUT = "Publish timeout. The data will be visible after a while"
TOO_MANY_FILTERED = "too many filtered rows"
_WORDS = {"LABEL_ALREADY_EXISTS": "Label Already Exists", "PUBLISH_TIMEOUT": "Publish Timeout"}
_LONGEST_TIMEOUT = 259_200
_REMEMBERED = 4_096


class LabelTaken(Refused):
    """The label has a transaction that was not aborted; `job` is RUNNING, FINISHED, or empty where nobody says."""

    def __init__(self, message: str, job: str) -> None:
        self.job = job
        super().__init__("LABEL_ALREADY_EXISTS", message)


def not_streamed(label: str, txn_id: int, refused: Refused, figures: tuple[int, int] = (0, 0), **more: object) -> Body:
    """A Stream Load's reply to what was refused; `figures` are bytes and milliseconds."""
    if refused.url:
        more["ErrorURL"] = refused.url
    if isinstance(refused, LabelTaken):
        more["ExistingJobStatus"] = refused.job
    rows = (*refused.rows, 0)
    return stream_load_answer(label, txn_id, _WORDS.get(refused.status, "Fail"), refused.message, rows, figures, **more)


@dataclass(slots=True)
class Single:
    """A live transaction. `deadline`, in seconds of the emulator's clock, is another one once it is prepared."""

    entry: Registered
    context: LoadContext
    backend: Backend
    deadline: float
    committing: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a commit or a prepare found; `published` is false while readers do not see it yet."""

    counts: Counts
    published: bool = True


class SingleTable:
    """Both halves of it, the frontend's (`route`) and the backends' (the rest). Thread-safe.

    The backends' methods raise `LoadRefused`.
    """

    def __init__(self, memory: FrontendMemory, publisher: Publisher, backends: Sequence[Backend]) -> None:
        self._memory = memory
        self._publisher = publisher
        self._backends = backends
        self._turns = itertools.cycle(backends)
        self._places: OrderedDict[str, Backend] = OrderedDict()
        self._live: dict[int, Single] = {}
        self._next_check = 0.0
        self._guard = threading.Lock()
        memory.sweepers.append(self.sweep)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and HTTP port of each backend."""
        return [backend.address for backend in self._backends]

    def next_backend(self) -> Backend:
        """The backends in turns, for Stream Loads."""
        with self._guard:
            return next(self._turns)

    # --- the frontend -------------------------------------------------------------------------------------------------

    def route(self, operation: str, parameters: TransactionParameters, faults: CommitFaults) -> Backend | Body:
        """The backend to go to, or the reply of an operation that the frontend does. Raises `Thrown`."""
        database, label = parameters.database, parameters.label
        if not self._memory.storage.has_database(database):
            raise Thrown(f"Database[{database}] does not exist.")
        refresh_committed(self._memory)
        with self._memory.lock:
            self._memory.sweep()
            entry = self._memory.history.of_label(database, label)
            if operation not in ("begin", "load") and entry is None and label not in self._places:
                raise Thrown(f"No transaction found with db[{database}] and label[{label}]")
            live = None if entry is None else self._live.get(entry.txn_id)
        if operation in ("commit", "rollback"):
            if entry is None:
                raise Thrown(f"No transaction found by label {label}")
            if live is not None and entry.state is LabelState.PREPARED:
                with live.context.busy:
                    if entry.live:
                        self._end_prepared(operation, live, faults)
                        return ok(TxnId=entry.txn_id, Label=label)
            if not entry.live:
                return _end_again(operation, entry)
        return self._place(operation, entry, live, parameters)

    def _end_prepared(self, operation: str, live: Single, faults: CommitFaults) -> None:
        if operation == "rollback":
            self._abort(live, "User Aborted")
            return
        try:
            self._store(live, faults)
        except CommitRejected as rejected:
            self._abort(live, rejected.cause, committing=True)
            raise Thrown(rejected.cause) from rejected
        except Refused as refused:
            raise Thrown(refused.message) from refused
        finally:
            self._memory.storage.drop_bodies(live.context.files)

    def _place(
        self, operation: str, entry: Registered | None, live: Single | None, parameters: TransactionParameters
    ) -> Backend:
        """The backend of a label: the one that it was begun on, as long as that is remembered."""
        database, label = parameters.database, parameters.label
        with self._guard:
            place = self._places.get(label)
            if place is None and operation == "begin":
                place = self._places[label] = next(self._turns)
                while len(self._places) > _REMEMBERED:
                    self._places.popitem(last=False)
        if place is not None:
            return place
        if live is not None:
            return live.backend
        if entry is None:
            raise Thrown(
                f"Can't find the transaction with db [{database}] and label[{label}]. The possible reasons: 1. FE "
                "leader is started or switched; 2. The transaction timeouts and is cleaned."
            )
        raise Thrown(
            f"The source type for transaction stream load with db [{database}] and label[{label}] should be BE, "
            "but is FE."
        )

    # --- a backend ----------------------------------------------------------------------------------------------------

    def begin(self, backend: Backend, request: Request) -> Body:
        """Register a transaction and open its context; raises `LabelTaken` for a used label (wire contract 2.3)."""
        label, watch = request.header("label"), Stopwatch()
        if backend.single(label) is not None:
            raise LabelTaken("", "")
        database, table = request.header("db"), request.header("table")
        live = self.open(backend, database, table, label, self.timeout_of(request))
        backend.open(live.context)
        figures = {"Label": label, "TxnId": live.entry.txn_id, "BeginTxnTimeMs": watch.milliseconds}
        return backend_answer("OK", "", database, table, **figures)

    def finish(self, backend: Backend, request: Request, faults: CommitFaults, *, prepare: bool) -> Body:
        """Commit, or prepare, which keeps the judged bodies for a commit by the frontend."""
        live, watch = self._of_request(backend, request), Stopwatch()
        seconds = _prepared_timeout(request) if prepare else None
        try:
            context = backend.take(live.entry.label, "")
        except ContextLost as error:
            raise Refused("TXN_IN_PROCESSING", str(error)) from error
        if not prepare:
            outcome = self.commit(live, faults)
        else:
            outcome = Outcome(self._judge(live))
            self._prepare(live, seconds)
        if not outcome.published:
            raise Refused("PUBLISH_TIMEOUT", PUBLISH_TIMEOUT)
        figures = outcome.counts, context.received_bytes, watch.milliseconds
        return single_mode_answer((context.database, context.table), context.label, live.entry.txn_id, *figures)

    def rollback(self, backend: Backend, request: Request) -> Body:
        """Abort a transaction that is not prepared, on the backend that has it (wire contract 2.3)."""
        live = self._of_request(backend, request)
        self._abort(live, "transaction is aborted by user.")
        return backend_answer("OK", "", "", "", Label=live.entry.label)

    def stream_load(
        self, backend: Backend, request: Request, body: BodySource, names: tuple[str, str], faults: CommitFaults
    ) -> Body:
        """`PUT /api/{db}/{table}/_stream_load`; `names` are database and table. Raises `BodyBroken`, no refusal."""
        label, watch = request.header("label") or str(uuid.uuid4()), Stopwatch()
        live = None
        try:
            live = self.open(backend, *names, label, self.timeout_of(request))
            backend.receive(live.context, request, body)
            outcome = self.commit(live, faults)
        except BodyBroken:
            if live is not None:
                self._abort(live, "Cancelled")
            raise
        except Refused as refused:
            txn_id, size = (live.entry.txn_id, live.context.received_bytes) if live else (-1, 0)
            return not_streamed(label, txn_id, refused, (size, watch.milliseconds))
        counts, figures = outcome.counts, (live.context.received_bytes, watch.milliseconds)
        rows = counts.loaded, counts.filtered, counts.unselected
        if outcome.published:
            return stream_load_answer(label, live.entry.txn_id, "Success", "OK", rows, figures)
        return stream_load_answer(label, live.entry.txn_id, "Publish Timeout", PUBLISH_TIMEOUT, rows, figures)

    def timeout_of(self, request: Request) -> float:
        """Seconds of the header `timeout`, else the server's default; raises `LoadRefused` if it is no number."""
        text = request.header("timeout")
        if text and not text.isdecimal():
            raise Refused("INVALID_ARGUMENT", "Invalid timeout format")
        return float(text or self._memory.limits.stream_load_default_timeout_second)

    # --- transactions -------------------------------------------------------------------------------------------------

    def open(
        self, backend: Backend, database: str, table: str, label: str, timeout: float, source: str = BY_BACKEND
    ) -> Single:
        """Register a transaction. Its context is the caller's: to be opened on the backend, or used at once."""
        memory = self._memory
        if not memory.storage.has_database(database):
            raise Refused("ANALYSIS_ERROR", f"unknown database, database={database}")
        if not memory.storage.has_table(database, table):
            raise Refused("ANALYSIS_ERROR", f'unknown table "{database}.{table}"')
        if not 1 <= timeout <= _LONGEST_TIMEOUT:
            message = (
                f"Invalid timeout: '{int(timeout)}'. Expected values should be between 1 and {_LONGEST_TIMEOUT} seconds"
            )
            raise Refused("ANALYSIS_ERROR", message)
        txn_id = memory.storage.next_txn_id()
        with memory.lock:
            memory.sweep()
            memory.evict_transactions()
            self._check_label(database, label)
            entry = memory.history.register(txn_id, label, database)
            entry.source, entry.timeout, entry.begun_at = source, timeout, memory.clock.monotonic()
            context = LoadContext(label, database, table, txn_id)
            live = self._live[txn_id] = Single(entry, context, backend, entry.begun_at + timeout)
            context.abandon = lambda reason: self._abort(live, reason)
            context.overdue = lambda: memory.clock.monotonic() > live.deadline
            return live

    def _check_label(self, database: str, label: str) -> None:
        memory = self._memory
        try:
            check_label(label)
        except Thrown as error:
            raise Refused("ANALYSIS_ERROR", error.message) from error
        entry = memory.history.blocking(database, label)
        if entry is not None:
            raise LabelTaken(f"Label [{label}] has already been used.", "RUNNING" if entry.live else "FINISHED")
        running, limit = memory.history.running(database), memory.limits.max_running_txn_num_per_db
        if running >= limit:
            message = f"current running txns on db {database} is {running}, larger than limit {limit}"
            raise Refused("ANALYSIS_ERROR", message)

    def _of_request(self, backend: Backend, request: Request) -> Single:
        label = request.header("label")
        context = backend.single(label)
        live = self._live.get(context.txn_id) if context is not None else None
        if context is None or live is None:
            raise Refused("TXN_NOT_EXISTS", f"transaction with label {label} not exists")
        if context.database != request.header("db"):
            message = f"request db {request.header('db')} transaction db {context.database} not match"
            raise Refused("INVALID_ARGUMENT", message)
        return live

    def commit(self, live: Single, faults: CommitFaults, reason: Callable[[Refused], str] = str) -> Outcome:
        """Judge and commit; what cannot be committed is aborted, with `reason` of the refusal that is raised."""
        counts = self._judge(live, faults, reason)
        return Outcome(counts, faults.hold is None)

    def _judge(
        self, live: Single, commit: CommitFaults | None = None, reason: Callable[[Refused], str] = str
    ) -> Counts:
        context, entry, storage = live.context, live.entry, self._memory.storage
        prepared = False
        try:
            if context.failed:
                raise Refused("ABORTED", "transaction is aborted")
            if context.plan is None:
                place = f"txn_id: {entry.txn_id}, label={entry.label}, db={entry.database}"
                raise Refused("INTERNAL_ERROR", f"transaction {place} hasn't send any data yet")
            if commit is not None:
                return self._store(live, commit)
            counts = storage.judge(entry.txn_id, entry.label, context.plan, context.files)
            prepared = True
            return counts
        except CommitRejected as rejected:
            refused = _rejected(live, rejected)
            refused.message = reason(refused)
            self._abort(live, refused.message, committing=live.committing)
            raise refused from rejected
        except Refused as refused:
            self._abort(live, refused.message)
            raise
        finally:
            if not prepared:
                storage.drop_bodies(context.files)

    def _store(self, live: Single, faults: CommitFaults) -> Counts:
        memory, entry, context = self._memory, live.entry, live.context
        at_once = faults.hold is None and faults.apart is None
        loads = [(context.plan, tuple(context.files))]
        with memory.lock:
            if not entry.live:
                raise Refused("ABORTED", "transaction is aborted")
            live.committing = True
        with memory.commit_under_way():
            counts = memory.storage.commit(entry.database, entry.txn_id, entry.label, loads, visible=at_once)
        with memory.lock:
            self._live.pop(entry.txn_id, None)
            entry.state, entry.finished_at = LabelState.COMMITTED, memory.clock.monotonic()
        finish_commit(memory, self._publisher, entry.txn_id, faults)
        return counts[context.table]

    def _prepare(self, live: Single, seconds: float | None) -> None:
        memory, entry = self._memory, live.entry
        if seconds is None:
            seconds = memory.limits.prepared_transaction_default_timeout_second
        with memory.lock:
            entry.state, entry.prepared_timeout = LabelState.PREPARED, seconds
            live.deadline = memory.clock.monotonic() + seconds

    def _abort(self, live: Single, reason: str, *, committing: bool = False) -> None:
        """Nothing happens to what has ended, or is being committed by another client than the caller."""
        memory, entry = self._memory, live.entry
        with memory.lock:
            if not entry.live or live.committing is not committing:
                return
            del self._live[entry.txn_id]
            entry.state, entry.reason, entry.finished_at = LabelState.ABORTED, reason, memory.clock.monotonic()
        live.backend.discard(entry.label, single=True)
        memory.storage.drop_bodies(live.context.files)

    def sweep(self, now: float) -> None:
        """Abort what is past its deadline, whenever the cleaner of transactions comes. The memory's lock is held."""
        if now < self._next_check:
            return
        self._next_check = now + self._memory.limits.transaction_clean_interval_second
        for live in [live for live in self._live.values() if now > live.deadline]:
            self._abort(live, "timeout by txn manager")


def _end_again(operation: str, entry: Registered) -> Body:
    """The reply to a commit or rollback of what is committed or aborted; raises `Thrown` where they contradict."""
    place = f"transaction {entry.txn_id}, label is {entry.label}"
    outcome = "aborted" if entry.state is LabelState.ABORTED else "committed"
    if operation == "commit" and outcome == "aborted":
        raise Thrown(f"Can not commit {entry.state.value} {place}")
    if operation == "rollback" and outcome == "committed":
        raise Thrown(f"Can not abort {entry.state.value} {place}")
    message = f"Transaction {entry.txn_id} has already {outcome}, label is {entry.label}"
    return ok(message, TxnId=entry.txn_id, Label=entry.label)


def _rejected(live: Single, rejected: CommitRejected) -> Refused:
    """The backend compares the ratio first; that a load has no rows is the frontend's word."""
    rows, url = (rejected.loaded, rejected.filtered), rejected.tracking_url
    if rejected.filtered > sum(rows) * live.context.plan.max_filter_ratio:
        return Refused("INTERNAL_ERROR", TOO_MANY_FILTERED, url, rows)
    if rejected.cause.startswith(NO_ROWS):
        return Refused("ANALYSIS_ERROR", NO_DATA, url, rows)
    return Refused("INTERNAL_ERROR", rejected.cause)


def _prepared_timeout(request: Request) -> float | None:
    text = request.header("prepared_timeout")
    if text and not (text.isdecimal() and int(text) > 0):
        raise Refused("INVALID_ARGUMENT", f"Invalid prepared_timeout: {text}")
    return float(text) if text else None
