"""The ledger: its values, requests, DDL, the SQL of every request, and the check of an owner before a commit.

A `LedgerRequest` is to the ledger what a `Request` is to the transaction interface: the protocol yields it, and
`sql.connection` executes its SQL, or a model in tests.

The table has one row for each (job, kind, name). The key is a digest of the three, because StarRocks limits the length
of an encoded primary key to 128 bytes and names of source partitions may be long. The table has one tablet in one
partition, so that its versions become visible in the order of the commits: the barrier relies on that order
(docs/inside/exactly-once.md, "How it works").
"""

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import orjson

from starrocks_txn_sink.errors import Fenced, InputError, JobHeld, QueryFailed, StarRocksSinkError, TransportError
from starrocks_txn_sink.protocol.label import Backoff, LabelPrefix, LedgerRequest, Rows, Sql, Steps, Wait

LEDGER_TABLE = "_starrocks_txn_sink_ledger"
NAME_BYTES = 1024
"""Most bytes (UTF-8) of a source partition's name in the ledger."""


@dataclass(frozen=True, slots=True)
class Position:
    """The last visible source transaction of a source partition, and the label that it came with.

    `digest` fingerprints its contents, to detect a source that went back and has other contents at the same position.
    `checkpoint` is the streaming query's id.
    """

    partition: str
    position: int
    checkpoint: str
    batch: int
    label: str
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class Owner:
    """A writer of a job: its driver, or a replay of its dead letters (`kind`); `token` is new for every claim.

    `epoch` names the driver's run; HOLD is that of a hold (`protocol.hold`), whose `batch` are its seconds. `since` is
    the server's time of the claim, as text for error messages. `written` are the tokens of all claims of this writer:
    one without an answer may take effect after later ones.
    """

    token: str
    epoch: str
    checkpoint: str
    batch: int = -1
    since: str = ""
    kind: str = "driver"
    written: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @property
    def held_from(self) -> str | None:
        """The token of the owner that a hold has taken the job from; None for an owner that is no hold."""
        return self.checkpoint if self.epoch == HOLD else None

    @property
    def context(self) -> dict[str, str]:
        """The owner in the context of an error."""
        return {"epoch": self.epoch, "checkpoint": self.checkpoint, "since": self.since}


@dataclass(frozen=True, slots=True)
class Traces:
    """Whether the ledger knows a job or its checkpoint, and the token of the last acceptance, "" without one."""

    known: bool
    acceptance: str = ""


POSITION, DRIVER, REPLAY, MARKER = "position", "driver", "replay", "marker"
HOLD = "hold"
"""The run of an owner that holds a job for a while (`protocol.hold`), in labels and in the owner row."""
RELEASED = "released"
"""Name of a marker row: the hold whose token it has is over."""
ACCEPTED = "accepted"
"""Name of a marker row: the user accepts the job's rows as they are. Its token names the acceptance."""

COLUMNS = (
    ("id", "VARCHAR(32) NOT NULL"),
    ("job", "VARCHAR(64) NOT NULL"),
    ("kind", "VARCHAR(16) NOT NULL"),
    ("name", f"VARCHAR({NAME_BYTES}) NOT NULL"),
    ("position", "BIGINT"),
    ("token", "VARCHAR(128)"),
    ("epoch", "VARCHAR(64)"),
    ("checkpoint", "VARCHAR(128)"),
    ("batch", "BIGINT"),
    ("label", "VARCHAR(128)"),
    ("row_count", "BIGINT"),
    ("digest", "VARCHAR(64)"),
    ("updated_at", "DATETIME"),
)
_NO_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
# Sub-tasks in these states of information_schema.loads have ended (wire contract 6.5). A sub-task in COMMITED (sic) may
# still become visible; its rollback is harmless, because the server refuses it.
_ENDED = ("FINISHED", "CANCELLED")
_LABEL_COLUMN, _STATE_COLUMN = 0, 6  # of SHOW ALL STREAM LOAD
_LIST_SECONDS = 5.0
"""For a list of labels: it takes milliseconds, unless threads of a backend or the lock of a commit are waited for."""


