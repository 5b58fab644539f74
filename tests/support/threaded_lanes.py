"""A job without Spark: micro-batches of whole source transactions, written by lanes in threads of this process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.sink.lanes import Written, write_shared
from starrocks_txn_sink.sink.session import Session, open_session
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import LaneReport, Message, decode, encode
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.turns import turns_of
from starrocks_txn_sink.writer.worker import Attempt

Transaction = Mapping[str, Sequence[object]]
"""The ids of a source transaction's rows, by table."""


def batch_of(partition: str, first: int, transactions: Sequence[Transaction]) -> pa.RecordBatch:
    """The rows of source transactions at the positions `first` and the next ones."""
    rows = [
        (position, table, number)
        for position, transaction in enumerate(transactions, first)
        for table, numbers in transaction.items()
        for number in numbers
    ]
    ends = [number + 1 == len(rows) or row[0] != rows[number + 1][0] for number, row in enumerate(rows)]
    return pa.RecordBatch.from_pydict(
        {
            columns.PARTITION: pa.array([partition] * len(rows), pa.string()),
            columns.POSITION: pa.array([row[0] for row in rows], pa.int64()),
            columns.TABLE: pa.array([row[1] for row in rows], pa.string()),
            columns.PAYLOAD: pa.array([f',{{"id":{json.dumps(row[2])}}}' for row in rows], pa.string()),
            columns.TRANSACTION_END: pa.array(ends, pa.bool_()),
        }
    )


@dataclass
class ThreadedJob:
    """One run of a job with a lane for each source partition `p0`, `p1`, …"""

    options: SinkOptions
    lanes: int
    session: Session = field(init=False)
    receipts: list[Receipt] = field(default_factory=list)
    _next: list[int] = field(init=False)
    _batch: int = 0

    def __post_init__(self) -> None:
        job = str(self.options.job)
        self.session = open_session(self.options, job, job, "c")
        self._next = [1] * self.lanes

    def write(self, transactions: Sequence[Sequence[Transaction]], rows_at_once: int = 1000) -> Written:
        """Write one micro-batch: the next source transactions of each lane."""
        batches = [
            [whole.slice(start, rows_at_once) for start in range(0, whole.num_rows, rows_at_once)]
            for lane, of_lane in enumerate(transactions)
            for whole in (batch_of(f"p{lane}", self._next[lane], of_lane),)
        ]
        task = self.session.lane_task(self.options, self._batch, lanes=self.lanes)
        task = replace(task, turns=turns_of("local", "", ""), lane_begins=True)
        written = write_shared(task, partial(self._run_lanes, batches), self._collect, SystemClock())
        self._next = [at + len(of_lane) for at, of_lane in zip(self._next, transactions, strict=True)]
        self._batch += 1
        return written

    def _run_lanes(self, batches: Sequence[Sequence[pa.RecordBatch]], task: LaneTask) -> list[Message]:
        def run(lane: int) -> list[Message]:
            return [
                decode(encode(message)) for message in SparkLane(task).run(batches[lane], Attempt(lane, lane, False))
            ]

        with ThreadPoolExecutor(self.lanes) as pool:
            return [message for messages in pool.map(run, range(len(batches))) for message in messages]

    def _collect(self, receipts: Iterable[Receipt], reports: Iterable[LaneReport]) -> None:
        receipts = list(receipts)
        self.session.learn(receipts)
        self.session.learn_keys(list(reports))
        self.receipts += receipts
