"""Streams through the data source, for declarative pipelines: Spark collects a micro-batch, and one lane writes it.

Where a pipeline names its sink by a format, no code of ours runs on the driver before a micro-batch, and the process
that ends it has no session of Spark. So each task of the frame sends its rows to that process, as Arrow, and there the
sink itself writes them: `CollectedFrame` takes the place of the DataFrame, and the lane runs in this process. Takeover,
ledger, labels and the assembly's state are those of `StarRocksSink`. Every micro-batch takes the job over, because
another process may end the next one.

Spark's plan is hidden here. But a task knows the query's id, which is in the checkpoint, and the data source its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, datasource, types as T

from starrocks_txn_sink.assembler.rules.directory import FileDirectory
from starrocks_txn_sink.assembler.verified.intake import TIMESTAMP
from starrocks_txn_sink.compiled.library import TEXTS
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.http.registry import SchemaRegistry
from starrocks_txn_sink.options import SchemaChanges, SinkOptions
from starrocks_txn_sink.options.without_effect import Circumstance, warn_of
from starrocks_txn_sink.rows import columns as names
from starrocks_txn_sink.rows.places import IN_KAFKA
from starrocks_txn_sink.sink.assembly import Assembly, TransactionAssembly, text_columns
from starrocks_txn_sink.sink.batch_events import BatchOrigin, BatchTries
from starrocks_txn_sink.sink.checkpoint import FOLDER, ProofLog
from starrocks_txn_sink.sink.events_writer import EventsWriter
from starrocks_txn_sink.sink.formats import format_named
from starrocks_txn_sink.sink.frame_rows import TABLE_OPTION, FrameRows, check_texts, refuse_positions, table_of
from starrocks_txn_sink.sink.lanes import Collect, LanePlan, Written, write_shared
from starrocks_txn_sink.sink.rows_writer import RowsWriter
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.sink import JobRun, StarRocksSink
from starrocks_txn_sink.sink.spark_jobs import driver_clock
from starrocks_txn_sink.sink.typed.arrow import ArrowRoute
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.sources.formats.raw_format import (
    POSITION,
    SOURCE_PARTITION,
    VALUE,
    RawFormat,
    columns_in,
    further_places,
    is_placed,
)
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.spark_version import forget_idle_profilers
from starrocks_txn_sink.telemetry import Listener
from starrocks_txn_sink.writer.messages import Message, decode
from starrocks_txn_sink.writer.task import LaneTask

ASSEMBLE: Final = "assemble"
_TRANSACTIONS: Final = "transactions"
_SPARKS_OWN: Final = ("path", "queryname", "checkpointlocation")  # among the options of a stream
_ZONE: Final = "UTC"  # of rows that no JVM has projected; the option timestamp_zone names another one


@dataclass(frozen=True)
class CollectedRows(datasource.WriterCommitMessage):
    """The rows of a task as Arrow's stream format, and the `query` that they are of."""

    query: str
    stream: bytes

    def batches(self) -> list[pa.RecordBatch]:
        """The rows; raises pyarrow.ArrowInvalid for a task without any, whose stream is empty."""
        return list(pa.ipc.open_stream(self.stream))


@dataclass(frozen=True)
class CollectingWriter(datasource.DataSourceStreamArrowWriter):
    """Collects the rows of a micro-batch, and writes them at its end. `texts` are the stream's options."""

    schema: T.StructType
    texts: Mapping[str, str]

    def __post_init__(self) -> None:
        forget_idle_profilers()
        _ = self._stream

    @property
    def _stream(self) -> CollectedStream:
        return CollectedStream.of(self.schema, self.texts)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CollectedRows:
        """The rows of a task, as they are; raises InputError in a query that has no micro-batches."""
        context, sink = TaskContext.get(), pa.BufferOutputStream()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if not query:
            raise InputError("The data source writes micro-batches only.", hint="Leave the trigger `continuous` out.")
        needed, writer = self._stream.needed, None
        for batch in iterator:
            rows = batch.select([name for name in batch.schema.names if name in needed])
            if writer is None:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                writer = pa.ipc.new_stream(sink, rows.schema, options=options)
            writer.write_batch(rows)
        if writer is not None:
            writer.close()
        forget_idle_profilers()
        return CollectedRows(query, sink.getvalue().to_pybytes())

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Write the micro-batch, and return when all of it is visible."""
        tasks = [message for message in messages if isinstance(message, CollectedRows)]
        if len(tasks) != len(messages):
            raise InputError(f"{len(messages) - len(tasks)} of {len(messages)} tasks sent no message.")
        if tasks:
            batches = [batch for task in tasks if task.stream for batch in task.batches()]
            self._stream.write(batches, tasks[0].query, batchId)

    def abort(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing has begun before `commit`."""


