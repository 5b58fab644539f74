"""Staging: one table's load bodies become judged, typed rows in a table of their own, outside any write transaction.

A small body is judged ahead, while its transaction is open, as a backend does, so that its commit is short. That counts
only if it stays its table's one body; the rows of several (a CSV row may begin in one and end in the next) are judged
together, by the commit. The commit alone tells what is wrong with a body.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from starrocks_emulator.tables.apply import Manner
from starrocks_emulator.tables.bodies import (
    NO_OBJECT,
    UnreadableBody,
    begins_with_mark,
    plain_files,
    source_sql,
    torn_rows,
)
from starrocks_emulator.tables.catalog import quote
from starrocks_emulator.tables.engine import ASIDE, Engine
from starrocks_emulator.tables.json_text import UnreadableJson
from starrocks_emulator.tables.judge import NO_SOURCE, Verdict, judged_sql, verdict, written_columns
from starrocks_emulator.tables.plan import JsonLayout, Plan
from starrocks_emulator.tables.reading import TORN

NO_ROWS: Final = "No rows were imported from upstream"
"""What a commit says of a table without a row, whatever the cause: a body that cannot be read is in no log."""

SMALL: Final = 4 << 20
"""Bytes up to which a body is judged ahead: the judged rows of transactions that stay open take memory."""

_WORKERS: Final = 2

KEY_BYTES: Final = 128
"""What a backend takes of a primary key (`primary_key_limit_size`)."""

_FIXED_BYTES: Final = {
    "BOOLEAN": 1,
    "TINYINT": 1,
    "SMALLINT": 2,
    "INT": 4,
    "BIGINT": 8,
    "LARGEINT": 16,
    "DATE": 4,
    "DATETIME": 8,
}
# Anything else that DuckDB raises would be the emulator's own fault and is not to be taken for the rows'.
_BODY_FAULTS = (duckdb.InvalidInputException, duckdb.ConversionException, duckdb.OutOfRangeException)


class StagingFailed(Exception):
    """The bodies as a whole cannot be loaded; the message is the cause that the commit's reply carries."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Judged rows of one table, waiting in the table `name`; `log` leads to the reasons of filtered ones."""

    plan: Plan
    name: str
    verdict: Verdict
    body_bytes: int
    log: str = ""

    @property
    def rows(self) -> str:
        """The relation of the rows that fit, with their place of arrival."""
        return f"(SELECT rowid AS __arrival, * FROM {self.name} WHERE __reason IS NULL AND __selected)"

    @property
    def manner(self) -> Manner:
        """How the rows enter their table."""
        columns = tuple(column.name for column in written_columns(self.plan))
        return Manner(columns, self.plan.partial, self.plan.merge_column)


def stage(
    cursor: duckdb.DuckDBPyConnection,
    plan: Plan,
    paths: Sequence[Path],
    name: str,
    spool: Path,
    *,
    kind: str = "TEMP TABLE",
    key_limit: int = KEY_BYTES,
) -> Staged:
    """Read and judge the bodies at `paths` into `name`, a new table of that kind; raises StagingFailed."""
    folder = Path(tempfile.mkdtemp(prefix="plain-", dir=spool))
    try:
        present = [path for path in paths if path.stat().st_size]
        files = plain_files(plan, present, folder)
        judgement = _fill(cursor, plan, files, name, kind)
    except UnreadableBody as error:
        raise StagingFailed(str(error)) from error
    except UnreadableJson as error:
        raise StagingFailed(NO_ROWS) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _check_key_size(cursor, plan, name, key_limit)
    _check_merge(cursor, plan, name)
    return Staged(plan, name, judgement, sum(path.stat().st_size for path in paths))


def _fill(cursor: duckdb.DuckDBPyConnection, plan: Plan, files: Sequence[Path], name: str, kind: str) -> Verdict:
    """Judge the bodies: by DuckDB's reader, and step by step where it does not take one, or sees no object whole."""
    layout = plan.layout
    table = f"{kind} {name}"
    if not files:
        return _judge(cursor, plan, f"{NO_SOURCE} WHERE false", table, name)
    if not isinstance(layout, JsonLayout):
        try:
            return _judge(cursor, plan, source_sql(plan, files), table, name)
        except _BODY_FAULTS as error:
            raise StagingFailed(_cause(error)) from error
    if any(begins_with_mark(file) for file in files):
        raise UnreadableJson("a byte order mark")
    try:
        judgement = _judge(cursor, plan, source_sql(plan, files), table, name)
    except _BODY_FAULTS:
        pass
    else:
        if any(reason.startswith(NO_OBJECT) for reason in judgement.reasons):
            raise UnreadableJson(NO_OBJECT)
        if not any(reason.startswith(TORN) for reason in judgement.reasons):
            return judgement
    rows = pa.table({"raw": pa.array(torn_rows(layout, files), pa.string())})
    view = f"torn_{name.replace('.', '_')}"
    cursor.register(view, rows)
    fields, fault = "CAST(NULL AS VARCHAR[])", "CAST(NULL AS VARCHAR)"
    return _judge(cursor, plan, f"SELECT {fields} AS fields, raw, {fault} AS fault FROM {view}", table, name)


