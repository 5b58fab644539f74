"""Both databases behind the questions of a comparison: connections, snapshots, positions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starrocks_txn_ops.sync.source_database import SourceDatabase
from starrocks_txn_ops.verify.rules.core import Key, KeyRange, Row, Rows, Sums
from starrocks_txn_ops.verify.rules.statements import Questions, Statement
from starrocks_txn_sink.errors import OptionError

Place = tuple[str, ...]
"""One position of the source in its several forms, the best one first."""
Ask = Callable[[Statement], list[tuple[Any, ...]]]

_CONNECT_SECONDS: Final = 30.0
_POSTGRESQL_SETTINGS: Final = (
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c default_transaction_read_only=on "
    "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c extra_float_digits=1 -c bytea_output=hex "
    "-c client_encoding=UTF8"
)
_STANDBY: Final = "A standby of PostgreSQL does not say which transactions its snapshot shows."
_WITHOUT_PLACE: Final = "MySQL does not say the place of a snapshot in its binlog, as MariaDB does."
# The highest place of the log, also of commits that are visible and not yet on the disk (synchronous_commit = off).
_LSN: Final = (
    "\nSELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
)
_MYSQL_SESSION: Final = "\nSET time_zone = '+00:00', sql_mode = '', group_concat_max_len = 1048576"
_NO_BINLOG: Final = "Grant REPLICATION CLIENT (MariaDB: BINLOG MONITOR), and let the server write a binlog."


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a table: answers of a database as the core reads them."""

    questions: Questions
    ask: Ask

    def count(self) -> int:
        """How many rows there are. This and the others raise what `ask` raises."""
        return int(self.ask(self.questions.count())[0][0])

    def count_of(self, span: KeyRange) -> int:
        """How many rows a range has."""
        return int(self.ask(self.questions.count_of(span))[0][0])

    def boundary(self, low: str | None, rows: int) -> str | None:
        """The first key column of the row that is `rows` rows behind `low`; None where there are fewer."""
        return self._first(self.questions.boundary(low, rows))

    def after(self, low: str) -> str | None:
        """The next value of the first key column behind `low`; None at the end."""
        return self._first(self.questions.after(low))

    def _first(self, statement: Statement) -> str | None:
        return next((str(row[0]) for row in self.ask(statement)), None)

    def sums(self, span: KeyRange, digits: int) -> Sums:
        """By bucket: how many rows it has, and the sum of their marks; an empty one is absent."""
        return {
            str(bucket): (int(rows), int(total)) for bucket, rows, total in self.ask(self.questions.sums(span, digits))
        }

    def marks(self, span: KeyRange, digits: int, buckets: Sequence[str]) -> Iterable[tuple[Key, str]]:
        """Key and mark of each row of these buckets, in no order."""
        for *key, mark in self.ask(self.questions.marks(span, digits, buckets)):
            yield self._key(key), str(mark)

    def rows(self, keys: Sequence[Key]) -> Rows:
        """The values of these keys' rows as texts; other keys that a collation finds are left out."""
        rows_by_key: dict[Key, list[Row]] = {key: [] for key in keys}
        if keys:
            size = len(self.questions.keys)
            for row in self.ask(self.questions.rows(keys)):
                key = self._key(row[:size])
                if key in rows_by_key:  # a collation may find more
                    rows_by_key[key].append(tuple(_text(value) for value in row[size:]))
        return {key: rows for key, rows in rows_by_key.items() if rows}

    def all_rows(self, span: KeyRange, most: int) -> Rows | None:
        """The values of a range's rows as texts, by key; None if there are more than `most`."""
        found: dict[Key, list[Row]] = {}
        size, rows = len(self.questions.keys), self.ask(self.questions.all_rows(span, most + 1))
        for row in rows:
            found.setdefault(self._key(row[:size]), []).append(tuple(_text(value) for value in row[size:]))
        return found if len(rows) <= most else None

    def _key(self, values: Sequence[Any]) -> Key:
        return tuple(pair.plain(_text(value) or "") for pair, value in zip(self.questions.keys, values, strict=True))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


class Source:
    """The source: a snapshot that stands still (`snapshot`), and its rows as they are now (`now`).

    `shown` is what the snapshot says that it shows beyond its `position` (`protocol.bound`). `unknown` says why a job
    cannot stand still at it, "" if it can.
    """

    def __init__(
        self,
        snapshot: Ask,
        now: Ask,
        position: Place,
        place: Callable[[], Place],
        end_snapshot: Callable[[], None],
        shown: str = "",
        unknown: str = "",
    ) -> None:
        self.shown = shown
        self.unknown = unknown
        self.snapshot = snapshot
        self.end_snapshot = end_snapshot
        self.now = now
        self.position = position
        self.place = place
        """The position of the source behind all that `now` has read."""