def identifier(*names: str) -> str:
    """The names as one SQL identifier, in backticks and with dots between: the only way a name gets into a statement.

    Raises InputError for a control character, which no name needs and no log shows as it is.
    """
    for name in names:
        if not name or _NO_NAME.search(name):
            raise InputError(
                f"The name {name[:80]!r} is empty or holds a control character, so no statement may contain it.",
                hint="Rename the column, table or database.",
            )
    return ".".join(map(quote, names))


def quote(name: str) -> str:
    """A name in backticks, as StarRocks and Spark read it. Checks nothing: statements take `identifier`."""
    return "`" + name.replace("`", "``") + "`"


def create_table(database: str, replication: int | None = None) -> str:
    """The DDL; `replication` None leaves the number of replicas to the server."""
    layout = "PRIMARY KEY (`id`) DISTRIBUTED BY HASH (`id`) BUCKETS 1"
    return own_table_ddl(table_of(database), COLUMNS, layout, replication)


def own_table_ddl(table: str, columns: Iterable[tuple[str, str]], layout: str, replication: int | None) -> str:
    """The DDL of one of the sink's own tables; `layout` are its key and its distribution."""
    defined = ", ".join(f"{identifier(name)} {kind}" for name, kind in columns)
    properties = f' PROPERTIES ("replication_num" = "{replication}")' if replication else ""
    return f"CREATE TABLE IF NOT EXISTS {table} ({defined}) {layout}{properties}"


def row_id(*meaning: str) -> str:
    """Key of a row: 128 bits of a digest of its meaning, here (job, kind, name)."""
    return hashlib.sha256("\0".join(meaning).encode()).hexdigest()[:32]


def token_row(job: str, kind: str, name: str, token: str, updated_at: str) -> memoryview:
    """A row that holds a token, as a piece of a load body."""
    row = {
        "id": row_id(job, kind, name),
        "job": job,
        "kind": kind,
        "name": name,
        "token": token,
        "updated_at": updated_at,
    }
    return memoryview(b"," + orjson.dumps(row))


def position_rows(job: str, positions: Iterable[Position], updated_at: str) -> memoryview:
    """Position rows as a piece of a load body: JSON objects, each with the separator in front."""
    rows = (
        {
            "id": row_id(job, POSITION, position.partition),
            "job": job,
            "kind": POSITION,
            "name": position.partition,
            "position": position.position,
            "checkpoint": position.checkpoint,
            "batch": position.batch,
            "label": position.label,
            "row_count": position.rows,
            "digest": position.digest,
            "updated_at": updated_at,
        }
        for position in positions
    )
    return memoryview(b"".join(b"," + orjson.dumps(row) for row in rows))


# --- requests: the SQL of each, and its result from the rows that the statement returned ---


@dataclass(frozen=True, slots=True)
class WriteClaim(LedgerRequest):
    """Write the owner row. Result: None."""

    job: str
    owner: Owner

    def statement(self, database: str) -> Sql:
        job, owner, kind, name = self.job, self.owner, self.owner.kind, ""
        return (
            f"INSERT INTO {table_of(database)} (id, job, kind, name, token, epoch, checkpoint, batch, updated_at) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, now())",
            (row_id(job, kind, name), job, kind, name, owner.token, owner.epoch, owner.checkpoint, owner.batch),
        )


@dataclass(frozen=True, slots=True)
class ListUnfinished(LedgerRequest):
    """List labels with `prefix` in the database that have not ended. Result: tuple of labels.

    The view is read by a backend, whose threads open loads may hold, also those of our own dead writer (wire contract
    4.16).
    """

    prefix: LabelPrefix
    seconds: ClassVar[float] = _LIST_SECONDS

    @property
    def instead(self) -> LedgerRequest:
        """A list for which the frontend needs no thread of a backend."""
        return ListStreamLoads(self.prefix)

    def statement(self, database: str) -> Sql:
        return (
            "SELECT DISTINCT LABEL FROM information_schema.loads WHERE DB_NAME = %s AND LABEL LIKE %s "
            f"AND STATE NOT IN ({', '.join(['%s'] * len(_ENDED))})",
            (database, _like(self.prefix.text), *_ENDED),
        )

    def result(self, rows: Rows) -> tuple[str, ...]:
        return tuple(sorted(str(row[0]) for row in rows if self.prefix.matches(str(row[0]))))


