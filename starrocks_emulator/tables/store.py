"""The emulator's store: StarRocks tables in one DuckDB file, written by whole transactions, read by snapshots.

One StarRocks transaction is one DuckDB transaction over all its tables: readers see all of it or nothing, and what a
`commit` returned from survives the death of the process. Every method may be called from any thread.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import duckdb

from starrocks_emulator.tables.alterations import Alterations
from starrocks_emulator.tables.apply import Manner, MissingDefault, Shuffle, apply_rows, with_added
from starrocks_emulator.tables.catalog import Column, Registry, Table
from starrocks_emulator.tables.committed import (
    COMMITTED,
    VISIBLE,
    CommittedTransactions,
    Inserted,
    TransactionRecord,
    Waiting,
    keep_rows,
    prepare_queue,
    publish_rows,
    read_queue,
)
from starrocks_emulator.tables.engine import Engine
from starrocks_emulator.tables.judge import NO_SOURCE, TrackingLog, TrackingLogs, judged_sql
from starrocks_emulator.tables.partitions import Opening, Values, needed, with_partitions
from starrocks_emulator.tables.plan import Plan, PlanRejected, make_plan
from starrocks_emulator.tables.reading import define_readers
from starrocks_emulator.tables.sets import define_functions
from starrocks_emulator.tables.staging import KEY_BYTES, NO_ROWS, Ahead, Staged, StagingFailed, stage

__all__ = ["NO_ROWS", "CommitRejected", "Plan", "PlanRejected", "Store", "TableCounts", "TransactionRecord"]

_IN_ORDER = Shuffle()
_ASKS_ALWAYS = Opening()
_TOO_MANY_FILTERED = "abnormal data more than max filter rate"
VirtualRows = Callable[[], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Rows of one table in one commit, and the bytes of its bodies as received; `log` leads to the reasons, if any."""

    loaded: int
    filtered: int
    unselected: int
    bytes: int
    log: str = ""


_MOST_INSERTED = 1000
"""INSERTs that are remembered: a server keeps as many finished loads of a database (`label_keep_max_num`)."""


class CommitRejected(Exception):
    """A transaction that did not commit, nothing of it kept; `cause` is what the server would answer for `table`.

    `counts` are those of each table whose rows could be judged.
    """

    def __init__(
        self, table: str, cause: str, *, counts: TableCounts | None = None, reasons: Sequence[str] = (), url: str = ""
    ) -> None:
        super().__init__(f"table {table}: {cause}")
        self.tracking_url = url
        self.table = table
        self.cause = cause
        self.loaded, self.filtered = (counts.loaded, counts.filtered) if counts else (0, 0)
        self.reasons = list(reasons)
        self.counts = {table: counts} if counts else {}


_NOT_APART: Mapping[int, float] = MappingProxyType({})


def _counts(rows: Staged) -> TableCounts:
    """A load without a row that is left has no log (wire contract 5.10)."""
    verdict = rows.verdict
    log = rows.log if verdict.loaded else ""
    return TableCounts(verdict.loaded, verdict.filtered, verdict.unselected, rows.body_bytes, log)


def _grew(before: Table, now: Table, new_columns: Sequence[Column]) -> bool:
    """Whether `now` is the table before, with the columns `new_columns` at most."""
    remaining = tuple(column for column in now.columns if column not in new_columns)
    return (remaining, now.keys, now.model) == (before.columns, before.keys, before.model)


def _no_url(log_id: str) -> str:
    return f"tracking log {log_id}"


