"""One micro-batch of one lane, without Spark."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.lanes import RoundRunner, Written
from starrocks_txn_sink.sink.session import Session, open_session
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import LaneReport, Message
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import RESOURCES, Attempt

_SCHEMA = pa.schema(
    {
        "source_partition": pa.string(),
        "position": pa.int64(),
        "table": pa.string(),
        "transaction_end": pa.bool_(),
        "payload": pa.string(),
    }
)


def lane_rows(rows: Mapping[int, str]) -> pa.RecordBatch:
    """Source transactions of one row of `items` in source partition p-0, by position."""
    events = [("p-0", position, "items", True, f",{row}") for position, row in rows.items()]
    columns = zip(*events, strict=True) if events else [()] * len(_SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def write_micro_batch(
    options: SinkOptions,
    rows: Mapping[int, str],
    batch: int,
    *,
    checkpoint: str = "checkpoint",
    clock: Clock | None = None,
) -> Session:
    """Take `options.job` over and write `lane_rows(rows)` in one lane."""
    return write_lane_rows(options, lane_rows(rows), batch, checkpoint=checkpoint, clock=clock)


def write_lane_rows(
    options: SinkOptions,
    rows: pa.RecordBatch,
    batch: int,
    *,
    checkpoint: str = "checkpoint",
    clock: Clock | None = None,
) -> Session:
    """Take `options.job` over and write `rows` in one lane."""
    assert options.job is not None
    clock = clock or SystemClock()
    session = open_session(options, "run", options.job, checkpoint, clock)
    _write(options, session, rows, batch, clock)
    return session


def write_under(options: SinkOptions, session: Session, rows: pa.RecordBatch, batch: int = 0) -> Written:
    """Write `rows` in one lane for the job that `session` has taken over."""
    return _write(options, session, rows, batch, SystemClock())


def write_rows(options: SinkOptions, rows: pa.RecordBatch, batch: int) -> Written:
    """As `write_lane_rows`; returns what was written."""
    assert options.job is not None
    clock = SystemClock()
    return _write(options, open_session(options, "run", options.job, "checkpoint", clock), rows, batch, clock)


def _write(options: SinkOptions, session: Session, rows: pa.RecordBatch, batch: int, clock: Clock) -> Written:
    options = replace(options, shuffle=False)  # an error about the input is no reason to sort
    task = LaneTask(options, session.job, session.epoch, session.checkpoint, batch, ownership=session.ownership)

    def run_lane(lane: LaneTask) -> list[Message]:
        return SparkLane(lane).run([rows], Attempt(0, 1, False), clock)

    deadline = Deadline.after(options.batch_deadline, clock)
    try:
        with RESOURCES.lease(options) as resources:
            collect = partial(_collect, session)
            return RoundRunner(task, resources, deadline, random.Random(), run_lane, collect).write()
    finally:
        RESOURCES.close()


def _collect(session: Session, receipts: Sequence[Receipt], reports: Sequence[LaneReport]) -> None:
    del reports
    session.learn(receipts)
