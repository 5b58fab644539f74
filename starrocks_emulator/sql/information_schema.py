"""information_schema as the query port serves it: relations made from the catalog whenever a statement reads them.

`loads` has one row for each (label, table) that the frontend remembers (wire contract 6).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from starrocks_emulator.sql.session import FIRST_BACKEND
from starrocks_emulator.tables.catalog import Column, Model, Table
from starrocks_emulator.tables.committed import Inserted
from starrocks_emulator.transactions.labels import LabelState, Registered, Task
from starrocks_emulator.transactions.memory import FrontendMemory, TableLoad
from starrocks_emulator.transactions.single import BY_BACKEND
from starrocks_emulator.users import Rights

if TYPE_CHECKING:
    from starrocks_emulator.tables.store import Store


_PROGRESS = {"FINISHED": "100%", "COMMITED": "99%"}

Rows = Iterable[Mapping[str, Any]]
_TEXT, _NUMBER = pa.string(), pa.int64()


def _shape(texts: str, numbers: str = "") -> dict[str, pa.DataType]:
    return {**dict.fromkeys(texts.split(), _TEXT), **dict.fromkeys(numbers.split(), _NUMBER)}


_SHAPES: dict[str, dict[str, pa.DataType]] = {
    "schemata": _shape("CATALOG_NAME SCHEMA_NAME DEFAULT_CHARACTER_SET_NAME DEFAULT_COLLATION_NAME SQL_PATH"),
    "tables": _shape(
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_TYPE ENGINE ROW_FORMAT CREATE_TIME UPDATE_TIME CHECK_TIME"
        " TABLE_COLLATION CREATE_OPTIONS TABLE_COMMENT",
        "VERSION TABLE_ROWS AVG_ROW_LENGTH DATA_LENGTH MAX_DATA_LENGTH INDEX_LENGTH DATA_FREE AUTO_INCREMENT CHECKSUM",
    ),
    "columns": _shape(
        "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME COLUMN_DEFAULT IS_NULLABLE DATA_TYPE CHARACTER_SET_NAME"
        " COLLATION_NAME COLUMN_TYPE COLUMN_KEY EXTRA PRIVILEGES COLUMN_COMMENT GENERATION_EXPRESSION",
        "ORDINAL_POSITION CHARACTER_MAXIMUM_LENGTH CHARACTER_OCTET_LENGTH NUMERIC_PRECISION NUMERIC_SCALE"
        " DATETIME_PRECISION COLUMN_SIZE DECIMAL_DIGITS SRS_ID",
    ),
    "tables_config": _shape(
        "TABLE_SCHEMA TABLE_NAME TABLE_ENGINE TABLE_MODEL PRIMARY_KEY PARTITION_KEY DISTRIBUTE_KEY DISTRIBUTE_TYPE"
        " SORT_KEY PROPERTIES",
        "DISTRIBUTE_BUCKET TABLE_ID",
    ),
    "loads": {
        **_shape("", "ID"),
        **_shape("LABEL PROFILE_ID DB_NAME TABLE_NAME USER WAREHOUSE STATE PROGRESS TYPE PRIORITY"),
        **_shape("", "SCAN_ROWS SCAN_BYTES FILTERED_ROWS UNSELECTED_ROWS SINK_ROWS"),
        **_shape("RUNTIME_DETAILS CREATE_TIME LOAD_START_TIME LOAD_COMMIT_TIME LOAD_FINISH_TIME PROPERTIES ERROR_MSG"),
        **_shape("TRACKING_SQL REJECTED_RECORD_PATH", "JOB_ID"),
    },
    # Of backends: the emulator's have no tablets, so be_tablets has no rows.
    "be_configs": _shape("NAME TYPE DEFAULT VALUE MUTABLE", "BE_ID"),
    "be_tablets": _shape("STATE TYPE", "BE_ID TABLE_ID PARTITION_ID TABLET_ID NUM_VERSION NUM_SEGMENT NUM_ROWSET"),
    "load_tracking_logs": _shape("ID LABEL DATABASE_NAME TABLE_NAME TYPE TRACKING_LOG", "JOB_ID"),
}


def relation(store: Store, name: str, rights: Rights) -> pa.Table | None:
    """The relation information_schema.`name` as a user sees it now, or None when there is no such one.

    Tables without any privilege are left out; the loads of all users are not (wire contract 6.5).
    """
    virtual = store.virtual_tables.get(("information_schema", name))
    own = _OWN_ROWS.get(name)
    if virtual is None and own is None and name not in _SHAPES:
        return None
    rows: list[Mapping[str, Any]] = [*(virtual() if virtual else own(store) if own else ())]
    rows = [{key.upper(): value for key, value in row.items()} for row in rows if _is_seen(row, rights)]
    shape = _SHAPES.get(name) or dict.fromkeys((key for row in rows for key in row), _TEXT)
    return pa.table(
        {column: pa.array([_as(kind, row.get(column)) for row in rows], type=kind) for column, kind in shape.items()}
    )


def _is_seen(row: Mapping[str, Any], rights: Rights) -> bool:
    database, table = row.get("TABLE_SCHEMA", row.get("SCHEMA_NAME")), row.get("TABLE_NAME")
    return database in (None, "information_schema") or rights.sees(str(database), table)


def _as(kind: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    return int(value) if kind == _NUMBER else str(value)


def _schemata(store: Store) -> Iterator[Mapping[str, Any]]:
    for name in (*store.registry.databases, "information_schema"):
        yield {
            "CATALOG_NAME": "def",
            "SCHEMA_NAME": name,
            "DEFAULT_CHARACTER_SET_NAME": "utf8",
            "DEFAULT_COLLATION_NAME": "utf8_general_ci",
        }


def _tables(store: Store) -> Iterator[Mapping[str, Any]]:
    for table in store.registry.tables():
        yield {
            "TABLE_CATALOG": "def",
            "TABLE_SCHEMA": table.database,
            "TABLE_NAME": table.name,
            "TABLE_TYPE": "BASE TABLE",
            "ENGINE": "StarRocks",
            "TABLE_COLLATION": "utf8_general_ci",
            "TABLE_COMMENT": table.comment,
        }
    for name in _SHAPES:
        yield {
            "TABLE_CATALOG": "def",
            "TABLE_SCHEMA": "information_schema",
            "TABLE_NAME": name,
            "TABLE_TYPE": "SYSTEM VIEW",
            "ENGINE": "MEMORY",
            "TABLE_COMMENT": "",
        }


def _columns(store: Store) -> Iterator[Mapping[str, Any]]:
    for table in store.registry.tables():
        for place, column in enumerate(table.columns, start=1):
            yield _column(table, column, place)


def _column(table: Table, column: Column, place: int) -> Mapping[str, Any]:
    kind = column.type
    characters = kind.length if kind.name in {"CHAR", "VARCHAR", "STRING"} else None
    return {
        "TABLE_CATALOG": "def",
        "TABLE_SCHEMA": table.database,
        "TABLE_NAME": table.name,
        "COLUMN_NAME": column.name,
        "ORDINAL_POSITION": place,
        "COLUMN_DEFAULT": column.default.text if column.default and not column.default.counts else None,
        "IS_NULLABLE": "YES" if column.nullable else "NO",
        "DATA_TYPE": kind.data_type,
        "CHARACTER_MAXIMUM_LENGTH": characters,
        "CHARACTER_OCTET_LENGTH": characters,
        "NUMERIC_PRECISION": kind.digits,
        "NUMERIC_SCALE": kind.scale if kind.name == "DECIMAL" else (0 if kind.digits else None),
        "COLUMN_TYPE": kind.column_type,
        "COLUMN_KEY": table.model.column_key if table.is_key(column) else "",
        "EXTRA": "",
        "PRIVILEGES": "",
        "COLUMN_COMMENT": column.comment,
        "COLUMN_SIZE": kind.length or kind.digits,
        "DECIMAL_DIGITS": kind.scale,
    }


def _tables_config(store: Store) -> Iterator[Mapping[str, Any]]:
    for number, table in enumerate(store.registry.tables(), start=10001):
        keys = ", ".join(f"`{key}`" for key in table.keys)
        yield {
            "TABLE_SCHEMA": table.database,
            "TABLE_NAME": table.name,
            "TABLE_ENGINE": "OLAP",
            "TABLE_MODEL": table.model.value,
            "PRIMARY_KEY": keys if table.model is Model.PRIMARY_KEY else "",
            "PARTITION_KEY": table.partition_by,
            "DISTRIBUTE_KEY": ", ".join(f"`{name}`" for name in table.spread),
            "DISTRIBUTE_TYPE": "RANDOM" if "RANDOM" in table.distributed_by.upper() else "HASH",
            "SORT_KEY": keys,
            "PROPERTIES": json.dumps(dict(sorted(table.properties.items())), separators=(",", ":")),
            "TABLE_ID": number,
        }


def _tracking_logs(store: Store) -> Iterator[Mapping[str, Any]]:
    for log in store.tracking_logs.all():
        yield {
            "ID": log.id,
            "LABEL": log.label,
            "DATABASE_NAME": log.database,
            "TABLE_NAME": log.table,
            "TYPE": "STREAM_LOAD",
            "TRACKING_LOG": log.text,
        }


_OWN_ROWS: dict[str, Callable[[Store], Rows]] = {
    "schemata": _schemata,
    "tables": _tables,
    "columns": _columns,
    "tables_config": _tables_config,
    "load_tracking_logs": _tracking_logs,
}


def be_config_rows(memory: FrontendMemory, backends: int) -> list[dict[str, Any]]:
    """The settings of each backend."""
    return [
        {"BE_ID": number, "NAME": name, "TYPE": kind, "DEFAULT": value, "VALUE": value, "MUTABLE": int(mutable)}
        for number in range(FIRST_BACKEND, FIRST_BACKEND + backends)
        for name, (value, kind, mutable) in sorted(memory.configuration.of_backends.items())
    ]


def load_rows(memory: FrontendMemory, inserted: Iterable[Inserted] = ()) -> list[dict[str, Any]]:
    """A snapshot of INSERTs, and behind them of all sub-tasks, oldest first; labels without a load have none."""
    with memory.lock:
        memory.sweep()
        return [
            *(_inserted(memory, statement) for statement in list(inserted)),
            *(_row(memory, task, load) for task, load in _loads(memory)),
        ]


def _inserted(memory: FrontendMemory, statement: Inserted) -> dict[str, Any]:
    """A statement's row, which names neither database nor table (wire contract 6.5)."""
    details = {"load_id": str(uuid.UUID(int=statement.txn_id)), "txn_error_msg": "", "txn_id": statement.txn_id}
    began, ended = _text(statement.began), _text(statement.ended)
    return {
        "ID": statement.txn_id,
        "JOB_ID": statement.txn_id,
        "LABEL": statement.label,
        "PROFILE_ID": None,
        "DB_NAME": "",
        "TABLE_NAME": "",
        "USER": memory.settings.user,
        "WAREHOUSE": "",
        "STATE": "FINISHED",
        "PROGRESS": "ETL:100%; LOAD:100%",
        "TYPE": "INSERT",
        "PRIORITY": "NORMAL",
        **dict.fromkeys(("SCAN_ROWS", "SCAN_BYTES", "FILTERED_ROWS", "UNSELECTED_ROWS"), 0),
        "SINK_ROWS": statement.rows,
        "RUNTIME_DETAILS": json.dumps({"backends": {}, "file_size": 0, **details, "unfinished_backends": {}}),
        "CREATE_TIME": began,
        "LOAD_START_TIME": began,
        "LOAD_COMMIT_TIME": ended,
        "LOAD_FINISH_TIME": ended,
        "PROPERTIES": json.dumps({"max_filter_ratio": 0, "timeout": 14400}),
        **dict.fromkeys(("ERROR_MSG", "TRACKING_SQL", "REJECTED_RECORD_PATH")),
    }


