"""One label: its name, and the steps begin, load, commit, confirm, roll back as generators.

A protocol generator yields a `Step` and is sent the result; `run` alone sends and waits for it. The generator never
sees a socket, a thread or a clock, so the simulator steps through the code of production.

The wire rules come from StarRocks' sources and recorded replies. Where they are uncertain the steps take the careful
side: every load answer but OK and TXN_IN_PROCESSING ends the label, a refused commit is rolled back before it counts as
aborted, and only VISIBLE is proof.

Labels are no locks: the server forgets them, and another writer can begin a forgotten one again. Ownership decides who
may write (`protocol.fencing`).
"""

import itertools
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeVar

from starrocks_txn_sink import errors
from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import BeginFailed, LoadFailed, OutcomeUnknown, StarRocksSinkError, TransportError
from starrocks_txn_sink.protocol import refusals
from starrocks_txn_sink.protocol.openings import Answer, LaneQuestion, Topic, Word
from starrocks_txn_sink.protocol.turns import TurnRequest, Turns
from starrocks_txn_sink.protocol.wire import Body, LabelState, Operation, Reply, Request, Status, Transport
from starrocks_txn_sink.telemetry import Listener, Span, ignore_event


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause before the next step; `reason` completes "waiting for …" in errors and events."""

    seconds: float
    reason: str


Sql = tuple[str, tuple[object, ...]]
"""A statement and its parameters."""
Rows = list[tuple[Any, ...]]
"""What a statement returned."""


class LedgerRequest(ABC):
    """Base of the requests to the ledger, which go to the query port; see `protocol.ledger`.

    A request with `seconds` is not waited for any longer. Then the one of `instead` is asked, which has the same
    result.
    """

    __slots__ = ()
    seconds: ClassVar[float | None] = None

    @property
    def instead(self) -> "LedgerRequest | None":
        """The request whose result counts if this one takes longer than `seconds`; None: there is none."""
        return None

    @abstractmethod
    def statement(self, database: str) -> Sql:
        """The SQL of the request over the ledger in `database`."""

    def result(self, rows: Rows) -> object:
        """The result of the request; IndexError, TypeError or ValueError for rows that cannot be the statement's."""
        del rows
        return None


class Ledger(Protocol):
    """Executes ledger requests. Raises QueryFailed if the answer is lost; the statement may have taken effect."""

    def execute(self, request: LedgerRequest, deadline: Deadline) -> Any:
        """The result of the request. Raises QueryRefused too, DeadlineExceeded if no time is left."""


StepResult = Any
"""Request: Reply or TransportError; LedgerRequest: its result or TransportError; LaneQuestion: Answer or None; the
others: None."""
Result = TypeVar("Result")
Step = Request | LedgerRequest | TurnRequest | LaneQuestion | Wait
"""What a protocol needs next."""
Steps = Generator[Step, StepResult, Result]


def run(
    steps: Steps[Result],
    transport: Transport,
    clock: Clock,
    deadline: Deadline,
    ledger: Ledger | None = None,
    listener: Listener = ignore_event,
    turns: Turns | None = None,
) -> Result:
    """Run `steps` to their end; raises their errors, and DeadlineExceeded if `deadline` passes first.

    DeadlineExceeded and terminal transport errors end the steps at once: no further request can succeed. Emits
    `request.started`, then `request.completed` (with `status`) or `request.failed`, for each request. Without `turns`
    every turn is there at once; a turn ends with the steps.
    """
    try:
        need = next(steps)
        while True:
            need = steps.send(_perform(need, transport, ledger, clock, deadline, listener, turns))
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        steps.close()
        if turns is not None:
            turns.leave()


