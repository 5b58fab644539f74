"""Taking over: claim, list, barrier, read; and the check before every commit (docs/exactly-once.md, "How it works").

Labels are no locks: the server forgets them, and a forgotten one can be begun again by a writer that slept. What
excludes writers is the owner row, and what makes its reading safe is the order below. Without any one of the steps two
writers can double or lose rows:

1. *claim*    write the owner row with a token that is new for every try: a lost reply means another try with another
              token, so that a late claim cannot look like the current one.
              The claim is visible before the next step: whoever loads after the list then sees it in its check.
2. *list*     find unfinished labels under our prefix and roll each back, until the server confirms it.
3. *barrier*  write a marker into the ledger and wait until it is visible: everything committed before is visible then.
4. *read*     owner and positions. Owner is not our token: somebody newer took over, and we stop.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from starrocks_txn_sink.errors import Fenced, StarRocksSinkError, TransportError
from starrocks_txn_sink.protocol import refusals as verdict
from starrocks_txn_sink.protocol.label import Backoff, Label, LabelPrefix, LedgerRequest, Steps, Wait, run_of
from starrocks_txn_sink.protocol.ledger import (
    DeleteClaims,
    ListDeadClaims,
    ListUnfinished,
    Owner,
    Owners,
    Position,
    ReadMarker,
    ReadOwners,
    ReadPositions,
    WriteClaim,
    WriteMarker,
)
from starrocks_txn_sink.protocol.wire import Operation, Reply

NewToken = Callable[[], str]

BACKOFF = Backoff(first=0.05, longest=2.0)
MARKER_READS = 8
"""How often the first marker is looked for before another one is written."""


def fresh_tokens(epoch: str, attempt: int, rng: random.Random) -> NewToken:
    """Tokens that nobody else makes: run of the driver, attempt of the task, and 64 random bits."""
    return lambda: f"{epoch}.{attempt}.{rng.getrandbits(64):016x}"


@dataclass(frozen=True, slots=True)
class Scope:
    """What is taken over: a whole job, or one lane of it (by its `owner`, whose token is replaced for every try)."""

    job: str
    database: str
    owner: Owner

    @property
    def label_prefix(self) -> LabelPrefix:
        """All labels of the job for a driver, whatever its run; of our run and lane for a lane."""
        return (
            LabelPrefix(self.job)
            if self.owner.lane is None
            else LabelPrefix(self.job, self.owner.epoch, self.owner.lane)
        )

    @property
    def name(self) -> str:
        """The marker row's name: one row a scope, so that markers do not pile up."""
        return "driver" if self.owner.lane is None else f"lane {self.owner.lane}"


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The claim that holds, and every position that is visible."""

    owner: Owner
    positions: dict[str, Position]


def take_over(
    scope: Scope, new_token: NewToken, rng: random.Random, driver_token: str | None = None
) -> Steps[TakenOver]:
    """Take `scope` over. A lane passes its driver's token: it must still be the job's owner. One that no driver stands
    behind (a replay of dead letters) passes none.

    Raises Fenced when somebody newer took over, and the steps' DeadlineExceeded when the server cannot be made to
    answer; nothing was loaded by then.
    """
    owner = yield from _claim(scope, new_token, rng)
    yield from _await_claim(scope, owner, new_token, rng)
    yield from _roll_back_unfinished(scope, rng)
    yield from _write_barrier(scope, new_token, rng)
    owners: Owners = yield from retry_until_answered(_owners_of(scope.job, owner), rng)
    refuse_others(owners, owner, owner.token if owner.lane is None else driver_token)
    positions: dict[str, Position] = yield from retry_until_answered(ReadPositions(scope.job), rng)
    return TakenOver(owner, positions)


def _claim(scope: Scope, new_token: NewToken, rng: random.Random) -> Steps[Owner]:
    """1. claim, with a fresh token for every try."""
    tries = 0
    while True:
        owner = replace(scope.owner, token=new_token())
        answer = yield WriteClaim(scope.job, owner)
        if not isinstance(answer, TransportError):
            return owner
        yield Wait(BACKOFF.seconds(tries, rng), "the ledger's owner row being written")
        tries += 1


def _await_claim(scope: Scope, owner: Owner, new_token: NewToken, rng: random.Random) -> Steps[None]:
    """Wait until the claim is visible: the server may answer OK to an INSERT that is only committed.

    A claim that cannot be seen is either on its way or overwritten by now; a barrier tells that it was visible.
    """
    owners: Owners = yield from retry_until_answered(_owners_of(scope.job, owner), rng)
    holder = owners.driver if owner.lane is None else owners.lane
    if holder is None or holder.token != owner.token:
        yield from _write_barrier(scope, new_token, rng)


def _roll_back_unfinished(scope: Scope, rng: random.Random) -> Steps[None]:
    """2. list, and roll back what is listed."""
    labels: tuple[str, ...] = yield from retry_until_answered(ListUnfinished(scope.label_prefix), rng)
    for name in labels:
        yield from roll_back_until_confirmed(Label(scope.database, name), rng)


def roll_back_until_confirmed(label: Label, rng: random.Random) -> Steps[None]:
    """Roll `label` back until the server says that it has ended, one way or the other; the deadline bounds it."""
    tries = 0
    while True:
        answer = yield label.request(Operation.ROLLBACK)
        if isinstance(answer, Reply) and (answer.ok or _has_ended(answer)):
            return
        yield Wait(BACKOFF.seconds(tries, rng), f"label {label.name} being rolled back")
        tries += 1


def _has_ended(reply: Reply) -> bool:
    return verdict.CANNOT_ABORT_VISIBLE in reply.message or verdict.is_gone(reply)


def _write_barrier(scope: Scope, new_token: NewToken, rng: random.Random) -> Steps[None]:
    """3. barrier: a marker that is visible; a lost reply is answered with another marker.

    So is one that stays out of sight, because another writer's may have overwritten it; each is looked for longer than
    the one before, so that a slow server is not outrun.
    """
    for tries in itertools.count():
        token = new_token()
        answer = yield WriteMarker(scope.job, scope.name, token)
        if not isinstance(answer, TransportError):
            for look in range(MARKER_READS << min(tries, 16)):
                visible: bool = yield from retry_until_answered(ReadMarker(scope.job, scope.name, token), rng)
                if visible:
                    return
                yield Wait(BACKOFF.seconds(look, rng), "the ledger's marker becoming visible")
        yield Wait(BACKOFF.seconds(tries, rng), "the ledger's marker being written")


def check_owner(job: str, mine: Owner, driver_token: str | None, rng: random.Random) -> Steps[None]:
    """The check before a commit: read the owner rows again; raises Fenced when they are not ours.

    `mine` is the lane's claim, or, for an attempt that never had to claim, an owner with an empty token.
    """
    owners: Owners = yield from retry_until_answered(_owners_of(job, mine), rng)
    refuse_others(owners, mine, driver_token)


def refuse_newer(job: str, run: str, rng: random.Random) -> Steps[None]:
    """Raise Fenced when the job's owner is a run of the driver that began after `run` did.

    For a run that has to take over again and again, because no process of it lasts: without this two of them would take
    the job from each other in turns. Positions keep even that exact; this ends the older one.
    """
    owners: Owners = yield from retry_until_answered(ReadOwners(job), rng)
    if owners.driver is not None and run_of(owners.driver.epoch) > run:
        raise _fenced("The job", owners.driver)


def _owners_of(job: str, mine: Owner) -> ReadOwners:
    return ReadOwners(job) if mine.lane is None else ReadOwners(job, mine.lane, mine.epoch, mine.batch)


def refuse_others(owners: Owners, mine: Owner, driver_token: str | None) -> None:
    """Raise Fenced unless `driver_token`, if there is one, owns the job and `mine`, if it has a lane, owns that.

    An attempt without a claim of its own (an empty token) owns its lane as long as nobody has claimed it in the same
    run of the driver for the same micro-batch or a later one.
    """
    holder = owners.driver
    if driver_token is not None and (holder is None or holder.token != driver_token):
        raise _fenced("The job", holder)
    if mine.lane is None:
        return
    claim = owners.lane
    if mine.token:
        if claim is None or claim.token != mine.token:
            raise _fenced(f"Lane {mine.lane}", claim)
    elif claim is not None and claim.epoch == mine.epoch and claim.batch >= mine.batch:
        raise _fenced(f"Lane {mine.lane}", claim)


def _fenced(what: str, holder: Owner | None) -> StarRocksSinkError:
    if holder is None:
        return Fenced(f"{what} has no owner in the ledger any more: its rows were deleted while we were writing.")
    return Fenced(
        f"{what} was taken over by another writer.",
        epoch=holder.epoch,
        checkpoint=holder.checkpoint,
        since=holder.since,
    )


def retry_until_answered(request: LedgerRequest, rng: random.Random) -> Steps[Any]:
    """Ask until there is an answer; questions only read, so they can be repeated."""
    tries = 0
    while True:
        answer = yield request
        if not isinstance(answer, TransportError):
            return answer
        yield Wait(BACKOFF.seconds(tries, rng), f"the ledger answering {type(request).__name__}")
        tries += 1


MAX_DELETED_CLAIMS = 500
"""Rows that one start of a driver removes at most; the next one goes on."""


def delete_dead_claims(job: str, mine: Owner, rng: random.Random) -> Steps[int]:
    """Remove lanes' owner rows of runs of the driver before `mine`, which owns the job; returns how many it asked for.

    Only retries and lanes that could not settle an outcome write such rows, one for each run of the driver, micro-batch
    and lane. A row must stay as long as an attempt of that run may check it: no row means "nobody took the lane over",
    so its removal would give a sleeping first attempt its lane back. What can go are rows of runs whose driver has lost
    the job: a check reads the job's owner and the lane's in one statement, and the job's owner is never that run's
    again, because a token is written by one INSERT that was answered (unanswered ones are repeated under another
    token).

    The order matters: the rows are listed before the owner is read, and removed by name. Whatever was on the list then
    belongs to a run before ours, however long we sleep afterwards, and however late the removal is carried out; a newer
    driver's rows have other names.

    Best-effort: an unanswered removal is not repeated. Raises Fenced when `mine` owns the job no longer.
    """
    names: tuple[str, ...] = yield from retry_until_answered(ListDeadClaims(job, mine.epoch, MAX_DELETED_CLAIMS), rng)
    if not names:
        return 0
    owners: Owners = yield from retry_until_answered(ReadOwners(job), rng)
    refuse_others(owners, mine, mine.token)
    yield DeleteClaims(job, names)
    return len(names)
