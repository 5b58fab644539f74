"""A lane makes the automatic partitions that its rows need, and finds those that no load opens (wire contract 4.17).

Several lanes do so at once: a refused statement counts once the partitions are still not there.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import PartitionClosed, QueryRefused
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.keys import KeyColumn
from starrocks_txn_sink.rows.partitions import (
    OPEN_PARTITIONS,
    Obstacle,
    Partitioning,
    Values,
    can_create_partitions,
    needed_by,
    obstacle,
    open_more,
    statements,
)
from starrocks_txn_sink.rows.places import place_of
from starrocks_txn_sink.rows.target import TargetColumn, spelled
from starrocks_txn_sink.sql.connection import VERSION_SQL, LeaderConnection, read_version

_SECONDS: Final = 60.0
"""For what is known: partitions go by hand or by a table's rule for old ones, which no load would notice before."""
_PARTITIONED: Final = "SELECT TABLE_NAME, PARTITION_KEY FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s"
_IS_THERE: Final = re.compile(r"(?i)duplicate|exist|conflict")
"""In the refusal of a list's partition whose value is in another one already."""


@dataclass(slots=True)
class TablePartitions:
    """The partitions of a table: names in the order in which they were made; `others` are there under other names."""

    table: str
    partitioning: Partitioning
    names: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)

    def missing(self, needed: Sequence[Values]) -> list[Values]:
        """Those of the `needed` values that have no partition, in their order."""
        there = {*self.names, *self.others}
        return [values for values in needed if self.partitioning.name_of(values) not in there]

    def closed(self, needed: Sequence[Values], limit: int) -> bool:
        """Whether a load that opens the newest `limit` partitions leaves out one of these."""
        if not 0 < limit <= len(self.names):
            return False
        left_out = set(self.names[:-limit])
        return any(self.partitioning.name_of(values) in left_out for values in needed)


class KnownPartitions:
    """What a worker knows of a database's automatic partitions; asked again after _SECONDS. Raises QueryFailed."""

    def __init__(self, connection: LeaderConnection, database: str) -> None:
        self.connection, self.database = connection, database
        self._names: frozenset[str] = frozenset()  # of tables that may have automatic partitions
        self._tables: dict[str, TablePartitions | None] = {}
        self._read_at = -math.inf
        self.version = ""

    def of(self, table: str, deadline: Deadline) -> TablePartitions | None:
        """The partitions of `table`; None for one whose loads make and open their own, and where it cannot be known."""
        names = self.names(deadline)
        name = spelled(table, names)
        if name not in names:
            return None
        if name not in self._tables:
            self._tables[name] = self._read(table, deadline)
        return self._tables[name]

    def names(self, deadline: Deadline) -> frozenset[str]:
        """The tables whose loads may need partitions that they do not make themselves."""
        now = deadline.clock.monotonic()
        if now - self._read_at > _SECONDS:
            self._names, self._tables, self._read_at = self._partitioned(deadline), {}, now
        return self._names

    def obstacle(self, table: str, limit: int, deadline: Deadline) -> Obstacle | None:
        """What loads into `table` meet sooner or later, if they open `limit` partitions (0: not known)."""
        partitions = self.of(table, deadline)
        if partitions is None:
            return None
        return obstacle(partitions.partitioning, self.version, len(partitions.names), limit)

    def _partitioned(self, deadline: Deadline) -> frozenset[str]:
        with contextlib.suppress(QueryRefused):
            self.version = read_version(self.connection.rows(VERSION_SQL, (), deadline))
            if not can_create_partitions(self.version):
                rows = self.connection.query(_PARTITIONED, (self.database,), deadline)
                return frozenset(str(name) for name, key in rows if key)
        return frozenset()

    def _read(self, table: str, deadline: Deadline) -> TablePartitions | None:
        name = identifier(self.database, table)
        with contextlib.suppress(QueryRefused):  # no table, or none that the user may see: the load says so
            created = self.connection.rows(f"SHOW CREATE TABLE {name}", (), deadline)
            partitioning = Partitioning.of(str(created[0].get("create table", "")) if created else "")
            if partitioning is not None:
                partitions = TablePartitions(table, partitioning)
                self.read_names(partitions, deadline)
                return partitions
        return None

    def read_names(self, partitions: TablePartitions, deadline: Deadline) -> None:
        """Ask for the names again; a higher id is that of a newer partition."""
        rows = self.connection.rows(f"SHOW PARTITIONS FROM {identifier(self.database, partitions.table)}", (), deadline)
        by_id = sorted((int(row["partitionid"]), str(row["partitionname"])) for row in rows)
        partitions.names = [name for _, name in by_id]

    def limit(self, deadline: Deadline) -> int:
        """How many partitions a load opens; 0 if the user may not ask."""
        with contextlib.suppress(QueryRefused):
            rows = self.connection.rows(f"ADMIN SHOW FRONTEND CONFIG LIKE '{OPEN_PARTITIONS}'", (), deadline)
            values = [str(row.get("value")) for row in rows if row.get("key") == OPEN_PARTITIONS]
            return int(values[0]) if values and values[0].isdecimal() else 0
        return 0


