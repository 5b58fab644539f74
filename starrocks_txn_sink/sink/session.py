"""The driver's session: the knowledge of one run of a query, the take-over of its job, and labels that are left behind.

A session begins with the take-over and ends with the first error; the next micro-batch then takes over again. In
between the receipts advance the known positions, so the sink does not read the ledger again.

**Continuity.** A streaming query that goes on needs a ledger that knows at least as much as the query's checkpoint.
Without the ledger the sink would write the last micro-batch twice. After a restore from a backup StarRocks lacks the
source transactions between the backup and the checkpoint, and the source does not send them again. So the sink refuses
a query that starts above micro-batch 0 if the ledger

- has neither a row of the job nor a row of the checkpoint, or
- is behind a proof (`sink.checkpoint`): a list of positions that the driver has seen visible.

The user may accept the ledger as it is (`recover --accept-ledger`). The sink then ignores all older proofs.
"""

import contextlib
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nsmallest
from types import MappingProxyType
from typing import Any, Final

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock, microseconds
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import JobHeld, LedgerBehind, OptionError, QueryRefused, StarRocksSinkError, advise
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import bound as bounds, dead_letters, fencing, ledger
from starrocks_txn_sink.protocol.bound import Bound
from starrocks_txn_sink.protocol.label import LabelPrefix, Result, Steps, run
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink.checkpoint import Proof, ProofLog
from starrocks_txn_sink.sink.partition_checks import check_partitions
from starrocks_txn_sink.sink.typed.tables import Tables
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.sql.failures import LOGIN_OR_DATABASE
from starrocks_txn_sink.telemetry import get_logger
from starrocks_txn_sink.writer.messages import LaneReport
from starrocks_txn_sink.writer.task import JobOwnership, LaneTask

_CLEAN_UP_SECONDS = 5.0
_PAUSE = 0.5  # seconds between two rollbacks while Spark ends tasks
_LATER = (2.5, 3.5)  # seconds: Spark ends the other tasks of a failed job after up to 4; until then they begin labels
_BY_HAND = (
    "Grant CREATE TABLE on the database, set ledger_replication to at most the number of backends, or create the {} "
    "table by hand (docs/guides/{} has its DDL) and set ledger_create=False."
)
_CREATE_IS_OFF = (
    "ledger_create is off: create the ledger's table by hand (docs/guides/exactly-once.md has its DDL), and grant "
    "SELECT and INSERT on it."
)
_TWO_WAYS: Final = (
    "Either load again: a new `job` and a new checkpoint, the source from its beginning, and empty tables. Or accept "
    "that rows are missing or come twice: run starrocks-txn-sink recover --accept-ledger for the job, and start the "
    "query again."
)