def _loads(memory: FrontendMemory) -> Iterator[tuple[Task, TableLoad]]:
    for task in memory.tasks.values():
        for load in task.tables.values():
            yield task, load


def _row(memory: FrontendMemory, task: Task, load: TableLoad) -> dict[str, Any]:
    counts = load.counts
    sunk, filtered, unselected = _row_counts(load)
    return {
        "ID": load.job_id,
        "JOB_ID": load.job_id,
        "LABEL": task.label,
        "PROFILE_ID": "",
        "DB_NAME": task.database,
        "TABLE_NAME": load.table,
        "USER": memory.settings.user,
        "WAREHOUSE": "default_warehouse",
        "STATE": load.state,
        "PROGRESS": _PROGRESS.get(load.state, "0%"),
        "TYPE": "PARALLEL_STREAM_LOAD",
        "PRIORITY": "NORMAL",
        "SCAN_ROWS": max(sunk + filtered + unselected, 0),
        "SCAN_BYTES": counts.bytes if counts else 0,
        "FILTERED_ROWS": filtered,
        "UNSELECTED_ROWS": unselected,
        "SINK_ROWS": sunk,
        "RUNTIME_DETAILS": f'{{"txn_id":{task.txn_id}}}',
        "CREATE_TIME": _text(load.created_at),
        "LOAD_START_TIME": _text(load.created_at),
        "LOAD_COMMIT_TIME": _text(load.finished_at) if counts and load.state != "CANCELLED" else None,
        "LOAD_FINISH_TIME": _text(load.finished_at),
        "PROPERTIES": "{}",
        "ERROR_MSG": load.error or None,
        "TRACKING_SQL": _tracking_sql(load),
        "REJECTED_RECORD_PATH": "",
    }


