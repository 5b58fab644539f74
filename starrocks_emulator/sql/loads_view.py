"""`information_schema.loads`: one row for each (label, table) that the frontend remembers (contract section 6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from starrocks_emulator.transactions.labels import Task
from starrocks_emulator.transactions.memory import FrontendMemory, TableLoad

_PROGRESS = {"FINISHED": "100%", "COMMITED": "99%"}


def load_rows(memory: FrontendMemory) -> list[dict[str, Any]]:
    """A snapshot of all sub-tasks, oldest first; labels without a load have none."""
    with memory.lock:
        memory.sweep()
        return [_row(memory, task, load) for task, load in _loads(memory)]


def _loads(memory: FrontendMemory) -> Iterator[tuple[Task, TableLoad]]:
    for task in memory.tasks.values():
        for load in task.tables.values():
            yield task, load


def _row(memory: FrontendMemory, task: Task, load: TableLoad) -> dict[str, Any]:
    counts = load.counts
    sunk, filtered, unselected = (
        (counts.loaded, counts.filtered, counts.unselected) if counts else (0, load.filtered, 0)
    )
    tracking = (
        "select tracking_log from information_schema.load_tracking_logs "
        f"where label='{task.label}' and table_name='{load.table}'"
    )
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
        "TYPE": "MULTI_STATEMENT_STREAM_LOAD",
        "PRIORITY": "NORMAL",
        "SCAN_ROWS": sunk + filtered + unselected,
        "SCAN_BYTES": counts.bytes if counts else 0,
        "FILTERED_ROWS": filtered,
        "UNSELECTED_ROWS": unselected,
        "SINK_ROWS": sunk,
        "TXN_ID": task.txn_id,
        "RUNTIME_DETAILS": f'{{"txn_id": {task.txn_id}}}',
        "CREATE_TIME": _text(load.created_at),
        "LOAD_START_TIME": _text(load.created_at),
        "LOAD_COMMIT_TIME": _text(load.finished_at) if counts else None,
        "LOAD_FINISH_TIME": _text(load.finished_at),
        "PROPERTIES": "{}",
        "ERROR_MSG": load.error,
        "TRACKING_SQL": tracking if filtered else "",
        "REJECTED_RECORD_PATH": "",
    }


def _text(moment: float | None) -> str | None:
    return None if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