@dataclass(slots=True)
class Session:
    """The driver's knowledge between two micro-batches. `key` identifies a run of a query.

    The take-over reads the positions once; confirmed receipts then advance them. So the ledger costs a StarRocks
    transaction one owner check and one state query.
    """

    key: str
    job: str
    epoch: str
    checkpoint: str
    tables: Tables = Tables()  # noqa: RUF009 - frozen
    token: str = ""
    written: frozenset[str] = frozenset()  # tokens of all claims, also of those without an answer
    positions: dict[str, ledger.Position] = field(default_factory=dict)
    bound: Bound | None = None  # of the take-over; nothing behind it is written while it holds
    stands: str = ""  # the token of the bound at which the job stands
    hold: bool = False  # lanes hold rows back, because keys were repeated in the last micro-batch (`rows.body`)
    skips: dict[str, Skip] = field(default_factory=dict)  # by source partition: replayed rows that the ledger has
    accepted: Sequence[str] = ()  # tokens of `recover --accept-ledger`
    canary: bool = True  # no lane has checked yet whether a take-over would find its label
    proofs: ProofLog | None = None  # in the query's checkpoint
    compared: dict[str, frozenset[str]] = field(default_factory=dict)  # by table: the names that rows have had so far
    vanished_names: dict[str, frozenset[str]] = field(default_factory=dict)  # those that the log called gone
    unknown_names: dict[str, frozenset[str]] = field(default_factory=dict)  # those without a column, which it told
    compared_at: float = field(default_factory=time.monotonic)  # when all of them were compared last

    def prove_in(self, proofs: ProofLog | None) -> None:
        """Write proofs of this run into the query's checkpoint; None: nowhere."""
        self.proofs = replace(proofs, epoch=self.epoch) if proofs is not None else None

    def know_tables(self, tables: Tables, added: Mapping[str, Iterable[str]] = MappingProxyType({})) -> None:
        """The tables as they are after a change, which has `added` columns that rows had named, by table."""
        self.tables = tables
        for table, names in added.items():
            self.unknown_names[table] = self.unknown_names.get(table, frozenset()) - set(names)

    def is_due(self, reports: Sequence[LaneReport], *, again: bool) -> bool:
        """Whether rows of `reports` name columns that were not compared yet; any, if those before are due `again`."""
        named = (member for report in reports for member in report.work.members.items())
        return any(again or names or table not in self.compared for table, names in named)

    def learn_compared(self, names: Mapping[str, frozenset[str]], *, again: bool) -> None:
        """The `names` of rows were compared with their tables' columns, those of before `again`."""
        for table, column_names in names.items():
            earlier = self.compared.get(table, frozenset())
            self.vanished_names[table] = self.vanished_names.get(table, frozenset()) | (earlier - column_names)
            self.compared[table] = earlier | column_names
        if again:
            self.compared_at = time.monotonic()

    def columns_before(self, table: str) -> frozenset[str]:
        """The columns that a table had when rows of this run named them."""
        return self.compared.get(table, frozenset()) - self.unknown_names.get(table, frozenset())

    @property
    def ownership(self) -> JobOwnership | None:
        """The ownership for the lanes; None without a ledger."""
        if not self.token:
            return None
        return JobOwnership(self.token, self.positions, self.skips, self.canary, self.written)

    def check_owner(self, rng: random.Random) -> Steps[None]:
        """Check that this session still owns the job; raises Fenced, or QueryFailed for a late claim of its own."""
        mine = ledger.Owner(self.token, self.epoch, self.checkpoint, written=self.written)
        yield from ledger.check_owner(self.job, mine, rng)

    def lane_task(self, options: SinkOptions, batch_id: int, **terms: Any) -> LaneTask:
        """The task of a lane in micro-batch `batch_id`; `terms` are the fields that the session does not know."""
        compared = dict(self.compared) if options.query_url is not None else None
        settings = {"ownership": self.ownership, "compared": compared, "hold": self.hold}
        return LaneTask(options, self.job, self.epoch, self.checkpoint, batch_id, **{**settings, **terms})

    @property
    def labels(self) -> LabelPrefix:
        """The labels of this run of the driver, for a rollback of all that are open."""
        return LabelPrefix(self.job, self.epoch)

    def learn(self, receipts: Sequence[Receipt]) -> None:
        """Advance the positions by confirmed receipts, without a query to the ledger."""
        for receipt in receipts:
            self.learn_receipt(receipt)

    def learn_receipt(self, receipt: Receipt) -> None:
        """Advance the positions by a confirmed receipt."""
        for span in receipt.positions:
            self.positions[span.partition] = ledger.Position(
                span.partition, span.last, self.checkpoint, receipt.batch_id, receipt.label, 0, span.digest
            )

    def bound_now(self, options: SinkOptions) -> Bound | None:
        """The bound that still holds; without one in the take-over nothing is asked."""
        if self.bound is not None:
            now = run_once(options, bounds.read(self.job, random.Random()), options.batch_deadline)
            self.bound = now if now is not None and now.token == self.bound.token else None
        return self.bound

    def stand(self, options: SinkOptions, bound: Bound, how: str) -> JobHeld:
        """All in front of the bound is visible: say so in the ledger; the error with which the try ends."""
        run_once(options, bounds.reach(self.job, bound, how, random.Random()), options.batch_deadline)
        self.stands = bound.token
        return JobHeld(
            f"The job is held at the position {bound.text} of its source, for at most {bound.seconds} s, by a command "
            "that compares its tables."
        )

    def proof(self, batch: int) -> Proof:
        """The proof of this session after micro-batch `batch`, for the query's next start."""
        positions = {name: position.position for name, position in self.positions.items()}
        return Proof(self.job, batch, positions, dict(self.skips), self.accepted)

    def learn_keys(self, reports: Sequence[LaneReport]) -> None:
        """Remember whether the lanes of the next micro-batch hold rows back until all keys are known."""
        self.hold = any(report.work.keys_repeated for report in reports)

    def learn_listed(self, reports: Sequence[LaneReport]) -> bool:
        """Learn whether a take-over would find this run's labels; True if a lane has just found that it would not."""
        listed = [answer for report in reports if (answer := report.trouble.listed) is not None]
        self.canary = self.canary and not listed
        return False in listed

    def learn_skips(self, reports: Sequence[LaneReport], *, keep: bool) -> dict[str, int]:
        """With `keep`, remember the skips of replayed rows for the next micro-batch of a streaming query.

        Returns the ledger's position by source partition for the skips that have just begun and are not over yet.
        """
        skips = {partition: skip for report in reports for partition, skip in report.work.skips.items()}
        new_skips = {name: skip.position for name, skip in skips.items() if name not in self.skips and not skip.met}
        if keep:
            self.skips.update(skips)
        return new_skips


