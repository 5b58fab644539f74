"""The data source: batch frames through `.write.format("starrocks_txn")`, without positions, all of it or nothing.

The frame's own tasks load under one label (`coordinator.coordinator`). A process on the driver begins the label before
the tasks start. Another process commits it when Spark has a message of every task. The write is right, because:

- Only a task that has read all of its rows sends a message. Spark reads a task's output to its end and there meets a
  failure of the rows' iterator, drops the result of a killed task, and accepts one of several tries at a Spark
  partition. So a write with all messages has all rows.
- Each task claims its Spark partition (`writer.task`), so a second try loads nothing, and the write fails.
- There is no ledger, because the rows have no positions. Only this write commits its label, and only once.

Streams are refused. Spark makes a new writer in a new process to end a micro-batch, and that process knows neither the
label nor the take-over of the first one. `StarRocksSink` writes streams.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.clock import Deadline, SystemClock, microseconds
from starrocks_txn_sink.coordinator.coordinator import LANE, LaneShare, claim_of, roll_back
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options import Delivery, SchemaChanges, SinkOptions
from starrocks_txn_sink.options.combinations import Feature, default_phrases, refuse_conflicts
from starrocks_txn_sink.options.without_effect import Circumstance, circumstances_of_rows, warn_of
from starrocks_txn_sink.protocol.label import LabelPrefix, labels
from starrocks_txn_sink.rows import columns as names
from starrocks_txn_sink.sink.batch_events import receipt_events
from starrocks_txn_sink.sink.lanes import RoundRunner, Written, roll_back_claims
from starrocks_txn_sink.sink.session import open_session, roll_back_until
from starrocks_txn_sink.sink.typed.arrow import ArrowRoute
from starrocks_txn_sink.sink.typed.evolution import apply_schema_changes
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sink.typed.tables import compare_columns, named_by_rows
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.spark_version import DATA_SOURCE, require
from starrocks_txn_sink.telemetry import Event, EventLogger, apply_log_settings
from starrocks_txn_sink.writer.messages import Message, of_kind
from starrocks_txn_sink.writer.task import LaneTask, LaneTry
from starrocks_txn_sink.writer.worker import RESOURCES, Attempt

try:
    from pyspark.sql import datasource
except ImportError:
    require(DATA_SOURCE)
    raise

FORMAT = "starrocks_txn"
_TABLE, _IDENTIFIER = "table", "starrocks.table.identifier"
_TEXTS = (names.TABLE, names.ROW, names.OP, names.DATABASE)
ABORT_SECONDS = 6.0  # Spark ends the other tasks of a failed job after up to 4 s; until then they may begin claims


@dataclass(frozen=True, slots=True)
class LaneMessage(datasource.WriterCommitMessage):
    """A task's message to the process that ends the write, after the task has read all its rows."""

    lane: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class FrameRows:
    """Makes lane rows of a task's Arrow batches: from typed columns with `route`, else from table, row and op."""

    encoder: PayloadEncoder
    route: ArrowRoute | None = None

    def lane_rows(self, batch: pa.RecordBatch, lane: int, first: int) -> pa.RecordBatch:
        """The rows as TABLE, PAYLOAD and DELETED; errors name the Spark partition `lane`, and count from `first`."""
        size = batch.num_rows
        if self.route is None:
            table, row, database = (_texts(batch, name) for name in (names.TABLE, names.ROW, names.DATABASE))
        else:
            table = pa.array([self.route.table]).take(pa.array(np.zeros(size, np.int64)))
            row, database = self.route.rows(batch), pa.nulls(size, pa.string())
        rows = {
            model.POSITION: pa.array(np.arange(first, first + size)),
            model.TABLE: table,
            model.TRANSACTION_END: pa.nulls(size, pa.bool_()),
            model.ROW: row,
            model.OP: _texts(batch, names.OP),
            model.DATABASE: database,
        }
        part = ReleasedRows([f"(Spark partition {lane})"], np.array([size]), pa.table(rows))
        encoded = self.encoder.batch([part])
        column_names = (names.TABLE, names.PAYLOAD, names.DELETED)
        return encoded.select([name for name in encoded.schema.names if name in column_names])


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    has_column = name in batch.schema.names
    return batch.column(name).cast(pa.string()) if has_column else pa.nulls(batch.num_rows, pa.string())


