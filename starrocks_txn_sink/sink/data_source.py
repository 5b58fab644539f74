"""The data source: `.write` and `.writeStream` with `.format("starrocks_txn")`, over Spark's Python data source API.

The lanes are those of `StarRocksSink`. A data source cannot spread a frame over other partitions, so the user calls
`lane_partitioned` first (`sink.lane_layout`). A batch frame without positions needs no layout (`sink.plain_frames`).

The driver's part runs in short-lived Python processes that Spark starts on the driver: one makes the writer before the
tasks of a write start, and another one ends the write. The processes share no memory, so every micro-batch takes the
job over. Of two runs the one with the younger frame keeps the job (`refuse_newer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as T

from starrocks_txn_sink.assembler.rules.directory import FileDirectory
from starrocks_txn_sink.clock import SystemClock, microseconds
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.label import LabelPrefix
from starrocks_txn_sink.rows.segments import check_row_numbers
from starrocks_txn_sink.sink import plain_frames, session as sessions
from starrocks_txn_sink.sink.checkpoint import FOLDER, Proof, ProofLog
from starrocks_txn_sink.sink.lane_layout import LaneTerms
from starrocks_txn_sink.spark_version import BATCH_DATA_SOURCE, STREAM_DATA_SOURCE, require
from starrocks_txn_sink.writer.messages import LaneReport, of_kind
from starrocks_txn_sink.writer.task import LaneTask, LaneTry
from starrocks_txn_sink.writer.worker import Attempt

try:
    from pyspark.sql import datasource
except ImportError:
    require(BATCH_DATA_SOURCE)
    raise

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    StreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", object)  # STREAM_DATA_SOURCE


FORMAT = "starrocks_txn"
_PROOF_SECONDS = 10.0
_CHECKPOINT = "checkpointLocation"
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of a micro-batch's tasks


@dataclass(frozen=True)
class LaneWrite:
    """One write over all lanes. The driver makes it before the tasks start, and Spark pickles it into the tasks."""

    task: LaneTask
    before: Proof | None = None

    def run(self, batches: Iterator[pa.RecordBatch], task: LaneTask) -> plain_frames.LaneMessage:
        """Write the rows of this task's lane. Raises InputError if the frame was changed after `lane_partitioned`."""
        attempt, clock = Attempt.current(), SystemClock()
        rows = check_row_numbers(batches, attempt.lane)
        messages = task.answer(attempt, clock, lambda: LaneTry(task, attempt, clock).run(rows))
        return plain_frames.LaneMessage(attempt.lane, tuple(messages), self.before if attempt.lane == 0 else None)

    def finish(self, messages: plain_frames.CommitMessages) -> None:
        """Check that every lane has sent its message, and log receipts and warnings. Raises InputError."""
        lanes, sent = plain_frames.collect_messages(messages)
        if sorted(each.lane for each in lanes) != list(range(self.task.options.lane_count)):
            raise InputError(
                f"{len(lanes)} of {self.task.options.lane_count} lanes were written: the frame has other partitions "
                "than lane_partitioned made.",
                hint="Make lane_partitioned the last step before the write. What was written stays, and is not written "
                "a second time.",
            )
        plain_frames.log_messages(self.task, sent)

    def abort(self, *_: object) -> None:
        """Roll back the open labels of the tasks, also labels that a task begins while Spark ends it."""
        sessions.roll_back_until(
            self.task.options, LabelPrefix(self.task.job, self.task.epoch), plain_frames.ABORT_SECONDS
        )