@dataclass(frozen=True)
class CollectedStream:
    """What the options of a stream say: how its micro-batches are written."""

    schema: T.StructType
    options: SinkOptions
    table: str | None
    assembly: Assembly | None
    checkpoint: str  # its location

    @classmethod
    def of(cls, schema: T.StructType, texts: Mapping[str, str]) -> CollectedStream:
        """Read the options; raises OptionError and InputError for what cannot work."""
        kinds = {name: text for name, text in texts.items() if name.partition(".")[0] == ASSEMBLE}
        table = None if kinds else table_of(texts)
        settings = {name: text for name, text in texts.items() if name not in kinds and name not in _SPARKS_OWN}
        options = SinkOptions(**SinkOptions.values_of(settings, (TABLE_OPTION,)))
        if options.job is None:
            raise OptionError(
                "A stream of the data source needs `job`, the name under which the ledger keeps its progress.",
                hint="Set `job` to a name that stays the same over restarts and that no other flow uses.",
                option="job",
            )
        location = texts.get("checkpointlocation", "")
        assembly = _assembly_of(kinds, location) if kinds else None
        if assembly is None:
            refuse_positions(schema, typed=table is not None)
            check_texts(schema, typed=table is not None)
            if options.schema_changes is SchemaChanges.APPLY and table is None:
                raise OptionError(
                    "The data source alters a table before it writes, and only the rows say which tables they are for.",
                    hint='Name the table of typed columns in the option "table".',
                    option="schema_changes",
                )
        else:
            _refuse_missing(schema, assembly)
        warn_of(
            {
                name: why
                for name, why in options.without_effect(Circumstance.DATA_SOURCE).items()
                if name not in ("max_attempts", "shuffle")
            },
            options.job,
        )
        options = replace(options, metrics_port=None)
        return cls(schema, options, table, assembly, location)

    @property
    def needed(self) -> set[str]:
        """The columns that the sink reads."""
        if self.assembly is None or self.assembly.lines is None:
            return set(self.schema.names)
        return {*self.assembly.lines.columns.values(), *IN_KAFKA, names.EVENT_TIME}

    def write(self, batches: Sequence[pa.RecordBatch], query: str, batch_id: int) -> list[Receipt]:
        """Write a micro-batch of the query with this id."""
        frame = CollectedFrame(self.schema, batches, self.options.timestamp_zone or _ZONE)
        return CollectedRowsSink(self).write_batch(frame, query, batch_id)


@dataclass(frozen=True)
class CollectedFrame:
    """Collected rows in place of a DataFrame: as much of it as a sink's writers use."""

    schema: T.StructType
    batches: Sequence[pa.RecordBatch]
    zone: str

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return list(self.schema.names)

    @property
    def sparkSession(self) -> CollectedFrame:  # noqa: N802 - Spark's name
        """A session without a context, as on Spark Connect."""
        return self

    @property
    def conf(self) -> CollectedFrame:
        """The session's settings: `get` reads them."""
        return self

    def get(self, name: str, default: str = "") -> str:
        """A setting of the session: the time zone, or the default."""
        return self.zone if name == "spark.sql.session.timeZone" else default

    def mapInArrow(self, function: Any, schema: object) -> _Answer:  # noqa: ARG002, N802 - Spark's name
        """The rows that `function` makes, when they are collected: at once, in the calling thread."""
        return _Answer(function, self.batches)


@dataclass(frozen=True)
class _Answer:
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    batches: Sequence[pa.RecordBatch]

    def collect(self) -> list[tuple[str]]:
        batches = self.function(iter(self.batches))
        return [(text,) for batch in batches for text in batch.column(0).to_pylist()]


