"""VerifiedAssembler over the events of one task: the lane of a sink that assembles Debezium's transactions.

Rows and markers of a transaction may be anywhere in a micro-batch, and a snapshot's rows go in front of its first
transaction. So the lane judges all events of the micro-batch at once, when it has read them. Until then the rows' texts
are apart from what the rules read: beyond `held_limit` bytes they are in a file without a name, and each piece of
released rows reads its own texts only. What waits for the next micro-batch is written into the spill storage at the
end, texts and all. The spill storage and the carried state are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, group_by_partition
from starrocks_txn_sink.assembler.rules.release import Assembler, ReleasedRows
from starrocks_txn_sink.assembler.rules.spill import BlobPlace, CarriedState, SpillStorage
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.intake import IN_KAFKA, HeldBlob, VerifiedState, placed
from starrocks_txn_sink.assembler.verified.rules import (
    MANY_BLOBS,
    SMALL_BYTES,
    Judgement,
    VerifiedAssembler,
    VerifiedPolicy,
)
from starrocks_txn_sink.assembler.verified.sources import Successions
from starrocks_txn_sink.assembler.verified.units import DEAD_LETTER_SUFFIX
from starrocks_txn_sink.compiled.texts import gather
from starrocks_txn_sink.errors import StateNotWritten
from starrocks_txn_sink.protocol.snapshots import Marks, beside, whole
from starrocks_txn_sink.rows.columns import EVENT_TIME, OFFSET, TOPIC_PARTITION
from starrocks_txn_sink.rows.scratch_file import ScratchFile
from starrocks_txn_sink.rows.segments import bounds_of
from starrocks_txn_sink.telemetry import Event

HELD_BYTES: Final = 96 << 20
"""Texts of rows in memory: a micro-batch of half a million ordinary rows is never spilled."""
_READ_BYTES: Final = 32 << 20
"""Texts read back and kept: a piece of released rows has rows of several blobs, and the next piece of the same ones."""
_PIECE_BYTES: Final = 4 << 20  # released rows that are in memory at once, besides those that are being loaded
_PIECE_ROWS: Final = 50_000

_LARGE_BYTES: Final = 256 << 20
"""Of the rules' columns, two million events, or of texts that were spilled: it is worth while to give back memory."""

_AT, _BYTES = "at", "bytes"
"""In place of a row's text: the number of its event in the source's events, and the size of the text."""
_PROOF: Final = tuple(name for name in (*v.HELD_EVENTS.names, *IN_KAFKA.names) if name != model.ROW)
_PARTITION: Final = IN_KAFKA.field(TOPIC_PARTITION).with_type(pa.dictionary(pa.int32(), pa.string()))
"""Kafka's partitions are few, and go with each event."""
_OF_MESSAGES: Final = (v.SEQUENCE, v.TIMESTAMP, OFFSET)
"""Columns that may be views of messages; in memory of their own they do not keep all that came with them."""


@dataclass(slots=True)
class _Segment:
    """Consecutive events of a source: new ones have their rows' texts here, others are in the spill storage.

    `number` is that of a blob of the state.
    """

    rows: int
    bytes: int
    texts: pa.ChunkedArray | None = None
    spilled: bool = False
    place: BlobPlace | None = None
    number: int | None = None


@dataclass(slots=True)
class _Source:
    """The events of one source: `proofs` has what the rules read, of new events only."""

    before: VerifiedState
    segments: list[_Segment]
    proofs: list[pa.Table] = field(default_factory=list)
    held: int = 0  # segments of the state before
    events: int = 0  # of all segments
    judgement: Judgement | None = None