def _row_counts(load: TableLoad) -> tuple[int, int, int]:
    """Rows that were kept, filtered and left out; -1 before they were judged, and of a load without rows."""
    counts = load.counts
    if counts is None or not (counts.loaded or counts.filtered or counts.unselected):
        return -1, -1, -1
    return counts.loaded, counts.filtered, counts.unselected


def _tracking_sql(load: TableLoad) -> str:
    """Finds no row: the number is that of a part of the load, which the frontend does not know (wire contract 5.10)."""
    if load.counts is None or not load.counts.filtered:
        return ""
    return f"select tracking_log from information_schema.load_tracking_logs where job_id={load.job_id}"


NO_LOG = (
    "Failed to access  err: Internal error: URL using bad/illegal format or missing URL\n"
    "be/src/exec/schema_scanner/schema_load_tracking_logs_scanner.cpp:141 client->execute(&tracking_msg)"
)
"""What a backend writes of a table without a log."""


def tracking_log_rows(memory: FrontendMemory, log_of: Callable[[str], str]) -> list[dict[str, Any]]:
    """The logs of load_tracking_logs, two rows for each table of a label whose commit was judged (wire contract 5.10).

    Each row of a label repeats the texts of those before. `log_of` gives the log of an address, "" for none.
    """
    rows: list[dict[str, Any]] = []
    with memory.lock:
        ended = [(task, [load for load in task.tables.values() if load.finished_at]) for task in memory.tasks.values()]
    for task, loads in ended:
        text = ""
        for load in loads:
            for kind in ("PARALLEL_STREAM_LOAD", "STREAM_LOAD"):
                text += log_of(load.counts.log if load.counts else "") or NO_LOG
                rows.append(
                    {"ID": load.job_id, "LABEL": task.label, "DATABASE_NAME": task.database, "TYPE": kind}
                    | {"TABLE_NAME": load.table, "TRACKING_LOG": text}
                )
    return rows


