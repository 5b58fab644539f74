"""The second door: `.write` and `.writeStream` with `.format("starrocks_txn")`, over Spark's Python data source API.

The lanes are those of `StarRocksSink`. What differs is where the driver's part runs: in short-lived Python processes
that Spark starts on the driver, one that makes the writer before the tasks of a write start, and one for its end. No
memory lasts from one to the next, so every micro-batch takes the job over; the first one's right to do so is the
frame's age (`refuse_newer`). A writer gets whatever partitions the frame has: `lane_partitioned` makes them, and seals
them (`lane.seal`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from starrocks_txn_sink import logs
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.events import Event
from starrocks_txn_sink.lane.attempt import Attempt
from starrocks_txn_sink.lane.report import results
from starrocks_txn_sink.lane.seal import unsealed
from starrocks_txn_sink.lane.task import LaneTask, Mandate
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.lane_terms import LaneTerms
from starrocks_txn_sink.sink.session import Session, open_session, sweep_for

FORMAT = "starrocks_txn"
_ABORT_SECONDS = 6.0  # Spark ends the other tasks of a failed job only after up to 4 s, and they may begin labels
_BATCH_ID = "batch_id"
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of a micro-batch's tasks


@dataclass(frozen=True, slots=True)
class LaneMessage(WriterCommitMessage):
    """What a lane tells the driver's end of the write: its receipts and its report, as lines."""

    lane: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """What the tasks of one write need; made on the driver before they start, and pickled into them."""

    options: SinkOptions
    terms: LaneTerms
    job: str
    epoch: str
    mandate: Mandate | None

    def run(self, batches: Iterator[pa.RecordBatch], checkpoint: str, batch_id: int, *, streaming: bool) -> LaneMessage:
        """Write the rows of this task's lane. Raises InputError for rows that are not as they were laid out."""
        attempt = Attempt.current()
        task = LaneTask(
            self.options,
            self.job,
            self.epoch,
            checkpoint,
            batch_id,
            self.terms.marked,
            streaming,
            self.mandate,
            logging=self.terms.logging,
        )
        lines = task.lines(unsealed(batches, attempt.lane), attempt, SystemClock())
        return LaneMessage(attempt.lane, tuple(lines))

    def ended(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check that every lane has told what it wrote, and log their receipts. Raises InputError."""
        told = [message for message in messages if isinstance(message, LaneMessage)]
        if sorted(message.lane for message in told) != list(range(self.options.lanes)):
            raise InputError(
                f"{len(told)} of {self.options.lanes} lanes were written: the frame has other partitions than "
                "lane_partitioned made.",
                hint="Make lane_partitioned the last step before the write. What was written stays, and is not written "
                "a second time.",
            )
        logs.apply_log_settings(self.terms.logging)
        log = logs.EventLogger("sink")
        for receipt in results(line for message in told for line in message.lines)[0]:
            log(Event("receipt.collected", {"receipt": receipt}))

    def aborted(self) -> None:
        """Roll back what the tasks leave open, and what they begin while Spark ends them."""
        sweep_for(self.options, Session("", self.job, self.epoch, "", {}), _ABORT_SECONDS)


class StarRocksDataSource(DataSource):
    """`spark.dataSource.register(StarRocksDataSource)`, then
    `lane_partitioned(rows, options).write.format("starrocks_txn").mode("append").save()`.

    Options of the writer are those of `SinkOptions`, as text, laid over the ones that `lane_partitioned` was given; a
    batch write also takes `batch_id`, as `StarRocksSink.write` does. Only rows that `lane_partitioned` laid out are
    taken, and only to be appended.
    """

    _travelled = False  # unpickled: made for the end of a write, whose writer was made before

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _travelled=True)

    def writer(self, schema: T.StructType, overwrite: bool) -> StarRocksWriter:
        """For `.write`: takes the job over, on the driver, before the tasks start."""
        options, terms = self._agreed(schema, overwrite)
        job = options.job or "write"
        checkpoint = f"write-{job}"
        session = open_session(options, checkpoint, job, checkpoint)
        number = _batch_id(self.options.get(_BATCH_ID))
        lanes = Lanes(options, terms, job, session.epoch, session.mandate)
        return StarRocksWriter(lanes, checkpoint, time.time_ns() // 1000 if number is None else number)

    def streamWriter(self, schema: T.StructType, overwrite: bool) -> StarRocksStreamWriter:  # noqa: N802 - Spark's name
        """For `.writeStream`, called for each micro-batch: takes the job over before its tasks start."""
        options, terms = self._agreed(schema, overwrite)
        if options.job is None:
            raise OptionError(
                "`job` is not set, and a data source cannot see the id of the query that it writes for.",
                hint="Set `job` to a name that stays the same over restarts and that no other query uses.",
                option="job",
            )
        if self._travelled:
            return StarRocksStreamWriter(Lanes(options, terms, options.job, terms.epoch, None))
        checkpoint = f"{FORMAT}-{options.job}"
        session = open_session(options, checkpoint, options.job, checkpoint, run_epoch=terms.epoch)
        return StarRocksStreamWriter(Lanes(options, terms, options.job, session.epoch, session.mandate))

    def _agreed(self, schema: T.StructType, overwrite: bool) -> tuple[SinkOptions, LaneTerms]:
        if overwrite:
            raise OptionError(
                "The sink appends changes to tables; it never empties one.",
                hint='Use .mode("append"), and .outputMode("append") for a stream.',
            )
        terms = LaneTerms.within(schema)
        return terms.sink_options(dict(self.options)), terms


@dataclass(frozen=True)
class StarRocksWriter(DataSourceArrowWriter):
    """Writes one batch frame."""

    lanes: Lanes
    checkpoint: str
    number: int

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneMessage:
        return self.lanes.run(iterator, self.checkpoint, self.number, streaming=False)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.lanes.ended(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        self.lanes.aborted()


@dataclass(frozen=True)
class StarRocksStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch."""

    lanes: Lanes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context is not None else None
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        if query is None or batch is None:
            raise InputError(
                "The task does not know its streaming query and micro-batch, so nobody could tell a replay.",
                hint="Use foreachBatch(StarRocksSink(options)) with this version of Spark.",
            )
        return self.lanes.run(iterator, query, int(batch), streaming=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self.lanes.ended(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self.lanes.aborted()


def _batch_id(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdigit():
        raise OptionError(f"batch_id is {text[:40]!r}, no whole number.", hint="Count the frames.", option=_BATCH_ID)
    return int(text)