def _judge(cursor: duckdb.DuckDBPyConnection, plan: Plan, source: str, table: str, name: str) -> Verdict:
    cursor.execute(f"CREATE OR REPLACE {table} AS {judged_sql(plan, source)}")
    return verdict(cursor, name)


def _cause(error: Exception) -> str:
    """What is wrong with the bodies, without file names and without the text of rows."""
    text = str(error)
    if "UTF-8" in text or "utf-8" in text or "unicode" in text.lower():
        return "the body is not valid UTF-8"
    return f"the body cannot be read: {type(error).__name__}"


def _check_key_size(cursor: duckdb.DuckDBPyConnection, plan: Plan, name: str, limit: int) -> None:
    """The server fails a table with a key that is too long: values behind each other, and texts with an end.

    Two bytes end a text in front of another value, in which each U+0000 is a byte longer (wire contract 4.7).
    """
    table = plan.table
    key = [column for column in table.columns if table.is_key(column)] if table.model.takes_operations else []
    if not any(column.type.length is not None for column in key):
        return
    parts = [str(_FIXED_BYTES.get(column.type.name, 0)) for column in key if column.type.length is None]
    for column in key:
        if column.type.length is not None:
            text = quote(column.name)
            parts.append(f"strlen({text})")
            if column is not key[-1]:
                parts.append(f"2 + strlen({text}) - strlen(replace({text}, chr(0), ''))")
    row = cursor.execute(f"SELECT max({' + '.join(parts)}) FROM {name} WHERE __reason IS NULL").fetchone()
    if row and row[0] is not None and row[0] > limit:
        raise StagingFailed(NO_ROWS)


def _check_merge(cursor: duckdb.DuckDBPyConnection, plan: Plan, name: str) -> None:
    """The server fails a table with a merge condition whose rows delete (wire contract 5.6)."""
    if plan.merge_column and cursor.execute(f"SELECT 1 FROM {name} WHERE __op = 1 LIMIT 1").fetchall():
        raise StagingFailed(NO_ROWS)


class Ahead:
    """Bodies judged by threads of its own. Thread-safe."""

    def __init__(self, engine: Engine, spool: Path, key_limit: Callable[[], int] = lambda: KEY_BYTES) -> None:
        self._engine, self._spool, self._key_limit = engine, spool, key_limit
        self._pool = ThreadPoolExecutor(_WORKERS, "judge-ahead")
        self._judged: dict[Path, Future[Staged]] = {}
        self._guard = threading.Lock()
        self._numbers = count(1)

    def begin(self, plan: Plan, path: Path) -> None:
        """Start judging the body, unless it is a large one, or its rows are numbered: the counter is the store's."""
        counts = any(column.default is not None and column.default.counts for column in plan.table.columns)
        if counts or path.stat().st_size > SMALL:
            return
        name = f"{ASIDE}.judged_{next(self._numbers)}"
        with self._guard:
            self._judged[path] = self._pool.submit(self._judge, plan, path, name)

    def take(self, paths: Sequence[Path]) -> Staged | None:
        """The rows of a table's one body, if they were judged ahead, until `drop`; raises what `stage` raises."""
        with self._guard:
            future = self._judged.get(paths[0]) if len(paths) == 1 else None
        return future.result() if future is not None else None

    def drop(self, paths: Iterable[Path]) -> None:
        """Forget what was judged of these bodies, also what is still being judged."""
        for path in paths:
            with self._guard:
                future = self._judged.pop(path, None)
            if future is not None and not future.cancel():
                future.add_done_callback(self._discard)

    def close(self) -> None:
        """End the threads after the bodies at work; what waits is not judged."""
        self._pool.shutdown(cancel_futures=True)

    def _judge(self, plan: Plan, path: Path, name: str) -> Staged:
        with self._engine.cursor() as cursor:
            try:
                return stage(cursor, plan, [path], name, self._spool, kind="TABLE", key_limit=self._key_limit())
            except BaseException:
                cursor.execute(f"DROP TABLE IF EXISTS {name}")
                raise

    def _discard(self, future: Future[Staged]) -> None:
        if future.exception() is None:  # a body that could not be judged left nothing
            with self._engine.cursor() as cursor:
                cursor.execute(f"DROP TABLE {future.result().name}")
