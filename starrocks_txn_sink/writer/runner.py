"""A lane at work: the task's thread feeds rows, a manager thread decides, a pool of threads talks to the server.

`LaneRunner` does all the waiting, and none of it is without a deadline. The threads are daemons: a thread that hangs in
spite of its socket timeouts can neither keep the deadline from firing nor the process from ending.

`Performer` turns an action into the steps of `protocol.label` and runs them. After a refused commit it asks the server
which rows it has rejected, and why (`writer.rejections`).
"""

import queue
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.coordinator.lane import Lane, LaneAction
from starrocks_txn_sink.coordinator.model import Segment
from starrocks_txn_sink.coordinator.ownership import Ownership
from starrocks_txn_sink.errors import DeadlineExceeded, JobHeld, OutcomeUnknown, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.label import Aborted, Label, Ledger, RetryPolicy, Steps, Unknown, run
from starrocks_txn_sink.protocol.turns import Turns
from starrocks_txn_sink.protocol.wire import Body, Transport
from starrocks_txn_sink.rows.body import ReleasedBody, UniqueRows, load_body
from starrocks_txn_sink.telemetry import Event, Listener, Span, ignore_event
from starrocks_txn_sink.writer.rejections import Explainer

Perform = Callable[[model.Action], model.Result]

_SCAN_SECONDS = 0.05  # the manager's tick when no event wakes it


