"""Take-over: claim, list, barrier, read (docs/inside/exactly-once.md, "How it works").

Labels are no locks: the server forgets them, and a writer that slept can begin a forgotten one again. Owner rows in
the ledger exclude other writers, and the order of these steps makes their reading safe. Without any one of the steps
two writers can double or lose rows:

1. *claim*    Write the owner row with a token that is new for every try: a lost reply means another try with another
              token, so that a late claim cannot look like the current one. Wait until the claim is visible: a writer
              that loads after the list then sees it in its check.
2. *list*     Find unfinished labels under our prefix and roll each back, until the server confirms it.
3. *barrier*  Write a marker into the ledger and wait until it is visible: every earlier commit is visible then.
4. *read*     Read owner, positions and gate. If the owner is not our token, a newer writer took over, and we stop. If
              the gate is closed, the job was moved away (`starrocks_txn_ops.moving`), and we stop, too.
"""

import itertools
import random
from dataclasses import dataclass, replace

from starrocks_txn_sink.errors import TransportError
from starrocks_txn_sink.protocol import ledger, refusals
from starrocks_txn_sink.protocol.gate import Gate, ReadGate
from starrocks_txn_sink.protocol.label import Label, LabelPrefix, StepResult, Steps, Wait
from starrocks_txn_sink.protocol.ledger import DRIVER, Owner, Position, ReadOwner, check_owner
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply

LONGEST_LOOK = 0.5
"""Seconds between two looks at a hold."""
MARKER_READS = 8
"""Readings of the first marker before another one is written."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Target of a take-over: a job, or the replays of its dead letters. Each try replaces the token of `owner`.

    `moving`: a closed gate does not end the take-over, because it serves a move of the job.
    """

    job: str
    database: str
    owner: Owner
    moving: bool = False

    @property
    def label_prefix(self) -> LabelPrefix:
        """The labels to roll back: for a driver all labels of the job, for a replay those of replays."""
        return LabelPrefix(self.job, None if self.owner.kind == DRIVER else self.owner.epoch)

    @property
    def name(self) -> str:
        """Name of the marker row; a scope has one, so that markers do not pile up."""
        return self.owner.kind


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The claim that holds, every position that is visible, and the gate of a job that was moved."""

    owner: Owner
    positions: dict[str, Position]
    gate: Gate | None = None


def take_over(scope: Scope, new_token: ledger.NewToken, rng: random.Random) -> Steps[TakenOver]:
    """Take `scope` over.

    Raises Fenced if a newer writer took over, JobMoved if the job was moved away, and DeadlineExceeded if the server
    does not answer; nothing is loaded by then.
    """
    owner = yield from _claim(scope, new_token, rng)
    yield from _await_claim(scope, owner, new_token, rng)
    yield from roll_back_unfinished(scope.database, scope.label_prefix, rng)
    scope = replace(scope, owner=owner)
    positions = yield from read_positions(scope, new_token, rng)
    gate: Gate | None = yield from ledger.retry_until_answered(ReadGate(scope.job), rng)
    if gate is not None and gate.closed and not scope.moving:
        raise gate.refusal(scope.job)
    return TakenOver(owner, positions, gate)


def read_positions(scope: Scope, new_token: ledger.NewToken, rng: random.Random) -> Steps[dict[str, Position]]:
    """3. and 4.: the positions of every commit before now; raises Fenced unless the scope's owner is still ours."""
    yield from _write_barrier(scope, new_token, rng)
    yield from check_owner(scope.job, scope.owner, rng)
    positions: dict[str, Position] = yield from ledger.retry_until_answered(ledger.ReadPositions(scope.job), rng)
    return positions


def _claim(scope: Scope, new_token: ledger.NewToken, rng: random.Random) -> Steps[Owner]:
    """1. Claim, with a fresh token for every try."""
    tries, batch = 0, scope.owner.written
    while True:
        token = new_token()
        batch |= {token}
        owner = replace(scope.owner, token=token, written=batch)
        answer = yield ledger.WriteClaim(scope.job, owner)
        if not isinstance(answer, TransportError):
            return owner
        yield Wait(ledger.BACKOFF.seconds(tries, rng), "the ledger's owner row being written")
        tries += 1


def _await_claim(scope: Scope, owner: Owner, new_token: ledger.NewToken, rng: random.Random) -> Steps[None]:
    """Wait until the claim is visible: the server may answer OK to an INSERT that is only committed.

    An invisible claim is not published yet, or is overwritten by now; after a barrier either one has been visible.
    """
    holder: Owner | None = yield from ledger.retry_until_answered(ReadOwner(scope.job, owner.kind), rng)
    if holder is None or holder.token != owner.token:
        yield from _write_barrier(scope, new_token, rng)