def few_positions(positions: Mapping[str, int]) -> str:
    """The first five source partitions and their positions, as a text: logs take no mapping, which may hold rows."""
    return ", ".join(f"{name}: {position}" for name, position in nsmallest(5, positions.items()))


@dataclass(frozen=True, slots=True)
class Resumption:
    """The start of a streaming query at micro-batch `batch`, and the proofs in its checkpoint."""

    batch: int
    proofs: Sequence[Proof] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    """A job after the take-over, with the skips and acceptances from the checkpoint.

    `other` is the job that wrote with the checkpoint, if this job has no positions.
    """

    take_over: fencing.TakenOver
    skips: Mapping[str, Skip] = field(default_factory=dict)
    accepted: Sequence[str] = ()
    other: str = ""


FROM_THE_BEGINNING: Final = Resumption(0)
_log = get_logger("sink")
_CHANGED: Final = (
    "Set job='{}' again, or move that job with `starrocks-txn-sink ledger rename`. Otherwise rows may be written "
    "twice, because nothing compares positions of two jobs."
)
UNLISTED: Final = (
    "A take-over would not find this run's labels in information_schema.loads, so it could not end a writer that "
    "sleeps: rows could come twice. Let the loading user see its own loads."
)


def resume(
    resumption: Resumption, job: str, checkpoint: str, take_over: Steps[fencing.TakenOver], rng: random.Random
) -> Steps[Resumed]:
    """Take the job over, unless the ledger is behind the checkpoint.

    This looks for rows of the job before the take-over, because the take-over writes one. It compares positions after
    the take-over, because before its barrier they may be old. Raises LedgerBehind, and the errors of `take_over`.
    """
    if resumption.batch == 0:  # a new query has no checkpoint to compare
        return Resumed((yield from take_over))
    traces: ledger.Traces = yield from ledger.retry_until_answered(ledger.ReadTraces(job, checkpoint), rng)
    if not traces.known:
        take_over.close()
        raise _lost(job, resumption.batch)
    state = yield from take_over
    proofs = [proof for proof in resumption.proofs if proof.job == job and traces.acceptance in ("", *proof.accepted)]
    for proof in reversed(proofs):
        _refuse_behind(proof, state.positions)
    earlier = [proof for proof in proofs if proof.batch == resumption.batch - 1]
    accepted = {traces.acceptance, *(acceptance for proof in proofs for acceptance in proof.accepted)} - {""}
    jobs = {proof.job for proof in resumption.proofs if proof.positions} if not state.positions else set[str]()
    return Resumed(state, earlier[-1].skips if earlier else {}, sorted(accepted), max(jobs - {job}, default=""))


def _refuse_behind(proof: Proof, positions: Mapping[str, ledger.Position]) -> None:
    for partition, proven_position in proof.positions.items():
        position = positions.get(partition)
        if position is not None and position.position >= proven_position:
            continue
        ledger_text = f"has position {position.position}" if position is not None else "has no position"
        raise LedgerBehind(
            f"The ledger {ledger_text} of source partition {partition}, "
            f"but position {proven_position} was visible after micro-batch "
            f"{proof.batch} of job {proof.job}: StarRocks was restored from an older backup, or rows of the ledger "
            "were deleted. Rows between the two places are missing, or would be written twice.",
            hint=_TWO_WAYS,
        )