@contextlib.contextmanager
def open_source(place: SourceDatabase, password: str) -> Iterator[Source]:
    """The source with its snapshot. Raises OptionError where it does not answer, or its position cannot be read."""
    with (_postgresql if place.postgresql else _mysql)(place, password) as source:
        yield source


@contextlib.contextmanager
def _postgresql(place: SourceDatabase, password: str) -> Iterator[Source]:
    """The snapshot is taken first, and its position read behind it.

    A commit is written to the log before any snapshot shows it. So each commit of the snapshot is in front of the
    position, and a ledger that has passed the position has them all. Commits between the two, which the snapshot does
    not have, are in StarRocks then, too: such a row differs, and is looked at again (`core.settle`).
    """
    with (
        place.postgresql_connection(password, _CONNECT_SECONDS, _POSTGRESQL_SETTINGS) as still,
        place.postgresql_connection(password, _CONNECT_SECONDS, _POSTGRESQL_SETTINGS) as moving,
    ):
        moving.autocommit = True
        still.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        # The first statement takes the snapshot.
        shown, standby = still.execute("\nSELECT txid_current_snapshot()::text, pg_is_in_recovery()").fetchone()
        position = (str(still.execute(_LSN).fetchone()[0]),)

        def asking(connection: Any) -> Ask:
            return lambda statement: list(connection.execute(statement[0].encode(), statement[1]).fetchall())

        def place_now() -> Place:
            return (str(moving.execute(_LSN).fetchone()[0]),)

        unknown = _STANDBY if standby else ""
        yield Source(asking(still), asking(moving), position, place_now, still.rollback, str(shown), unknown)


@contextlib.contextmanager
def _mysql(place: SourceDatabase, password: str) -> Iterator[Source]:
    """MariaDB says the binlog's place of a snapshot itself; MySQL's is read behind the snapshot.

    A transaction is in the binlog before its rows are visible. So each commit of the snapshot is in front of a
    position that is read behind it, as with PostgreSQL, and no lock is needed.
    """
    arguments = {"charset": "utf8mb4", "init_command": _MYSQL_SESSION}
    with (
        place.mysql_connection(password, _CONNECT_SECONDS, **arguments) as still,
        place.mysql_connection(password, _CONNECT_SECONDS, autocommit=True, **arguments) as moving,
    ):

        def asking(connection: Any) -> Ask:
            def ask(statement: Statement) -> list[tuple[Any, ...]]:
                with connection.cursor() as cursor:
                    cursor.execute(statement[0], statement[1])
                    return list(cursor.fetchall())

            return ask

        ask_still, ask_now = asking(still), asking(moving)
        ask_still(("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", ()))
        ask_still(("START TRANSACTION WITH CONSISTENT SNAPSHOT", ()))
        position = _binlog(ask_still)
        # MariaDB's place is that of the snapshot itself, and has the form of GTIDs in front once it has any.
        unknown = "" if len(position) > 1 else _WITHOUT_PLACE
        yield Source(ask_still, ask_now, position, lambda: _binlog(ask_now), still.rollback, unknown=unknown)


def _binlog(ask: Ask) -> Place:
    """The place in the binlog, and in front of it MariaDB's GTIDs there; raises OptionError without a binlog."""
    place = {str(name).lower(): str(value) for name, value in ask(("\nSHOW STATUS LIKE 'binlog_snapshot_%%'", ()))}
    file, offset = place.get("binlog_snapshot_file", ""), place.get("binlog_snapshot_position", "")
    if not file:
        version = str(ask(("\nSELECT VERSION()", ()))[0][0])
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        new = numbers >= (8, 4) and "mariadb" not in version.lower()
        rows = ask(("SHOW BINARY LOG STATUS" if new else "SHOW MASTER STATUS", ()))
        file, offset = (str(part) for part in rows[0][:2]) if rows else ("", "")
    if not file:
        raise OptionError("The source has no binlog, or its user may not see it.", hint=_NO_BINLOG)
    if not place:
        return (f"{file}:{offset}",)
    gtids = str(ask(("\nSELECT BINLOG_GTID_POS(%s, %s)", (file, int(offset))))[0][0] or "")
    return (gtids, f"{file}:{offset}") if gtids else (f"{file}:{offset}",)