class Store:
    """Opens or creates the store in `data_dir` and makes visible what an earlier process had committed."""

    def __init__(
        self,
        data_dir: Path,
        *,
        tracking_url: Callable[[str], str] = _no_url,
        memory_limit: str = "2GB",
        shuffle: Shuffle = _IN_ORDER,
        alter_seconds: float = 0.0,
        key_limit: Callable[[], int] = lambda: KEY_BYTES,
    ) -> None:
        self._shuffle = shuffle
        self.alterations = Alterations(alter_seconds)
        self.spool_dir = data_dir / "spool"
        self._engine = Engine(data_dir, self.spool_dir, memory_limit)
        shutil.rmtree(self.spool_dir, ignore_errors=True)
        self.spool_dir.mkdir(mode=0o700, parents=True)
        self._key_limit = key_limit
        self._ahead = Ahead(self._engine, self.spool_dir, key_limit)
        self._tracking_url = tracking_url
        self.tracking_logs = TrackingLogs()
        self.inserted: deque[Inserted] = deque(maxlen=_MOST_INSERTED)
        self.virtual_tables: dict[tuple[str, str], VirtualRows] = {}
        with self._engine.writing, self._engine.cursor() as cursor:
            with self._engine.transaction(cursor):
                define_functions(cursor)
                define_readers(cursor)
                self.registry = Registry(cursor)
                self._committed = CommittedTransactions(cursor)
                prepare_queue(cursor)
            self._queue = read_queue(cursor)
            self._queue.release_all()
            self._publish_ready(cursor)

    @property
    def engine(self) -> Engine:
        """DuckDB, for statements of the query port."""
        return self._engine

    def has_database(self, db: str) -> bool:
        """Whether the database is there."""
        return db in self.registry.databases

    def has_table(self, db: str, table: str) -> bool:
        """Whether the database and its table are there."""
        return self.registry.find(db, table) is not None

    def plan(self, db: str, table: str, headers: Mapping[str, str]) -> Plan:
        """The plan of a table's first load; header names in lower case. Raises PlanRejected."""
        self.alterations.finish_due()
        definition = self.registry.find(db, table)
        if definition is None:
            raise PlanRejected(f"Failed to find table {table} in db {db}", "com.starrocks.common.MetaNotFoundException")
        plan = make_plan(definition, headers)
        if not plan.mapping.derived and not plan.selection:
            return plan
        candidates = (plan, replace(plan, field_type="DOUBLE"))
        with self._engine.cursor() as cursor:
            for candidate in candidates:
                try:
                    cursor.execute(f"{judged_sql(candidate, NO_SOURCE)} LIMIT 0")
                except duckdb.Error:
                    continue
                return candidate
        raise PlanRejected(f"The expressions in columns or where cannot be evaluated on table {table}")

    def judge_ahead(self, plan: Plan, path: Path) -> None:
        """A table's first body is here: begin to judge it, for a commit that finds no other of the table."""
        self._ahead.begin(plan, path)

    def drop_bodies(self, paths: Iterable[Path]) -> None:
        """Delete bodies, and what was judged of them ahead."""
        paths = list(paths)
        self._ahead.drop(paths)
        for path in paths:
            with suppress(OSError):
                path.unlink()

    def commit(
        self,
        db: str,
        txn_id: int,
        label: str,
        loads: Sequence[tuple[Plan, Sequence[Path]]],
        *,
        visible: bool = True,
        opening: Opening = _ASKS_ALWAYS,
    ) -> dict[str, TableCounts]:
        """Judge all rows of all tables and commit them in one transaction, durable on return.

        With `visible=False`, or behind an invisible commit of one of the tables, the rows stay invisible (state
        COMMITTED) until `publish`, or until what is before them is published. Raises CommitRejected, nothing kept.
        """
        with self._engine.cursor() as cursor:
            staged = self._stage_all(cursor, loads, txn_id, label)
            for rows in staged:
                self._open_partitions(cursor, rows, opening)
            with self._engine.writing:
                self._write(cursor, db, txn_id, label, staged, visible)
        return {rows.plan.table.name: _counts(rows) for rows in staged}

    def _open_partitions(self, cursor: duckdb.DuckDBPyConnection, rows: Staged, opening: Opening) -> None:
        """Make the partitions that the rows need, or refuse the commit; what is made stays (wire contract 4.17)."""
        table = self.registry.find(rows.plan.database, rows.plan.table.name) or rows.plan.table
        values = needed(cursor, table, rows.rows)
        if opening.is_refused(table, values, rows.verdict.loaded):
            raise CommitRejected(table.name, NO_ROWS)
        self.add_partitions(table, values)

    def add_partitions(self, table: Table, values: Sequence[Values], name: str = "") -> None:
        """Make the automatic partitions that the table lacks of these, by the server's names or under `name`."""
        with self._engine.writing, self._engine.cursor() as cursor:
            now = self.registry.find(table.database, table.name)
            if now is None or {part.values for part in now.partitions}.issuperset(values):
                return
            with self._engine.transaction(cursor):
                self.registry.redefine(cursor, with_partitions(now, values, name))
            self.registry.reload(cursor)

    def judge(self, txn_id: int, label: str, plan: Plan, paths: Sequence[Path]) -> TableCounts:
        """What a commit of the bodies would find, without committing; raises CommitRejected."""
        with self._engine.cursor() as cursor:
            return _counts(self._stage(cursor, (plan, paths), 0, txn_id, label))

    def _stage_all(
        self,
        cursor: duckdb.DuckDBPyConnection,
        loads: Sequence[tuple[Plan, Sequence[Path]]],
        txn_id: int,
        label: str,
    ) -> list[Staged]:
        """All tables are judged, as each backend does; the first one that is rejected rejects the commit."""
        staged: list[Staged] = []
        refusals: list[CommitRejected] = []
        for place, load in enumerate(loads):
            try:
                staged.append(self._stage(cursor, load, place, txn_id, label))
            except CommitRejected as rejected:
                refusals.append(rejected)
        if refusals:
            counts = [refusal.counts for refusal in refusals[1:]]
            counts += [{rows.plan.table.name: _counts(rows)} for rows in staged]
            for refusal in counts:
                refusals[0].counts.update(refusal)
            raise refusals[0]
        return staged

    def _stage(
        self,
        cursor: duckdb.DuckDBPyConnection,
        load: tuple[Plan, Sequence[Path]],
        place: int,
        txn_id: int,
        label: str,
    ) -> Staged:
        plan, paths = load
        table = plan.table.name
        try:
            rows = self._ahead.take(paths) or stage(
                cursor, plan, paths, f"stage_{place}", self.spool_dir, key_limit=self._key_limit()
            )
        except StagingFailed as error:
            raise CommitRejected(table, str(error)) from error
        verdict = rows.verdict
        cause = url = ""
        if not verdict.loaded:
            cause = NO_ROWS
        elif verdict.too_many_filtered(plan.max_filter_ratio):
            cause = _TOO_MANY_FILTERED
        if verdict.filtered:
            log = TrackingLog(f"error_log_{txn_id:x}_{place:x}", label, plan.database, table, verdict.lines)
            self.tracking_logs.add(log)
            url = self._tracking_url(log.id)
            rows = replace(rows, log=url)
            cause = cause and f"{cause}, tracking_url: {url}"
        if cause:
            raise CommitRejected(table, cause, counts=_counts(rows), reasons=verdict.reasons, url=url)
        return rows

    def _write(
        self,
        cursor: duckdb.DuckDBPyConnection,
        db: str,
        txn_id: int,
        label: str,
        staged: Sequence[Staged],
        visible: bool,
    ) -> None:
        tables = frozenset((db, rows.plan.table.name) for rows in staged)
        at_once = visible and not self._queue.holds(tables)
        with self._engine.transaction(cursor):
            for rows in staged:
                table, new_columns = self._table_now(rows.plan)
                manner, relation = with_added(rows.manner, self._shuffle.of(rows.rows), new_columns)
                if at_once:
                    self._apply(cursor, table, manner, relation)
                else:
                    keep_rows(cursor, txn_id, (db, table.name), manner, relation)
            record = self._committed.write(cursor, txn_id, label, db, VISIBLE if at_once else COMMITTED)
        self._committed.adopt(record)
        if not at_once:
            self._queue.add(Waiting(txn_id, tables, released=visible))

    def _table_now(self, plan: Plan) -> tuple[Table, list[Column]]:
        """The plan's table, and the columns that it got since (wire contract 3.2); any other change is refused."""
        table = self.registry.find(plan.database, plan.table.name)
        new_columns = [column for column in table.columns if plan.table.column(column.name) is None] if table else []
        if table is None or not _grew(plan.table, table, new_columns):
            raise CommitRejected(plan.table.name, "the table was altered or dropped while it was being loaded")
        return table, new_columns

    def _apply(self, cursor: duckdb.DuckDBPyConnection, table: Table, manner: Manner, relation: str) -> None:
        try:
            apply_rows(cursor, table, manner, relation)
        except MissingDefault as error:
            raise CommitRejected(table.name, str(error)) from error

    def publish(self, txn_id: int, apart: float | None = None) -> None:
        """Make an invisible commit visible as soon as those before it are; nothing happens when it already is.

        With `apart` its tables become visible one after the other, so many seconds apart: what a query meets that is
        planned without a lock (wire contract 4.11). A reader with the writer's lock sees all or nothing.
        """
        with self._engine.writing, self._engine.cursor() as cursor:
            self._queue.release(txn_id)
            self._publish_ready(cursor, {} if apart is None else {txn_id: apart})

    def _publish_ready(self, cursor: duckdb.DuckDBPyConnection, apart: Mapping[int, float] = _NOT_APART) -> None:
        while (entry := self._queue.next_ready()) is not None:
            if entry.txn_id in apart:
                for table in sorted(entry.tables)[:-1]:
                    with self._engine.transaction(cursor):
                        publish_rows(cursor, self.registry, entry.txn_id, table)
                    time.sleep(apart[entry.txn_id])
            with self._engine.transaction(cursor):
                publish_rows(cursor, self.registry, entry.txn_id)
                self._committed.write_visible(cursor, entry.txn_id)
            self._committed.adopt_visible(entry.txn_id)
            self._queue.remove(entry)
        self._engine.writing.notify_all()

    def waits(self, tables: Iterable[tuple[str, str]]) -> bool:
        """Whether an invisible commit touches one of the tables. Needs the writer's lock."""
        return self._queue.holds(tables)

    def transactions(self) -> Sequence[TransactionRecord]:
        """The durable history of committed transactions, oldest first, less the forgotten ones."""
        return self._committed.list()

    def forget(self, label: str) -> None:
        """Drop a label's visible transactions from the history."""
        with self._engine.writing, self._engine.cursor() as cursor:
            self._committed.forget(cursor, label)

    def next_txn_id(self) -> int:
        """A transaction id above all earlier ones, also of earlier processes."""
        return self._committed.next_id()

    def add_virtual_table(self, database: str, name: str, rows: VirtualRows) -> None:
        """Serve `database`.`name` on the query port from `rows`, which is called for every statement that reads it."""
        self.virtual_tables[database.lower(), name.lower()] = rows

    def tracking_log(self, log_id: str) -> str:
        """Why rows were filtered; empty when the log is unknown or gone."""
        return self.tracking_logs.text(log_id)

    def close(self) -> None:
        """End what judges ahead, then close the file. What is committed stays."""
        self._ahead.close()
        self._engine.close()
