"""The driver's session: one run of a query that has taken its job over (docs/inside/exactly-once.md, "How it works").

A session begins with the take-over and ends with the first error: the next micro-batch, if there is one, takes over
again. In between the known positions grow with the receipts, so the ledger is not read again.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock, microseconds
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import OptionError, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import require_supported
from starrocks_txn_sink.protocol import dead_letters, fencing, receipts_log
from starrocks_txn_sink.protocol.label import Label, LabelPrefix, Result, Steps, run
from starrocks_txn_sink.protocol.ledger import ListUnfinished, Owner, Position, identifier
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink.continuity import FROM_THE_BEGINNING, Proof, Resumption, resume
from starrocks_txn_sink.sink.typed.target import (
    COLUMNS_SQL,
    NOT_NULL_SQL,
    TargetColumn,
    may_count,
    target_columns,
    with_counters,
)
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.sql.port import LOGIN_OR_DATABASE
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import LaneReport
from starrocks_txn_sink.writer.task import JobOwnership

_CLEAN_UP_SECONDS = 5.0
_COMPARE_SECONDS = 5.0
_SHOWN_NAMES, _SHOWN_LETTERS = 5, 32  # a line of the log has at most 200 letters a field
UNLISTED = (
    "A take-over would not find this run's labels in information_schema.loads, so it could not end a writer that "
    "sleeps: rows could come twice. Let the loading user see its own loads."
)
_UNKNOWN = (
    "The server drops these values without a word. Correct the names in the rows (case counts), or add the columns to "
    "the table."
)
_PAUSE = 0.5  # between two roll-backs of labels that ending tasks still begin
# Spark ends the other tasks of a failed job only after up to 4 s, and they may begin labels until then.
_LATER = (2.5, 3.5)
_BY_HAND = (
    "Grant CREATE TABLE on the database, set ledger_replication to at most the number of backends, or create the {} "
    "table by hand (docs/guides/{} has its DDL) and set ledger_create=False."
)
_CREATE_IS_OFF = (
    "ledger_create is off: create the ledger's table by hand (docs/guides/exactly-once.md has its DDL), and grant "
    "SELECT and INSERT on it."
)


@dataclass(slots=True)
class Session:
    """The driver's knowledge between two micro-batches. `key` identifies a run of a query.

    The positions are read once, at the take-over, and then grow with confirmed receipts: a StarRocks transaction costs
    one owner check and one state query. `columns` has the columns of the tables that typed routes write; None without
    `query_url`. `required` has the NOT NULL columns of PRIMARY KEY tables, those of the key among them.
    """

    key: str
    job: str
    epoch: str
    checkpoint: str
    models: dict[str, str]
    token: str = ""
    positions: dict[str, Position] = field(default_factory=dict)
    columns: dict[str, tuple[TargetColumn, ...]] | None = None
    required: dict[str, tuple[TargetColumn, ...]] = field(default_factory=dict)
    hold: bool = False  # keys came again and again in the last micro-batch (`rows.body`)
    skips: dict[str, Skip] = field(default_factory=dict)  # of rows that the ledger has, over micro-batches
    accepted: Sequence[str] = ()  # acceptances of the ledger as it is
    canary: bool = True  # no lane has asked yet whether a take-over would find its label
    compared: frozenset[str] = frozenset()  # tables whose columns were compared with the names in rows

    @property
    def ownership(self) -> JobOwnership | None:
        """The ownership for the lanes; None without a ledger."""
        return JobOwnership(self.token, self.positions, self.skips, self.canary) if self.token else None

    @property
    def labels(self) -> LabelPrefix:
        """The labels of this run."""
        return LabelPrefix(self.job, self.epoch)

    def learn(self, receipts: Sequence[Receipt]) -> None:
        """Advance the positions by confirmed receipts, without a query to the ledger."""
        for receipt in receipts:
            for span in receipt.positions:
                self.positions[span.partition] = Position(
                    span.partition, span.last, self.checkpoint, receipt.batch_id, receipt.label, 0, span.digest
                )

    def proof(self, batch: int) -> Proof:
        """The knowledge of this session after micro-batch `batch`, for the query's next start."""
        positions = {name: known.position for name, known in self.positions.items()}
        return Proof(self.job, batch, positions, dict(self.skips), self.accepted)

    def learn_keys(self, reports: Sequence[LaneReport]) -> None:
        """Remember whether the next micro-batch's rows had better be held back until their keys are known."""
        self.hold = any(report.keys_repeated for report in reports)

    def learn_listed(self, reports: Sequence[LaneReport]) -> bool:
        """Learn whether a take-over would find this run's labels; True for the news that it would not."""
        listed = [report.listed for report in reports if report.listed is not None]
        self.canary = self.canary and not listed
        return False in listed

    def learn_compared(self, named: Iterable[str]) -> None:
        """Remember that the names in rows of these tables need no more comparison."""
        self.compared |= frozenset(named)

    def learn_skips(self, reports: Sequence[LaneReport]) -> dict[str, int]:
        """Remember the skips of replayed rows for the next micro-batch of a streaming query.

        Returns those that have just begun and go on: the ledger's position by source partition.
        """
        found = {partition: skip for report in reports for partition, skip in report.skips.items()}
        begun = {name: skip.position for name, skip in found.items() if name not in self.skips and not skip.met}
        self.skips.update(found)
        return begun