def roll_back_unfinished(database: str, prefix: LabelPrefix, rng: random.Random) -> Steps[None]:
    """2. List unfinished labels, and roll them back."""
    labels: tuple[str, ...] = yield from ledger.retry_until_answered(ledger.ListUnfinished(prefix), rng)
    for name in labels:
        yield from roll_back_until_confirmed(Label(database, name), rng)


def roll_back_until_confirmed(label: Label, rng: random.Random) -> Steps[LabelState]:
    """Repeat the rollback until the server says that `label` has ended; the deadline bounds it.

    Returns how the label has ended, as far as the answers tell: ABORTED, VISIBLE, or UNKNOWN for a forgotten label.

    A committed label is left alone: some releases list each committed label as unfinished (wire contract 10.6). Only
    this state is believed without a rollback: it is durable, and any other one may be out of date or unregistered;
    generation B answers UNKNOWN for every label before a commit with loads (wire contract 6.2). It is asked for after
    an OK, too: a commit may have ended meanwhile, and a new leader says OK for committed labels (10.5).
    """
    if (state := _durable((yield label.request(Operation.LOAD_STATE)))) is not None:
        return state
    for tries in itertools.count():
        answer = yield label.request(Operation.ROLLBACK)
        if isinstance(answer, Reply) and (end := _end_of(answer)) is not None:
            state = _durable((yield label.request(Operation.LOAD_STATE))) if end is LabelState.ABORTED else None
            return end if state is None else state
        yield Wait(ledger.BACKOFF.seconds(tries, rng), f"label {label.name} being rolled back")
    raise AssertionError("The loop has no end of its own.")


def _durable(answer: StepResult | None) -> LabelState | None:
    """The state of a label that is committed; None for any other, and without an answer."""
    committed = isinstance(answer, Reply) and answer.state in (LabelState.COMMITTED, LabelState.VISIBLE)
    return answer.state if isinstance(answer, Reply) and committed else None


def _end_of(reply: Reply) -> LabelState | None:
    """How a label has ended by the answer to its rollback; None while it has not."""
    if refusals.is_rolled_back(reply):
        return LabelState.ABORTED
    if refusals.CANNOT_ABORT_VISIBLE in reply.message:
        return LabelState.VISIBLE
    return LabelState.UNKNOWN if refusals.is_gone(reply) else None


def _write_barrier(scope: Scope, new_token: ledger.NewToken, rng: random.Random) -> Steps[None]:
    """3. Barrier: write a marker and wait until it is visible.

    After a lost reply it writes another marker, and also if the marker stays invisible: another writer may have
    overwritten it. Each marker is awaited longer than the one before, so that a slow server can catch up.
    """
    for tries in itertools.count():
        token = new_token()
        answer = yield ledger.WriteMarker(scope.job, scope.name, token)
        if not isinstance(answer, TransportError):
            for look in range(MARKER_READS << min(tries, 16)):
                visible: bool = yield from ledger.retry_until_answered(
                    ledger.ReadMarker(scope.job, scope.name, token), rng
                )
                if visible:
                    return
                yield Wait(ledger.BACKOFF.seconds(look, rng), "the ledger's marker becoming visible")
        yield Wait(ledger.BACKOFF.seconds(tries, rng), "the ledger's marker being written")


def refuse_successor(job: str, tokens: set[str], rng: random.Random) -> Steps[None]:
    """Raise Fenced if the job's owner row has a token that is not in `tokens`; an empty set learns the present token.

    For a writer that takes its job over again after an outage, in the middle of a micro-batch. `tokens` has all tokens
    that it has held or written, because a claim without an answer may have taken effect. A writer with another token
    has come meanwhile, and may have gone on: taking the job back from it would only end a writer that works. A hold of
    such a token is waited for (`protocol.hold`).
    """
    holder: Owner | None = yield from ledger.retry_until_answered(ReadOwner(job), rng)
    while holder is not None and holder.held_from in tokens:
        held = holder
        yield from _await_release(job, held, rng)
        holder = yield from ledger.retry_until_answered(ReadOwner(job), rng)
        if holder == held:
            return
    if tokens and (holder is None or holder.token not in tokens):
        raise ledger.fenced("The job", holder)
    tokens.add(holder.token if holder is not None else "")


def _await_release(job: str, held: Owner, rng: random.Random) -> Steps[None]:
    """Wait until a hold has ended, or its seconds are over."""
    waited = 0.0
    for tries in itertools.count():
        released = yield from ledger.retry_until_answered(ledger.ReadMarker(job, ledger.RELEASED, held.token), rng)
        if released or waited >= held.batch:
            return
        pause = min(ledger.BACKOFF.seconds(tries, rng), LONGEST_LOOK)
        yield Wait(pause, "the command that holds the job")
        waited += pause
