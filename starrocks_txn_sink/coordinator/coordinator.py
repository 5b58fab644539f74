"""SharedTransactionCoordinator: when a lane begins, loads, commits, recycles and gives up.

The numbered steps are those of docs/inside/architecture.md, "The life of a StarRocks transaction".

Pure: rows and time go in, actions come out, results of actions go back in. The driver (the lane's threads, a test, the
simulator) calls `tick` after every change, runs the actions, and reports each result with `complete`.

A lane has one StarRocks transaction at a time; while this commits, the write buffer takes rows for the next one. The
phases and their moves:

    IDLE ─begin→ BEGINNING ─ok→ OPEN ─all loaded→ CHECKING ─still ours→ COMMITTING ─visible→ IDLE
                     └──────failed──┴──────────────┴──────────────────────┴→ ABORTING ─rolled back→ IDLE | FAILED
    COMMITTING ─unknown→ RECOVERING ─visible→ IDLE,  ─not→ ABORTING

**The commit rule** has two parts: `WriteBuffer.close_if_due` closes a transaction batch at a clean boundary, and the
coordinator commits a closed batch once all of it is loaded and the lane is still the owner.

Without a ledger there is no CHECKING and no RECOVERING: an unknown outcome ends the lane. With a quarantine a rejected
batch is bisected instead of given up (`coordinator.quarantine`). Under a shared label (`coordinator.shared_label`) the
lane only loads: IDLE → OPEN → IDLE, and any failure is final, because other lanes' rows are under the label too.

The rule of all moves: an unknown outcome is not failure. A batch is repeated only when the label has certainly not
committed, and never after the deadline or an error from outside.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from starrocks_txn_sink import errors
from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.coordinator.model import Chunk, Segment
from starrocks_txn_sink.coordinator.quarantine import Quarantine
from starrocks_txn_sink.coordinator.write_buffer import EntriesBuilder, TransactionBatch, WriteBuffer
from starrocks_txn_sink.protocol.label import Aborted, Committed, Loaded, Unknown


class Phase(Enum):
    """Phase of the lane's current StarRocks transaction."""

    IDLE = "idle"
    BEGINNING = "beginning"
    OPEN = "open"
    CHECKING = "checking"
    COMMITTING = "committing"
    RECOVERING = "recovering"
    ABORTING = "aborting"
    FAILED = "failed"


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.BEGINNING, Phase.OPEN, Phase.FAILED}),
    Phase.BEGINNING: frozenset({Phase.OPEN, Phase.ABORTING}),
    Phase.OPEN: frozenset({Phase.IDLE, Phase.CHECKING, Phase.COMMITTING, Phase.ABORTING}),
    Phase.CHECKING: frozenset({Phase.COMMITTING, Phase.ABORTING}),
    Phase.COMMITTING: frozenset({Phase.IDLE, Phase.RECOVERING, Phase.ABORTING, Phase.FAILED}),
    Phase.RECOVERING: frozenset({Phase.IDLE, Phase.ABORTING, Phase.FAILED}),
    Phase.ABORTING: frozenset({Phase.IDLE, Phase.FAILED}),
    Phase.FAILED: frozenset(),
}


