"""The data source: batch frames through `.write.format("starrocks_txn")`, without positions, all of it or nothing.

The frame's own tasks load under one label (`coordinator.coordinator`). A process on the driver begins the label before
the tasks start. Another process commits it when Spark has a message of every task. The write is right, because:

- Only a task that has read all of its rows sends a message. Spark reads a task's output to its end and there meets a
  failure of the rows' iterator, drops the result of a killed task, and accepts one of several tries at a Spark
  partition. So a write with all messages has all rows.
- Each task claims its Spark partition (`writer.lane_try`), so a second try loads nothing, and the write fails.
- There is no ledger, because the rows have no positions. Only this write commits its label, and only once.

Streams are in `sink.collected`: Spark makes a new writer in another process to end a micro-batch, and that process
knows neither a label nor a take-over of the first one.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import types as T

from starrocks_txn_sink.clock import Deadline, SystemClock, microseconds
from starrocks_txn_sink.coordinator.coordinator import LANE, claim_of, roll_back
from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import Delivery, SchemaChanges, SinkOptions
from starrocks_txn_sink.options.combinations import Feature, default_phrases, refuse_conflicts
from starrocks_txn_sink.options.without_effect import Circumstance, circumstances_of_rows, warn_of
from starrocks_txn_sink.protocol.label import LabelPrefix, labels
from starrocks_txn_sink.rows import columns as names
from starrocks_txn_sink.sink.batch_events import receipt_events
from starrocks_txn_sink.sink.frame_rows import TABLE_OPTION, FrameRows, check_texts, refuse_positions, table_of
from starrocks_txn_sink.sink.lanes import RoundRunner, Written, roll_back_claims
from starrocks_txn_sink.sink.session import open_session, roll_back_until
from starrocks_txn_sink.sink.typed.arrow import ArrowRoute
from starrocks_txn_sink.sink.typed.evolution import apply_schema_changes
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sink.typed.tables import compare_columns, named_by_rows
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.spark_version import DATA_SOURCE, STREAMS_OF_DATA_SOURCE, forget_idle_profilers, require
from starrocks_txn_sink.telemetry import Event, EventLogger, apply_log_settings
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import Message, of_kind
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.turns import turns_of
from starrocks_txn_sink.writer.worker import RESOURCES, Attempt

try:
    from pyspark.sql import datasource
except ImportError:
    require(DATA_SOURCE)
    raise

FORMAT = "starrocks_txn"
_NEVER_EMPTIED = "The sink appends changes to tables; it never empties one."


@dataclass(frozen=True, slots=True)
class LaneMessage(datasource.WriterCommitMessage):
    """A task's message to the process that ends the write, after the task has read all its rows."""

    lane: int
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class PlainFrameWriter(datasource.DataSourceArrowWriter):
    """Writes one batch frame as it is. The driver makes it with `begin`, which begins the label of `task`."""

    task: LaneTask
    rows: FrameRows
    abort_seconds: float = 6.0  # Spark ends the other tasks of a failed job after up to 4 s; until then they may claim

    @classmethod
    def begin(cls, schema: T.StructType, texts: Mapping[str, str]) -> PlainFrameWriter:
        """Check the frame's `schema` and the options `texts` as text, and begin the label.

        Raises InputError for columns that do not fit, OptionError for options that do not.
        """
        table = table_of(texts)
        refuse_positions(schema, typed=table is not None)
        options = _options(texts, typed=table is not None)
        rows = circumstances_of_rows(routed=table is not None, positioned=False)
        warn_of(options.without_effect(Circumstance.DATA_SOURCE, *rows))
        job = f"{options.job or 'write'}_frame"  # a take-over of a job in the ledger must not roll this label back
        session = open_session(options, "", job, "", typed_tables=[table] if table else ())
        columns = [name for name in schema.names if name != names.OP]
        routes = [] if table is None else [TableRoute(table, columns)]
        check_texts(schema, typed=bool(routes))
        if options.schema_changes is SchemaChanges.APPLY:
            apply_schema_changes(options, routes, schema, session, EventLogger("sink"))
        # Only `ArrowRoute` converts times here, and it takes the zone from the options.
        terms = TableTerms.of(routes, schema, options.timestamp_zone or "UTC", options, session.tables)
        number = microseconds()
        label = next(labels(job, session.epoch, LANE, number, 0))
        here = socket.gethostname()  # Spark keeps this process for a minute, which is longer than first loads take
        turns = turns_of("", here, here)
        task = session.lane_task(
            terms.options, number, marked=False, streaming=False, label=label, claims=True, turns=turns, logging=None
        )
        route = ArrowRoute.of(terms, schema) if routes else None
        writer = cls(task if route is None else replace(task, compared=None), FrameRows(terms.encoder, route))
        with writer._runner() as runner:
            runner.perform(runner.coordinator.begin(label))
        return writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneMessage:
        """Load the rows of one Spark partition, unless another try at it has begun to."""
        attempt = Attempt.current()
        rows = self._lane_rows(iterator, attempt.lane)
        return LaneMessage(attempt.lane, tuple(SparkLane(self.task).run(rows, attempt)))

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        """Commit the rows of all tasks, or raise the error of the task that explains the most."""
        tasks = [message for message in messages if isinstance(message, LaneMessage)]
        if len(tasks) != len(messages):
            raise InputError(f"{len(messages) - len(tasks)} of {len(messages)} tasks sent no message.")
        all_messages = [message for task in tasks for message in task.messages]
        with self._runner() as runner:
            _log_written(self.task, runner.finish(self.task.label, all_messages))
        loaded = (task.lane for task in tasks if any(share.rows for share in of_kind(task.messages, LaneShare)))
        with RESOURCES.lease(self.task.options) as resources:
            roll_back_claims(self.task, resources, SystemClock(), [claim_of(self.task.label, lane) for lane in loaded])

    def abort(self, messages: list[datasource.WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Roll the label back, and then those of tasks that still run, for `abort_seconds`."""
        with self._runner() as runner:
            runner.perform(roll_back(self.task.label))
        roll_back_until(self.task.options, LabelPrefix(self.task.job, self.task.epoch), self.abort_seconds)

    @contextlib.contextmanager
    def _runner(self) -> Iterator[RoundRunner]:
        deadline = Deadline.after(self.task.options.batch_deadline, SystemClock())
        with RESOURCES.lease(self.task.options) as resources:
            yield RoundRunner(self.task, resources, deadline, random.Random())

    def _lane_rows(self, batches: Iterator[pa.RecordBatch], lane: int) -> Iterator[pa.RecordBatch]:
        read = 0
        for batch in batches:
            if batch.num_rows:
                yield self.rows.lane_rows(batch, lane, read)
                read += batch.num_rows


def _log_written(task: LaneTask, outcome: Written) -> None:
    """Log receipts and warnings of a write."""
    apply_log_settings(task.logging)
    log = EventLogger("sink")
    for event in receipt_events(outcome.receipts):
        log(event)
    for event in compare_columns(task.options, named_by_rows(outcome.reports, {})) or ():
        log(Event(event.name, {"job": task.job, **event.fields}))


def _options(texts: Mapping[str, str], *, typed: bool) -> SinkOptions:
    values = SinkOptions.values_of(texts, (TABLE_OPTION,))
    if values.get("delivery") in ("exactly-once", Delivery.EXACTLY_ONCE):
        refuse_conflicts(default_phrases(Feature.EXACTLY_ONCE, Feature.DATA_SOURCE))  # before it asks for a query_url
    options = SinkOptions(**{**values, "delivery": Delivery.AT_LEAST_ONCE})
    options.check_features(Feature.DATA_SOURCE, Feature.PLAIN_ROWS, Feature.ROUTES if typed else Feature.JSON_TEXTS)
    if options.schema_changes is SchemaChanges.APPLY and not typed:
        raise OptionError(
            "The data source alters a table before it writes, and only the rows say which tables they are for.",
            hint='Name the table of typed columns, .option("table", "orders"), or use StarRocksSink.',
            option="schema_changes",
        )
    return options


class StarRocksDataSource(datasource.DataSource):
    """The data source `starrocks_txn`: appends batch frames as they are.

    Register it once a session. A frame has typed columns of the table that the option `table` names, or the columns
    `table` and `row`. All of it becomes visible at once, or nothing. Never overwrites.

    Args:
        options: The writer's options: those of `SinkOptions`, as text, and `table`.

    Example::

        spark.dataSource.register(StarRocksDataSource)
        frame.write.format("starrocks_txn").options(**addresses).option("table", "orders").mode("append").save()
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        forget_idle_profilers()

    @classmethod
    def name(cls) -> str:
        """The name for `format`: `starrocks_txn`."""
        return FORMAT

    def writer(self, schema: T.StructType, overwrite: bool) -> PlainFrameWriter:
        """For `.write`: begin the label of the frame, before the tasks start."""
        if overwrite:
            raise OptionError(_NEVER_EMPTIED, hint='Use .mode("append").')
        texts = {name.lower(): text for name, text in self.options.items() if name.lower() != "path"}
        return PlainFrameWriter.begin(schema, texts)

    def streamWriter(self, schema: T.StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """For `.writeStream`, and for sinks of pipelines: Spark collects each micro-batch, and one lane writes it."""
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            require(STREAMS_OF_DATA_SOURCE)
        from starrocks_txn_sink.sink.collected import CollectingWriter

        if overwrite:
            raise OptionError(_NEVER_EMPTIED, hint='Use .outputMode("append").')
        return CollectingWriter(schema, {name.lower(): text for name, text in self.options.items()})
