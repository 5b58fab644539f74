"""SharedTransactionCoordinator: when a lane begins, loads, commits, recycles and gives up.

The numbered steps are those of docs/inside/architecture.md, "The life of a StarRocks transaction".

Pure: rows and time go in, actions come out, results of actions go back in. The driver (the lane's threads, a test, the
simulator) calls `tick` after every change, runs the actions, and reports each result with `complete`.

A lane has one StarRocks transaction at a time; the write buffer fills with the next one's rows while it commits. The
phases and their moves:

    IDLE ─begin→ BEGINNING ─ok→ OPEN ─all loaded→ CHECKING ─still ours→ COMMITTING ─visible→ IDLE
                     └──────failed──┴──────────────┴──────────────────────┴→ ABORTING ─rolled back→ IDLE | FAILED
    COMMITTING ─unknown→ RECOVERING ─visible→ IDLE,  ─not→ ABORTING

Without a ledger there is no CHECKING and no RECOVERING: an unknown outcome ends the lane. With a quarantine a rejected
batch is bisected instead of given up (`coordinator.quarantine`). Under a shared label (`coordinator.shared_label`) the
lane only loads: IDLE → OPEN → IDLE, and any failure is final, because other lanes' rows are under the label too.

The rule of all moves: an unknown outcome is not failure. A batch is repeated only when the label has certainly not
committed, and never after the deadline or an error from outside.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum

from starrocks_txn_sink import errors
from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.coordinator.model import Chunk, CoordinatorLimits, RowIndex, TransactionEnds
from starrocks_txn_sink.coordinator.quarantine import Quarantine
from starrocks_txn_sink.coordinator.write_buffer import EntriesBuilder, Spill, TransactionBatch, WriteBuffer
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


class SharedTransactionCoordinator:
    """One lane's shared StarRocks transaction over all its tables; the module's docstring says how to drive it.

    `entries` builds the ledger's rows and `log` those of the receipts' log; `wall` is the time in Unix seconds. With
    `hold` batches are held from the start, which needs `spill`; `spill` and `keyed` as in `WriteBuffer`. With `shared`
    the first of `labels` is a shared label, and the receipt says what was loaded, not that it is visible.
    """

    def __init__(
        self,
        identity: model.LaneIdentity,
        limits: CoordinatorLimits,
        labels: Iterator[str],
        rng: random.Random,
        wall: Callable[[], float],
        entries: EntriesBuilder | None = None,
        log: EntriesBuilder | None = None,
        quarantine: Quarantine | None = None,
        spill: Spill | None = None,
        keyed: Collection[str] = (),
        *,
        hold: bool = False,
        shared: bool = False,
    ) -> None:
        self.shared = shared
        self._identity = identity
        self._limits = limits
        self._labels = labels
        self._rng = rng
        self._wall = wall
        self._entries = entries
        self._log = log
        self._quarantine = quarantine
        self._entries_sent = False
        self._requested_phase = Phase.IDLE
        self._write_buffer = WriteBuffer(limits, spill, keyed, hold=hold, repeatable=not shared)
        self._phase = Phase.IDLE
        self._last_failure = ""
        self._full = False  # the last request met the server's limit of running transactions
        self._label = ""
        self._began_at = 0.0
        self._not_before = 0.0
        self._loading: dict[str, model.LoadAction] = {}
        self._load_began: dict[str, float] = {}
        self._running_actions = 0
        self._stop: errors.StarRocksSinkError | None = None
        self._attempt = 1
        self._retries = 0
        self._txn_id: int | None = None
        self.error: errors.StarRocksSinkError | None = None
        self.receipts: list[model.Receipt] = []

    # --- state, for the driver of this object ---

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def saturated(self) -> bool:
        """Whether the buffer is full: the driver waits for loads before it writes more rows."""
        return self._phase is not Phase.FAILED and self._write_buffer.saturated

    @property
    def buffered_bytes(self) -> int:
        return self._write_buffer.buffered_bytes

    @property
    def buffered_peak(self) -> int:
        """Largest number of bytes buffered at once."""
        return self._write_buffer.buffered_peak

    @property
    def finished(self) -> bool:
        """Whether all rows are committed and confirmed, or the lane has failed for good."""
        if self._phase is Phase.FAILED:
            return True
        return self._phase is Phase.IDLE and self._write_buffer.finished

    @property
    def waiting_for(self) -> str:
        """Phrase for DeadlineExceeded: the running step, or, between steps, the last failed action."""
        if self._loading:
            return f"loads into {', '.join(sorted(self._loading))} under label {self._label}"
        over = self._phase in (Phase.IDLE, Phase.ABORTING, Phase.RECOVERING)
        return f"label {self._label or '(none yet)'} in phase {self._phase.value}{self._last_failure if over else ''}"

    @property
    def advice(self) -> str | None:
        """Advice for DeadlineExceeded at this moment; None for the usual one."""
        return errors.TooManyTransactions.hint if self._full else None

    # --- rows in ---

    def write(
        self, partition: str, table: str, piece: memoryview, rows: int, now: float, row_index: RowIndex | None = None
    ) -> None:
        """Take `rows` rows of `table`, as ready bytes, of the partition's open source transaction."""
        self._write_buffer.write(partition, table, piece, rows, now, row_index)

    def end_transactions(self, ends: TransactionEnds, now: float) -> None:
        """End source transactions with the rows that were written last for their partition."""
        self._write_buffer.end_transactions(ends, now, recycle=self._recycle_due(now))

    def finish(self, now: float) -> None:
        """End the input; raises InputError if a source transaction is still open."""
        self._write_buffer.finish(now)

    def fail(self, error: errors.StarRocksSinkError) -> None:
        """Give up because of an outside error (bad input, deadline, a stop): roll the open label back, then FAILED.

        A running commit is always waited for: its rows may be visible already, and the receipt says so.
        """
        if self._stop is None and self._phase is not Phase.FAILED:
            self._stop = error
            if self._phase not in (Phase.COMMITTING, Phase.RECOVERING):
                self._abort(error)

    # --- actions out ---

    def tick(self, now: float) -> list[model.Action]:
        """Do what is due and return the actions to run; call again when an action ends or time has passed."""
        if self.error is None and self._phase is not Phase.FAILED:
            self._write_buffer.pass_time(now, recycle=self._recycle_due(now))
        due = self._next_actions(now)
        self._running_actions += len(due)
        return due

    def _next_actions(self, now: float) -> list[model.Action]:
        match self._phase:
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
                return self._roll_back()
            case _:
                return []

    def _begin(self, now: float) -> list[model.Action]:
        """Step 1, eagerly, with the first row: every load then has a label to go to."""
        if now < self._not_before or not self._write_buffer.has_rows:
            return []
        if self._batch.held and not self._batch.closed:  # nothing is loaded before, so the label would only grow old
            return []
        self._label = next(self._labels)
        self._entries_sent = False
        self._began_at = now
        if self.shared:  # the driver has begun it
            self._move(Phase.OPEN)
            return self._next_actions(now)
        self._move(Phase.BEGINNING)
        return [model.BeginAction(self._label)]

    def _load_or_commit(self, now: float) -> list[model.Action]:
        if now - self._began_at >= self._limits.timeout:
            # The server ends the label at this moment, too (wire contract 4.12).
            self._abort(self._timeout_error(now))
            return self._next_actions(now)
        batch = self._batch
        loads = list(self._loads(batch))
        self._load_began |= dict.fromkeys((load.table for load in loads), now)
        if loads or self._loading or not batch.closed or any(batch.pending.values()):
            return [*loads]
        if self.shared:
            self._record_commit(Committed(self._label, None), now)
        elif self._entries is not None:
            self._move(Phase.CHECKING)
        else:
            self._move(Phase.COMMITTING)
        return self._next_actions(now)

    def _timeout_error(self, now: float) -> errors.StarRocksSinkError:
        """The error for a label that has reached its timeout: that of a slow load, or of rows that took too long.

        A load is slow if it has run for half of that time, and any load once all rows are here.
        """
        sealed, half = self._batch.closed, self._limits.timeout / 2
        slow = [table for table in self._loading if sealed or now - self._load_began[table] >= half]
        if sealed or slow:
            return load_timeout_error(self._limits.timeout, sorted(slow), self._label)
        return timeout_error(self._limits.timeout, self._write_buffer.open_partition, self._label)

    def _once(self, action: model.Action) -> list[model.Action]:
        """Return the single action of a phase, once: nothing while it runs."""
        if self._requested_phase is self._phase:
            return []
        self._requested_phase = self._phase
        return [action]

    def _loads(self, batch: TransactionBatch) -> Iterator[model.LoadAction]:
        """Step 2: load inactive chunks, tables in parallel, one load a table at a time (wire contract 4.5).

        Chunks of an open batch wait until a load is worth its request; a closed batch or a full buffer sends them all.
        """
        full = self.saturated
        if batch.closed and not self._entries_sent:
            self._entries_sent = True
            for build in (self._entries, self._log):
                if build is not None:
                    yield self._entries_load(build(self._label, batch))
        for table in batch.tables():
            if len(self._loading) >= self._limits.load_parallelism:
                return
            large_enough = batch.closed or full or batch.pending_bytes(table) >= self._limits.load_bytes
            if large_enough and table not in self._loading:
                chunks = tuple(batch.take(table, self._limits.body_bytes))
                action = model.LoadAction(self._label, table, chunks, newest_first=batch.newest_first(table))
                self._loading[table] = action
                yield action

    def _entries_load(self, chunk: Chunk) -> model.LoadAction:
        """Load the batch's positions, or their log, under its label: visible with the rows or not at all."""
        action = model.LoadAction(self._label, chunk.table, (chunk,))
        self._loading[chunk.table] = action
        self._write_buffer.buffered_bytes += chunk.bytes
        return action

    def _roll_back(self) -> list[model.Action]:
        return [] if self._running_actions else [model.RollbackAction(self._label)]

    # --- results in ---

    def complete(self, action: model.Action, result: object, now: float) -> None:
        """Take the result of an action: the value that its steps returned, or the error they raised."""
        self._running_actions -= 1
        self._last_failure = failure_phrase(action, result, self._last_failure)
        if not isinstance(action, model.RollbackAction):
            self._full = isinstance(getattr(result, "error", result), errors.TooManyTransactions)
        match action:
            case model.BeginAction():
                self._handle_begin(result)
            case model.LoadAction():
                self._handle_load(action, result)
            case model.CheckAction():
                self._handle_check(result)
            case model.CommitAction():
                self._handle_commit(result, now)
            case model.RecoverAction():
                self._handle_commit(result, now)
            case model.RollbackAction():
                self._handle_rollback(now)

    def _handle_begin(self, result: object) -> None:
        if isinstance(result, errors.StarRocksSinkError):
            self._abort(result)
        elif self._phase is Phase.BEGINNING:
            self._move(Phase.OPEN)

    def _handle_load(self, action: model.LoadAction, result: object) -> None:
        del self._loading[action.table]
        self._write_buffer.buffered_bytes -= action.memory
        if isinstance(result, Loaded):
            self._batch.add_replaced(action.table, result.replaced)
            self._txn_id = result.txn_id if result.txn_id is not None else self._txn_id
            self._retries += result.retries
        elif isinstance(result, errors.StarRocksSinkError):
            if self._stop is None and self.error is not None and self.error.retryable and not result.retryable:
                self.error = result  # a refused load ends the label, and another load may say so first: it is gone
            self._abort(result)

    def _handle_check(self, result: object) -> None:
        if isinstance(result, errors.StarRocksSinkError):
            self._abort(result)
        elif self._phase is Phase.CHECKING:
            self._move(Phase.COMMITTING)

    def _handle_commit(self, result: object, now: float) -> None:
        match result:
            case Committed():
                self._record_commit(result, now)
                if self._stop is not None:
                    self._abort(self._stop)
            case Aborted():
                self._abort(model.name_source(result.error, self._batch.position_spans()))
            case Unknown() if self._entries is not None and self._phase is Phase.COMMITTING:
                self._retries += 1
                self._move(Phase.RECOVERING)
            case Unknown():  # nothing may be repeated: the rows may be visible
                self._fail_for_good(result.error)
            case errors.StarRocksSinkError():
                self._fail_for_good(result)
            case _:
                raise TypeError(f"A commit cannot end with {type(result).__name__}.")

    def _record_commit(self, outcome: Committed, now: float) -> None:
        self.receipts.append(self._receipt(self._write_buffer.remove_committed(), outcome))
        self._attempt, self._retries, self._txn_id = 1, 0, None
        self._move(Phase.IDLE)
        self._not_before = now

    def _handle_rollback(self, now: float) -> None:
        if self.shared:
            self._move(Phase.FAILED)
            return
        if self._recover_rejected():
            self._not_before = now
            self._move(Phase.IDLE)
            return
        batch = self._batch
        if isinstance(self.error, errors.KeyRepeated) and self._stop is None and batch.repeatable and not batch.held:
            self._hold_back(batch, now)
            return
        if not self._may_try_again(batch):
            self._move(Phase.FAILED)
            return
        self._write_buffer.buffered_bytes += batch.rewind()
        full = isinstance(self.error, errors.TooManyTransactions)  # nothing failed, so it is no attempt
        self._not_before = now + self._limits.backoff.seconds(self._retries if full else self._attempt - 1, self._rng)
        self._attempt += not full
        self._retries += 1
        self.error = None
        self._move(Phase.IDLE)

    def _hold_back(self, batch: TransactionBatch, now: float) -> None:
        """Load the batch again, now with all of its rows at hand; nothing has failed, so it is no attempt."""
        try:
            self._write_buffer.hold_back(batch)
        except errors.BufferFull as full:
            self.error = full
            self._move(Phase.FAILED)
            return
        self._retries, self.error, self._not_before = self._retries + 1, None, now
        self._move(Phase.IDLE)

    def _recover_rejected(self) -> bool:
        """Bisect or dead-letter the rejected batch; False if the quarantine cannot, or there is none."""
        if self._quarantine is None or self._stop is not None or not isinstance(self.error, errors.RowsRejected):
            return False
        change = self._quarantine.bisect_or_dead_letter(self._write_buffer.batches, self.error)
        if isinstance(change, errors.StarRocksSinkError):
            self.error = change
            return False
        self._write_buffer.buffered_bytes += change
        self._attempt, self._retries, self.error = 1, self._retries + 1, None
        return True

    def _may_try_again(self, batch: TransactionBatch) -> bool:
        if self._stop is not None or self.error is None or not self.error.retryable:
            return False
        return batch.repeatable and self._attempt < self._limits.max_attempts

    # --- inside ---

    @property
    def _batch(self) -> TransactionBatch:
        """Contents of the StarRocks transaction that is open, or of the next one."""
        return self._write_buffer.batches[0]

    def _recycle_due(self, now: float) -> bool:
        is_open = self._phase in (Phase.BEGINNING, Phase.OPEN)
        return is_open and now - self._began_at >= self._limits.timeout * self._limits.recycle_at

    def _abort(self, error: errors.StarRocksSinkError) -> None:
        """Step 5: keep the first error; running loads end first, then the label is rolled back."""
        if self.error is None:
            self.error = error
        if isinstance(error, errors.DeadlineExceeded):
            self._stop = self._stop or error
        if self._phase is Phase.IDLE:
            self._move(Phase.FAILED)
        elif self._phase not in (Phase.ABORTING, Phase.FAILED):
            self._move(Phase.ABORTING)

    def _fail_for_good(self, error: errors.StarRocksSinkError) -> None:
        self.error = self.error or error
        self._move(Phase.FAILED)

    def _move(self, target: Phase) -> None:
        if target not in MOVES[self._phase]:
            raise RuntimeError(f"A StarRocks transaction cannot go from {self._phase.value} to {target.value}.")
        self._requested_phase = Phase.IDLE
        self._phase = target

    def _receipt(self, batch: TransactionBatch, outcome: Committed) -> model.Receipt:
        return model.Receipt(
            label=outcome.label,
            txn_id=outcome.txn_id if outcome.txn_id is not None else self._txn_id,
            job=self._identity.job,
            lane=self._identity.lane,
            batch_id=self._identity.batch_id,
            regions=batch.region_counts(),
            positions=batch.position_spans(),
            loads=batch.loads,
            attempts=self._attempt,
            retries=self._retries,
            recycled=batch.recycled,
            committed_at=self._wall(),
            dead_lettered=batch.dead_lettered(),
        )