@dataclass(slots=True)
class SharedTransactionCoordinator:
    """One lane's shared StarRocks transaction over all its tables; the module's docstring says how to drive it.

    `entries` builds rows for the ledger, `log` for the receipts' log; `wall` is the time in Unix seconds. With
    `shared` the first of `labels` is a shared label, and the receipt says what was loaded, not that it is visible.
    """

    job: str
    lane: int
    batch_id: int
    buffer: WriteBuffer
    labels: Iterator[str]
    rng: random.Random
    wall: Callable[[], float]
    entries: EntriesBuilder | None = None
    log: EntriesBuilder | None = None
    quarantine: Quarantine | None = None
    shared: bool = False
    phase: Phase = Phase.IDLE
    error: errors.StarRocksSinkError | None = None
    receipts: list[model.Receipt] = field(default_factory=list)
    _entries_sent: bool = False
    _requested_phase: Phase = Phase.IDLE
    _last_failure: str = ""
    _full: bool = False  # the last request met the server's limit of running transactions
    _label: str = ""
    _began_at: float = 0.0
    _not_before: float = 0.0
    _loading: dict[str, float] = field(default_factory=dict)  # when the running load of each table began
    _running_actions: int = 0
    _stop: errors.StarRocksSinkError | None = None
    _attempt: int = 1
    _retries: int = 0
    _refusal: errors.StarRocksSinkError | None = None  # of a commit whose outcome the ledger settles now
    _txn_id: int | None = None

    # --- state, for the driver of this object ---

    @property
    def saturated(self) -> bool:
        """Whether the buffer is full: the driver waits for loads before it writes more rows."""
        return self.phase is not Phase.FAILED and self.buffer.saturated

    @property
    def finished(self) -> bool:
        """Whether all rows are committed and confirmed, or the lane has failed for good."""
        return self.phase is Phase.FAILED or (self.phase is Phase.IDLE and self.buffer.finished)

    @property
    def waiting_for(self) -> str:
        """Phrase for DeadlineExceeded: the running step, or, between steps, the last failed action."""
        if self._loading:
            return f"loads into {', '.join(sorted(self._loading))} under label {self._label}"
        over = self.phase in (Phase.IDLE, Phase.ABORTING, Phase.RECOVERING)
        return f"label {self._label or '(none yet)'} in phase {self.phase.value}{self._last_failure if over else ''}"

    @property
    def advice(self) -> str | None:
        """Advice for DeadlineExceeded at this moment; None for the usual one."""
        return errors.TooManyTransactions.hint if self._full else None

    # --- rows in ---

    def take(self, segment: Segment, now: float) -> None:
        """Take rows, or the ends of source transactions with the rows that were written last for their partition."""
        self.buffer.take(segment, now, recycle=self._recycle_due(now))

    def finish(self, now: float) -> None:
        """End the input; raises InputError if a source transaction is still open."""
        self.buffer.finish(now)

    def fail(self, error: errors.StarRocksSinkError) -> None:
        """Give up because of an outside error (bad input, deadline, a stop): roll the open label back, then FAILED.

        A running commit goes on: its rows may be visible already, and the receipt says so.
        """
        if self._stop is None and self.phase is not Phase.FAILED:
            self._stop = error
            if self.phase not in (Phase.COMMITTING, Phase.RECOVERING):
                self._abort(error)

    # --- actions out ---

    def tick(self, now: float) -> list[model.Action]:
        """Do what is due and return the actions to run; call again when an action ends or time has passed."""
        if self.error is None and self.phase is not Phase.FAILED:
            self.buffer.pass_time(now, recycle=self._recycle_due(now))
        due = self._next_actions(now)
        self._running_actions += len(due)
        return due

    def _next_actions(self, now: float) -> list[model.Action]:
        match self.phase:
            case Phase.IDLE:
                return self._begin(now)
            case Phase.OPEN:
                return self._load_or_commit(now)
            case Phase.CHECKING:
                return self._once(model.CheckAction(self._label))
            case Phase.COMMITTING:
                return self._once(model.CommitAction(self._label))
            case Phase.RECOVERING:
                return self._once(model.RecoverAction(self._label, self._batch.position_spans()))
            case Phase.ABORTING:
                return [] if self._running_actions else [model.RollbackAction(self._label)]
            case _:
                return []

    def _begin(self, now: float) -> list[model.Action]:
        """Step 1, eagerly, with the first row: every load then has a label to go to."""
        if now < self._not_before or not self.buffer.has_rows:
            return []
        self._label = next(self.labels)
        self._entries_sent = False
        self._began_at = now
        if self.shared:  # the driver has begun it
            self._move(Phase.OPEN)
            return self._next_actions(now)
        self._move(Phase.BEGINNING)
        return [model.BeginAction(self._label)]

    def _load_or_commit(self, now: float) -> list[model.Action]:
        if now - self._began_at >= self.buffer.limits.timeout:
            # The server ends the label at this moment, too (wire contract 4.12).
            self._abort(self._timeout_error(now))
            return self._next_actions(now)
        loads = list(self._loads(now))
        if loads or self._loading or not self.buffer.all_sent:
            return loads
        if self.shared:
            self._record_commit(Committed(self._label, None), now)
        elif self.entries is not None:
            self._move(Phase.CHECKING)
        else:
            self._move(Phase.COMMITTING)
        return self._next_actions(now)

    def _timeout_error(self, now: float) -> errors.StarRocksSinkError:
        """The error for a label at its timeout: LoadFailed for a slow load, TransactionTimedOut for slow rows.

        A load is slow if it has run for half of the timeout; once the batch is closed, every load is.
        """
        timeout, closed = self.buffer.limits.timeout, self._batch.closed
        slow = sorted(table for table in self._loading if closed or now - self._loading[table] >= timeout / 2)
        if not closed and not slow:
            if self.buffer.limits.at_end_only:
                whole = f"The micro-batch took longer than the timeout of its StarRocks transaction, {timeout:g} s."
                return errors.TransactionTimedOut(whole, label=self._label)
            partition = self.buffer.open_partition
            inside = f"; source partition {partition} is still inside one source transaction" if partition else ""
            return errors.TransactionTimedOut(
                f"The rows of one StarRocks transaction took longer than its timeout of {timeout:g} s{inside}.",
                label=self._label,
            )
        when = f"during the load into {', '.join(slow)}" if slow else "before all of its rows were loaded"
        return errors.LoadFailed(
            f"The StarRocks transaction reached its timeout of {timeout:g} s {when}.",
            hint="Find out why loads are slow. If they always take so long, raise `timeout`. Smaller micro-batches "
            "(maxOffsetsPerTrigger, maxFilesPerTrigger) help after this one, which Spark repeats as planned.",
            label=self._label,
            table=", ".join(slow) or None,
        )

    def _once(self, action: model.Action) -> list[model.Action]:
        """Return the single action of a phase, once: nothing while it runs."""
        if self._requested_phase is self.phase:
            return []
        self._requested_phase = self.phase
        return [action]

    def _loads(self, now: float) -> Iterator[model.Action]:
        """Step 2: load inactive chunks, tables in parallel, one load a table at a time (wire contract 4.5).

        The ledger's and the log's rows about a closed batch go under the same label: visible with its rows or not at
        all.
        """
        if self._batch.closed and not self._entries_sent:
            self._entries_sent = True
            for build in (self.entries, self.log):
                if build is not None:
                    yield self._load((self.buffer.reserve(build(self._label, self._batch)),), now)
        for chunks, newest_first in self.buffer.take_loads(self._loading):
            yield self._load(chunks, now, newest_first)

    def _load(self, chunks: tuple[Chunk, ...], now: float, newest_first: bool = False) -> model.LoadAction:
        action = model.LoadAction(self._label, chunks[0].table, chunks, newest_first)
        self._loading[action.table] = now
        return action

    # --- results in ---

    def complete(self, action: model.Action, result: model.Result, now: float) -> None:
        """Take the result of an action: the value that its steps returned, or the error they raised."""
        self._running_actions -= 1
        self._last_failure = failure_phrase(action, result, self._last_failure)
        if not isinstance(action, model.RollbackAction):
            self._full = isinstance(getattr(result, "error", result), errors.TooManyTransactions)
        match action:
            case model.BeginAction():
                self._advance(result, Phase.BEGINNING, Phase.OPEN)
            case model.LoadAction():
                self._handle_load(action, result)
            case model.CheckAction():
                self._advance(result, Phase.CHECKING, Phase.COMMITTING)
            case model.CommitAction() | model.RecoverAction():
                self._handle_commit(result, now)
            case model.RollbackAction():
                self._handle_rollback(now)

    def _advance(self, result: model.Result, current: Phase, target: Phase) -> None:
        """Move on to `target` after a success, unless the lane is no longer in the phase of the action."""
        if isinstance(result, errors.StarRocksSinkError):
            self._abort(result)
        elif self.phase is current:
            self._move(target)

    def _handle_load(self, action: model.LoadAction, result: model.Result) -> None:
        del self._loading[action.table]
        self.buffer.release(action.memory)
        if isinstance(result, Loaded):
            self._batch.add_replaced(action.table, result.replaced)
            self._txn_id = result.txn_id if result.txn_id is not None else self._txn_id
            self._retries += result.retries
        elif isinstance(result, errors.StarRocksSinkError):
            if self._stop is None and self.error is not None and self.error.retryable and not result.retryable:
                self.error = result  # the cause; another load may have failed first because the label had ended
            self._abort(result)

    def _handle_commit(self, result: model.Result, now: float) -> None:
        match result:
            case Committed():
                self._record_commit(result, now)
                if self._stop is not None:
                    self._abort(self._stop)
            case Aborted():
                error, self._refusal = self._refusal or result.error, None
                self._abort(model.name_source(error, self._batch.position_spans()))
            case Unknown() if self.entries is not None and self.phase is Phase.COMMITTING:
                self._retries += result.refusal is None  # a refused commit is repeated as a whole, and counted there
                self._refusal = result.refusal
                self._move(Phase.RECOVERING)
            case Unknown():  # nothing may be repeated: the rows may be visible
                self._fail_for_good(result.error)
            case errors.StarRocksSinkError():
                self._fail_for_good(result)
            case _:
                raise TypeError(f"A commit cannot end with {type(result).__name__}.")

    def _record_commit(self, outcome: Committed, now: float) -> None:
        self.receipts.append(self._receipt(self.buffer.remove_committed(), outcome))
        self._attempt, self._retries, self._txn_id, self._refusal = 1, 0, None, None
        self._move(Phase.IDLE)
        self._not_before = now

    def _handle_rollback(self, now: float) -> None:
        """Try the batch again, if that may help."""
        pause = None if self.shared or self._stop is not None else self._prepare_attempt()
        if pause is None:
            self._move(Phase.FAILED)
            return
        self._retries, self.error, self._not_before = self._retries + 1, None, now + pause
        self._move(Phase.IDLE)

    def _prepare_attempt(self) -> float | None:
        """Make the batch ready for another attempt; return the seconds until then, None if the lane fails."""
        try:
            match self.error:
                case errors.RowsRejected() if self.quarantine is not None:
                    self.quarantine.replace_rejected(self.buffer, self.error)
                    self._attempt = 1
                    return 0.0
                case errors.KeyRepeated() if self._batch.repeatable and not self._batch.held:
                    self.buffer.hold_back()  # nothing has failed, so it is no attempt
                    return 0.0
        except errors.StarRocksSinkError as refused:
            self.error = refused
            return None
        last = self._attempt >= self.buffer.limits.max_attempts
        if self.error is None or not self.error.retryable or not self._batch.repeatable or last:
            return None
        self.buffer.rewind()
        full = isinstance(self.error, errors.TooManyTransactions)  # nothing failed, so it is no attempt
        tries = self._retries if full else self._attempt - 1
        self._attempt += not full
        return self.buffer.limits.backoff.seconds(tries, self.rng)

    # --- inside ---

    @property
    def _batch(self) -> TransactionBatch:
        """Contents of the StarRocks transaction that is open, or of the next one."""
        return self.buffer.first

    def _recycle_due(self, now: float) -> bool:
        is_open = self.phase in (Phase.BEGINNING, Phase.OPEN)
        return is_open and now - self._began_at >= self.buffer.limits.timeout * self.buffer.limits.recycle_at

    def _abort(self, error: errors.StarRocksSinkError) -> None:
        """Step 5: keep the first error; running loads end first, then the label is rolled back."""
        if self.error is None:
            self.error = error
        if isinstance(error, errors.DeadlineExceeded):
            self._stop = self._stop or error
        if self.phase is Phase.IDLE:
            self._move(Phase.FAILED)
        elif self.phase not in (Phase.ABORTING, Phase.FAILED):
            self._move(Phase.ABORTING)

    def _fail_for_good(self, error: errors.StarRocksSinkError) -> None:
        self.error = self.error or error
        self._move(Phase.FAILED)

    def _move(self, target: Phase) -> None:
        if target not in MOVES[self.phase]:
            raise RuntimeError(f"A StarRocks transaction cannot go from {self.phase.value} to {target.value}.")
        self._requested_phase = Phase.IDLE
        self.phase = target

    def _receipt(self, batch: TransactionBatch, outcome: Committed) -> model.Receipt:
        return model.Receipt(
            label=outcome.label,
            txn_id=outcome.txn_id if outcome.txn_id is not None else self._txn_id,
            job=self.job,
            lane=self.lane,
            batch_id=self.batch_id,
            regions=batch.region_counts(),
            positions=batch.position_spans(),
            loads=batch.loads,
            attempts=self._attempt,
            retries=self._retries,
            recycled=batch.recycled,
            committed_at=self.wall(),
            dead_lettered=batch.dead_lettered(),
            dead_lettered_positions=batch.dead_lettered_spans(),
        )


# --- texts of errors ---

_SAID_LIMIT = 300


def failure_phrase(action: model.Action, result: model.Result, before: str) -> str:
    """Phrase for the last failed action since the last commit ("" if none), after `action` ended with `result`.

    A deadline often passes a moment later, while the lane rolls back or waits for its next attempt; its error then
    names the cause. So a success, and a rollback however it ended, leave the phrase `before` as it is.
    """
    if isinstance(result, Committed):
        return ""
    error = getattr(result, "error", result)
    if isinstance(action, model.RollbackAction) or not isinstance(error, errors.StarRocksSinkError):
        return before
    said = "" if isinstance(error, errors.DeadlineExceeded) else f": {error.message[:_SAID_LIMIT].rstrip('.')}"
    return f", after {action.said} failed ({error.code}{said})"