@dataclass(frozen=True, slots=True)
class ListStreamLoads(LedgerRequest):
    """As ListUnfinished, without a thread of a backend; it waits while a commit of the database does.

    The server shows loads of tables only on which the user has a privilege. That is enough: a label is committed after
    its load of the ledger, on which each of our users has one, and a later load of the ledger finds our claim.
    """

    prefix: LabelPrefix
    seconds: ClassVar[float] = _LIST_SECONDS

    def statement(self, database: str) -> Sql:
        return f"SHOW ALL STREAM LOAD FROM {identifier(database)}", ()

    def result(self, rows: Rows) -> tuple[str, ...]:
        labels = {str(row[_LABEL_COLUMN]) for row in rows if str(row[_STATE_COLUMN]) not in _ENDED}
        return tuple(sorted(filter(self.prefix.matches, labels)))


@dataclass(frozen=True, slots=True)
class WriteMarker(LedgerRequest):
    """Write the barrier's marker row with `token`; it must not touch an owner row. Result: None."""

    job: str
    scope: str
    token: str

    def statement(self, database: str) -> Sql:
        return (
            f"INSERT INTO {table_of(database)} (id, job, kind, name, token, updated_at) "
            "VALUES (%s, %s, %s, %s, %s, now())",
            (row_id(self.job, MARKER, self.scope), self.job, MARKER, self.scope, self.token),
        )


@dataclass(frozen=True, slots=True)
class ReadMarker(LedgerRequest):
    """Read whether the marker row with `token` is visible. Result: bool."""

    job: str
    scope: str
    token: str

    def statement(self, database: str) -> Sql:
        return (
            f"SELECT count(*) FROM {table_of(database)} WHERE job = %s AND kind = %s AND name = %s AND token = %s",
            (self.job, MARKER, self.scope, self.token),
        )

    def result(self, rows: Rows) -> bool:
        return bool(rows and int(str(rows[0][0])))


@dataclass(frozen=True, slots=True)
class ReadOwner(LedgerRequest):
    """Read the owner of the job, or of the replays of its dead letters. Result: Owner, or None without a row."""

    job: str
    kind: str = DRIVER

    def statement(self, database: str) -> Sql:
        return (
            f"SELECT token, epoch, checkpoint, batch, updated_at FROM {table_of(database)} "
            "WHERE job = %s AND kind = %s",
            (self.job, self.kind),
        )

    def result(self, rows: Rows) -> Owner | None:
        for token, epoch, checkpoint, batch, since in rows:
            return Owner(str(token), str(epoch), str(checkpoint or ""), _int(batch), str(since), self.kind)
        return None


@dataclass(frozen=True, slots=True)
class ReadPositions(LedgerRequest):
    """Read all positions of the job. Result: dict of source partition to Position."""

    job: str

    def statement(self, database: str) -> Sql:
        return (
            f"SELECT name, position, checkpoint, batch, label, row_count, digest FROM {table_of(database)} "
            "WHERE job = %s AND kind = %s",
            (self.job, POSITION),
        )

    def result(self, rows: Rows) -> dict[str, Position]:
        return {position.partition: position for position in map(_position, rows)}


@dataclass(frozen=True, slots=True)
class ReadTraces(LedgerRequest):
    """Read whether there is a position or a driver of the job, a row of any job with the checkpoint, or an acceptance.

    Result: Traces.
    """

    job: str
    checkpoint: str

    def statement(self, database: str) -> Sql:
        return (
            f"SELECT kind, max(token) FROM {table_of(database)} WHERE checkpoint = %s OR (job = %s AND "
            "(kind IN (%s, %s) OR (kind = %s AND name = %s))) GROUP BY kind",
            (self.checkpoint, self.job, POSITION, DRIVER, MARKER, ACCEPTED),
        )

    def result(self, rows: Rows) -> Traces:
        return Traces(bool(rows), next((str(row[1]) for row in rows if row[0] == MARKER), ""))


def _position(row: tuple[object, ...]) -> Position:
    partition, position, checkpoint, batch, label, rows, digest = row
    return Position(
        str(partition), _int(position), str(checkpoint), _int(batch), str(label), _int(rows), str(digest or "")
    )


def _int(value: object) -> int:
    return -1 if value is None else int(str(value))