def _lost(job: str, batch: int) -> LedgerBehind:
    return LedgerBehind(
        f"The query goes on with micro-batch {batch}, but the ledger has no row of job {job}, nor of the query's "
        "checkpoint: the ledger was dropped or emptied, StarRocks was restored from an older backup, or so far the "
        "query wrote without a ledger (at-least-once, or another sink).",
        hint=_TWO_WAYS,
    )


def job_of_frame(options: SinkOptions, *, positioned: bool) -> str:
    """The job that writes a batch frame: the option `job`, or `write`.

    Raises OptionError for `positioned` rows without the option: the sink leaves out rows below the job's positions in
    the ledger, and under a shared name another application may have written those.
    """
    if options.job is None and positioned and options.exactly_once:
        raise OptionError(
            "`job` is not set, and the frame's rows have positions: every frame without a `job` would share the same "
            "positions, so rows that another application has not written would be left out as written.",
            hint="Set `job` to a name of these source partitions, the same for each frame of theirs, that no other "
            "application uses.",
            option="job",
        )
    return options.job or "write"


def seconds_of_try(options: SinkOptions, deadline: Deadline) -> float:
    """The time limit of one try at a micro-batch: the rest of `deadline`, but at least the time of two replies.

    The two replies are the reply to the commit and the reply about the label's state. A shorter try would mostly end
    between them, with an unknown outcome.
    """
    return min(options.batch_deadline, max(deadline.remaining(), 2 * options.read_timeout))


def open_session(
    options: SinkOptions,
    key: str,
    job: str,
    checkpoint: str,
    clock: Clock | None = None,
    typed_tables: Sequence[str] = (),
    resumption: Resumption = FROM_THE_BEGINNING,
    seconds: float | None = None,
    tokens: set[str] | None = None,
    stood: str = "",
) -> Session:
    """Check the server, read the columns of `typed_tables` and, for exactly-once, create the ledger and take over.

    `resumption` is the place where a streaming query goes on. The call takes at most `seconds`, or `batch_deadline`.
    `tokens` are for further tries at one write: the job is not taken from an owner with another token
    (`fencing.refuse_successor`), and the call adds those that it writes. It waits for the end of the bound with the
    token `stood`, at which the job stands.

    Raises LedgerBehind when the ledger knows less than the query's checkpoint, Fenced when a newer run took over
    meanwhile, OptionError for a server that is too old, QueryRefused without the privileges, DeadlineExceeded when the
    server does not answer, PartitionClosed for a table of routes or options that can take no row.
    """
    clock = clock or SystemClock()
    session = Session(key, job, new_epoch(), checkpoint)
    if options.query_url is None:
        return session
    deadline = Deadline.after(options.batch_deadline if seconds is None else seconds, clock)
    connection = LeaderConnection(options)
    with contextlib.closing(connection):
        session.tables = Tables.read(connection, options, typed_tables, deadline)
        check_partitions(connection, options.database, {*typed_tables, *options.tables}, job, deadline)
        if options.receipts_log:
            _open_log(options, job, connection, deadline)
        if options.quarantines and options.ledger_create:
            with advising(_BY_HAND.format("dead-letter", "dead-letters.md")):
                ddl = partial(dead_letters.create_table, options.database)
                connection.create_table(ddl, options.ledger_replication, deadline)
        if options.exactly_once:
            _take_over(session, options, connection, deadline, resumption, tokens, stood)
    return session


def _take_over(
    session: Session,
    options: SinkOptions,
    connection: LeaderConnection,
    deadline: Deadline,
    resumption: Resumption,
    tokens: set[str] | None,
    stood: str,
) -> None:
    sql_ledger = SqlLedger(connection, options.database)
    if options.ledger_create:
        with advising(_BY_HAND.format("ledger's", "exactly-once.md")):
            sql_ledger.create(options.ledger_replication, deadline)
    rng = random.Random()
    mine = ledger.Owner("", session.epoch, session.checkpoint, written=frozenset(tokens or ()))
    scope = fencing.Scope(session.job, options.database, mine)
    new_token = ledger.fresh_tokens(session.epoch, 0, rng)
    steps = fencing.take_over(scope, new_token if tokens is None else _collecting(new_token, tokens), rng)
    resuming = resume(resumption, session.job, session.checkpoint, steps, rng)
    with contextlib.closing(HttpTransport(options)) as transport:

        def carry_out(steps: Steps[Result]) -> Result:
            return run(steps, transport, deadline.clock, deadline, sql_ledger)

        with contextlib.nullcontext() if options.ledger_create else advising(_CREATE_IS_OFF):
            if stood:
                carry_out(bounds.await_end(session.job, stood, rng))
            if tokens is not None:
                carry_out(fencing.refuse_successor(session.job, tokens, rng))
            resumed = carry_out(resuming)
            bound = carry_out(bounds.read(session.job, rng))
        session.bound = bound if bound is not None and bound.token != stood else None
        state, session.accepted = resumed.take_over, resumed.accepted
        session.token, session.positions = state.owner.token, state.positions
        session.written = state.owner.written
        session.skips = dict(resumed.skips)
        if resumed.other:
            _log.warning("job.changed", job=session.job, other=resumed.other, advice=_CHANGED.format(resumed.other))