class DaemonThreadPool:
    """Daemon threads that run submitted jobs; they outlive micro-batches, because each connection belongs to a thread.

    Not a ThreadPoolExecutor: Python waits for its threads before it ends, so a request that hangs would keep the
    process alive.
    """

    def __init__(self, size: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(size)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Let the next free thread run `job`, which must not raise: its thread would end."""
        self._jobs.put(job)

    def close(self) -> None:
        """Let each thread end after its running job."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            job = None  # a waiting thread keeps nothing of a lane that has ended


@dataclass(slots=True)
class LaneRunner:
    """Runs one lane to its end: `run` returns the receipt of its loads or raises the first error.

    Each thread that changes the lane takes the loads that are due then, and a thread that has finished a load goes on
    with the next one. So a load costs no switch of threads. The manager only watches the time.
    """

    core: Lane
    perform: Perform
    threads: DaemonThreadPool
    clock: Clock
    deadline: Deadline
    grace_seconds: float = 15.0  # for running loads to end after the lane gave up
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _awaited: Callable[[], bool] | None = None  # what the task's thread waits for
    _ended: threading.Event = field(default_factory=threading.Event)
    _bug: BaseException | None = None
    _over: bool = False

    def run(self, segments: Iterable[Segment]) -> model.Receipt | None:
        """Feed all segments and load them; returns what was loaded, None without rows.

        Raises the lane's error, or the errors of `segments` untouched (a stop of the query above all). In both cases no
        load of the lane runs any more, if the server answered in time.
        """
        manager = threading.Thread(
            target=self._guarded, args=(self._manage,), name="starrocks-lane-manager", daemon=True
        )
        manager.start()
        try:
            try:
                for segment in segments:
                    self._feed(segment)
                with self._changed:
                    self.core.finish(self.clock.monotonic())
                    due = self._due()
                self._submit(due)
            except BaseException as error:
                self._give_up(error)
                raise
            self._await(lambda: self.core.finished)
        finally:
            with self._changed:
                self._over, self._awaited = True, None  # what was awaited refers to the lane, which may hold much
            self._ended.set()
        if self.core.error is not None:
            raise self.core.error
        return self.core.receipt

    def _feed(self, segment: Segment) -> None:
        self._await(lambda: not self.core.saturated)
        with self._changed:
            if self.core.finished and self.core.error is not None:
                raise self.core.error
            self.core.take(segment, self.clock.monotonic())
            due = self._due()
        self._submit(due)

    def _give_up(self, error: BaseException) -> None:
        stopped = StarRocksSinkError(f"The lane was stopped by {type(error).__name__}.")
        with self._changed:
            self.core.fail(error if isinstance(error, StarRocksSinkError) else stopped)
            due = self._due()
        self._submit(due)
        with self._changed:
            self._awaited = lambda: self.core.finished or self._bug is not None
            self._changed.wait_for(self._awaited, self.grace_seconds)

    def _await(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            self._awaited = reached
            while not reached():
                if self._bug is not None:
                    raise self._bug
                if self.deadline.expired():
                    break
                self._changed.wait(min(self.deadline.remaining(), 1.0))
            else:
                return
            message = f"The batch's deadline passed during {self.core.waiting_for}."
            error = DeadlineExceeded(message)
        self._give_up(error)
        raise error

    def _due(self) -> list[LaneAction]:
        """The loads that are due now, with the lock held; wakes the task's thread if it waits for this."""
        due = [] if self._over else self.core.tick(self.clock.monotonic())
        if self._awaited is not None and self._awaited():
            self._changed.notify_all()
        return due

    def _submit(self, due: Iterable[LaneAction]) -> None:
        for action in due:
            self.threads.submit(partial(self._guarded, partial(self._do, action)))

    def _manage(self) -> None:
        """Submit loads that are due by time alone, until the lane is finished."""
        while not self._ended.wait(_SCAN_SECONDS):
            with self._changed:
                due = self._due()
            self._submit(due)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run `work`; a bug in it must end the lane at once, not at its deadline."""
        try:
            work()
        except BaseException as bug:
            with self._changed:
                self._bug = self._bug or bug
                self._changed.notify_all()

    def _do(self, action: LaneAction) -> None:
        """Perform `action` and then the first one that is due after it, and so on; other threads get the others."""
        following: LaneAction | None = action
        while following is not None:
            result = self._result_of(following)
            with self._changed:
                self.core.complete(following, result)
                due = self._due()
            following = due.pop(0) if due else None
            self._submit(due)

    def _result_of(self, action: LaneAction) -> model.Result:
        """The result of `action`, or its error."""
        try:
            return self.perform(action)
        except StarRocksSinkError as error:
            return error
        except Exception as error:  # a bug must end the lane, not a thread
            result = StarRocksSinkError(f"{type(action).__name__} failed: {type(error).__name__}: {error}")
            result.__cause__ = error
            return result


_EXPLAIN_SECONDS = 5.0  # for the questions about a refused commit, which are answered in milliseconds
_ROLLBACK_SECONDS = 10.0  # a rollback may go on after the batch's deadline, but not for long


@dataclass(frozen=True, slots=True)
class Performer:
    """Runs actions; may be called from several threads at once.

    `listener` gets the events of each action and of its requests. `release` frees the memory of rows that were read
    from a spill file. A performer with `turns` asks the driver whether it is to begin a label (`protocol.openings`).
    """

    options: SinkOptions
    transport: Transport
    clock: Clock
    deadline: Deadline
    rng: random.Random
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    listener: Listener = ignore_event
    ownership: Ownership | None = None
    ledger: Ledger | None = None
    unique: UniqueRows = field(default_factory=lambda: UniqueRows({}))
    release: Callable[[], None] | None = None
    explainer: Explainer | None = None
    turns: Turns | None = None

    def __call__(self, action: model.Action) -> model.Result:
        """Run the steps of `action` and return their result; raises StarRocksSinkError as they do.

        Emits `step.started`, then `step.completed` or `step.failed`, with `label`, `step` and, of a load, its `table`
        and `bytes`. A returned outcome that has an error (Aborted, Unknown) is a failure too.
        """
        if self.listener is ignore_event:
            return self._perform(action)
        with Span(self.listener, self.clock.monotonic, "step", _fields(action)) as span:
            result = self._perform(action)
            fields = {} if result is None else {"result": type(result).__name__.lower()}
            if isinstance(result, Unknown) and result.refusal is not None:
                fields["code"] = result.refusal.code
            span.end(result, **fields)
            return result

    def steps(self, action: model.Action) -> tuple[Steps[model.Result], Deadline]:
        """The steps of `action` and their deadline, for callers that run steps themselves (the simulation)."""
        label = Label(self.options.database, action.label)
        match action:
            case model.BeginAction():
                return self._begin(label), self.deadline
            case model.LoadAction():
                return self._load(label, action), self.deadline
            case model.CheckAction():
                return self._ownership().check(label.name, self.rng), self.deadline
            case model.CommitAction(_, attempt):
                # A ledger decides whatever the server does not prove, for every writer that has one.
                # Else commits that always take longer than `read_timeout` would be rolled back for ever.
                patience = self.options.read_timeout * (2.0 ** (attempt - 1) - 1.0)
                retry_policy = replace(self.retry_policy, commit_again=self.ownership is None, patience=patience)
                return protocol.commit(label, retry_policy, self.rng), self.deadline
            case model.RecoverAction(_, spans):
                return self._ownership().recover(label.name, spans, self.rng), self.deadline
            case model.RollbackAction():
                deadline = Deadline.after(_ROLLBACK_SECONDS, self.clock)
                return protocol.roll_back(label, self.retry_policy, self.rng), deadline

    def result_after_deadline(self, action: model.Action, error: DeadlineExceeded) -> model.Result:
        """The result of an `action` whose steps passed the deadline; raises `error` for an action that has none then.

        A commit that was sent always ends in an outcome or in an error about its owner, so it becomes Unknown.
        """
        match action:
            case model.CommitAction(label) | model.RecoverAction(label):
                unknown = OutcomeUnknown(
                    "The batch's deadline passed before the server said whether the transaction was committed.",
                    label=label,
                )
                unknown.__cause__ = error
                return Unknown(label, unknown)
            case model.RollbackAction():
                return error
            case _:
                raise error

    def _perform(self, action: model.Action) -> model.Result:
        steps, deadline = self.steps(action)
        try:
            result = run(steps, self.transport, self.clock, deadline, self.ledger, self.listener, self.turns)
        except DeadlineExceeded as error:
            result = self.result_after_deadline(action, error)
        return self.explained(action, result)

    def _begin(self, label: Label) -> Steps[protocol.Begun | None]:
        headers = self.options.begin_headers()
        if self.turns is None:
            return protocol.begin(label, headers)
        return protocol.begin_once(label, headers, self.rng)

    def _load(self, label: Label, action: model.LoadAction) -> Steps[protocol.Loaded]:
        """Send the rows that no later row replaces; no request if no row is left."""
        rows = self.unique.select(action)
        if not rows.pieces:
            return protocol.Loaded(None, 0, rows.replaced)
        body: Body = load_body(rows.pieces, self.options.compression_of(action.table).value)
        if self.release is not None and any(chunk.spilled for chunk in action.chunks):
            self.release()
            body = ReleasedBody(body, self.release)
        headers = self.options.load_headers(action.table)
        loaded = yield from protocol.load(label, action.table, body, headers, self.retry_policy, self.rng)
        return replace(loaded, replaced=rows.replaced) if rows.replaced else loaded

    def _ownership(self) -> Ownership:
        if self.ownership is None:
            raise TypeError("Without a ledger there is no owner to check.")
        return self.ownership

    def explained(self, action: model.Action, result: model.Result) -> model.Result:
        """`result` with the reasons of rejected rows, if the server tells them in a part of the time that is left."""
        if self.explainer is None or not isinstance(action, model.CommitAction):
            return result
        limit = Deadline.after(min(_EXPLAIN_SECONDS, self.deadline.remaining() / 4), self.clock)
        match result:
            case Aborted(label, error):
                return Aborted(label, self.explainer.explain(error, label, limit))
            case Unknown(label, _, refusal) if refusal is not None:
                return replace(result, refusal=self.explainer.explain(refusal, label, limit))
        return result


def _fields(action: model.Action) -> dict[str, object]:
    fields: dict[str, object] = {"label": action.label, "step": type(action).__name__.removesuffix("Action").lower()}
    return fields | {"table": action.table, "bytes": action.bytes} if isinstance(action, model.LoadAction) else fields


_STEP_LINES: Final = {"step.completed": "step.ended", "step.failed": "step.failed"}


def log_steps(log: Listener) -> Listener:
    """A listener that has `log` write a line for the end of each step; requests get no line.

    A check that finds the job held is no failure: the driver says so (`job.held`).
    """

    def write(event: Event) -> None:
        if event.name in _STEP_LINES:
            held = event.fields.get("code") == JobHeld.code
            log(Event("step.ended" if held else _STEP_LINES[event.name], event.fields))

    return write
