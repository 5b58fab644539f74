"""The stage of a rehearsal: scratch tables, labels and requests, over the sink's own transport and SQL.

The tables are in a database without a ledger, so a rehearsal cannot touch rows of a job. At the end, also after an
error or Ctrl-C, the stage rolls back every open label and drops every table.
"""

import contextlib
import json
import random
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starrocks_txn_ops.rehearsal.recording import Recorder
from starrocks_txn_sink.clock import Deadline, SystemClock, microseconds
from starrocks_txn_sink.errors import OptionError, QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.label import Label, Steps, labels
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, identifier
from starrocks_txn_sink.protocol.wire import Body, LabelState, Operation, Reply, Request, Status
from starrocks_txn_sink.sql.audit import Auditor
from starrocks_txn_sink.sql.connection import LeaderConnection, Row, SqlConnection, SqlLedger

T = TypeVar("T")

PREFIX = "rehearsal"
"""Prefix of the names of jobs and scratch tables."""

STEP_SECONDS = 60.0
"""Limit of one request, and of the wait for a commit to be visible."""

UNREGISTERED_SECONDS = 5.0
"""Limit of the wait for a committed label that is neither COMMITTED nor VISIBLE (generation B, wire contract 3.2)."""


_LIFETIME = 600  # seconds; then the server ends the open transaction of a killed rehearsal
_FRONTEND_BUSY = 0.02
_COLUMNS = {
    "upserts": (
        "id BIGINT NOT NULL, note VARCHAR(32), n INT, kind VARCHAR(8) DEFAULT 'set', big VARCHAR(1048576)",
        "PRIMARY KEY (id)",
    ),
    "events": ("id BIGINT NOT NULL, note VARCHAR(32)", "DUPLICATE KEY (id)"),
    "others": ("id BIGINT NOT NULL, note VARCHAR(32)", "DUPLICATE KEY (id)"),
    "filled": ("id BIGINT NOT NULL, n INT NOT NULL DEFAULT '7'", "PRIMARY KEY (id)"),
}
"""Scratch tables: the columns, and the key."""