def _collecting(new_token: ledger.NewToken, tokens: set[str]) -> ledger.NewToken:
    """A maker of tokens that adds each to `tokens`."""

    def collect() -> str:
        token = new_token()
        tokens.add(token)
        return token

    return collect


def _open_log(options: SinkOptions, job: str, connection: LeaderConnection, deadline: Deadline) -> None:
    """Create the receipts' log if needed, and delete receipts older than `receipts_log_days`."""
    oldest = time.gmtime(deadline.clock.wall() - options.receipts_log_days * 86_400)
    forget = ledger.delete_older_receipts(options.database, job, time.strftime("%Y-%m-%d %H:%M:%S", oldest))
    with advising("Grant CREATE TABLE on the database, or set receipts_log=False."):
        ddl = partial(ledger.create_log_table, options.database)
        connection.create_table(ddl, options.ledger_replication, deadline)
    with contextlib.suppress(QueryRefused):  # without the DELETE privilege the log only grows
        connection.query(*forget, deadline)


@contextlib.contextmanager
def advising(advice: str) -> Iterator[None]:
    """Set the `advice` of a QueryRefused from the block, unless login, database or the number of backends is wrong."""
    try:
        yield
    except QueryRefused as refused:
        if "backends" not in refused.context and refused.context.get("number") not in LOGIN_OR_DATABASE:
            advise(refused, advice)
        raise


def clean_up(options: SinkOptions, session: Session, callback: Callable[[], object]) -> None:
    """Roll back a failed session's open labels, within seconds; never raises.

    Rolls back once now, and again in the background when Spark has surely ended the session's tasks; then `callback`.
    The next take-over would also roll back, but until then the labels count against the server's limit of running
    transactions. Without `query_url` the sink cannot list labels, and the server ends them at their timeout.
    """
    if options.query_url is None:
        callback()
        return
    _roll_back_open(options, session.labels, _CLEAN_UP_SECONDS)

    def roll_back_later() -> None:
        for seconds in _LATER:
            SystemClock().sleep(seconds)
            _roll_back_open(options, session.labels, _CLEAN_UP_SECONDS)
        callback()

    threading.Thread(target=roll_back_later, name="starrocks-clean-up", daemon=True).start()


def run_once(options: SinkOptions, steps: Steps[Result], seconds: float) -> Result:
    """Run `steps` within `seconds`, over connections of their own."""
    clock = SystemClock()
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(LeaderConnection(options)))
        transport = stack.enter_context(contextlib.closing(HttpTransport(options)))
        deadline = Deadline.after(seconds, clock)
        return run(steps, transport, clock, deadline, SqlLedger(connection, options.database))


def roll_back_until(options: SinkOptions, labels: LabelPrefix, seconds: float) -> None:
    """Roll back open labels repeatedly for `seconds`, because tasks may begin labels until Spark has ended them.

    Never raises.
    """
    limit = time.monotonic() + seconds
    while options.query_url is not None and (remaining := limit - time.monotonic()) > 0:
        _roll_back_open(options, labels, remaining)
        SystemClock().sleep(max(0.0, min(_PAUSE, limit - time.monotonic())))


def _roll_back_open(options: SinkOptions, labels: LabelPrefix, seconds: float) -> None:
    with contextlib.suppress(StarRocksSinkError, OSError):
        run_once(options, fencing.roll_back_unfinished(options.database, labels, random.Random()), seconds)


def new_epoch() -> str:
    """A unique name of a driver's run: microseconds since 1970 in hexadecimal and random bits."""
    return f"{microseconds():x}{secrets.token_hex(3)}"
