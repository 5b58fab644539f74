"""`CollectedInput`: rows or events that Spark has collected in this process, where its one lane runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from starrocks_txn_sink.assembler.rules.directory import FileDirectory, StateDirectory
from starrocks_txn_sink.assembler.verified.intake import TIMESTAMP
from starrocks_txn_sink.compiled.library import TEXTS
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows import columns as names
from starrocks_txn_sink.sink.assembly import Assembly
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.checkpoint import FOLDER
from starrocks_txn_sink.sink.driver_lane import run_here
from starrocks_txn_sink.sink.frame_rows import FrameRows
from starrocks_txn_sink.sink.input import InputMemory, OpenInput, RunTasks
from starrocks_txn_sink.sink.lane_plan import LanePlan
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.typed.arrow import ArrowRoute
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
from starrocks_txn_sink.telemetry import Event


@dataclass(frozen=True, slots=True)
class CollectedInput:
    """A micro-batch's Arrow `batches`: rows without positions, or events for a lane with the rules of `assembly`.

    `location` is that of the query's checkpoint, `zone` that of the times in typed rows, which no JVM has projected.
    """

    batches: Sequence[pa.RecordBatch]
    schema: T.StructType
    origin: BatchOrigin
    zone: str
    location: str
    assembly: Assembly | None = None

    @property
    def spark(self) -> None:
        """None: the process that ends a micro-batch has no session."""
        return

    @property
    def positioned(self) -> bool:
        """See Input."""
        return self.assembly is not None

    def directory(self) -> StateDirectory | None:
        """See Input."""
        folder = local_folder(self.location)
        return FileDirectory(folder) if folder else None

    def advice(self, options: SinkOptions, *, first: bool) -> Iterator[Event]:  # noqa: ARG002
        """None: nobody here knows the source."""
        return iter(())

    def check(self, session: Session) -> None:
        """Refuse another checkpoint's job: each micro-batch takes the job over, so nothing else tells two flows."""
        if {position.checkpoint for position in session.positions.values()} - {self.origin.checkpoint}:
            raise OptionError(
                f"Job {session.job} has rows of another checkpoint than the flow's in StarRocks: a full refresh, or a "
                "lost checkpoint, or another flow has this `job`. Rows would be left out as written already, or "
                "written twice.",
                hint="Nothing was written. After a refresh empty the tables. Give the sink a new `job`, such as the "
                "old one with a number.",
                option="job",
            )

    def plan(self, options: SinkOptions) -> LanePlan:  # noqa: ARG002
        """One lane, that takes the rows as they are: their order may be that of a shuffle."""
        proves = self.assembly is not None and self.assembly.assembler.judges_together
        return LanePlan(1, shuffle=False, proves=proves, in_order=False)

    def client_config(self) -> Mapping[str, Any] | None:
        """None: Spark's plan is hidden here."""
        return None

    def open(self, terms: TableTerms, plan: LanePlan, memory: InputMemory) -> OpenInput:  # noqa: ARG002
        """See Input."""
        if self.assembly is None:
            return OpenInput(_run_on(self._rows(terms)), named=not terms.routes)
        lines = self.assembly.lines
        assert lines is not None
        return OpenInput(_run_on(_events(self.batches, lines)), lines)

    def _rows(self, terms: TableTerms) -> list[pa.RecordBatch]:
        rows = FrameRows(terms.encoder, ArrowRoute.of(terms, self.schema) if terms.routes else None)
        batches, first = [], 0
        for batch in self.batches:
            if batch.num_rows:
                batches.append(_with_hash(rows.lane_rows(batch, 0, first)))
                first += batch.num_rows
        return batches


def _run_on(batches: Sequence[pa.RecordBatch]) -> RunTasks:
    return lambda task, _: run_here(task, batches)


def local_folder(location: str) -> str | None:
    """The sink's folder in a checkpoint on this machine; None elsewhere."""
    path = location.removeprefix("file:")
    return f"/{path.strip('/')}/{FOLDER}" if path.startswith("/") else None


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