@dataclass(slots=True)
class VerifiedLane(Assembler):
    """Assembles the events of one task. `now` is the micro-batch's processing time (seconds since the epoch)."""

    judges_together: ClassVar[bool] = True
    policy: VerifiedPolicy
    carried: Mapping[str, CarriedState]
    now: float
    storage: SpillStorage
    held_limit: int = HELD_BYTES
    piece_rows: int = _PIECE_ROWS
    flows: model.Counters = field(default_factory=model.Counters)
    notices: list[Event] = field(default_factory=list)
    _sources: dict[str, _Source] = field(default_factory=dict)
    _held_bytes: int = 0
    _spilled_bytes: int = 0  # since memory was given back
    _scratch: ScratchFile = field(default_factory=ScratchFile)
    _texts: _TextCache = field(init=False)
    _successions: Successions = field(init=False)

    def __post_init__(self) -> None:
        self._texts = _TextCache(self.storage, self._scratch)
        self._successions = Successions(self.policy.new_sources or ())
        for name, partition in self.carried.items():  # without new events, too: transactions get overdue
            self._sources[name] = _source_of(partition.state_of(VerifiedState, name), partition.places)
        for name in self.carried:  # what is of the next source, or of one behind it, went there with its declaration
            if any(later not in self.carried for later in self._successions.later(name)[:1]):
                self._hand_over(name)

    @classmethod
    def of(
        cls,
        policy: VerifiedPolicy,
        carried: Mapping[str, CarriedState],
        now: float,
        storage: SpillStorage,
        *,
        arrival_order: bool,  # noqa: ARG003 - the markers alone have an order
        compare: bool,  # noqa: ARG003 - contents always count
        in_order: bool,  # noqa: ARG003
    ) -> VerifiedLane:
        """See Assembler.of."""
        return cls(policy, carried, now, storage)

    def _hand_over(self, name: str) -> None:
        """Give what waits in a source, and is of one that follows it, to that one, which is declared now."""
        source, segments = self._sources[name], []
        for segment in self._sources[name].segments:
            assert segment.place is not None
            events = placed(self.storage.read(segment.place))
            for owner, mask in self._successions.parts(self._successions.first(name), events[v.TIMESTAMP]):
                part = events if mask is None else events.filter(mask)
                if owner != name:
                    self._take(owner, part)
                elif mask is None:
                    segments.append(segment)
                else:
                    (place,) = self.storage.write([part])
                    segments.append(_Segment(part.num_rows, part.nbytes, place=place, number=segment.number))
        source.segments, source.held = segments, len(segments)
        source.events = sum(segment.rows for segment in segments)

    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:  # noqa: ARG002
        """Take in events with their source partition, in any order; nothing is released yet."""
        for part in group_by_partition(events).by_partition():
            table = part.table if part.order is None else part.table.take(pa.array(part.order))
            for owner, mask in self._successions.parts(str(part.names[0]), table[v.TIMESTAMP]):
                self._take(owner, table if mask is None else table.filter(mask))
        if self._held_bytes > self.held_limit:
            self._spill()
        return iter(())

    def _take(self, name: str, events: pa.Table) -> None:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = _source_of(VerifiedState(), {})
        events = placed(events).select([*v.EVENTS.names, *IN_KAFKA.names])
        columns = {name: events[name].cast(v.EVENTS.field(name).type) for name in v.EVENTS.names}
        columns |= {OFFSET: events[OFFSET], TOPIC_PARTITION: events[TOPIC_PARTITION].dictionary_encode()}
        columns |= {name: _own(columns[name]) for name in _OF_MESSAGES}
        proof = pa.table({name: column for name, column in columns.items() if name != model.ROW})
        sizes = pc.fill_null(pc.binary_length(columns[model.ROW]), 0).cast(pa.int64())
        source.proofs.append(_with_places(proof, sizes, source.events))
        source.events += events.num_rows
        texts = columns[model.ROW]
        if len(texts):
            source.segments.append(_Segment(len(texts), texts.nbytes, texts))
            self._held_bytes += texts.nbytes

    def finish(self) -> Iterator[ReleasedRows]:
        """Judge all events, and yield the released rows: those of a source in the order of its commits.

        Raises the errors of VerifiedAssembler.judge, of any source before the first row of another one.
        """
        in_order = sorted(self._sources.items(), key=lambda source: self._successions.number(source[0]))
        judgements = [(name, source, self._judge(name, source)) for name, source in in_order]
        for name, source, judgement in judgements:
            rows = _SourceRows(source.segments, self._texts)
            for units in judgement.released:
                sizes = units.events[_BYTES].to_numpy()[units.places]
                for piece in units.pieces(rows.with_rows, _stops(sizes, self.piece_rows)):
                    yield ReleasedRows((name,), np.array([piece.num_rows]), piece)
            for unit in judgement.lost:
                for piece in unit.pieces(rows.with_rows):
                    yield ReleasedRows((name + DEAD_LETTER_SUFFIX,), np.array([piece.num_rows]), piece)

    def _judge(self, name: str, source: _Source) -> Judgement:
        firsts = accumulate((segment.rows for segment in source.segments), initial=0)
        held_proofs = [
            self._held_proof(segment, first)
            for segment, first in zip(source.segments[: source.held], firsts, strict=False)
        ]
        events = _together(source.proofs)
        if events.nbytes > _LARGE_BYTES:
            give_back_memory()
        judgement = VerifiedAssembler(self.policy, name).judge(
            source.before,
            pa.concat_tables([_HELD.empty_table(), *held_proofs]),
            events,
            self.now,
            _SourceRows(source.segments, self._texts).with_rows,
        )
        source.judgement = judgement
        self.flows += replace(judgement.counters, open=0, open_rows=0)
        self.notices += judgement.notices
        return judgement

    def _held_proof(self, segment: _Segment, first: int) -> pa.Table:
        """What the rules read of a blob."""
        assert segment.place is not None
        proof = placed(self.storage.read(segment.place, _PROOF)).select(_PROOF)
        arrivals, partitions = proof[v.ARRIVED], proof[TOPIC_PARTITION].dictionary_encode()
        proof = proof.set_column(proof.column_names.index(TOPIC_PARTITION), _PARTITION, partitions)
        sizes = self._texts.sizes_of(segment)
        proof = _with_places(proof.drop_columns([v.ARRIVED]), sizes, first)
        return proof.append_column(v.HELD_EVENTS.field(v.ARRIVED), arrivals)

    @property
    def names(self) -> set[str]:
        """The sources with events in this task."""
        return set(self._sources)

    def visible_marks(self, marks: Marks) -> Marks:
        """The marks of a snapshot's rows that are released, of `marks` and of micro-batches before. After `finish`.

        The rows of a snapshot wait together; the state has their marks meanwhile.
        """
        visible: dict[str, str] = {}
        for name, source in self._sources.items():
            judgement = source.judgement
            if judgement is None or not (marks or source.before.marks):
                continue
            merged_marks = beside(
                source.before.marks,
                {mark: marks[mark] for mark in marks if mark.startswith(whole(self._successions.first(name)))},
            )
            waiting = judgement.events[model.OP].filter(pa.array(judgement.held))
            if pc.any(pc.equal(waiting, v.SNAPSHOT)).as_py():
                source.judgement = replace(judgement, state=replace(judgement.state, marks=merged_marks))
            else:
                visible |= merged_marks
                source.judgement = replace(judgement, state=replace(judgement.state, marks={}))
        return visible

    def carry_over(self) -> dict[str, CarriedState]:
        """Write the events that wait; return the state of all sources, for the next micro-batch. After `finish`."""
        return {name: self._carry(source) for name, source in self._sources.items()}

    def _carry(self, source: _Source) -> CarriedState:
        judgement = source.judgement
        if judgement is None:
            return CarriedState(source.before, _places(source.segments[: source.held]))
        kept_rows = np.sort(judgement.events[_AT].filter(pa.array(judgement.held)).to_numpy())
        stops = np.cumsum([segment.rows for segment in source.segments])
        bounds = np.searchsorted(kept_rows, np.concatenate([[0], stops]))
        stay: list[_Segment] = []
        segments_left: list[tuple[_Segment, Mask]] = []
        crowded = source.held > MANY_BLOBS
        for number, segment in enumerate(source.segments[: source.held]):
            count = int(bounds[number + 1] - bounds[number])
            if count == segment.rows and not (segment.bytes < SMALL_BYTES and crowded):
                stay.append(segment)
            elif count:
                mask = np.zeros(segment.rows, dtype=bool)
                mask[kept_rows[bounds[number] : bounds[number + 1]] - (stops[number] - segment.rows)] = True
                segments_left.append((segment, mask))
        is_new = judgement.events[_AT].to_numpy() >= sum(segment.rows for segment in source.segments[: source.held])
        new_events = judgement.events.filter(pa.array(judgement.held & is_new))
        rewritten = self._rewritten(segments_left, self._with_rows(source, new_events))
        return self._written(judgement.state, [*stay, *rewritten])

    def _with_rows(self, source: _Source, events: pa.Table) -> Iterator[pa.Table]:
        """Events with their rows, piece by piece."""
        rows, start = _SourceRows(source.segments, self._texts), 0
        for stop in _stops(events[_BYTES].to_numpy(), self.piece_rows).tolist():
            yield rows.whole(events.slice(start, stop - start))
            start = stop

    def _written(self, state: VerifiedState, segments: Sequence[_Segment]) -> CarriedState:
        """The state with `segments`, which are in the spill storage, as its blobs."""
        following = state.next_blob
        for segment in segments:
            if segment.number is None:
                segment.number, following = following, following + 1
        blobs = tuple(HeldBlob(segment.number or 0, segment.rows, segment.bytes) for segment in segments)
        return CarriedState(replace(state, blobs=blobs, next_blob=following), _places(segments))

    def _rewritten(
        self, segments_left: Sequence[tuple[_Segment, Mask]], new_events: Iterable[pa.Table]
    ) -> list[_Segment]:
        """Segments in the spill storage, of the events in the masks and new ones; about _READ_BYTES are in memory."""
        segments_written: list[_Segment] = []
        waiting: list[pa.Table] = []
        for table in chain((self._masked(*segment) for segment in segments_left), new_events):
            waiting.append(_plain(table))
            if sum(table.nbytes for table in waiting) > _READ_BYTES:
                segments_written += self._write(waiting, small=False)
                waiting = []
        return segments_written + self._write(waiting, small=not segments_written)

    def _masked(self, segment: _Segment, mask: Mask) -> pa.Table:
        assert segment.place is not None
        return placed(self.storage.read(segment.place)).filter(pa.array(mask))

    def _write(self, tables: Sequence[pa.Table], *, small: bool) -> list[_Segment]:
        pieces = model.pieces(pa.concat_tables(tables).combine_chunks()) if tables else []
        places = self.storage.write(pieces, small=small)
        return [
            _Segment(piece.num_rows, piece.nbytes, place=place) for piece, place in zip(pieces, places, strict=True)
        ]

    def _spill(self) -> None:
        """Move the texts in memory into a file, in order; the rules' columns stay. Raises StateNotWritten."""
        for source in self._sources.values():
            for segment in source.segments:
                if segment.texts is not None and not segment.spilled:
                    segment.texts, segment.spilled = self._in_file(segment.texts), True
        self._spilled_bytes += self._held_bytes
        self._held_bytes = 0
        self.held_limit = min(self.held_limit, HELD_BYTES // 2)  # the more events, the more their columns need
        self._scratch.release()
        if self._spilled_bytes > _LARGE_BYTES:
            self._spilled_bytes = 0
            give_back_memory()

    def _in_file(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        bounds = [bounds_of(chunk) for chunk in texts.chunks]
        data = [memoryview(chunk.buffers()[2] or b"") for chunk in texts.chunks]
        try:
            moved = self._scratch.take([part[each[0] : each[-1]] for part, each in zip(data, bounds, strict=True)])
        except OSError as error:
            message = f"The assembling lane cannot write rows to a temporary file: {error}."
            raise StateNotWritten(message, hint="Free space in the executor's directory for such files.") from error
        arrays = [_placed_in(part, *text) for part, *text in zip(moved, texts.chunks, bounds, strict=True)]
        return pa.chunked_array(arrays, texts.type)


@dataclass(slots=True)
class _TextCache:
    """Texts of rows in the spill storage, or in the `scratch` file: about _READ_BYTES of each are in memory."""

    storage: SpillStorage
    scratch: ScratchFile
    _texts: OrderedDict[BlobPlace, pa.ChunkedArray] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _read_bytes: int = 0  # since memory was given back
    _taken_bytes: int = 0  # since pages were

    def texts_of(self, segment: _Segment) -> pa.ChunkedArray:
        """The texts of a segment, one for each event."""
        if segment.place is None:
            assert segment.texts is not None
            return segment.texts
        texts = self._texts.pop(segment.place, None)
        if texts is None:
            texts = self.storage.read(segment.place, (model.ROW,))[model.ROW]
            self._bytes += texts.nbytes
            self._read_bytes += texts.nbytes
        self._texts[segment.place] = texts
        while self._bytes > _READ_BYTES and len(self._texts) > 1:
            self._bytes -= self._texts.popitem(last=False)[1].nbytes
        if self._read_bytes > _READ_BYTES:
            self._read_bytes = 0
            give_back_memory()
        return texts

    def have_read(self, texts: pa.Array) -> None:
        """Hand pages of the scratch file back, each time that about _READ_BYTES of `texts` have come from segments."""
        self._taken_bytes += texts.nbytes
        if self._taken_bytes > _READ_BYTES:
            self._taken_bytes = 0
            self.scratch.release()

    def sizes_of(self, segment: _Segment) -> pa.Array:
        """The sizes of the texts of a segment: their average, because only a piece's size depends on it."""
        return pa.repeat(pa.scalar(segment.bytes // max(segment.rows, 1), pa.int64()), segment.rows)


@dataclass(frozen=True, slots=True)
class _SourceRows:
    """The texts of a source's rows, by the numbers of their events."""

    segments: Sequence[_Segment]
    texts: _TextCache

    def with_rows(self, events: pa.Table) -> pa.Table:
        """The events with their rows, EVENT_TIME of Kafka's timestamps, and their places in Kafka (WithRows)."""
        unknown = [name for name in IN_KAFKA.names if events[name].null_count == events.num_rows]
        columns = {name: events[name] for name in events.column_names if name not in (_AT, _BYTES, *unknown)}
        columns[model.ROW] = self._take(events[_AT].to_numpy())
        columns[EVENT_TIME] = pc.multiply(events[v.TIMESTAMP], 1000)
        return pa.table(columns)

    def whole(self, events: pa.Table) -> pa.Table:
        """The events with their rows, as the spill storage has them."""
        names = [*v.HELD_EVENTS.names, *IN_KAFKA.names]
        return events.append_column(model.ROW, self._take(events[_AT].to_numpy())).select(names)

    def _take(self, at: Indexes) -> pa.Array:
        taken = self._texts_at(at)
        self.texts.have_read(taken)
        return taken

    def _texts_at(self, at: Indexes) -> pa.Array:
        starts = np.cumsum([0, *(segment.rows for segment in self.segments)])
        owner = np.searchsorted(starts, at, side="right") - 1
        numbers = np.flatnonzero(np.bincount(owner, minlength=1)) if len(at) else owner
        texts = [(int(starts[number]), self.texts.texts_of(self.segments[number])) for number in numbers.tolist()]
        found = gather([*_chunks(texts)], at)
        if found is not None or not len(at):
            return pa.array([], pa.string()) if found is None else found
        order = np.argsort(owner, kind="stable")
        begins = np.searchsorted(owner[order], numbers)
        parts = [
            of_segment.take(pa.array(at[places] - first)).combine_chunks()
            for (first, of_segment), places in zip(texts, np.split(order, begins[1:]), strict=True)
        ]
        return pa.concat_arrays(parts).take(pa.array(np.argsort(order)))


def _placed_in(data: memoryview, texts: pa.Array, bounds: Indexes) -> pa.Array:
    """The texts, whose bytes are in `data` now."""
    valid = texts.is_valid().buffers()[1] if texts.null_count else None
    buffers = [valid, pa.py_buffer(bounds - bounds[0]), pa.py_buffer(data)]
    return pa.Array.from_buffers(texts.type, len(texts), buffers, texts.null_count)


def _chunks(texts: Sequence[tuple[int, pa.ChunkedArray]]) -> Iterator[tuple[int, pa.Array]]:
    for first, of_segment in texts:
        for chunk in of_segment.chunks:
            yield first, chunk
            first += len(chunk)


def give_back_memory() -> None:
    """Give freed memory back to the kernel: what stays lies between it, so an allocator keeps hundreds of megabytes.

    The kernel clears what is needed again, so only a large micro-batch pays for it, and seldom.
    """
    pa.default_memory_pool().release_unused()


def _source_of(state: VerifiedState, places: Mapping[int, BlobPlace]) -> _Source:
    segments = [
        _Segment(blob.events, blob.bytes, place=places[blob.number], number=blob.number) for blob in state.blobs
    ]
    return _Source(state, segments, held=len(segments), events=sum(segment.rows for segment in segments))


def _copy(kind: pa.DataType, columns: Iterable[pa.ChunkedArray]) -> pa.Array:
    return pa.concat_arrays([pa.array([], kind), *(chunk for column in columns for chunk in column.chunks)])


def _own(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The column, in memory of its own: a stream of Arrow has all columns of a batch in one buffer."""
    buffers = (buffer for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None)
    return column if all(buffer.parent is None for buffer in buffers) else _copy(column.type, [column])


def _together(tables: list[pa.Table]) -> pa.Table:
    """The events of `tables`, which has none afterwards: a column by a column, so that only one is in memory twice."""
    parts = [dict(zip(table.column_names, table.columns, strict=True)) for table in tables]
    tables.clear()
    return pa.table({field.name: _copy(field.type, [part.pop(field.name) for part in parts]) for field in _NEW})


def _plain(events: pa.Table) -> pa.Table:
    """Events as a file has them: without the dictionary of Kafka's partitions."""
    at = events.column_names.index(TOPIC_PARTITION)
    return events.set_column(at, IN_KAFKA.field(TOPIC_PARTITION), events[TOPIC_PARTITION].cast(pa.string()))


def _with_places(events: pa.Table, sizes: pa.Array, first: int) -> pa.Table:
    """Events with the numbers from `first` on, and the sizes of their rows."""
    numbers = np.arange(first, first + events.num_rows, dtype=np.int64)
    return events.append_column(_AT, pa.array(numbers)).append_column(_BYTES, sizes)


def _stops(sizes: Indexes, piece_rows: int) -> Indexes:
    """Where to cut rows with texts of `sizes` into pieces."""
    if not len(sizes):
        return sizes
    piece = np.maximum(np.cumsum(sizes) // _PIECE_BYTES, np.arange(len(sizes)) // piece_rows)
    stops: Indexes = np.concatenate([np.flatnonzero(np.diff(piece)) + 1, [len(sizes)]])
    return stops


def _places(segments: Sequence[_Segment]) -> dict[int, BlobPlace]:
    return {segment.number: segment.place for segment in segments if segment.number is not None and segment.place}


_NEW: Final = pa.schema(
    [
        *(each for each in v.EVENTS if each.name != model.ROW),
        IN_KAFKA.field(OFFSET),
        _PARTITION,
        (_AT, pa.int64()),
        (_BYTES, pa.int64()),
    ]
)
_HELD: Final = _NEW.append(v.HELD_EVENTS.field(v.ARRIVED))