@dataclass(frozen=True)
class PlainFrameWriter(datasource.DataSourceArrowWriter):
    """Writes one batch frame as it is. The driver makes it with `begin`, which begins the label of `task`."""

    task: LaneTask
    rows: FrameRows

    @classmethod
    def begin(cls, schema: T.StructType, texts: Mapping[str, str]) -> PlainFrameWriter:
        """Check the frame's `schema` and the options `texts` as text, and begin the label.

        Raises InputError for columns that do not fit, OptionError for options that do not.
        """
        table = _table_of(texts)
        _refuse_positions(schema, typed=table is not None)
        options = _options(texts, typed=table is not None)
        rows = circumstances_of_rows(routed=table is not None, positioned=False)
        warn_of(options.without_effect(Circumstance.DATA_SOURCE, *rows))
        job = f"{options.job or 'write'}_frame"  # a take-over of a job in the ledger must not roll this label back
        session = open_session(options, "", job, "", typed_tables=[table] if table else ())
        columns = [name for name in schema.names if name != names.OP]
        routes = [] if table is None else [TableRoute(table, columns)]
        _check_texts(schema, typed=bool(routes))
        if options.schema_changes is SchemaChanges.APPLY:
            apply_schema_changes(options, routes, schema, session, EventLogger("sink"))
        # Only `ArrowRoute` converts times here, and it takes the zone from the options.
        terms = TableTerms.of(routes, schema, options.timestamp_zone or "UTC", options, session.tables)
        number = microseconds()
        label = next(labels(job, session.epoch, LANE, number, 0))
        task = session.lane_task(
            terms.options, number, marked=False, streaming=False, label=label, claims=True, logging=None
        )
        route = ArrowRoute.of(terms, schema) if routes else None
        writer = cls(task if route is None else replace(task, compared=None), FrameRows(terms.encoder, route))
        with writer._runner() as runner:
            runner.perform(runner.coordinator.begin(label))
        return writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneMessage:
        """Load the rows of one Spark partition, unless another try at it has begun to."""
        attempt, clock = Attempt.current(), SystemClock()
        run_lane = partial(LaneTry(self.task, attempt, clock).run, self._lane_rows(iterator, attempt.lane))
        return LaneMessage(attempt.lane, tuple(self.task.answer(attempt, clock, run_lane)))

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
        with self._runner() as runner:
            runner.perform(roll_back(self.task.label))
        roll_back_until(self.task.options, LabelPrefix(self.task.job, self.task.epoch), ABORT_SECONDS)

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


def _refuse_positions(schema: T.StructType, *, typed: bool) -> None:
    """Raise InputError for rows of source transactions.

    In a typed frame single such columns are columns of the table; only the whole set counts.
    """
    marks = [name for name in names.TRANSACTION_COLUMNS if name in schema.names]
    if len(marks) == len(names.TRANSACTION_COLUMNS) or (marks and not typed):
        raise InputError(
            f"The frame has columns of source transactions ({', '.join(marks)}), and the data source writes rows "
            "without positions only.",
            hint="Use StarRocksSink(options).write(frame), or drop these columns.",
        )


def _table_of(texts: Mapping[str, str]) -> str | None:
    """The table of typed columns: the option `table`, or the one that the official connector reads."""
    return texts.get(_TABLE) or texts.get(_IDENTIFIER, "").partition(".")[2] or None


def _log_written(task: LaneTask, outcome: Written) -> None:
    """Log receipts and warnings of a write."""
    apply_log_settings(task.logging)
    log = EventLogger("sink")
    for event in receipt_events(outcome.receipts):
        log(event)
    for event in compare_columns(task.options, named_by_rows(outcome.reports, {})) or ():
        log(Event(event.name, {"job": task.job, **event.fields}))


def _options(texts: Mapping[str, str], *, typed: bool) -> SinkOptions:
    values = SinkOptions.values_of(texts, (_TABLE,))
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


def _check_texts(schema: T.StructType, *, typed: bool) -> None:
    """Raise InputError unless the frame has the columns that the sink itself reads, as texts."""
    missing = [] if typed else [name for name in (names.TABLE, names.ROW) if name not in schema.names]
    if missing:
        raise InputError(
            f"The frame lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}, and no option names "
            f"its table; it has {', '.join(schema.names) or 'none'}.",
            hint='Name the table of typed columns, .option("table", "orders"), or give rows as JSON texts in '
            "the columns table and row.",
            option=_TABLE,
        )
    for field in schema.fields:
        read = field.name in ((names.OP,) if typed else _TEXTS)
        if read and not isinstance(field.dataType, T.StringType):
            raise InputError(
                f"Column {field.name} of the frame is {field.dataType.simpleString()}, not string.",
                hint="Cast it before the write.",
            )


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

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: T.StructType, overwrite: bool) -> PlainFrameWriter:
        """For `.write`: begin the label of the frame, before the tasks start."""
        if overwrite:
            raise OptionError("The sink appends changes to tables; it never empties one.", hint='Use .mode("append").')
        texts = {name.lower(): text for name, text in self.options.items() if name.lower() != "path"}
        return PlainFrameWriter.begin(schema, texts)

    def streamWriter(self, schema: T.StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802 - Spark's name
        """For `.writeStream`: raises OptionError."""
        raise OptionError(
            "The data source writes batch frames only, because Spark commits a micro-batch of a Python data source in "
            "a process that knows nothing of the one that began it.",
            hint="Use writeStream.foreachBatch(StarRocksSink(options)), which writes each micro-batch exactly once.",
        )