class StarRocksDataSource(datasource.DataSource):
    """The data source `starrocks_txn`: appends rows that `lane_partitioned` has laid out, and batch frames as they are.

    Register it once a session. A frame as it is has no source transactions: typed columns of the table that the option
    `table` names, or the columns `table` and `row`. All of it becomes visible at once, or nothing. Never overwrites.

    Args:
        options: The writer's options: those of `SinkOptions`, as text, which win over the options of
            `lane_partitioned`. A batch write of its frames also takes `batch_id`, as `StarRocksSink.write` does.

    Example::

        spark.dataSource.register(StarRocksDataSource)
        frame.write.format("starrocks_txn").options(**addresses).option("table", "orders").mode("append").save()
        lane_partitioned(rows, options).write.format("starrocks_txn").mode("append").save()
    """

    _unpickled = False  # Spark pickles a data source only for the process that ends the write

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _unpickled=True)

    def writer(self, schema: T.StructType, overwrite: bool) -> StarRocksWriter | plain_frames.PlainFrameWriter:
        """For `.write`: take the job over, or begin the label of a frame as it is, before the tasks start."""
        given = {name.lower(): text for name, text in self.options.items() if name.lower() != "path"}
        if not overwrite and plain_frames.is_plain(schema, given):
            return plain_frames.PlainFrameWriter.begin(schema, given)
        options, terms = self._read_terms(schema, overwrite)
        job = sessions.job_of_frame(options, positioned=terms.marked)
        session = sessions.open_session(options, f"write-{job}", job, f"write-{job}")
        number = _batch_id(self.options.get(plain_frames.BATCH_ID))
        task = _lane_task(session, options, terms, asks=True)
        task = replace(task, batch_id=microseconds() if number is None else number, streaming=False)
        return StarRocksWriter(task)

    def streamWriter(self, schema: T.StructType, overwrite: bool) -> StarRocksStreamWriter:  # noqa: N802 - Spark's name
        """For `.writeStream`, called for each micro-batch: take the job over before its tasks start.

        If this process can read the checkpoint, raises LedgerBehind when the ledger knows less than the checkpoint,
        and OptionError for a query without micro-batches.
        """
        require(STREAM_DATA_SOURCE)
        options, terms = self._read_terms(schema, overwrite)
        if options.job is None:
            raise OptionError(
                "`job` is not set, and a data source cannot see the id of the query that it writes for.",
                hint="Set `job` to a name that stays the same over restarts and that no other query uses.",
                option="job",
            )
        location = self.options.get(_CHECKPOINT, "").rstrip("/") if options.exactly_once else ""
        proofs = FileDirectory(f"{location}/{FOLDER}") if location else None
        if self._unpickled:
            task = LaneTask(options, options.job, terms.epoch, "", 0, terms.marked, logging=terms.logging)
            return StarRocksStreamWriter(task, proofs=proofs)
        unseen = sessions.SeenQuery(f"{FORMAT}-{options.job}", sessions.FROM_THE_BEGINNING, begins=False)
        seen = unseen
        if proofs is not None:
            seen = sessions.see_query(FileDirectory(location), ProofLog(proofs, terms.epoch)) or unseen
        if not seen.in_batch:
            raise OptionError(
                "The query has a continuous trigger, so it has no micro-batches, and nothing could be exactly once.",
                hint="Set another trigger: processingTime, availableNow or once.",
            )
        session = sessions.open_session(
            options, seen.query, options.job, seen.query, run_epoch=terms.epoch, resumption=seen.resumption
        )
        task = _lane_task(session, options, terms, asks=seen.begins)
        before = session.proof(seen.resumption.batch - 1) if seen is not unseen else None
        return StarRocksStreamWriter(task, before, proofs)

    def _read_terms(self, schema: T.StructType, overwrite: bool) -> tuple[SinkOptions, LaneTerms]:
        if overwrite:
            raise OptionError(
                "The sink appends changes to tables; it never empties one.",
                hint='Use .mode("append"), and .outputMode("append") for a stream.',
            )
        terms = LaneTerms.within(schema)
        return terms.sink_options(dict(self.options)), terms


def _lane_task(session: sessions.Session, options: SinkOptions, terms: LaneTerms, *, asks: bool) -> LaneTask:
    """The task of the lanes after the take-over; the micro-batch's number is not known yet.

    With `asks` the lanes do the two checks that a run needs once: are their labels listed, and are the names in JSON
    rows columns of the table.
    """
    session.canary = asks
    task = session.lane_task(options, 0, marked=terms.marked, keys=terms.keys, logging=terms.logging)
    return task if asks else replace(task, compared=None)


@dataclass(frozen=True)
class StarRocksWriter(LaneWrite, datasource.DataSourceArrowWriter):
    """Writes one batch frame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> plain_frames.LaneMessage:
        return self.run(iterator, self.task)

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        self.finish(messages)


@dataclass(frozen=True)
class StarRocksStreamWriter(LaneWrite, StreamArrowWriter):
    """Writes one micro-batch, and its proof into the directory `proofs` next to Spark's logs."""

    proofs: FileDirectory | None = None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> plain_frames.LaneMessage:
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) if context is not None else None for name in (_QUERY, _BATCH))
        if query is None or batch is None:
            raise InputError(
                "The task does not know its streaming query and micro-batch, so a replay would not be noticed.",
                hint="Use foreachBatch(StarRocksSink(options)) with this version of Spark.",
            )
        return self.run(iterator, replace(self.task, checkpoint=query, batch_id=int(batch)))

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.finish(messages)
        lanes, sent = plain_frames.collect_messages(messages)
        before = next((each.before for each in lanes if each.before is not None), None)
        if before is None or self.proofs is None:
            return
        receipts = of_kind(sent, Receipt)
        proof = before.with_batch(batchId, receipts, of_kind(sent, LaneReport))
        if receipts or proof.skips:  # a run with a proof of its own asks no more (`SeenQuery.begins`), so not earlier
            ProofLog(self.proofs, self.task.epoch).record_within(proof, _PROOF_SECONDS)


def _batch_id(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdigit():
        raise OptionError(
            f"batch_id is {text[:40]!r}, not a whole number.", hint="Number the frames.", option=plain_frames.BATCH_ID
        )
    return int(text)
