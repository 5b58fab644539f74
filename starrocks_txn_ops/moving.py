"""The move of a job to another name, database or cluster: the old job is closed, then the new one is opened.

A row of the ledger, the job's *gate*, says whether the job takes rows under this name. Both steps are a take-over
(`protocol.fencing`) and one StarRocks transaction of the ledger's table, which is committed as a driver commits: after
a check of the owner. So a driver that takes the job over later sees the gate, or has rolled its transaction back.

1. *close*    Take the old job over, and write its closed gate. No driver can commit any more: the one that runs is not
              the owner, and a new one finds the gate closed. Only now the positions are final, and are read.
2. *open*     Take the new job over, and write its open gate and all positions, in one StarRocks transaction. Before its
              commit the new job has nothing, after it everything.

Each step looks first, writes if need be, and looks again until all is there. So a step that broke off anywhere, or
whose answer was lost, is simply repeated; the name of the move, which the gate keeps, is then the same.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from starrocks_txn_sink.errors import Fenced, MoveRefused, StarRocksSinkError
from starrocks_txn_sink.protocol import fencing, label as protocol, ledger
from starrocks_txn_sink.protocol.fencing import Scope, TakenOver
from starrocks_txn_sink.protocol.gate import Gate, ReadGate, ReadOpened, gate_row, opened_row
from starrocks_txn_sink.protocol.label import Aborted, Label, RetryPolicy, Steps, Unknown, Wait
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, Owner, Position
from starrocks_txn_sink.protocol.wire import Body

MOVE = "move"
"""The run of a driver, in labels and in the owner row of a job that was moved."""
_NO_POSITION = {"job": "", "kind": "", "name": ""}  # NOT NULL columns of a delete (wire contract 5.6)


@dataclass(frozen=True, slots=True)
class Mover:
    """What the steps need of the command: labels by job, headers and body of a load, tokens, time as a literal."""

    database: str
    labels: Callable[[str], Iterator[str]]
    begin_headers: Mapping[str, str]
    load_headers: Mapping[str, str]
    body: Callable[[list[memoryview]], Body]
    new_token: ledger.NewToken
    now_text: Callable[[], str]
    rng: random.Random


def refuse_target(job: str, to: str, rng: random.Random) -> Steps[None]:
    """Raise MoveRefused if `job` could not be opened as `to`, before anything is closed.

    A move that is under way passes: `open_job` judges it.
    """
    own_gate: Gate | None = yield from ledger.retry_until_answered(ReadGate(job), rng)
    if own_gate is not None and own_gate.closed:
        return
    gate: Gate | None = yield from ledger.retry_until_answered(ReadGate(to), rng)
    present: dict[str, Position] = yield from ledger.retry_until_answered(ledger.ReadPositions(to), rng)
    _refuse_progress(to, "", {}, present, gate)
    if gate is not None and gate.closed and gate.to == job:
        opened: tuple[str, ...] = yield from ledger.retry_until_answered(ReadOpened(gate.move), rng)
        if job not in opened:
            raise MoveRefused(
                f"The move {gate.move} of the job {to} has not opened {job}: their positions have nothing in common.",
                hint=TAKE_BACK.format(to),
            )


def close_job(
    mover: Mover, job: str, move: str, to: str = "", check: Callable[[], None] = lambda: None
) -> Steps[tuple[Gate, dict[str, Position]]]:
    """1. Close `job` as the move `move`, to the job `to` if that is known; a closed job keeps the name of its move.

    `check` may raise MoveRefused when no driver can commit any more, and the job is still open. Returns the gate and
    the final positions.
    """
    for tries in itertools.count():
        try:
            state = yield from _take_over(mover, job)
            if state.gate is not None and state.gate.closed:
                return state.gate, state.positions
            check()
            row = gate_row(job, Gate(True, move, to), mover.now_text())
            yield from _write(mover, job, state.owner, [row])
        except StarRocksSinkError as error:
            yield from _again(error, tries, mover.rng)
    raise AssertionError("The loop has no end of its own.")


def open_job(
    mover: Mover, job: str, move: str, positions: Mapping[str, Position], extra_rows: Sequence[memoryview] = ()
) -> Steps[None]:
    """2. Open `job` with the `positions` of the move `move`; raises MoveRefused if it has other progress.

    `extra_rows` of the ledger become visible with them.

    Looks before it takes the job over: neither a wrong name nor a repetition may end a driver that works.
    """
    rng = mover.rng
    gate: Gate | None = yield from ledger.retry_until_answered(ReadGate(job), rng)
    present: dict[str, Position] = yield from ledger.retry_until_answered(ledger.ReadPositions(job), rng)
    opened = yield from _opened(job, move, rng)
    for tries in itertools.count():
        if gate == Gate(False, move) and present == positions:
            yield from _opened(job, move, rng)  # of two at the same moment, the later one's look shows both
            return
        if opened and gate != Gate(False, move):
            raise MoveRefused(
                f"The move {move} has opened the job {job} before, and it was moved again: these positions are old.",
                hint="Take the file of its last `ledger export`.",
            )
        _refuse_progress(job, move, positions, present, gate)
        try:
            state = yield from _take_over(mover, job)
            _refuse_progress(job, move, positions, state.positions, state.gate)
            rows = [*_rows_to_open(mover, job, move, positions, state.positions), *extra_rows]
            yield from _write(mover, job, state.owner, rows)
            state = yield from _take_over(mover, job)
            gate, present = state.gate, state.positions
        except StarRocksSinkError as error:
            yield from _again(error, tries, rng)


def _opened(job: str, move: str, rng: random.Random) -> Steps[bool]:
    """Whether the move has opened `job`; raises MoveRefused if it has opened another job."""
    opened: tuple[str, ...] = yield from ledger.retry_until_answered(ReadOpened(move), rng)
    if other_jobs := [name for name in opened if name != job]:
        at_once = f" This command has opened {job}, too: close it with `ledger export`." if job in opened else ""
        raise MoveRefused(
            f"The move {move} has opened the job {other_jobs[0]} in this database already.",
            hint=f"Two jobs with the same positions would write the same rows twice: use that job.{at_once}",
        )
    return bool(opened)


def _refuse_progress(
    job: str, move: str, wanted_positions: Mapping[str, Position], present: Mapping[str, Position], gate: Gate | None
) -> None:
    """Raise MoveRefused if `job` has progress that the move would replace; a job that was moved away has none."""
    if not present or present == wanted_positions or (gate is not None and gate.closed):
        return
    if gate is not None and gate.move == move:
        raise MoveRefused(
            f"The job {job} was opened by this move already, and has gone on since.", hint="There is nothing to do."
        )
    raise MoveRefused(
        f"The job {job} has {len(present)} positions of its own in this database, which a move would replace.",
        hint="Name a job that has not written here.",
    )


TAKE_BACK = "Take {0} back: starrocks-txn-sink ledger export --job {0}, then import the file into the same job."


def _take_over(mover: Mover, job: str) -> Steps[TakenOver]:
    scope = Scope(job, mover.database, Owner("", MOVE, MOVE), moving=True)
    return fencing.take_over(scope, mover.new_token, mover.rng)


def _rows_to_open(
    mover: Mover, job: str, move: str, positions: Mapping[str, Position], present: Iterable[str]
) -> list[memoryview]:
    """All rows of the opening; positions of an older life of the job are deleted."""
    time = mover.now_text()
    deletes = [delete_row(job, ledger.POSITION, name) for name in present if name not in positions]
    rows = [ledger.position_rows(job, positions.values(), time)] if positions else []
    return [*rows, *deletes, gate_row(job, Gate(False, move), time), opened_row(job, move, time)]


def delete_row(job: str, kind: str, name: str) -> memoryview:
    """The delete of a row of the ledger as a piece of a load body."""
    row = {"__op": 1, "id": ledger.row_id(job, kind, name), **_NO_POSITION}
    return memoryview(b"," + orjson.dumps(row))


def _write(mover: Mover, job: str, owner: Owner, rows: list[memoryview]) -> Steps[None]:
    """Write `rows` into the ledger as the owner of `job`. A later look shows whether they are visible.

    Raises the error of the step that failed; nothing becomes visible afterwards.
    """
    rng, policy = mover.rng, RetryPolicy(commit_again=False)
    label = Label(mover.database, next(mover.labels(job)))
    try:
        yield from protocol.begin(label, mover.begin_headers)
        yield from protocol.load(label, LEDGER_TABLE, mover.body(rows), mover.load_headers, policy, rng)
        yield from ledger.check_owner(job, owner, rng)
    except StarRocksSinkError:
        yield from protocol.roll_back(label, policy, rng)
        raise
    outcome = yield from protocol.commit(label, policy, rng)
    if isinstance(outcome, Unknown):
        yield from fencing.roll_back_until_confirmed(label, rng)
    elif isinstance(outcome, Aborted):
        raise outcome.error


def _again(error: StarRocksSinkError, tries: int, rng: random.Random) -> Steps[None]:
    """Wait before another look; raises `error` if another try cannot help. A writer that has come is fenced again."""
    if not (error.retryable or isinstance(error, Fenced)):
        raise error
    yield Wait(ledger.BACKOFF.seconds(tries, rng), f"another try, after: {error.message.rstrip('.')}")