def job_of_frame(options: SinkOptions, *, positioned: bool) -> str:
    """The job that writes a frame: `write` unless the user names another.

    Raises OptionError for `positioned` rows without a name: with the ledger, positions below those that any application
    has written under the job are left out.
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


def open_session(
    options: SinkOptions,
    key: str,
    job: str,
    checkpoint: str,
    clock: Clock | None = None,
    typed_tables: Sequence[str] = (),
    run_epoch: str | None = None,
    resumption: Resumption = FROM_THE_BEGINNING,
) -> Session:
    """Check the server, read the columns of `typed_tables` and, for exactly-once, create the ledger and take over.

    With `run_epoch` the session is one write of a run without a lasting process (the data source): such a run is as old
    as its epoch, and never takes the job from a run that began later. `resumption` is the place where a streaming query
    goes on.

    Raises LedgerBehind when the ledger knows less than the query's checkpoint, Fenced when a newer run took over
    meanwhile, OptionError for a server that is too old, QueryRefused without the privileges, DeadlineExceeded when the
    server does not answer.
    """
    clock = clock or SystemClock()
    session = Session(key, job, new_epoch(run_epoch), checkpoint, {})
    if not options.query_addresses:
        return session
    deadline = Deadline.after(options.batch_deadline, clock)
    connection = LeaderConnection(options)
    with contextlib.closing(connection):
        session.models = table_models(connection, options, deadline)
        session.columns = table_columns(connection, options.database, typed_tables, deadline)
        session.required = required_columns(connection, options.database, session.models, deadline)
        if options.receipts_log:
            _open_log(options, job, connection, clock, deadline)
        if options.quarantines and options.ledger_create:
            with advising(_BY_HAND.format("dead-letter", "dead-letters.md")):
                ddl = partial(dead_letters.create_table, options.database)
                connection.create_table(ddl, options.ledger_replication, deadline)
        if options.exactly_once:
            ledger = SqlLedger(connection, options.database)
            _take_over(options, session, ledger, clock, deadline, run_epoch, resumption)
    return session


def _take_over(
    options: SinkOptions,
    session: Session,
    ledger: SqlLedger,
    clock: Clock,
    deadline: Deadline,
    run_epoch: str | None,
    resumption: Resumption,
) -> None:
    if options.ledger_create:
        with advising(_BY_HAND.format("ledger's", "exactly-once.md")):
            ledger.create(options.ledger_replication, deadline)
    rng = random.Random()
    scope = fencing.Scope(session.job, options.database, Owner("", session.epoch, session.checkpoint))
    steps = fencing.take_over(scope, fencing.fresh_tokens(session.epoch, 0, rng), rng)
    resuming = resume(resumption, session.job, session.checkpoint, steps, rng)
    with contextlib.closing(HttpTransport(options)) as transport:
        with contextlib.nullcontext() if options.ledger_create else advising(_CREATE_IS_OFF):
            if run_epoch is not None:
                run(fencing.refuse_newer(session.job, run_epoch, rng), transport, clock, deadline, ledger)
            resumed = run(resuming, transport, clock, deadline, ledger)
        taken, session.accepted = resumed.taken, resumed.accepted
        session.token, session.positions = taken.owner.token, taken.positions
        session.skips = dict(resumed.skips)
        with contextlib.suppress(StarRocksSinkError):  # without the DELETE privilege they stay, which is harmless
            dead = fencing.delete_dead_claims(session.job, taken.owner, rng)
            run(dead, transport, clock, deadline.earlier(_CLEAN_UP_SECONDS), ledger)


@contextlib.contextmanager
def advising(advice: str) -> Iterator[None]:
    """Give a QueryRefused from inside this advice, unless the login, the database or the number of backends is at
    fault, and no privilege."""
    try:
        yield
    except QueryRefused as refused:
        if "backends" not in refused.context and refused.context.get("number") not in LOGIN_OR_DATABASE:
            refused.advice = advice
        raise


def _open_log(options: SinkOptions, job: str, connection: LeaderConnection, clock: Clock, deadline: Deadline) -> None:
    """Create the receipts' log if needed, and delete receipts older than `receipts_log_days`."""
    oldest = time.gmtime(clock.wall() - options.receipts_log_days * 86_400)
    forget = receipts_log.delete_older(options.database, job, time.strftime("%Y-%m-%d %H:%M:%S", oldest))
    with advising("Grant CREATE TABLE on the database, or set receipts_log=False."):
        ddl = partial(receipts_log.create_table, options.database)
        connection.create_table(ddl, options.ledger_replication, deadline)
    with contextlib.suppress(QueryRefused):  # without the DELETE privilege the log only grows
        connection.query(*forget, deadline)


