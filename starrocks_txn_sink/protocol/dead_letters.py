"""The dead-letter table: DDL, rows as load bodies, SQL to read them back; and the replay of its rows, exactly once.

The table has one row for each rejected row, in load order. No VARCHAR holds more than MOST_ROW_BYTES, so a larger row
has several, each with a piece. The key is a digest of the row's origin, because StarRocks limits an encoded primary key
to 128 bytes; a source transaction that is dead-lettered again replaces its own rows. The table is a PRIMARY KEY table,
because a replay deletes dead letters in the transaction that writes their rows.

A killed replay may have sent a commit that the server executes later, or has executed but not yet published; a paused
replay may continue while a new one runs. So a replay takes over from earlier ones as a driver does (claim, list,
barrier; see `protocol.fencing`), reads the dead letters only after that, and commits as a driver does
(`coordinator.coordinator`), with the owner check. Each transaction also writes a row of the ledger, so that the barrier
waits for it (`coordinator.ownership.ReplayOwnership`).
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import orjson

from starrocks_txn_sink.protocol import ledger
from starrocks_txn_sink.protocol.fencing import Scope, take_over
from starrocks_txn_sink.protocol.label import Sql, Steps
from starrocks_txn_sink.protocol.ledger import REPLAY, NewToken, Owner, identifier

DEAD_LETTER_TABLE = "_starrocks_txn_sink_dead_letter"
MOST_ROW_BYTES = 1_048_576

COLUMNS = (
    ("id", "VARCHAR(32) NOT NULL"),
    ("job", "VARCHAR(64) NOT NULL"),
    ("source_partition", "VARCHAR(1024) NOT NULL"),
    ("position", "BIGINT NOT NULL"),
    ("table_name", "VARCHAR(1024) NOT NULL"),
    ("row_number", "BIGINT NOT NULL"),
    ("reason", "VARCHAR(4096)"),
    ("content", f"VARCHAR({MOST_ROW_BYTES})"),
    ("load_columns", "VARCHAR(65533)"),
    ("label", "VARCHAR(128)"),
    ("batch", "BIGINT"),
    ("set_aside_at", "DATETIME"),
)
_REASON_BYTES = 4096
_PIECE = 1 << 32
"""`row_number` of the n-th further piece of a row is its number and n of these."""


@dataclass(frozen=True, slots=True)
class DeadLetterSource:
    """Origin of dead letters: the source transaction, the reason, and the time (a DATETIME literal)."""

    partition: str
    position: int
    reason: str
    label: str
    batch: int
    at: str


@dataclass(frozen=True, slots=True)
class DeadLetter(DeadLetterSource):
    """One dead-lettered source transaction; `tables` has its number of rows by table."""

    tables: dict[str, int]

    @property
    def rows(self) -> int:
        """The rows of all tables."""
        return sum(self.tables.values())


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One rejected row: keys in the dead-letter table, target table, JSON, and the header `columns` of its load."""

    ids: tuple[str, ...]
    table: str
    content: str
    columns: str


def create_table(database: str, replication: int | None = None) -> str:
    """The DDL; `replication` None leaves the number of replicas to the server."""
    layout = "PRIMARY KEY (`id`) DISTRIBUTED BY HASH (`id`)"
    return ledger.own_table_ddl(_qualified_table(database), COLUMNS, layout, replication)


def dead_letter_rows(
    job: str, place: DeadLetterSource, table: str, columns: str, rows: Iterable[bytes], first: int = 0
) -> list[bytes]:
    """Rows of `table` as rows of the dead-letter table: JSON objects, each with the separator in front.

    `first` is the number of the first row among the rows of its source transaction and table. An entry has an object
    for each piece of a row.
    """
    entries = []
    reason = place.reason.encode()[:_REASON_BYTES].decode(errors="ignore")
    for row_number, content in enumerate(rows, first):
        entry = b""
        for number, piece in enumerate(_pieces(content)):
            numbered = row_number + number * _PIECE
            row = {
                "id": ledger.row_id(job, place.partition, str(place.position), table, str(numbered)),
                "job": job,
                "source_partition": place.partition,
                "position": place.position,
                "table_name": table,
                "row_number": numbered,
                "reason": reason,
                "content": piece,
                "load_columns": columns,
                "label": place.label,
                "batch": place.batch,
                "set_aside_at": place.at,
            }
            entry += b"," + orjson.dumps(row)
        entries.append(entry)
    return entries