@dataclass(slots=True)
class PartitionCheck:
    """Makes the partitions that the rows of a lane's batches need; call it with each batch, before its rows are sent.

    At most `most` of a table. Raises PartitionClosed for rows whose partition cannot be made or is not opened.
    """

    known: KnownPartitions
    columns_of: Callable[[str, bool], Sequence[TargetColumn]]
    most: int
    deadline: Deadline
    made: dict[str, int] = field(default_factory=dict)

    def __call__(self, batch: pa.RecordBatch) -> None:
        tables = batch.column(columns.TABLE)
        for table in pc.unique(tables).to_pylist():
            partitions = self.known.of(str(table), self.deadline) if table else None
            if partitions is not None:
                mask = pc.equal(tables, table)
                place = place_of(batch, pc.index(mask, True).as_py())
                self._open(partitions, batch.column(columns.PAYLOAD).filter(mask), place)

    def _open(self, partitions: TablePartitions, rows: pa.Array, place: str) -> None:
        partitioning, table = partitions.partitioning, partitions.table
        types = {column.name: column.type for column in self.columns_of(table, False)}
        if not partitioning.columns or not types.keys() >= set(partitioning.columns):
            why = (
                "an expression that the sink does not know"
                if not partitioning.columns
                else "columns that a load renames"
            )
            raise self._closed(table, f"has automatic partitions by {why} ({partitioning.expression})", _BY_HAND)
        key = [KeyColumn.of(name, types[name].name, types[name].scale) for name in partitioning.columns]
        needed = needed_by(rows, partitioning, key)
        if partitions.missing(needed):
            self._make(partitions, needed, place)
        if len(partitions.names) and needed:
            self._check_open(partitions, needed)

    def _make(self, partitions: TablePartitions, needed: Sequence[Values], place: str) -> None:
        """Make the partitions that are missing. Raises PartitionClosed if they are too many, or StarRocks refuses."""
        partitioning, table, known = partitions.partitioning, partitions.table, self.known
        known.read_names(partitions, self.deadline)
        missing = partitions.missing(needed)
        if missing and not partitioning.is_makeable:
            why = f"lacks a partition that rows need{place}, and StarRocks has no statement that makes one"
            raise self._closed(table, f"{why} ({partitioning.expression})", _BY_HAND)
        if not all(map(partitioning.has_bounds, missing)):
            name = partitioning.columns[0]
            why = f"has rows whose {name} is NULL, in the year 0 or at the end of time{place}"
            raise self._closed(
                table,
                f"{why}, for which no statement makes a partition",
                f"Give the rows another value of {name}, or make that partition by an INSERT of such a row.",
            )
        total = self.made.get(table, 0) + len(missing)
        if total > self.most:
            by = ", ".join(partitioning.columns)
            why = f"lacks {total} partitions that rows of one micro-batch need by {by}{place}"
            raise self._closed(table, f"{why}; max_new_partitions is {self.most}", _TOO_MANY)
        self.made[table] = total
        while missing:
            refusal, tried = self._execute(partitions, missing), len(missing)
            known.read_names(partitions, self.deadline)
            missing = partitions.missing(needed)
            if len(missing) >= tried:  # no other lane has made one of them, which would be why it was refused
                said = f": {refusal.message}" if refusal is not None else "."
                why = f"lacks a partition that rows need{place}, and StarRocks did not make it{said}"
                raise self._closed(table, why, _GRANT) from refusal

    def _execute(self, partitions: TablePartitions, missing: Sequence[Values]) -> QueryRefused | None:
        """Run the statements; returns the last refusal. A list's value may be there under another name."""
        partitioning, last = partitions.partitioning, None
        for place, (sql, values) in enumerate(statements(self.known.database, partitions.table, partitioning, missing)):
            try:
                self.known.connection.query(sql, values, self.deadline)
            except QueryRefused as refusal:
                last = refusal
                if not partitioning.unit and _IS_THERE.search(refusal.message):
                    partitions.others.add(partitioning.name_of(missing[place]))
        return last

    def _check_open(self, partitions: TablePartitions, needed: Sequence[Values]) -> None:
        limit, count = self.known.limit(self.deadline), len(partitions.names)
        if partitions.closed(needed, limit):
            raise self._closed(
                partitions.table,
                f"has {count} partitions, and rows need one that a load does not open: "
                f"{OPEN_PARTITIONS} of the frontends is {limit}",
                open_more(count) + " Then start the query again.",
            )

    def _closed(self, table: str, why: str, hint: str) -> PartitionClosed:
        none_does = f"StarRocks {self.known.version} does neither itself for a load of several tables."
        return PartitionClosed(f"Table {table} {why}. {none_does}", hint=hint, table=table)


_BY_HAND: Final = (
    "Make the partitions before their rows come, by an INSERT or a stream load of one table, use "
    "date_trunc or plain columns in PARTITION BY, or upgrade to a release after 4.0.14 or 4.1.4."
)
_TOO_MANY: Final = "Correct the rows if their values are wrong, or raise max_new_partitions, and start the query again."
_GRANT: Final = "Grant the user ALTER on the table, or make the partitions before their rows come."