def clean_up(options: SinkOptions, session: Session, done: Callable[[], object]) -> None:
    """Roll back a failed session's open labels, within seconds; never raises.

    Rolls back once now, and again in the background when Spark has surely ended the session's tasks; then calls `done`.
    The next take-over would do the same; until then the labels count against the server's limit of running
    transactions. Without `query_url` they cannot be listed, and end at their timeout.
    """
    if not options.query_addresses:
        done()
        return
    _roll_back_open(options, session.labels, _CLEAN_UP_SECONDS)

    def roll_back_later() -> None:
        for seconds in _LATER:
            SystemClock().sleep(seconds)
            _roll_back_open(options, session.labels, _CLEAN_UP_SECONDS)
        done()

    threading.Thread(target=roll_back_later, name="starrocks-clean-up", daemon=True).start()


def roll_back_until(options: SinkOptions, labels: LabelPrefix, seconds: float) -> None:
    """Roll back open labels for `seconds`, again and again: tasks still begin labels while Spark ends them.

    Never raises.
    """
    limit = time.monotonic() + seconds
    while options.query_addresses and (left := limit - time.monotonic()) > 0:
        _roll_back_open(options, labels, left)
        SystemClock().sleep(max(0.0, min(_PAUSE, limit - time.monotonic())))


def _roll_back_open(options: SinkOptions, labels: LabelPrefix, seconds: float) -> None:
    with contextlib.suppress(StarRocksSinkError, OSError):
        run_once(options, _roll_back_all(labels, options.database), seconds)


def run_once(options: SinkOptions, steps: Steps[Result], seconds: float) -> Result:
    """Run `steps` within `seconds`, over connections of their own."""
    clock = SystemClock()
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(LeaderConnection(options)))
        transport = stack.enter_context(contextlib.closing(HttpTransport(options)))
        deadline = Deadline.after(seconds, clock)
        return run(steps, transport, clock, deadline, SqlLedger(connection, options.database))


def _roll_back_all(prefix: LabelPrefix, database: str) -> Steps[None]:
    rng = random.Random()
    for name in (yield from fencing.retry_until_answered(ListUnfinished(prefix), rng)):
        yield from fencing.roll_back_until_confirmed(Label(database, name), rng)


def new_epoch(run_epoch: str | None = None) -> str:
    """A unique name of a driver's run: microseconds since 1970 in hexadecimal and random bits.

    With `run_epoch` it names one write of that run. Runs compare by their start (`refuse_newer`), so two frames that a
    driver makes within one second must differ: hence microseconds.
    """
    if run_epoch is not None:
        return f"{run_epoch}_{secrets.token_hex(4)}"
    return f"{microseconds():x}{secrets.token_hex(3)}"