TORN_SECONDS, SLOW_SECONDS, MEGABYTES = 60.0, 310.0, 16.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Duration of the torn-read part, whether a transaction is kept open for `slow_seconds`, data of the speed part,
    and whether the server's answers are recorded.

    `jobs` are to run at once, and write as many `tables` each; 0: those of the largest database."""

    seconds: float = TORN_SECONDS
    slow: bool = False
    slow_seconds: float = SLOW_SECONDS
    megabytes: float = MEGABYTES
    record: bool = False
    tables: int = 0
    jobs: int = 1
    settle_seconds: float = 5.0  # until loads of a visible label are FINISHED
    enough_samples: int = 20  # fewer do not show that nothing is torn
    longer_seconds: float = 30.0  # that a slow server gets for these samples, beyond `seconds`


class Stage:
    """Requests of a rehearsal. Its methods raise StarRocksSinkError; `send` is thread-safe, SQL is not."""

    def __init__(self, options: SinkOptions, terms: Terms, tell: Callable[[str], None] = lambda _: None) -> None:
        self.options = replace(options, properties={}, tables={}, timeout=max(options.timeout, _LIFETIME))
        self.wanted = options
        self.terms = terms
        self.tell = tell
        self.database = options.database
        self.clock = SystemClock()
        self.rng = random.Random()
        self.version = ""
        self.generation = ""
        run = secrets.token_hex(4)
        self.job = f"{PREFIX}_{run}"  # its underscore has to be escaped in the take-over's LIKE
        self.epoch = f"{microseconds():x}{run[:6]}"
        self._labels = labels(self.job, self.epoch, 0, 0, 0)
        self._open: set[str] = set()
        self.committed: Label | None = None
        self.locked_reader: tuple[Auditor, int] | None = None
        self.left: list[str] = []
        self.properties = ""  # of a new table's DDL
        self._made: list[str] = []
        self._made_database = False
        self.recorder = Recorder(self.options, self.job) if terms.record else None
        self.transport = HttpTransport(self.options, witness=self.recorder.exchange if self.recorder else None)
        self.leader = LeaderConnection(self.options)
        self.ledger = SqlLedger(self.leader, options.database)
        self._sql: SqlConnection | None = None
        self._guard = threading.Lock()

    # --- SQL ---

    def rows(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """Run a statement on the first query port that answers, whose frontend passes it on to the leader."""
        if self._sql is None:
            self._sql = SqlConnection.connect_any(self.options)
        try:
            rows = self._sql.rows(statement, parameters)
        except (QueryFailed, QueryRefused) as error:
            if self.recorder is not None:
                self.recorder.refusal(statement, parameters, error.message)
            if isinstance(error, QueryFailed):
                self._close_sql()
            raise
        if self.recorder is not None:
            self.recorder.answer(statement, parameters, rows)
        return rows

    def rows_if_allowed(self, statement: str) -> list[Row]:
        """The rows of a statement; none without the privilege for it."""
        with contextlib.suppress(QueryRefused):
            return self.rows(statement)
        return []

    def _close_sql(self) -> None:
        connection, self._sql = self._sql, None
        if connection is not None:
            connection.close()

    def value(self, statement: str, parameters: tuple[object, ...] = ()) -> Any:
        """The first column of a statement's first row; None without a row."""
        return next((next(iter(row.values())) for row in self.rows(statement, parameters)), None)

    def table(self, name: str) -> str:
        """The name of a scratch table on the server."""
        return f"{self.job}_{name}"

    def full(self, name: str) -> str:
        """The quoted name of a scratch table with its database, for SQL."""
        return identifier(self.database, self.table(name))

    def content(self, name: str, column: str, key: int) -> Any:
        """The value of `column` in the row `key` of a scratch table; None without the row."""
        return self.value(f"SELECT {column} FROM {self.full(name)} WHERE id = %s", (key,))

    def count(self, name: str, first: int, last: int) -> int:
        """Rows of a scratch table with keys from `first` to `last`."""
        return int(self.value(f"SELECT count(*) FROM {self.full(name)} WHERE id BETWEEN %s AND %s", (first, last)))

    def loads(self, label: str) -> dict[str, Row]:
        """The rows of information_schema.loads for `label`, by table."""
        columns = "TABLE_NAME, STATE, FILTERED_ROWS, SINK_ROWS"
        statement = f"SELECT {columns} FROM information_schema.loads WHERE DB_NAME = %s AND LABEL = %s"
        return {str(row["table_name"]): row for row in self.rows(statement, (self.database, label))}

    # --- tables ---

    def prepare(self) -> None:
        """Make the database if there is none; raises OptionError for a database that has a ledger."""
        names = [str(row["schema_name"]) for row in self.rows("SELECT SCHEMA_NAME FROM information_schema.schemata")]
        if self.database not in names:
            self._create_database()
        elif LEDGER_TABLE in self._tables():
            raise OptionError(
                f"The database {self.database} has a ledger, so a job may write it; a rehearsal leaves it alone.",
                hint="Name another database, which need not exist. If the ledger is what a killed rehearsal left, run: "
                f"DROP TABLE {identifier(self.database, LEDGER_TABLE)} FORCE",
                option="database",
            )

    def _create_database(self) -> None:
        name, user = identifier(self.database), f"USER '{self.options.username}'"
        try:
            self.rows(f"CREATE DATABASE {name}")
        except QueryRefused as error:
            raise QueryRefused(
                f"The scratch database is not there and cannot be created: {error.message}.",
                hint=f"Let an administrator run: CREATE DATABASE {name}; "
                f"GRANT CREATE TABLE ON DATABASE {name} TO {user}; "
                f"GRANT SELECT, INSERT, UPDATE, DELETE, DROP ON ALL TABLES IN DATABASE {name} TO {user};",
            ) from None
        self._made_database = True

    def _tables(self) -> list[str]:
        tables = self.rows("SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s", (self.database,))
        return [str(row["table_name"]) for row in tables]

    def create_all(self, replication: int | None) -> None:
        """Create the scratch tables; `replication` None leaves the replicas to the server. Raises QueryRefused."""
        if replication:
            self.properties = f' PROPERTIES ("replication_num" = "{replication}")'
        for name, (columns, key) in _COLUMNS.items():
            self.drop_at_end(self.table(name))
            self.rows(
                f"CREATE TABLE {self.full(name)} ({columns}) {key} DISTRIBUTED BY HASH (id) BUCKETS 1{self.properties}"
            )

    def drop_at_end(self, table: str) -> None:
        """Let `clear` drop the table, whether it is created or not."""
        self._made.append(table)

    def drop_made(self) -> list[str]:
        """Drop the tables; returns the names of tables that could not be dropped."""
        self._made = [name for name in dict.fromkeys(self._made) if not self._drop(name)]
        return self._made

    # --- labels ---

    def new_label(self) -> Label:
        """A label that nobody has used. Thread-safe."""
        with self._guard:
            return Label(self.database, next(self._labels))

    def send(self, request: Request) -> Reply:
        """Send a request as the sink does; remembers labels that may be open."""
        if request.operation is Operation.BEGIN:
            self._open.add(request.label)
        return self.transport.send(request, self.deadline())

    def remember(self, label: Label) -> None:
        """Roll `label` back at the end; for a label that was begun without `send`."""
        self._open.add(label.name)

    def deadline(self, seconds: float = STEP_SECONDS) -> Deadline:
        """The deadline of a step that begins now, in seconds."""
        return Deadline.after(seconds, self.clock)

    def begin(self, **headers: str) -> Label:
        """Begin a new label; raises Surprise if the server refuses."""
        label = self.new_label()
        require(self.send(label.request(Operation.BEGIN, headers=self.options.begin_headers() | headers)), "begin")
        return label

    def load(self, label: Label, name: str, body: Body | Sequence[bytes], **headers: str) -> Reply:
        """Load `body` into a scratch table, with the sink's headers and `headers`."""
        table = self.table(name)
        merged = self.options.load_headers(table) | headers
        return self.send(label.request(Operation.LOAD, table=table, headers=merged, body=body))

    def must_load(self, label: Label, name: str, body: Body | Sequence[bytes], **headers: str) -> Reply:
        """A load that has to be OK."""
        return require(self.load(label, name, body, **headers), f"the load of {name}")

    def commit(self, label: Label) -> Reply:
        """Send the commit once; its OK is no proof, see `finish`."""
        return self.send(label.request(Operation.COMMIT))

    def finish(self, label: Label, loaded: Reply | None = None) -> Reply:
        """Commit unless `loaded` was refused, and wait until the label is VISIBLE; returns the last reply."""
        reply = self.commit(label) if loaded is None or loaded.status is Status.OK else loaded
        if reply.status is Status.OK:
            self.await_visible(label)
        return reply

    def roll_back(self, label: Label) -> Reply:
        """Send the rollback; after OK `clear` has nothing to do for the label."""
        reply = self.send(label.request(Operation.ROLLBACK))
        if reply.status is Status.OK:
            self._open.discard(label.name)
        return reply

    def run(self, steps: Steps[T]) -> T:
        """Run steps of the protocol as a driver does."""
        return protocol.run(steps, self.transport, self.clock, self.deadline(), self.ledger)

    def state(self, label: Label) -> LabelState | None:
        """The answer of get_load_state; None if it has no state (wire contract 6.1)."""
        return self.send(label.request(Operation.LOAD_STATE)).state

    def await_visible(self, label: Label) -> float:
        """Wait until the label is VISIBLE, and return the seconds; raises Surprise if it is not in time."""
        began, longest, soon = self.clock.monotonic(), self.deadline(), self.deadline(UNREGISTERED_SECONDS)
        while (state := self.state(label)) is not LabelState.VISIBLE:
            deadline = longest if state is LabelState.COMMITTED else soon
            if deadline.expired() or state is LabelState.ABORTED:
                raise Surprise(
                    f"a commit was answered OK, but its label is {state.value if state else 'without state'}"
                )
            self.clock.sleep(_FRONTEND_BUSY)
        self._open.discard(label.name)
        return self.clock.monotonic() - began

    def write(self, *loads: tuple[str, Body | Sequence[bytes]], **headers: str) -> None:
        """Load (table, body) pairs in one transaction, commit it and wait until it is VISIBLE."""
        label = self.begin()
        for name, body in loads:
            self.must_load(label, name, body, **headers)
        require(self.finish(label), "the commit")

    @contextlib.contextmanager
    def transaction(self, **headers: str) -> Iterator[Label]:
        """A label that is rolled back at the end unless it was committed."""
        label = self.begin(**headers)
        try:
            yield label
        finally:
            if label.name in self._open:
                with contextlib.suppress(StarRocksSinkError):
                    self.roll_back(label)

    # --- the end ---

    def clear(self) -> None:
        """Roll back open labels and drop the tables; `left` then names the tables that could not be dropped."""
        self._close_sql()  # an interruption may have left it in the middle of an answer
        for name in sorted(self._open):
            with contextlib.suppress(StarRocksSinkError):
                self.send(Label(self.database, name).request(Operation.ROLLBACK))
        self.left = self.drop_made()
        with contextlib.suppress(StarRocksSinkError):
            if self._made_database and not self._tables():
                self.rows(f"DROP DATABASE IF EXISTS {identifier(self.database)} FORCE")

    def _drop(self, name: str) -> bool:
        try:
            if name == LEDGER_TABLE and self._holds_other_jobs():
                return False
            self.rows(f"DROP TABLE IF EXISTS {identifier(self.database, name)} FORCE")
        except StarRocksSinkError:
            return False
        return True

    def _holds_other_jobs(self) -> bool:
        """Whether a job has begun to use the ledger meanwhile."""
        if LEDGER_TABLE not in self._tables():
            return False
        table = identifier(self.database, LEDGER_TABLE)
        return bool(int(self.value(f"SELECT count(*) FROM {table} WHERE job <> %s", (self.job,))))

    def close(self) -> None:
        """End the connections; `clear` needs them, and comes first."""
        self._close_sql()
        self.leader.close()
        self.transport.close()


class Surprise(Exception):
    """A step before the checked behaviour went wrong, so the check cannot observe it. The text names the step."""


def require(reply: Reply, step: str) -> Reply:
    """`reply` if it is OK; raises Surprise with the server's words."""
    if reply.status is not Status.OK:
        raise Surprise(f"{step} was answered {reply_text(reply)}")
    return reply


def reply_text(reply: Reply) -> str:
    """Status and start of the message of a reply."""
    return f"{reply.status.value}: {' '.join(reply.message.split())[:160]}" if reply.message else reply.status.value


def array(*rows: Mapping[str, object]) -> list[bytes]:
    """The body of a load: a JSON array, as the sink sends it."""
    return [json.dumps(rows).encode()]