def _perform(
    step: Step,
    transport: Transport,
    ledger: Ledger | None,
    clock: Clock,
    deadline: Deadline,
    listener: Listener,
    turns: Turns | None,
) -> StepResult:
    if isinstance(step, Wait):
        clock.sleep(deadline.limit(step.seconds, step.reason))
        return None
    if isinstance(step, TurnRequest):
        if turns is not None:
            turns.take(step, deadline)
        return None
    if isinstance(step, LaneQuestion):
        return turns.ask(step, deadline) if turns is not None else None
    try:
        if isinstance(step, LedgerRequest):
            if ledger is None:
                raise TypeError(f"{type(step).__name__} needs a ledger.")
            return ledger.execute(step, deadline)
        if listener is ignore_event:
            return transport.send(step, deadline)
        with Span(listener, clock.monotonic, "request", _fields(step)) as span:
            reply = transport.send(step, deadline)
            span.end(reply, status=reply.status.value)
            return reply
    except TransportError as error:
        return error


def _fields(request: Request) -> dict[str, Any]:
    size = len(request.body) if request.body is not None else 0
    return {"operation": request.operation.value, "label": request.label, "table": request.table, "bytes": size}


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `first` to `longest` seconds, each shortened at random, so that writers spread."""

    first: float = 0.05
    longest: float = 2.0

    def seconds(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait after failure number `attempt`, counted from 0."""
        full: float = min(self.longest, self.first * 2.0 ** min(attempt, 30))
        return full * rng.uniform(0.5, 1.0)


LABEL = re.compile(r"^[-\w]{1,128}$", re.ASCII)


@dataclass(frozen=True, slots=True)
class LabelPrefix:
    """The labels of a job, or of one run of its driver (`epoch`); recovery lists them."""

    job: str
    epoch: str | None = None

    @property
    def text(self) -> str:
        """Beginning of these labels. Other labels may share it (`a-` begins those of job `a-b`): `matches` decides."""
        return f"{self.job}-" if self.epoch is None else f"{self.job}-{self.epoch}-"

    def matches(self, label: str) -> bool:
        """Whether `label` is one of these labels; only the job may contain a hyphen."""
        parts = label.rsplit("-", 4)
        if len(parts) != 5 or parts[0] != self.job:
            return False
        return self.epoch in (None, parts[1])


def epoch_of(label: str) -> str:
    """The driver's run that made `label`; "" for a label of another form."""
    parts = label.rsplit("-", 4)
    return parts[1] if len(parts) == 5 else ""


def labels(job: str, epoch: str, lane: int | str, batch: int, attempt: int) -> Iterator[str]:
    """Yield labels of a lane for one micro-batch, all different; `attempt` is unique to an attempt of the Spark task.

    Raises OptionError if the parts cannot make a label.
    """
    for counter in itertools.count():
        label = f"{job}-{epoch}-{lane}-{batch}-{attempt}_{counter}"
        if not LABEL.match(label):
            raise errors.OptionError(
                f"The label {label!r} is not allowed: 1 to 128 characters of letters, digits, '_' and '-'.",
                hint="Shorten `job`, or take other characters.",
            )
        yield label