# --- texts of errors ---

_SAID_LIMIT = 300


def failure_phrase(action: model.Action, result: object, before: str) -> str:
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
    return f", after {_action_name(action)} failed ({error.code}{said})"


def timeout_error(timeout: float, open_partition: str | None, label: str) -> errors.TransactionTimedOut:
    """The error for a label older than `timeout` seconds; `open_partition` has an open source transaction, if any."""
    inside = f"; source partition {open_partition} is still inside one source transaction." if open_partition else "."
    return errors.TransactionTimedOut(
        f"The rows of one StarRocks transaction took longer than its timeout of {timeout:g} s{inside}", label=label
    )


def load_timeout_error(timeout: float, tables: Sequence[str], label: str) -> errors.LoadFailed:
    """The error for a label that reached its timeout while loads into `tables` ran, or before they began."""
    when = f"during the load into {', '.join(tables)}" if tables else "before all of its rows were loaded"
    return errors.LoadFailed(
        f"The StarRocks transaction reached its timeout of {timeout:g} s {when}.",
        hint="Find out why loads are slow. If they always take so long, raise `timeout`, or make micro-batches smaller "
        "(maxOffsetsPerTrigger, maxFilesPerTrigger).",
        label=label,
        table=", ".join(tables) or None,
    )


def _action_name(action: model.Action) -> str:
    match action:
        case model.BeginAction():
            return "begin"
        case model.LoadAction():
            return f"the load into {action.table}"
        case model.CheckAction():
            return "the owner check"
        case model.CommitAction():
            return "the commit"
        case _:
            return "the take-over after the commit"
