"""The lane that assembles: raw events come in, the assembler's rules run in the task, whole source transactions go on.

What stays open is carried to the next micro-batch: its rows are put into the state's directory before the task returns,
and the driver is told where they are (`assembler.carried`). The driver decides which of that counts, so an attempt that
fails, or is run twice, leaves only files that nobody names.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

import orjson
import pyarrow as pa

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.carried import Carried
from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.directory import Directory, FileDirectory
from starrocks_txn_sink.assembler.fold import Fold
from starrocks_txn_sink.assembler.policy import Policy
from starrocks_txn_sink.assembler.shelf import Shelf
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import SourceTransactionError, Unordered
from starrocks_txn_sink.events import Event
from starrocks_txn_sink.lane.arrival import SMALL_ROWS, beginning
from starrocks_txn_sink.lane.attempt import Attempt
from starrocks_txn_sink.lane.content import Content
from starrocks_txn_sink.lane.ending import RowsAfterEnd, until_end
from starrocks_txn_sink.lane.event_times import EVENT_TIME
from starrocks_txn_sink.lane.task import LaneTask, lines_batch
from starrocks_txn_sink.sources.ahead import map_ahead
from starrocks_txn_sink.sources.txn_lines import TxnEventLines

_CARRIED: Final = "carried"
_PARSERS: Final = 2  # threads that parse ahead of the rules; pyarrow lets go of the interpreter meanwhile
_CHUNK_ROWS: Final = 30_000  # fewer would be more calls of the rules than needed …
_PARTITION_ROWS: Final = 100  # … and so would fewer of each source partition
_CHUNK_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class LaneAssembly:
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
    carried: Mapping[str, Carried] = field(default_factory=dict)
    inline: Mapping[str, bytes] = field(default_factory=dict)
    lines: TxnEventLines | None = None
    arrival_order: bool = True
    sortable: bool = True
    small_rows: int = SMALL_ROWS

    def open(self, attempt: Attempt) -> Assembling:
        """The assembly of one attempt at a lane."""
        return Assembling(self, f"{self.stem}-{attempt.lane}-{attempt.number}")


@dataclass(frozen=True, slots=True)
class Carry:
    """What a lane tells the driver beside its receipts; `unordered` is the complaint of a lane that gave up.

    A `small` lane would have taken its events in any order; `malformed` values were left out (`on_malformed="drop"`).
    """

    partitions: Mapping[str, Carried] = field(default_factory=dict)
    flows: Counters = field(default_factory=Counters)
    notices: tuple[Event, ...] = ()
    inline: Mapping[str, bytes] = field(default_factory=dict)
    unordered: str | None = None
    small: bool = False
    malformed: int = 0

    def to_json(self) -> str:
        value = {
            "partitions": {name: each.as_json() for name, each in self.partitions.items()},
            "flows": self.flows.as_dict(),
            "notices": [(notice.name, notice.fields) for notice in self.notices],
            "inline": {name: base64.b64encode(content).decode() for name, content in self.inline.items()},
            "unordered": self.unordered,
            "small": self.small,
            "malformed": self.malformed,
        }
        return orjson.dumps({_CARRIED: value}).decode()

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Carry:
        return cls(
            {name: Carried.of_json(each) for name, each in value["partitions"].items()},
            Counters(**value["flows"]),
            tuple(Event(name, fields) for name, fields in value["notices"]),
            {name: base64.b64decode(content) for name, content in value["inline"].items()},
            value["unordered"],
            value["small"],
            value["malformed"],
        )


class Assembling:
    """One attempt at a lane: `rows` turns its input into released rows; `carry` tells what stays open."""

    def __init__(self, assembly: LaneAssembly, stem: str) -> None:
        self._assembly = assembly
        self._scratch = tempfile.TemporaryDirectory() if assembly.directory is None else None
        directory = assembly.directory or FileDirectory(self._scratch.name if self._scratch else "")
        self._shelf = Shelf(directory, stem, assembly.inline)
        self._fold = Fold(assembly.policy, assembly.carried, assembly.now, self._shelf, assembly.arrival_order)
        self._small = False
        self._malformed = 0

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of source transactions that ended, as the lane reads them.

        Raises RowsCutOff, Unordered, and what the rules, the parser and the content raise.
        """
        last_row_last = self._assembly.arrival_order
        events = self._events(until_end(batches, schema.POSITION, content=self._key, strict=last_row_last))
        first, self._small = beginning(events, self._assembly.small_rows, _CHUNK_BYTES)
        chunks = [_together(first)] if self._small and first else _chunks(chain(first, events), self._chunk_rows)
        for chunk in chunks:
            yield from self._assembly.content.batches(self._fold.feed(chunk, alone=self._small))

    def carry(self) -> Carry:
        """Put what stays open into the directory, and tell where; nothing is put for a batch frame."""
        if self._scratch is not None:
            return Carry(flows=self._fold.flows, notices=tuple(self._fold.notices), malformed=self._malformed)
        partitions = self._fold.carry()
        return Carry(
            partitions,
            self._fold.flows,
            tuple(self._fold.notices),
            self._shelf.handed,
            small=self._small,
            malformed=self._malformed,
        )

    def close(self) -> None:
        self._shelf.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    @property
    def _key(self) -> str:
        return schema.TYPE if self._assembly.lines is None else "value"

    def _chunk_rows(self) -> int:
        return max(_CHUNK_ROWS, min(_PARTITION_ROWS * self._fold.source_partitions, SMALL_ROWS))

    def _events(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        lines = self._assembly.lines
        if lines is None:
            yield from map(_as_events, batches)
            return
        for events, malformed in map_ahead(partial(_parsed, lines), _pieces(batches), _PARSERS):
            self._malformed += malformed
            yield events


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches cut where their rows are large, because several are in memory at once."""
    for batch in batches:
        step = batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1) + 1
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _parsed(lines: TxnEventLines, batch: pa.RecordBatch) -> tuple[pa.Table, int]:
    """The events in a batch, and how many of its values are none."""
    events = lines.parse(batch, (EVENT_TIME,) if EVENT_TIME in batch.schema.names else ())
    return events, batch.num_rows - events.num_rows


def _as_events(batch: pa.RecordBatch) -> pa.Table:
    kinds = {schema.SOURCE_PARTITION: pa.string(), **dict(schema.EVENT_FIELDS)}
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
            yield _together(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _together(waiting)


def _together(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0].combine_chunks()


@dataclass(frozen=True, slots=True)
class FusedLaneTask:
    """`lane`'s task over raw events; yields the lines of a LaneTask, and one more with what is carried.

    A lane whose events are not in order has rolled back and ends well: the driver sorts them and tries again.
    """

    lane: LaneTask
    assembly: LaneAssembly

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = Attempt.current()
        assembling = self.assembly.open(attempt)
        try:
            lines, carry = self._write(batches, attempt, assembling)
        finally:
            assembling.close()
        yield lines_batch([*lines, carry.to_json()])

    def _write(
        self, batches: Iterator[pa.RecordBatch], attempt: Attempt, assembling: Assembling
    ) -> tuple[list[str], Carry]:
        try:
            return self.lane.lines(batches, attempt, SystemClock(), assembling.rows), assembling.carry()
        except (Unordered, RowsAfterEnd) as unordered:
            return [], Carry(unordered=unordered.message)
        except SourceTransactionError as refused:  # its BEGIN may only come later: in order it may well be whole
            if not (self.assembly.arrival_order and self.assembly.sortable):
                raise
            return [], Carry(unordered=refused.message)


def carries(lines: Iterable[str]) -> tuple[list[str], list[Carry]]:
    """What the lanes sent: the lines that a LaneTask would send, and what each lane carries."""
    others, found = [], []
    for line in lines:
        if line.startswith(f'{{"{_CARRIED}"'):
            found.append(Carry.of(orjson.loads(line)[_CARRIED]))
        else:
            others.append(line)
    return others, found