@dataclass(frozen=True, slots=True)
class Label:
    """A StarRocks transaction's name and its database."""

    database: str
    name: str

    def request(self, operation: Operation, **fields: object) -> Request:
        """A request about this label; `fields` are the other fields of Request."""
        return Request(operation, self.database, self.name, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Committed:
    """Every row of the label is visible to every reader."""

    label: str
    txn_id: int | None


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing of the label is visible, now or later."""

    label: str
    error: StarRocksSinkError


@dataclass(frozen=True, slots=True)
class Unknown:
    """The server gave no clear answer; the rows may be visible or not. Unknown is not failure.

    `refusal` is the reason if the server refused the commit: the cause, once the ledger shows that nothing is visible.
    """

    label: str
    error: OutcomeUnknown
    refusal: StarRocksSinkError | None = None


Outcome = Committed | Aborted | Unknown


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """Rows that a load left out, because a later row of the StarRocks transaction has their key; and their bytes."""

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """An accepted load: the server has the bytes and judges the rows at commit (wire contract 4.7).

    `replaced` counts the rows, and their bytes, that were not sent (`rows.body`), by source partition.
    """

    txn_id: int | None
    retries: int
    replaced: Mapping[str, ReplacedRows] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Begun:
    """A label that a lane may load under, `age` seconds after its begin."""

    age: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often the steps repeat requests; the micro-batch's deadline bounds them all.

    `commit_again` repeats a commit that the server does not know; without it the outcome is unknown, and the ledger
    decides, `patience` seconds after the reply was lost.
    """

    commit_again: bool = True
    patience: float = 0.0
    busy_tries: int = 60
    unknown_tries: int = 6
    backoff: Backoff = field(default_factory=Backoff)


# --- 1. begin ---


def begin(label: Label, headers: Mapping[str, str]) -> Steps[None]:
    """Begin `label`; `headers` carry `timeout`, because the server's default is 20 s (wire contract 4.12).

    Raises the errors of `refusals.begin_error`. A lost reply is a BeginFailed, too: the label may exist, so the caller
    rolls it back and takes another one.
    """
    answer = yield label.request(Operation.BEGIN, headers=headers)
    if not isinstance(answer, Reply):
        raise _no_reply(BeginFailed, "begin", label, answer)
    if answer.status is not Status.OK:
        raise refusals.begin_error(answer, label.name)


def begin_once(label: Label, headers: Mapping[str, str], rng: random.Random) -> Steps[Begun]:
    """Begin `label` if the driver tells this lane to, else wait until another one has; see `protocol.openings`.

    Raises the errors of `begin`, and LoadFailed if nobody may load under the label any more: then a label that was
    begun here is rolled back. LoadFailed because it is no cause: another lane's error, or the driver's, explains it.
    """
    answer: Answer | None = yield LaneQuestion(Topic.BEGIN, label.name)
    if answer is not None and answer.word is Word.BEGIN:
        yield from begin(label, headers)
        answer = yield LaneQuestion(Topic.BEGUN, label.name)
        if answer is None or answer.word is not Word.BEGUN:
            yield from roll_back(label, RetryPolicy(), rng)
    if answer is None or answer.word is not Word.BEGUN:
        why = "The driver does not answer which lane begins it" if answer is None else "It was given up"
        raise LoadFailed(f"The label was not begun for this lane. {why}.", label=label.name)
    return Begun(answer.age)


# --- 2. load ---


def load(
    label: Label, table: str, body: Body, headers: Mapping[str, str], retry_policy: RetryPolicy, rng: random.Random
) -> Steps[Loaded]:
    """Send `body` to `table`; raises the errors of `refusals.load_error`, and LoadFailed for a lost reply.

    The lanes of a label take turns at a table. Only TXN_IN_PROCESSING is repeated: the server has read nothing. After
    any other failure the server may have a part of the body, so the label must be rolled back (wire contract 4.8).
    """
    yield TurnRequest(label.name, table)
    for tries in range(retry_policy.busy_tries):
        answer = yield label.request(Operation.LOAD, table=table, headers=headers, body=body)
        if not isinstance(answer, Reply):
            raise _no_reply(LoadFailed, "load", label, answer, table)
        if answer.status is Status.OK:
            return Loaded(answer.txn_id, tries)
        if answer.status is not Status.TXN_IN_PROCESSING:  # another load of this table runs (wire contract 4.5)
            raise refusals.load_error(answer, label.name, table)
        yield Wait(retry_policy.backoff.seconds(tries, rng), f"table {table} being busy with another load")
    raise LoadFailed(
        f"The table stayed busy with another load of the same label for {retry_policy.busy_tries} tries.",
        label=label.name,
        table=table,
        hint="Only one client may load under a label: find the other client that uses it.",
    )


# --- 3. commit, 4. confirm ---


def commit(label: Label, retry_policy: RetryPolicy, rng: random.Random) -> Steps[Outcome]:
    """Commit `label` and return its outcome; never raises for an answer of the server, never guesses.

    OK alone proves nothing: the rows may be committed but not yet visible, and generation B says OK to a commit that
    rolled back (wire contract 3.2). Only `get_load_state` VISIBLE is proof.
    """
    answer = yield label.request(Operation.COMMIT)
    if not isinstance(answer, Reply):
        return (yield from confirm(label, None, retry_policy, rng))
    if answer.status is Status.FAILED and not _still_committing(answer):
        return (yield from _after_refusal(label, answer, retry_policy, rng))
    return (yield from confirm(label, answer.txn_id, retry_policy, rng))


class _Open(Enum):
    """Why the outcome of a commit is not known yet."""

    COMMITTING = "committing"  # the server's word that its answer is still to come
    UNKNOWN = "unknown"


def confirm(label: Label, txn_id: int | None, retry_policy: RetryPolicy, rng: random.Random) -> Steps[Outcome]:
    """Read the state of a label that may be committed, until it is VISIBLE or ABORTED.

    COMMITTED means wait: the commit is durable and will be published. UNKNOWN means that the commit has not reached the
    transaction, still runs, or that the label is forgotten: the commit is repeated, which is harmless for a label of
    ours alone. "Already committing" means wait, too, until the deadline.
    PREPARE after an OK is the hole of generation B: the repeated commit is refused, by the server's own doing.
    ABORTED is no proof: after a change of the leader a frontend may report it for committed labels (wire contract
    10.5). So with a ledger (without `commit_again`) the outcome is unknown, and the ledger decides; after a lost reply
    `patience` seconds later, so that a commit may take longer than the wait for its reply.
    """
    unknown, waited = 0, 0.0
    for tries in range(_UNBOUNDED):
        state = _state((yield label.request(Operation.LOAD_STATE)))
        if state is LabelState.VISIBLE:
            return Committed(label.name, txn_id)
        if state is LabelState.ABORTED:
            aborted = refusals.commit_error(_ROLLED_BACK, label.name)
            return Aborted(label.name, aborted) if retry_policy.commit_again else _unknown_outcome(label, aborted)
        limit = 4
        if state is not LabelState.COMMITTED and state is not None:
            accepted = txn_id is not None
            if not retry_policy.commit_again:
                if accepted or waited >= retry_policy.patience:
                    return _unknown_outcome(label)
            elif isinstance(outcome := (yield from _commit_again(label, accepted, retry_policy, rng)), _Open):
                unknown += outcome is _Open.UNKNOWN
                if unknown >= retry_policy.unknown_tries:
                    return _unknown_outcome(label)
                limit = 10
            else:
                return outcome
        pause = retry_policy.backoff.seconds(min(tries, limit), rng)
        waited += pause
        yield Wait(pause, f"label {label.name} becoming visible")
    return _unknown_outcome(label)


def _commit_again(
    label: Label, accepted: bool, retry_policy: RetryPolicy, rng: random.Random
) -> Steps[Outcome | _Open]:
    """Repeat the commit of a label without a state. `accepted`: it was answered OK."""
    answer = yield label.request(Operation.COMMIT)
    if not isinstance(answer, Reply):
        return _Open.UNKNOWN
    if _still_committing(answer):
        return _Open.COMMITTING
    if "commit CANCELLED" not in answer.message and "is aborting" not in answer.message:  # a label may be so called
        return _Open.UNKNOWN
    if (yield from _state_of(label, retry_policy, rng)) in _DURABLE:
        return (yield from confirm(label, answer.txn_id, retry_policy, rng))
    return Aborted(label.name, refusals.commit_error(_ROLLED_BACK if accepted else answer, label.name))


def _after_refusal(label: Label, refusal: Reply, retry_policy: RetryPolicy, rng: random.Random) -> Steps[Outcome]:
    """The outcome of a commit that was answered FAILED: Aborted only if the label can be rolled back.

    The commit may have taken effect all the same, for example when a proxy sends it a second time, or may still run.
    After a change of the leader, or a restart, the rollback of a visible label answers OK; `get_load_state` says
    VISIBLE then (wire contract 10.5). So it is asked after the rollback, until it answers. With a ledger (without
    `commit_again`) only the ledger shows that nothing is visible, so one question will do.
    """
    error = refusals.commit_error(refusal, label.name)
    answer = yield label.request(Operation.ROLLBACK)
    is_rolled_back = isinstance(answer, Reply) and refusals.is_rolled_back(answer)
    committing = isinstance(answer, Reply) and refusals.DURING_COMMITTING in answer.message
    asking = _state_of(label, retry_policy, rng) if retry_policy.commit_again else _state_at_once(label)
    state = yield from asking
    if committing or state in _DURABLE:
        outcome = yield from confirm(label, refusal.txn_id, retry_policy, rng)
        return replace(outcome, refusal=error) if isinstance(outcome, Unknown) else outcome
    if (is_rolled_back or state is LabelState.ABORTED) and retry_policy.commit_again:
        return Aborted(label.name, error)
    return replace(_unknown_outcome(label, error), refusal=error)


def _state_at_once(label: Label) -> Steps[LabelState | None]:
    """The label's state; None without an answer."""
    return _state((yield label.request(Operation.LOAD_STATE)))


def _state_of(label: Label, retry_policy: RetryPolicy, rng: random.Random) -> Steps[LabelState | None]:
    """The label's state, asked for until it is answered."""
    for tries in itertools.count():
        if (state := (yield from _state_at_once(label))) is not None:
            return state
        yield Wait(retry_policy.backoff.seconds(tries, rng), f"the state of label {label.name}")
    raise AssertionError("The loop has no end of its own.")


# --- 5. roll back ---


def roll_back(label: Label, retry_policy: RetryPolicy, rng: random.Random) -> Steps[StarRocksSinkError | None]:
    """Roll `label` back; return None once the server confirmed it, else the error.

    Never raises for an answer of the server: a failed rollback must not hide the first cause. A label that could not be
    rolled back commits nothing: no writer commits it, and the server ends it at its timeout.
    """
    answer: StepResult | None = None
    for tries in range(_ROLLBACK_TRIES):
        answer = yield label.request(Operation.ROLLBACK)
        if isinstance(answer, Reply) and answer.status is Status.OK:
            return None
        if isinstance(answer, Reply) and refusals.DURING_COMMITTING not in answer.message:
            return LoadFailed(f"The server did not roll back: {answer.message[:200]}", label=label.name)
        yield Wait(retry_policy.backoff.seconds(tries, rng), f"label {label.name} being rolled back")
    return answer if isinstance(answer, TransportError) else LoadFailed("The rollback did not end.", label=label.name)


# --- reading answers ---

_UNBOUNDED = 1_000_000  # the deadline ends the loop, not a count
_ROLLBACK_TRIES = 4
_DURABLE = (LabelState.COMMITTED, LabelState.VISIBLE)
_ROLLED_BACK = Reply(Status.FAILED, "the server rolled the transaction back after accepting the commit")


def _state(answer: StepResult | None) -> LabelState | None:
    """The label's state, or None without an answer."""
    return answer.state if isinstance(answer, Reply) and answer.status is Status.OK else None


def _still_committing(reply: Reply) -> bool:
    return refusals.ALREADY_COMMITTING in reply.message


def _no_reply(
    kind: type[BeginFailed] | type[LoadFailed],
    step: str,
    label: Label,
    answer: TransportError,
    table: str | None = None,
) -> StarRocksSinkError:
    place = {**answer.context, "label": label.name, "table": table}
    error = kind(f"The {step} got no usable answer: {answer.message}", hint=answer.advice, **place)
    error.__cause__ = answer
    return error


def _unknown_outcome(label: Label, cause: StarRocksSinkError | None = None) -> Unknown:
    detail = f" The commit was answered: {cause.message}" if cause else ""
    error = OutcomeUnknown(f"It is unknown whether the transaction was committed.{detail}", label=label.name)
    return Unknown(label.name, error)