def compare_columns(options: SinkOptions, reports: Sequence[LaneReport]) -> list[Event] | None:
    """Compare the names in the first JSON rows of tables with the tables' columns; None if the server does not answer.

    `columns.unknown` is the event of a table that lacks a column which rows name: the server drops such a value
    without a word (wire contract 5.4). `columns.unnamed` has the columns that those rows leave NULL, and no more than
    that is wrong. The server compares names with their case. Without `query_url` there is nothing to compare.
    """
    found: dict[str, set[str]] = {}
    for report in reports:
        for table, names in report.members.items():
            found.setdefault(table, set()).update(names)
    if not found or not options.query_addresses:
        return []
    deadline = Deadline.after(_COMPARE_SECONDS, SystemClock())
    try:
        with contextlib.closing(LeaderConnection(options)) as connection:
            tables = table_columns(connection, options.database, sorted(found), deadline)
    except StarRocksSinkError:
        return None
    events = (_unmatched(table, found[table], columns) for table, columns in sorted(tables.items()))
    return [event for event in events if event is not None]


def _unmatched(table: str, names: Set[str], columns: Sequence[TargetColumn]) -> Event | None:
    unknown = sorted(names - {column.name for column in columns})
    # A default is left out: a missing key is NULL there too, but an AUTO_INCREMENT looks the same.
    unnamed = [
        column.name
        for column in columns
        if column.name not in names and not (column.key or column.generated or column.defaulted)
    ]
    fields = {"table": table, "count": len(unknown), "unknown": _list(unknown), "unnamed": _list(unnamed) or None}
    if unknown:
        return Event("columns.unknown", {**fields, "advice": _UNKNOWN})
    return Event("columns.unnamed", {"table": table, "unnamed": _list(unnamed)}) if unnamed else None


def _list(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(name[:_SHOWN_LETTERS] for name in names[:_SHOWN_NAMES])
    return f"{shown}, and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else shown


_PRIMARY_KEYS = "PRIMARY_KEYS"
"""Table model that supports deletes, as information_schema.tables_config names it."""


def keyless(models: Mapping[str, str]) -> tuple[str, ...]:
    """Tables without deletes; `models` maps tables to their models."""
    return tuple(sorted(name for name, model in models.items() if model != _PRIMARY_KEYS))


def table_models(connection: LeaderConnection, options: SinkOptions, deadline: Deadline) -> dict[str, str]:
    """Check the server's version and return the database's tables with their models (PRIMARY_KEYS, DUP_KEYS, …).

    Raises OptionError for a server that is too old, QueryFailed or QueryRefused when the query fails.
    """
    version = str(connection.query("SELECT current_version()", (), deadline)[0][0])
    require_supported(version, unreleased=options.allow_unreleased_server)
    rows = connection.query(
        "SELECT TABLE_NAME, TABLE_MODEL FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s",
        (options.database,),
        deadline,
    )
    return {str(name): str(model) for name, model in rows}


def table_columns(
    connection: LeaderConnection, database: str, tables: Iterable[str], deadline: Deadline
) -> dict[str, tuple[TargetColumn, ...]]:
    """The columns of `tables`, by table in their order; a missing table is left out.

    Raises QueryFailed or QueryRefused when the query fails.
    """
    names = tuple(tables)
    if not names:
        return {}
    sql = COLUMNS_SQL.format(", ".join(["%s"] * len(names)))
    found = target_columns(connection.query(sql, (database, *names), deadline))
    for table, columns in found.items():
        if may_count(columns):
            with contextlib.suppress(QueryRefused):  # then it counts as a column that a row must have
                ddl = connection.query(f"SHOW CREATE TABLE {identifier(database, table)}", (), deadline)
                found[table] = with_counters(columns, str(ddl[0][1]) if ddl else "")
    return found


def required_columns(
    connection: LeaderConnection, database: str, models: Mapping[str, str], deadline: Deadline
) -> dict[str, tuple[TargetColumn, ...]]:
    """The NOT NULL columns of the PRIMARY KEY tables among `models`, those of the keys among them; by table.

    Raises QueryFailed or QueryRefused when the query fails.
    """
    if _PRIMARY_KEYS not in models.values():
        return {}
    found = target_columns(connection.query(NOT_NULL_SQL, (database,), deadline))
    return {
        table: tuple(column for column in columns if not column.nullable and not column.generated)
        for table, columns in found.items()
        if models.get(table) == _PRIMARY_KEYS
    }
