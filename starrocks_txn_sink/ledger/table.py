"""The ledger as a table: its DDL, its position rows as load bodies, and the SQL of every question.

PRIMARY KEY (job, kind, name), one tablet in one partition, so that its versions become visible in the order of the
commits: that is what makes the barrier a barrier (design section 5).
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from starrocks_txn_sink.ledger.values import (
    LEDGER_TABLE,
    Claim,
    LedgerQuestion,
    Mark,
    Marked,
    Owner,
    Owners,
    Position,
    ReadOwners,
    ReadPositions,
    Unfinished,
)

POSITION, DRIVER, LANE, MARKER = "position", "driver", "lane", "marker"

COLUMNS = (
    ("job", "VARCHAR(64) NOT NULL"),
    ("kind", "VARCHAR(16) NOT NULL"),
    ("name", "VARCHAR(1024) NOT NULL"),
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
Sql = tuple[str, tuple[object, ...]]
# Sub-tasks in these states of information_schema.loads have ended (contract section 6).
_ENDED = ("FINISHED", "CANCELLED", "COMMITED")


def create_table(database: str, replication: int | None = None) -> str:
    """The DDL; `replication` None leaves the number of replicas to the server."""
    columns = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS)
    properties = f' PROPERTIES ("replication_num" = "{replication}")' if replication else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {_table(database)} ({columns}) PRIMARY KEY (`job`, `kind`, `name`) "
        f"DISTRIBUTED BY HASH (`job`, `kind`, `name`) BUCKETS 1{properties}"
    )


def position_rows(job: str, positions: Iterable[Position], updated_at: str) -> memoryview:
    """Position rows as a piece of a load body: JSON objects, each with the separator in front."""
    rows = (
        {
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


def statement(database: str, question: LedgerQuestion) -> Sql:
    """The SQL of `question` and its parameters; `read` understands what comes back."""
    table = _table(database)
    match question:
        case Claim(job, owner):
            kind, name = (DRIVER, "") if owner.lane is None else (LANE, str(owner.lane))
            return (
                f"INSERT INTO {table} (job, kind, name, token, epoch, checkpoint, batch, updated_at) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, now())",
                (job, kind, name, owner.token, owner.epoch, owner.checkpoint, owner.batch),
            )
        case Mark(job, scope, token):
            return (
                f"INSERT INTO {table} (job, kind, name, token, updated_at) VALUES (%s, %s, %s, %s, now())",
                (job, MARKER, scope, token),
            )
        case Marked(job, scope, token):
            return (
                f"SELECT count(*) FROM {table} WHERE job = %s AND kind = %s AND name = %s AND token = %s",
                (job, MARKER, scope, token),
            )
        case ReadOwners(job, lane):
            return (
                f"SELECT kind, name, token, epoch, checkpoint, batch, updated_at FROM {table} "
                "WHERE job = %s AND (kind = %s OR (kind = %s AND name = %s))",
                (job, DRIVER, LANE, "" if lane is None else str(lane)),
            )
        case ReadPositions(job):
            return (
                f"SELECT name, position, checkpoint, batch, label, row_count, digest FROM {table} "
                "WHERE job = %s AND kind = %s",
                (job, POSITION),
            )
        case Unfinished(family):
            return (
                "SELECT DISTINCT LABEL FROM information_schema.loads WHERE DB_NAME = %s AND LABEL LIKE %s "
                f"AND STATE NOT IN ({', '.join(['%s'] * len(_ENDED))})",
                (database, _like(family.prefix), *_ENDED),
            )


def read(question: LedgerQuestion, rows: list[tuple[object, ...]]) -> object:
    """The answer to `question` in the rows that its statement returned."""
    match question:
        case Claim() | Mark():
            return None
        case Marked():
            return bool(rows and int(str(rows[0][0])))
        case Unfinished(family):
            return tuple(sorted(str(row[0]) for row in rows if family.holds(str(row[0]))))
        case ReadOwners():
            return Owners(_owner(rows, DRIVER), _owner(rows, LANE))
        case ReadPositions():
            return {position.partition: position for position in map(_position, rows)}


def _owner(rows: list[tuple[object, ...]], kind: str) -> Owner | None:
    for row in rows:
        if row[0] == kind:
            lane = int(str(row[1])) if kind == LANE else None
            return Owner(str(row[2]), str(row[3]), str(row[4] or ""), _int(row[5]), lane, str(row[6]))
    return None


def _position(row: tuple[object, ...]) -> Position:
    partition, position, checkpoint, batch, label, rows, digest = row
    return Position(
        str(partition), _int(position), str(checkpoint), _int(batch), str(label), _int(rows), str(digest or "")
    )


def _int(value: object) -> int:
    return -1 if value is None else int(str(value))


def _table(database: str) -> str:
    return f"`{database}`.`{LEDGER_TABLE}`"


def _like(prefix: str) -> str:
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped + "%"
