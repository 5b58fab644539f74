"""The lane that assembles: raw events come in, the assembler's rules run in the task, whole source transactions go on.

What stays open is carried to the next micro-batch: its rows are put into the state's directory before the task returns,
and the driver learns where they are (`assembler.rules.spill`). The driver decides which of these files count, so a
failed or repeated attempt leaves only files without a reference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import Content
from starrocks_txn_sink.assembler.rules.spill import CarriedState, Directory, FileDirectory, SpillStorage
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import SourceTransactionError, Unordered
from starrocks_txn_sink.rows.arrival_order import SMALL_ROWS, beginning
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.rows.segments import RowsAfterEnd, until_end
from starrocks_txn_sink.sources.txn_lines import TxnEventLines, map_ahead
from starrocks_txn_sink.writer.messages import CarryOver, Message, OrderViolation, message_batch
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt

_PARSERS: Final = 2  # threads that parse ahead of the rules; pyarrow lets go of the interpreter meanwhile
_CHUNK_ROWS: Final = 30_000  # fewer would be more calls of the rules than needed …
_PARTITION_ROWS: Final = 100  # … and so would fewer of each source partition
_CHUNK_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class AssemblySpec:
    """What a lane needs to assemble. `carried` and `inline` are of the micro-batch before; `now` is this one's time in
    seconds since the epoch; `lines` parses raw values, None when the JVM has parsed them.

    `directory` None (a batch frame, nothing before or after it) keeps what does not fit memory on the machine's disk.
    `arrival_order` tells that rows were not sorted, `sortable` that they may be, if their order turns out to be wrong.
    Up to `small_rows` events may come in any order.
    """

    policy: Policy
    content: Content
    now: float
    directory: Directory | None
    stem: str
    carried: Mapping[str, CarriedState] = field(default_factory=dict)
    inline: Mapping[str, bytes] = field(default_factory=dict)
    lines: TxnEventLines | None = None
    arrival_order: bool = True
    sortable: bool = True
    small_rows: int = SMALL_ROWS

    def open(self, attempt: Attempt) -> LaneAssembler:
        """The assembly of one attempt at a lane."""
        return LaneAssembler(self, f"{self.stem}-{attempt.lane}-{attempt.number}")


class LaneAssembler:
    """One attempt at a lane: `rows` turns its input into released rows; `carry` tells what stays open."""

    def __init__(self, assembly: AssemblySpec, stem: str) -> None:
        self._assembly = assembly
        self._scratch = tempfile.TemporaryDirectory() if assembly.directory is None else None
        directory = assembly.directory or FileDirectory(self._scratch.name if self._scratch else "")
        self._storage = SpillStorage(directory, stem, assembly.inline)
        self._assembler = IncrementalAssembler(
            assembly.policy, assembly.carried, assembly.now, self._storage, assembly.arrival_order
        )
        self._small = False
        self._malformed = 0

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of source transactions that ended, as the lane reads them.

        Raises RowsCutOff, Unordered, and what the rules, the parser and the content raise.
        """
        last_row_last = self._assembly.arrival_order
        events = self._events(until_end(batches, model.POSITION, content=self._key, strict=last_row_last))
        first, self._small = beginning(events, self._assembly.small_rows, _CHUNK_BYTES)
        chunks = [_concatenate(first)] if self._small and first else _chunks(chain(first, events), self._chunk_rows)
        for chunk in chunks:
            yield from self._assembly.content.batches(self._assembler.feed(chunk, any_order=self._small))

    def carry(self) -> CarryOver:
        """Put what stays open into the directory, and tell where; nothing is put for a batch frame."""
        if self._scratch is not None:
            return CarryOver(
                flows=self._assembler.flows, notices=tuple(self._assembler.notices), malformed=self._malformed
            )
        partitions = self._assembler.carry_over()
        return CarryOver(
            partitions,
            self._assembler.flows,
            tuple(self._assembler.notices),
            self._storage.handed,
            small=self._small,
            malformed=self._malformed,
        )

    def close(self) -> None:
        self._storage.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    @property
    def _key(self) -> str:
        return model.TYPE if self._assembly.lines is None else "value"

    def _chunk_rows(self) -> int:
        return max(_CHUNK_ROWS, min(_PARTITION_ROWS * self._assembler.source_partitions, SMALL_ROWS))

    def _events(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        lines = self._assembly.lines
        if lines is None:
            yield from map(_cast_events, batches)
            return
        for events, malformed in map_ahead(partial(_parse, lines), _pieces(batches), _PARSERS):
            self._malformed += malformed
            yield events


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches cut where their rows are large, because several are in memory at once."""
    for batch in batches:
        step = batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1) + 1
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _parse(lines: TxnEventLines, batch: pa.RecordBatch) -> tuple[pa.Table, int]:
    """The events in a batch, and how many of its values are none."""
    events = lines.parse(batch, (EVENT_TIME,) if EVENT_TIME in batch.schema.names else ())
    return events, batch.num_rows - events.num_rows


def _cast_events(batch: pa.RecordBatch) -> pa.Table:
    kinds = {model.SOURCE_PARTITION: pa.string(), **dict(model.EVENT_FIELDS)}
    columns = {name: batch.column(name).cast(kind) for name, kind in kinds.items()}  # large strings become plain ones
    return pa.table(columns | ({EVENT_TIME: batch.column(EVENT_TIME)} if EVENT_TIME in batch.schema.names else {}))


def _chunks(tables: Iterable[pa.Table], enough: Callable[[], int]) -> Iterator[pa.Table]:
    """Tables put together until there are `enough` rows for one call of the rules, or so many bytes."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= enough() or size >= _CHUNK_BYTES:
            yield _concatenate(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _concatenate(waiting)


def _concatenate(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0].combine_chunks()


@dataclass(frozen=True, slots=True)
class AssemblingLaneTask:
    """`lane`'s task over raw events; yields the messages of a LaneTask, and the CarryOver.

    A lane whose events are not in order has rolled back and ends well, with a Complaint: the driver sorts them and
    tries again.
    """

    lane: LaneTask
    assembly: AssemblySpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = Attempt.current()
        assembling = self.assembly.open(attempt)
        try:
            messages = self._write(batches, attempt, assembling)
        finally:
            assembling.close()
        yield message_batch(messages)

    def _write(self, batches: Iterator[pa.RecordBatch], attempt: Attempt, assembling: LaneAssembler) -> list[Message]:
        try:
            return [*self.lane.messages(batches, attempt, SystemClock(), assembling.rows), assembling.carry()]
        except (Unordered, RowsAfterEnd) as unordered:
            return [OrderViolation(unordered.message)]
        except SourceTransactionError as refused:  # its BEGIN may only come later: in order it may well be whole
            if not (self.assembly.arrival_order and self.assembly.sortable):
                raise
            return [OrderViolation(refused.message)]
