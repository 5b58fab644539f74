"""What a worker knows of the columns of a database's tables, and of the server's limit for their keys."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Final

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import QueryRefused, StarRocksSinkError
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows.key_sizes import LIMIT
from starrocks_txn_sink.rows.ranges import Ranges
from starrocks_txn_sink.rows.target import (
    PLACES_SQL,
    TargetColumn,
    may_count,
    spelled,
    target_columns,
    with_counters,
    with_places,
)
from starrocks_txn_sink.sql.connection import LeaderConnection

SETTING: Final = "primary_key_limit_size"
_LIMITS: Final = f"SELECT VALUE FROM information_schema.be_configs WHERE NAME = '{SETTING}'"
_FRESH, _AGAIN = 60.0, 5.0
_SECONDS: Final = 3.0  # the answer comes at once, or not while all threads are held (wire contract 4.16)


@dataclass(slots=True)
class KnownKeyLimit:
    """The limit of the backends, of several the least, as it was at most a minute ago."""

    connection: LeaderConnection
    _limit: int | None = None
    _next: float = -math.inf

    def __call__(self, deadline: Deadline) -> int | None:
        """Ask, or give the last answer; None without one. A user who may not ask gets the usual limit."""
        now = deadline.clock.monotonic()
        if now < self._next:
            return self._limit
        limit = Deadline.after(min(_SECONDS, deadline.remaining()), deadline.clock)
        try:
            rows = self.connection.query(_LIMITS, (), limit)
        except QueryRefused:
            rows = []
        except StarRocksSinkError:
            self._next = now + _AGAIN
            return self._limit
        self._limit = min((int(str(value)) for (value,) in rows if str(value).isdecimal()), default=LIMIT)
        self._next = now + _FRESH
        return self._limit


class KnownColumns:
    """The columns of a database's tables, from information_schema.

    One query reads all tables. A table that it does not have is asked for when a row needs it. What is older than
    _COLUMNS_SECONDS is asked again: a column that was dropped since takes its values along in silence, until this finds
    it `dropped`. One that was also added again in between is `replaced`: it has another place among the columns, unless
    it was the last one before, too.
    """

    def __init__(self, connection: LeaderConnection, database: str) -> None:
        self._connection, self._database = connection, database
        self._rows: dict[str, list[Sequence[object]]] = {}  # none for a table that is not seen
        self._columns: dict[str, tuple[TargetColumn, ...]] = {}  # of tables that were asked for
        self._dropped: dict[str, dict[str, float]] = defaultdict(dict)  # when each was last seen, on the clock
        self._replaced: dict[str, dict[str, float]] = defaultdict(dict)  # the same, of those that came again
        self._read_at = -math.inf
        self.key_limit = KnownKeyLimit(connection)

    def of(self, table: str, again: bool, deadline: Deadline) -> frozenset[str] | None:
        """The columns of `table`; None if the user may not see any. Raises QueryFailed.

        The case of names counts, of tables (`spelled`) and of columns (wire contract 5.4).
        """
        now = deadline.clock.monotonic()
        if now - self._read_at > _COLUMNS_SECONDS:
            before, self._rows, self._columns = self._rows, self._read("", (), deadline), {}
            for table_before, rows in before.items():
                self._compare(table_before, rows, self._read_at)
            self._read_at = now
        name = spelled(table, self._rows)
        if again or name not in self._rows:
            found, before_rows = self._read(_OF_TABLE, (table,), deadline), self._rows.get(name, [])
            self._rows[name] = found.get(spelled(table, found), [])
            self._compare(name, before_rows, self._read_at)
            self._columns.pop(name, None)
        return _names(self._rows[name]) or None

    def dropped(self, table: str, deadline: Deadline) -> dict[str, float]:
        """The columns that `table` had and has no more, and how many seconds ago each was seen last."""
        now = deadline.clock.monotonic()
        return {name: now - seen for name, seen in self._dropped.get(spelled(table, self._rows), {}).items()}

    def replaced(self, table: str, deadline: Deadline) -> dict[str, float]:
        """The columns of `table` that were dropped and added again, and how many seconds ago each was seen last before.

        They are told once.
        """
        now = deadline.clock.monotonic()
        return {name: now - seen for name, seen in self._replaced.pop(spelled(table, self._rows), {}).items()}

    def _compare(self, name: str, before: Sequence[Sequence[object]], seen: float) -> None:
        """Note which columns a table has lost since it was `seen`; a table that is gone takes no rows."""
        names = _names(self._rows.get(name, ()))
        if names and before:
            self._replaced[name] |= dict.fromkeys(_moved(before, self._rows[name]), seen)
            dropped = dict.fromkeys(_names(before), seen) | self._dropped[name]
            self._dropped[name] = {column: at for column, at in dropped.items() if column not in names}

    def columns(self, table: str, again: bool, deadline: Deadline) -> tuple[TargetColumn, ...]:
        """The columns of `table` with their types; none if the user may not see any. Raises QueryFailed.

        Which are `fixed` is known once the table is asked for `again`.
        """
        self.of(table, again, deadline)
        name = spelled(table, self._rows)
        if name not in self._columns:
            columns = target_columns(self._rows[name])
            if again and columns:
                with contextlib.suppress(QueryRefused):  # StarRocks then says itself which columns it does not change
                    columns = with_places(columns, self._connection.query(_PLACES, (self._database, table), deadline))
            self._columns[name] = next(iter(columns.values()), ())
        return self._columns[name]

    def with_counters(self, table: str, again: bool, deadline: Deadline) -> tuple[TargetColumn, ...]:
        """`columns`, of which those that are AUTO_INCREMENT are marked. Raises QueryFailed.

        Where the user may not see that, each column that may be one counts as one.
        """
        columns = self.columns(table, again, deadline)
        if not may_count(columns):
            return columns
        ddl = self._ddl(table, deadline)
        if ddl:
            return with_counters(columns, ddl)
        return tuple(replace(column, nullable=True) if may_count((column,)) else column for column in columns)

    def ranges(self, table: str, deadline: Deadline) -> Ranges | None:
        """The explicit ranges of `table`; None if it has none, or the user may not see them. Raises QueryFailed."""
        return Ranges.of(self._ddl(table, deadline))

    def _ddl(self, table: str, deadline: Deadline) -> str:
        """The statement that makes `table`; empty if the user may not see it."""
        with contextlib.suppress(QueryRefused):
            sql = f"SHOW CREATE TABLE {identifier(self._database, table)}"
            return str(self._connection.query(sql, (), deadline)[0][1])
        return ""

    def _read(self, condition: str, names: tuple[str, ...], deadline: Deadline) -> dict[str, list[Sequence[object]]]:
        tables = defaultdict[str, list[Sequence[object]]](list)
        with contextlib.suppress(QueryRefused):
            for row in self._connection.query(
                _COLUMN_NAMES + condition + _IN_ORDER, (self._database, *names), deadline
            ):
                tables[str(row[0])].append(row)
        return dict(tables)


def _names(rows: Sequence[Sequence[object]]) -> frozenset[str]:
    return frozenset(str(column) for _, column, *_ in rows)


def _moved(before: Sequence[Sequence[object]], now: Sequence[Sequence[object]]) -> set[str]:
    """The columns of both that have another place among them; of two that have changed places the one behind."""
    both = _names(before) & _names(now)
    was, names = ([str(column) for _, column, *_ in rows if column in both] for rows in (before, now))
    if was == names:
        return set()
    blocks = SequenceMatcher(None, names, was, autojunk=False).get_matching_blocks()
    return {*both} - {name for block in blocks for name in names[block.a : block.a + block.size]}


_COLUMNS_SECONDS: Final = 60.0  # rare enough for the server, soon enough for a change of a table
_COLUMN_NAMES: Final = (
    "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, COLUMN_KEY, GENERATION_EXPRESSION"
    " FROM information_schema.columns WHERE TABLE_SCHEMA = %s"
)
_PLACES: Final = PLACES_SQL.format("%s")
_OF_TABLE: Final = " AND TABLE_NAME = %s"
_IN_ORDER: Final = " ORDER BY TABLE_NAME, ORDINAL_POSITION"