class CollectedRowsSink(StarRocksSink):
    """A sink that writes collected rows in this process."""

    def __init__(self, stream: CollectedStream) -> None:
        routes = []
        if stream.table is not None:
            routes = [TableRoute(stream.table, [name for name in stream.schema.names if name != names.OP])]
        super().__init__(stream.options, routes=routes, assemble=stream.assembly)
        self._location = stream.checkpoint

    def write_batch(self, frame: CollectedFrame, query: str, batch_id: int) -> list[Receipt]:
        """Write a micro-batch of `query`; returns when all of it is visible. Raises as StarRocksSink does."""
        job = str(self.options.job)
        self._run(job).served = batch_id > 0  # its addresses are right, so an outage is waited for
        return self._write(cast("DataFrame", frame), BatchOrigin(batch_id, job, query, query, streaming=True))

    def _advise(self, frame: DataFrame, origin: BatchOrigin, run: JobRun) -> None:
        """Nobody knows the source."""

    def _proof_log(self, frame: DataFrame, origin: BatchOrigin) -> ProofLog | None:  # noqa: ARG002
        folder = _local_folder(self._location)
        return ProofLog(FileDirectory(folder)) if folder and self.options.exactly_once else None

    def _open_session(self, frame: DataFrame, origin: BatchOrigin, run: JobRun, tries: BatchTries) -> Session:
        session = super()._open_session(frame, origin, run, tries)
        others = {position.checkpoint for position in session.positions.values()} - {origin.checkpoint}
        if others:  # every micro-batch takes the job over, so nothing else tells two flows with one job apart
            raise OptionError(
                f"Job {origin.job} has rows of another checkpoint than the flow's in StarRocks: a full refresh, or a "
                "lost checkpoint, or another flow has this `job`. Rows would be left out as written already, or "
                "written twice.",
                hint="Nothing was written. After a refresh empty the tables. Give the sink a new `job`, such as the "
                "old one with a number.",
                option="job",
            )
        return session

    def _open_writer(self, frame: DataFrame, origin: BatchOrigin, session: Session) -> EventsWriter | RowsWriter:
        if self.assemble is None:
            return CollectedRowsWriter(self.options, self.routes, session)
        plan = LanePlan(1, shuffle=False, proves=self.assemble.assembler.judges_together)
        query = origin.checkpoint
        return CollectedEventsWriter.open(
            self.assemble, self.options, session, frame, query, listener=self._listener, plan=plan
        )


class CollectedRowsWriter(RowsWriter):
    """Runs the lane of collected rows without positions."""

    def _run(
        self,
        frame: DataFrame,
        terms: TableTerms,
        task: LaneTask,
        plan: LanePlan,  # noqa: ARG002 - there is one lane
        collect: Collect,
        listener: Listener,  # noqa: ARG002 - nothing is altered while a lane runs
    ) -> Written:
        rows = FrameRows(terms.encoder, ArrowRoute.of(terms, frame.schema) if terms.routes else None)
        batches, first = [], 0
        for batch in cast("Any", frame).batches:
            if batch.num_rows:
                batches.append(_with_hash(rows.lane_rows(batch, 0, first)))
                first += batch.num_rows

        def run_lanes(lane: LaneTask) -> list[Message]:
            return [decode(row[0]) for row in _Answer(lane, batches).collect()]

        return write_shared(
            replace(task, compared=None if terms.routes else task.compared), run_lanes, collect, driver_clock(frame)
        )


class CollectedEventsWriter(EventsWriter):
    """Runs the lane of collected raw events."""

    def _project(self, frame: DataFrame, plan: LanePlan) -> tuple[DataFrame, RawFormat | None]:  # noqa: ARG002
        lines = self.assembly.lines
        assert lines is not None
        rows: CollectedFrame = cast("Any", frame)
        return cast("DataFrame", replace(rows, batches=_events(rows.batches, lines))), lines