def table_of(database: str) -> str:
    """The ledger's table as an identifier."""
    return identifier(database, LEDGER_TABLE)


def _like(prefix: str) -> str:
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped + "%"


# --- who owns a job ---

NewToken = Callable[[], str]

BACKOFF = Backoff(first=0.05, longest=2.0)


def fresh_tokens(epoch: str, attempt: int, rng: random.Random) -> NewToken:
    """A maker of unique tokens: the writer's run, an attempt, and 64 random bits."""
    return lambda: f"{epoch}.{attempt}.{rng.getrandbits(64):016x}"


_AGAIN: Final = (
    "A query takes the job over again by itself; run a command again. If this comes again, see why INSERTs are so slow."
)


def check_owner(job: str, mine: Owner, rng: random.Random) -> Steps[None]:
    """Check before a commit: read the owner row again; raises Fenced if it is not ours, JobHeld for a hold of ours.

    Raises QueryFailed, an outage, if the row has an earlier claim of ours that took effect late. Such a claim may have
    hidden another writer's, so it is no right to write: only a new take-over, which reads the positions again, is.
    """
    holder: Owner | None = yield from retry_until_answered(ReadOwner(job, mine.kind), rng)
    if holder is not None and holder.token != mine.token and holder.token in mine.written:
        raise QueryFailed("An earlier claim of this writer took effect after its last one.", hint=_AGAIN)
    if holder is not None and holder.held_from in (mine.token, *mine.written):
        raise JobHeld(
            f"The job is held since {holder.since}, for at most {holder.batch} s, by a command that repairs or "
            "compares its tables."
        )
    if holder is None or holder.token != mine.token:
        raise fenced("The job" if mine.kind == DRIVER else "The replay of the job's dead letters", holder)


def fenced(subject: str, holder: Owner | None) -> StarRocksSinkError:
    """The error for a writer that has lost `subject` to `holder`; None if there is no owner row any more."""
    if holder is None:
        return Fenced(
            f"{subject} has no owner in the ledger any more: its rows were deleted while this writer was running."
        )
    return Fenced(f"{subject} was taken over by another writer.", **holder.context)


def retry_until_answered(request: LedgerRequest, rng: random.Random) -> Steps[Any]:
    """Repeat `request` until it is answered; it must only read.

    At the deadline the error has the last two different reasons: the very last may be that no time was left.
    """
    reasons: list[str] = []
    for tries in itertools.count():
        answer = yield request
        if not isinstance(answer, TransportError):
            return answer
        reasons = [*(reason for reason in reasons if reason != answer.message), answer.message][-2:]
        waiting = f"the ledger answering {type(request).__name__}, after: {' '.join(reasons).rstrip('.')}"
        yield Wait(BACKOFF.seconds(tries, rng), waiting)


# --- the receipts' log: the positions of source partitions that each label made visible ---

LOG_TABLE = "_starrocks_txn_sink_receipts"

LOG_COLUMNS = (
    ("job", "VARCHAR(64) NOT NULL"),
    ("source_partition", "VARCHAR(1024) NOT NULL"),
    ("last_position", "BIGINT NOT NULL"),
    ("first_position", "BIGINT NOT NULL"),
    ("source_transactions", "BIGINT"),
    ("row_count", "BIGINT"),
    ("label", "VARCHAR(128)"),
    ("batch", "BIGINT"),
    ("tables", "VARCHAR(65533)"),
    ("loaded_at", "DATETIME"),
)


def create_log_table(database: str, replication: int | None = None) -> str:
    """The DDL; `replication` None leaves the number of replicas to the server."""
    keys = "`job`, `source_partition`, `last_position`"
    layout = f"DUPLICATE KEY ({keys}) DISTRIBUTED BY HASH (`source_partition`) BUCKETS 1"
    return own_table_ddl(identifier(database, LOG_TABLE), LOG_COLUMNS, layout, replication)


def delete_older_receipts(database: str, job: str, limit: str) -> tuple[str, tuple[str, str]]:
    """Statement that deletes a job's rows loaded before `limit` (a DATETIME literal)."""
    return f"DELETE FROM {identifier(database, LOG_TABLE)} WHERE job = %s AND loaded_at < %s", (job, limit)