def stream_load_rows(memory: FrontendMemory) -> list[dict[str, Any]]:
    """The same sub-tasks as SHOW ALL STREAM LOAD shows them."""
    with memory.lock:
        memory.sweep()
        return [_stream_load(task, load) for task, load in _loads(memory)]


def _stream_load(task: Task, load: TableLoad) -> dict[str, Any]:
    counts, prepared = load.counts, load.prepared_at is not None
    created, ended = _text(load.created_at), None if load.state == "PREPARING" else _text(load.finished_at)
    figures = *_row_counts(load), counts.bytes if counts else -1
    numbers = ("NumRowsNormal", "NumRowsAbNormal", "NumRowsUnselected", "NumLoadBytes")
    return {
        "Label": task.label,
        "Id": load.job_id,
        "LoadId": str(uuid.UUID(int=load.job_id)),
        "TxnId": task.txn_id,
        "DbName": task.database,
        "TableName": load.table,
        "State": load.state,
        "ErrorMsg": load.error or None,
        "TrackingURL": counts.log if counts else "",
        "ChannelNum": 1,
        "PreparedChannelNum": int(prepared),
        **dict(zip(numbers, figures, strict=True)),
        "TimeoutSecond": int(task.deadline - task.begun_at),
        "CreateTimeMs": created,
        "BeforeLoadTimeMs": created,
        "StartLoadingTimeMs": created,
        "StartPreparingTimeMs": _text(load.prepared_at),
        "FinishPreparingTimeMs": ended if load.state == "FINISHED" else None,
        "EndTimeMs": ended,
        "ChannelState": json.dumps({"0": "PREPARED" if prepared else "BEFORE_LOAD"}),
        "Type": "PARALLEL_STREAM_LOAD",
        "TrackingSQL": _tracking_sql(load),
    }


def transaction_rows(memory: FrontendMemory) -> list[dict[str, Any]]:
    """Registered transactions as `SHOW PROC '/transactions/…'` shows them, with their database; the newest first."""
    with memory.lock:
        memory.sweep()
        entries = sorted(memory.history.all(), key=lambda entry: -entry.txn_id)
        offset = memory.clock.wall() - memory.clock.monotonic()
        return [_transaction(entry, offset) for entry in entries]


def _transaction(entry: Registered, offset: float) -> dict[str, Any]:
    """`offset` makes the clock's seconds those since the Unix epoch."""
    start = _text(entry.begun_at + offset if entry.begun_at else entry.finished_at + offset)
    finished = None if entry.live else _text(entry.finished_at + offset)
    committed = None if entry.state is LabelState.ABORTED else finished
    return {
        "database": entry.database,
        "TransactionId": entry.txn_id,
        "Label": entry.label,
        "Coordinator": "BE: 127.0.0.1" if entry.source == BY_BACKEND else "FE: 127.0.0.1",
        "TransactionStatus": entry.state.value,
        "LoadJobSourceType": entry.source,
        "PrepareTime": start,
        "PreparedTime": start if entry.prepared_timeout else None,
        "CommitTime": committed,
        "PublishTime": committed,
        "FinishTime": finished,
        "Reason": entry.reason,
        "ErrorReplicasCount": 0,
        "ListenerId": -1,
        "TimeoutMs": int(entry.timeout * 1000),
        "PreparedTimeoutMs": int(entry.prepared_timeout * 1000),
        "ErrMsg": "",
    }


def _text(moment: float | None) -> str | None:
    return None if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
