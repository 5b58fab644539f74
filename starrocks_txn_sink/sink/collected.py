"""Streams through the data source, for declarative pipelines: Spark collects a micro-batch, and one lane writes it.

Where a pipeline names its sink by a format, no code of ours runs on the driver before a micro-batch, and the process
that ends it has no session of Spark. So each task of the frame sends its rows to that process, as Arrow, and there the
sink itself writes them, as a `CollectedInput`, whose lane runs in this process. Takeover, ledger, labels and the
assembly's state are those of `StarRocksSink`. Every micro-batch takes the job over, because another process may end the
next one.

Spark's plan is hidden here. But a task knows the query's id, which is in the checkpoint, and the data source its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource, types as T

from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.http.registry import SchemaRegistry
from starrocks_txn_sink.options import SchemaChanges, SinkOptions
from starrocks_txn_sink.options.without_effect import Circumstance, warn_of
from starrocks_txn_sink.rows import columns as names
from starrocks_txn_sink.rows.places import IN_KAFKA
from starrocks_txn_sink.sink.assembly import FORMATS, Assembly, format_named
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.collected_input import CollectedInput, local_folder
from starrocks_txn_sink.sink.events_input import text_columns
from starrocks_txn_sink.sink.frame_rows import TABLE_OPTION, check_texts, refuse_positions, table_of
from starrocks_txn_sink.sink.sink import JobRun, StarRocksSink
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sources.formats.raw_format import columns_in
from starrocks_txn_sink.spark_version import forget_idle_profilers

ASSEMBLE: Final = "assemble"
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
        needed_names, writer = self._stream.needed, None
        for batch in iterator:
            rows = batch.select([name for name in batch.schema.names if name in needed_names])
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
        origin = BatchOrigin(batch_id, str(self.options.job), query, query, streaming=True)
        zone = self.options.timestamp_zone or _ZONE
        source = CollectedInput(batches, self.schema, origin, zone, self.checkpoint, self.assembly)
        return CollectedSink(self).write_batch(source)


class CollectedSink(StarRocksSink):
    """A sink that writes collected rows in this process."""

    def __init__(self, stream: CollectedStream) -> None:
        routes = []
        if stream.table is not None:
            routes = [TableRoute(stream.table, [name for name in stream.schema.names if name != names.OP])]
        super().__init__(stream.options, routes=routes, assemble=stream.assembly)

    def write_batch(self, source: CollectedInput) -> list[Receipt]:
        """Write a micro-batch; returns when all of it is visible. Raises as StarRocksSink does."""
        job = source.origin.job
        # The addresses of a query that has written are right, so an outage is waited for.
        self._runs[job] = JobRun(job, served=source.origin.batch_id > 0)
        return self._write(source)


def _assembly_of(texts: Mapping[str, str], location: str) -> Assembly:
    """The assembly that the options `assemble` and `assemble.…` describe; raises OptionError."""
    kind, values = format_named(texts.get(ASSEMBLE, ""), ASSEMBLE, FORMATS), dict[str, Any]()
    for name, text in texts.items():
        if name != ASSEMBLE:
            values[name.partition(".")[2]] = _mapping(name, text) if text.lstrip()[:1] == "{" else text
    if "state_dir" not in values and (folder := local_folder(location)) is not None:
        values["state_dir"] = folder
    registry = values.pop("registry", None)
    if registry is not None:
        registry = SchemaRegistry(**(registry if isinstance(registry, dict) else {"url": registry}))
    return kind.of_words(values, registry)


def _mapping(option: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise OptionError(f"{option} is no JSON.", hint='Give an object, {"name": "value"}.', option=option) from None


def _refuse_missing(schema: T.StructType, assembly: Assembly) -> None:
    needed_names = columns_in(assembly.lines, text_columns(schema)).values() if assembly.lines else ()
    missing = [name for name in needed_names if name not in schema.names]
    if missing:
        raise InputError(
            f"The frame lacks the column {', '.join(missing)} of Spark's Kafka source; it has "
            f"{', '.join(schema.names) or 'none'}.",
            hint=f"Hand the source's frame on as it is, or leave the option {ASSEMBLE} out.",
        )
