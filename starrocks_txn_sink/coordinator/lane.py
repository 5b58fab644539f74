"""Lane: when a lane sends its rows to the label, and asks for its begin.

Pure: rows and time go in, loads come out, results of loads go back in. The lane's threads, a test or the simulator call
`tick` after every change, run the loads, and report each result with `complete`.

    IDLE ─first row→ LOADING ─all rows loaded→ DONE
      └──────────────────┴────failed, and no load runs→ FAILED

With `lane_begins` its first loads wait until the label is begun, by this lane or by another one.

Any failure is final, because other lanes' rows are under the label too: the driver rolls the label back, and runs all
lanes again under a new one (`coordinator.coordinator`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from starrocks_txn_sink import errors
from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.coordinator.model import Chunk, Segment
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.protocol.label import Begun, Loaded


class Phase(Enum):
    """Phase of a lane."""

    IDLE = "idle"
    LOADING = "loading"
    DONE = "done"
    FAILED = "failed"


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.LOADING, Phase.DONE, Phase.FAILED}),
    Phase.LOADING: frozenset({Phase.DONE, Phase.FAILED}),
    Phase.DONE: frozenset(),
    Phase.FAILED: frozenset(),
}


LaneAction = model.BeginAction | model.LoadAction


@dataclass(slots=True)
class Lane:
    """One lane's rows on their way to `label`; the module's docstring says how to drive it. `wall` is in Unix seconds.

    `receipt` says what was loaded, not that it is visible; None for a lane without rows.
    """

    job: str
    batch_id: int
    label: str
    buffer: WriteBuffer
    wall: Callable[[], float]
    lane_begins: bool = False
    phase: Phase = Phase.IDLE
    error: errors.StarRocksSinkError | None = None
    receipt: model.Receipt | None = None
    _last_failure: str = ""
    _began_at: float = 0.0  # the label; before that is known, when the lane had its first rows
    _age: float | None = None  # of the label, as the last begin's answer has told
    _loading: dict[str, float] = field(default_factory=dict)  # when the running load of each table began
    _waiting: list[model.LoadAction] = field(default_factory=list)  # for the label's begin
    _retries: int = 0
    _txn_id: int | None = None

    # --- state, for the driver of this object ---

    @property
    def saturated(self) -> bool:
        """Whether the buffer is full: the lane waits for loads before it takes more rows."""
        return self.phase is not Phase.FAILED and self.buffer.saturated

    @property
    def finished(self) -> bool:
        """Whether all rows are loaded, or the lane has failed."""
        return self.phase in (Phase.DONE, Phase.FAILED)

    @property
    def waiting_for(self) -> str:
        """Phrase for DeadlineExceeded: the running loads, or the phase and the last failure."""
        if self._waiting:
            return f"the begin of label {self.label}"
        if self._loading:
            return f"loads into {', '.join(sorted(self._loading))} under label {self.label}"
        return f"label {self.label} in phase {self.phase.value}{self._last_failure}"

    # --- rows in ---

    def take(self, segment: Segment, now: float) -> None:
        """Take rows, or the ends of source transactions with the rows that were written last for their partition."""
        self.buffer.take(segment, now)

    def finish(self, now: float) -> None:
        """End the input; raises InputError if a source transaction is still open."""
        self.buffer.finish(now)

    def fail(self, error: errors.StarRocksSinkError) -> None:
        """Give up because of `error`, from outside (bad input, deadline, a stop) or of a load; the first one counts."""
        if self.finished:
            return
        if self.error is None:
            self.error = error
        self._end_failed()

    # --- loads out ---

    def tick(self, now: float) -> list[LaneAction]:
        """Do what is due and return the loads to run; call again when a load ends or time has passed."""
        if self.finished or self.error is not None:
            return []
        self.buffer.pass_time(now)
        if self.phase is Phase.IDLE:
            if self.buffer.has_rows:
                self._move(Phase.LOADING)
                self._began_at = now
            elif self.buffer.ended:
                self._move(Phase.DONE)
        return self._load(now) if self.phase is Phase.LOADING else []

    def _load(self, now: float) -> list[LaneAction]:
        if self.lane_begins:
            return self._begin(now)
        if self._age is not None:
            self._began_at, self._age = now - self._age, None
        if now - self._began_at >= self.buffer.limits.timeout:
            # The server has ended the label by this moment, too (wire contract 4.12).
            self._drop_waiting()
            self.fail(self._timeout_error(now))
            return []
        loads: list[LaneAction] = [*self._waiting, *self._loads(now)]
        self._waiting = []
        if not loads and not self._loading and self.buffer.all_sent:
            self.receipt = self._receipt(now)
            self._move(Phase.DONE)
        return loads

    def _begin(self, now: float) -> list[LaneAction]:
        """The begin of the label, once loads wait for it: the server counts its time from then on.

        Another lane may have begun it before: the answer says how old it is.
        """
        if self._waiting:
            return []
        self._waiting = list(self._loads(now))
        if not self._waiting:
            return []
        self._began_at = now
        return [model.BeginAction(self.label)]

    def _loads(self, now: float) -> Iterator[model.LoadAction]:
        """Load inactive chunks, tables in parallel, one load a table at a time (wire contract 4.5)."""
        for chunks, newest_first in self.buffer.take_loads(self._loading):
            yield self._action(chunks, now, newest_first)

    def _action(self, chunks: tuple[Chunk, ...], now: float, newest_first: bool) -> model.LoadAction:
        table = chunks[0].table
        older = tuple(self.buffer.pending[table]) if newest_first else ()
        action = model.LoadAction(self.label, table, chunks, newest_first, older)
        self._loading[action.table] = now
        return action

    def _timeout_error(self, now: float) -> errors.StarRocksSinkError:
        """The error for a label at its timeout: LoadFailed for a slow load, TransactionTimedOut for slow rows.

        A load is slow if it has run for half of the timeout; once the input has ended, every load is.
        """
        timeout, end = self.buffer.limits.timeout, self.buffer.ended
        slow = sorted(table for table in self._loading if end or now - self._loading[table] >= timeout / 2)
        if not end and not slow:
            partition = self.buffer.open_partition
            inside = f"; source partition {partition} is still inside one source transaction" if partition else ""
            return errors.TransactionTimedOut(
                f"The rows of one StarRocks transaction took longer than its timeout of {timeout:g} s{inside}.",
                label=self.label,
            )
        when = f"during the load into {', '.join(slow)}" if slow else "before all of its rows were loaded"
        return errors.LoadFailed(
            f"The StarRocks transaction reached its timeout of {timeout:g} s {when}.",
            hint="Find out why loads are slow. If they always take so long, raise `timeout`. Smaller micro-batches "
            "(maxOffsetsPerTrigger, maxFilesPerTrigger) help after this one, which Spark repeats as planned.",
            label=self.label,
            table=", ".join(slow) or None,
        )

    # --- results in ---

    def complete(self, action: LaneAction, result: model.Result) -> None:
        """Take the result of a load: the value that its steps returned, or the error they raised."""
        self._last_failure = failure_phrase(action, result, self._last_failure)
        if isinstance(action, model.BeginAction):
            self._complete_begin(result)
            return
        del self._loading[action.table]
        self.buffer.release(action.memory)
        if isinstance(result, Loaded):
            self.buffer.add_replaced(action.table, result.replaced)
            self._txn_id = result.txn_id if result.txn_id is not None else self._txn_id
            self._retries += result.retries
        elif isinstance(result, errors.StarRocksSinkError):
            if self.error is not None and self.error.retryable and not result.retryable:
                self.error = result  # the cause; another load may have failed first because the label had ended
            self.error = self.error or result
        if self.error is not None:
            self._end_failed()

    def _complete_begin(self, result: model.Result) -> None:
        if isinstance(result, errors.StarRocksSinkError):
            self.error = self.error or result
        if self.error is not None:
            self._drop_waiting()
            self._end_failed()
        else:
            self.lane_begins, self._age = False, result.age if isinstance(result, Begun) else None

    # --- inside ---

    def _drop_waiting(self) -> None:
        """Give up the loads that have not begun."""
        for load in self._waiting:
            del self._loading[load.table]
            self.buffer.release(load.memory)
        self._waiting = []

    def _end_failed(self) -> None:
        """Fail once no load runs: until then its rows and its connection are in use."""
        if not self._loading and not self.finished:
            self._move(Phase.FAILED)

    def _move(self, target: Phase) -> None:
        if target not in MOVES[self.phase]:
            raise RuntimeError(f"A lane cannot go from {self.phase.value} to {target.value}.")
        self.phase = target

    def _receipt(self, now: float) -> model.Receipt:
        return model.Receipt(
            label=self.label,
            txn_id=self._txn_id,
            job=self.job,
            batch_id=self.batch_id,
            regions=self.buffer.region_counts(),
            positions=self.buffer.position_spans(),
            loads=self.buffer.loads,
            attempts=1,
            retries=self._retries,
            recycled=False,
            committed_at=self.wall(),
            open_seconds=now - self._began_at,
        )


# --- texts of errors ---

_SAID_LIMIT = 300


def failure_phrase(action: model.Action, result: model.Result, lead: str) -> str:
    """Phrase for the last failed action ("" if none), after `action` ended with `result`.

    A deadline often passes a moment later, while the lane waits for its other loads; its error then names the cause.
    So a success leaves the phrase `lead` as it is.
    """
    error = getattr(result, "error", result)
    if not isinstance(error, errors.StarRocksSinkError):
        return lead
    detail = "" if isinstance(error, errors.DeadlineExceeded) else f": {error.message[:_SAID_LIMIT].rstrip('.')}"
    return f", after {action.phrase} failed ({error.code}{detail})"
