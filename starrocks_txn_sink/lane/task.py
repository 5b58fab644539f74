"""The lane as a Spark task: Arrow batches in, receipts out. The adapter between `mapInArrow` and the lane's runner."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.lane.actions import Identity, Limits
from starrocks_txn_sink.lane.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.lane.perform import Performer
from starrocks_txn_sink.lane.receipt import Receipt
from starrocks_txn_sink.lane.runner import Crew, LaneRunner
from starrocks_txn_sink.lane.segments import Segment, Segmenter, UnitSegmenter
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.transaction.names import labels

RECEIPT_SCHEMA = "receipt string"
_RECEIPTS = pa.schema([pa.field("receipt", pa.string())])


@dataclass(frozen=True, slots=True)
class LaneTask:
    """What a lane needs to know of its micro-batch; ships to executors and runs there, once a Spark task.

    `marked` tells whether rows carry positions and transaction ends; without them a lane's rows are one unit
    (`lanes=1`), or each Arrow batch is one.
    """

    options: SinkOptions
    job: str
    epoch: str
    batch_id: int
    marked: bool = True

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of `batches`; yields one row of RECEIPT_SCHEMA for each StarRocks transaction."""
        context = TaskContext.get()
        lane, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        receipts = self.write(batches, lane, attempt, SystemClock())
        if receipts:
            yield pa.RecordBatch.from_arrays([pa.array([receipt.to_json() for receipt in receipts])], schema=_RECEIPTS)

    def write(self, batches: Iterable[pa.RecordBatch], lane: int, attempt: int, clock: Clock) -> list[Receipt]:
        """Run the lane to its end; raises its first error, after its label was rolled back."""
        deadline = Deadline.after(self.options.batch_deadline, clock)
        rng = random.Random()
        equipment = _equip(self.options)
        core = SharedTransactionCoordinator(
            Identity(self.job, lane, self.batch_id),
            limits(self.options),
            labels(self.job, self.epoch, lane, self.batch_id, attempt),
            rng,
            clock.wall,
        )
        performer = Performer(self.options, equipment.transport, clock, deadline, rng)
        try:
            return LaneRunner(core, performer, equipment.crew, clock, deadline).run(self._segments(batches))
        except BaseException:
            _discard(self.options)  # a connection or a thread may be stuck: start the next batch with new ones
            raise

    def _segments(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Segment]:
        if self.marked:
            segmenter = Segmenter()
            for batch in batches:
                yield from segmenter.split(batch)
            return
        unit = UnitSegmenter(whole_lane=self.options.lanes == 1)
        for batch in batches:
            yield from unit.split(batch)
        yield unit.end()


def limits(options: SinkOptions) -> Limits:
    """The coordinator's limits. With one lane a micro-batch is one StarRocks transaction: no commit inside it."""
    return Limits(
        commit_interval=options.commit_interval if options.lanes > 1 else None,
        mini_interval=options.mini_interval,
        timeout=options.timeout,
        buffer_bytes=options.buffer_bytes,
        chunk_bytes=options.chunk_bytes,
        load_bytes=options.load_bytes,
        retry_buffer_bytes=options.retry_buffer_bytes,
        load_parallelism=options.load_parallelism,
        max_attempts=options.max_attempts,
    )


# --- what a worker process keeps between batches: connections, and the threads they belong to ---


@dataclass(frozen=True, slots=True)
class _Equipment:
    transport: HttpTransport
    crew: Crew


_kept: dict[bytes, _Equipment] = {}


def _equip(options: SinkOptions) -> _Equipment:
    key = pickle.dumps(options)
    if key not in _kept:
        _kept[key] = _Equipment(HttpTransport(options), Crew(options.load_parallelism + 1, "starrocks-lane"))
    return _kept[key]


def _discard(options: SinkOptions) -> None:
    equipment = _kept.pop(pickle.dumps(options), None)
    if equipment is not None:
        equipment.crew.close()
        equipment.transport.close()