def _with_hash(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with a hash each, for the digest of their micro-batch."""
    rows = pc.binary_join_element_wise(batch.column(names.TABLE), batch.column(names.PAYLOAD), "\0")
    hashes = pd.util.hash_array(rows.to_numpy(zero_copy_only=False), categorize=False).view("int64")
    return batch.append_column(names.HASH, pa.array(hashes))


def _events(batches: Sequence[pa.RecordBatch], lines: RawFormat) -> list[pa.RecordBatch]:
    """The columns of raw events, as `assembly.raw_columns` projects them; by source partition in order, if placed."""
    projected = [_projected(batch, lines) for batch in batches if batch.num_rows]
    if not projected or not is_placed(lines):
        return projected
    table = pa.Table.from_batches(projected)
    order = [(SOURCE_PARTITION, "ascending"), (POSITION, "ascending")]
    return table.sort_by(order).to_batches() if table.num_rows else []


def _projected(batch: pa.RecordBatch, lines: RawFormat) -> pa.RecordBatch:
    columns = columns_in(lines, [field.name for field in batch.schema if field.type in TEXTS])
    partition, position = columns.get(SOURCE_PARTITION), columns.get(POSITION)
    nothing = pa.nulls(batch.num_rows)
    source = (batch.column(partition) if partition else nothing).cast(pa.string())
    if partition == "partition" and "topic" in batch.schema.names:  # another micro-batch may bring a second topic
        source = pc.binary_join_element_wise(batch.column("topic"), source, "-")
    events = {
        SOURCE_PARTITION: source,
        POSITION: (batch.column(position) if position else nothing).cast(pa.int64()),
        VALUE: batch.column(columns[VALUE]),
    }
    for name, column in columns.items():
        if name not in events:
            values = batch.column(column)
            events[name] = _micros(values, 1000) if name == TIMESTAMP else values
    events |= {name: batch.column(name) for name in further_places(columns, batch.schema.names)}
    if names.EVENT_TIME in batch.schema.names:
        events[names.EVENT_TIME] = _micros(batch.column(names.EVENT_TIME), 1)
    return pa.RecordBatch.from_pydict(events)


def _micros(times: pa.Array, divisor: int) -> pa.Array:
    """Timestamps in microseconds through `divisor`; other values as they are."""
    if not pa.types.is_timestamp(times.type):
        return times
    return pc.divide(times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()), divisor)


def _local_folder(location: str) -> str | None:
    """The sink's folder in a checkpoint on this machine; None elsewhere."""
    path = location.removeprefix("file:")
    return f"/{path.strip('/')}/{FOLDER}" if path.startswith("/") else None


def _assembly_of(texts: Mapping[str, str], location: str) -> Assembly:
    """The assembly that the options `assemble` and `assemble.…` describe; raises OptionError."""
    kind, values = texts.get(ASSEMBLE, ""), dict[str, Any]()
    messages = None if kind == _TRANSACTIONS else format_named(kind, ASSEMBLE, (_TRANSACTIONS,))
    for name, text in texts.items():
        if name != ASSEMBLE:
            values[name.partition(".")[2]] = _mapping(name, text) if text.lstrip()[:1] == "{" else text
    if "state_dir" not in values and (folder := _local_folder(location)) is not None:
        values["state_dir"] = folder
    registry = values.pop("registry", None)
    if registry is not None:
        registry = SchemaRegistry(**(registry if isinstance(registry, dict) else {"url": registry}))
    if messages is not None:
        values |= {"registry": registry} if registry is not None else {}
        return messages(**{**values, "reader": "spark"})
    on_malformed = values.pop("on_malformed", "fail")
    if "interleaved" in values:
        values["interleaved"] = values["interleaved"].lower() == "true"
    lines = TxnEventLines(registry=registry, on_malformed=on_malformed)
    return TransactionAssembly(lines=lines, **values)


def _mapping(option: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise OptionError(f"{option} is no JSON.", hint='Give an object, {"name": "value"}.', option=option) from None


def _refuse_missing(schema: T.StructType, assembly: Assembly) -> None:
    needed = columns_in(assembly.lines, text_columns(schema)).values() if assembly.lines else ()
    missing = [name for name in needed if name not in schema.names]
    if missing:
        raise InputError(
            f"The frame lacks the column {', '.join(missing)} of Spark's Kafka source; it has "
            f"{', '.join(schema.names) or 'none'}.",
            hint=f"Hand the source's frame on as it is, or leave the option {ASSEMBLE} out.",
        )
