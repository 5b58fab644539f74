"""One micro-batch of one lane, without Spark."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows.columns import SENTINEL_POSITION
from starrocks_txn_sink.sink.session import Session, open_session
from starrocks_txn_sink.writer.task import LaneTask, LaneTry
from starrocks_txn_sink.writer.worker import RESOURCES, Attempt

_SCHEMA = pa.schema(
    {
        "source_partition": pa.string(),
        "position": pa.int64(),
        "table": pa.string(),
        "transaction_end": pa.bool_(),
        "payload": pa.string(),
        "task": pa.string(),
    }
)
_TASK = "Executor task launch worker for task 0.0 in stage 0.0 (TID 0)"


def lane_rows(rows: Mapping[int, str]) -> pa.RecordBatch:
    """Source transactions of one row of `items` in source partition p-0, by position; and the sentinel."""
    made = [("p-0", position, "items", True, f",{row}", _TASK) for position, row in rows.items()]
    columns = zip(*made, (None, SENTINEL_POSITION, None, None, None, None), strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def write_micro_batch(
    options: SinkOptions,
    rows: Mapping[int, str],
    batch: int,
    *,
    checkpoint: str = "checkpoint",
    retry: bool = False,
    clock: Clock | None = None,
) -> Session:
    """Take `options.job` over and write `lane_rows(rows)`; a `retry` claims its lane."""
    assert options.job is not None
    session = open_session(options, "run", options.job, checkpoint, clock)
    task = LaneTask(options, options.job, session.epoch, checkpoint, batch, ownership=session.ownership)
    try:
        LaneTry(task, Attempt(0, 1, retry), clock or SystemClock()).run([lane_rows(rows)])
    finally:
        RESOURCES.close()
    return session