def _pieces(content: bytes) -> list[str]:
    """The text of a row in parts of whole characters that a VARCHAR holds; what is no UTF-8 is replaced."""
    text = content.decode(errors="replace")
    encoded = text.encode()
    if len(encoded) <= MOST_ROW_BYTES:
        return [text]
    pieces, start = [], 0
    while start < len(encoded):
        piece = encoded[start : start + MOST_ROW_BYTES].decode(errors="ignore")  # but for half a character at its end
        pieces.append(piece)
        start += len(piece.encode())
    return pieces


def delete_rows(ids: Iterable[str]) -> list[bytes]:
    """Deletes of dead letters, as pieces of a load body; NOT NULL columns need values (wire contract 5.6)."""
    empty = {"job": "", "source_partition": "", "position": 0, "table_name": "", "row_number": 0}
    return [b"," + orjson.dumps({"__op": 1, "id": name, **empty}) for name in ids]


def select_dead_letters(database: str, job: str, partition: str | None = None, position: int | None = None) -> Sql:
    """Query for a job's dead letters: a row per (source transaction, table), oldest first; see `read_dead_letters`."""
    sql = (
        f"SELECT source_partition, position, table_name, sum(if(`row_number` < {_PIECE}, 1, 0)), max(reason),"
        f" max(label), max(batch), max(set_aside_at) FROM {_qualified_table(database)}"
    )
    where, parameters = _where_clause(job, partition, position)
    return f"{sql}{where} GROUP BY source_partition, position, table_name ORDER BY 1, 2, 3", parameters


def read_dead_letters(rows: Sequence[Sequence[object]]) -> list[DeadLetter]:
    """Dead letters from the rows of `select_dead_letters`."""
    dead_letters: dict[tuple[str, int], DeadLetter] = {}
    for partition, position, table, count, reason, label, batch, time in rows:
        place = (str(partition), int(str(position)))
        if place not in dead_letters:
            dead_letters[place] = DeadLetter(*place, str(reason), str(label), int(str(batch)), str(time), {})
        dead_letters[place].tables[str(table)] = int(str(count))
    return list(dead_letters.values())


def select_rows(database: str, job: str, partition: str, position: int) -> Sql:
    """Query for the rows of one source transaction in load order; see `read_rows`."""
    sql = f"SELECT id, table_name, content, load_columns, `row_number` FROM {_qualified_table(database)}"
    where, parameters = _where_clause(job, partition, position)
    return f"{sql}{where} ORDER BY table_name, `row_number`", parameters


def read_rows(rows: Sequence[Sequence[object]]) -> list[DeadLetterRow]:
    """Rejected rows from the rows of `select_rows`."""
    wholes: dict[tuple[str, int], DeadLetterRow] = {}
    for key, table, content, columns, number in rows:
        place = str(table), int(str(number)) % _PIECE
        whole = wholes.get(place)
        if whole is None:
            wholes[place] = DeadLetterRow((str(key),), place[0], str(content), str(columns or ""))
        else:
            wholes[place] = replace(whole, ids=(*whole.ids, str(key)), content=whole.content + str(content))
    return list(wholes.values())


def _where_clause(job: str, partition: str | None, position: int | None) -> Sql:
    criteria = {"job": job, "source_partition": partition, "position": position}
    conditions = {column: value for column, value in criteria.items() if value is not None}
    return " WHERE " + " AND ".join(f"{column} = %s" for column in conditions), tuple(conditions.values())


def _qualified_table(database: str) -> str:
    return identifier(database, DEAD_LETTER_TABLE)


# --- a replay ---


def take_over_replays(job: str, database: str, new_token: NewToken, rng: random.Random) -> Steps[Owner]:
    """End the open transactions of earlier replays, wait for their commits, and return this replay's claim.

    Raises Fenced if a newer replay has taken over meanwhile. Does not affect a driver of the job.
    """
    scope = Scope(job, database, Owner("", REPLAY, "dead-letter replay", kind=REPLAY))
    state = yield from take_over(scope, new_token, rng)
    return state.owner
