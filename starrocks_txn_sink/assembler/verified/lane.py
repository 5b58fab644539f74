"""VerifiedAssembler over the events of one task: the lane of a sink that assembles Debezium's transactions.

Rows and markers of a transaction may be anywhere in a micro-batch, and a snapshot's rows go in front of its first
transaction. So the lane judges all events of the micro-batch at once, when it has read them. Until then, and from one
micro-batch to the next, the rows' texts are apart from what the rules read: beyond `held_limit` bytes they are spilled,
and each piece of released rows reads its own texts only. Pure: the spill storage and the carried state are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, group_by_partition
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.assembler.rules.spill import BlobPlace, CarriedState, SpillStorage, other_rules
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.intake import HeldBlob, VerifiedCounters, VerifiedState
from starrocks_txn_sink.assembler.verified.rules import (
    MANY_BLOBS,
    SMALL_BYTES,
    Judgement,
    VerifiedAssembler,
    VerifiedPolicy,
)
from starrocks_txn_sink.assembler.verified.texts import (
    AT,
    BYTES,
    HELD_PROOF,
    NEW_PROOF,
    READ_BYTES,
    STORED,
    Segment,
    SourceRows,
    TextCache,
    places_of,
    segments_of,
    stored,
    with_places,
)
from starrocks_txn_sink.assembler.verified.units import DEAD_LETTER_SUFFIX, LostUnit, Units
from starrocks_txn_sink.telemetry import Event

HELD_BYTES: Final = 96 << 20
"""Events in memory: a micro-batch of half a million ordinary rows is never spilled."""
_PIECE_BYTES: Final = 4 << 20  # released rows that are in memory at once, besides those that are being loaded
PIECE_ROWS: Final = 50_000


@dataclass(slots=True)
class _Source:
    """The events of one source: `proofs` has what the rules read, of new events only."""

    before: VerifiedState
    segments: list[Segment]
    proofs: list[pa.Table] = field(default_factory=list)
    held: int = 0  # segments of the state before
    events: int = 0  # of all segments
    judgement: Judgement | None = None


@dataclass(slots=True)
class VerifiedLane:
    """Assembles the events of one task. `now` is the micro-batch's processing time (seconds since the epoch)."""

    policy: VerifiedPolicy
    carried: Mapping[str, CarriedState]
    now: float
    storage: SpillStorage
    held_limit: int = HELD_BYTES
    piece_rows: int = PIECE_ROWS
    flows: VerifiedCounters = field(default_factory=VerifiedCounters)
    notices: list[Event] = field(default_factory=list)
    _sources: dict[str, _Source] = field(default_factory=dict)
    _held_bytes: int = 0
    _texts: TextCache = field(default_factory=TextCache)

    def __post_init__(self) -> None:
        for name, carried in self.carried.items():  # also sources without new events have transactions that get overdue
            self._sources[name] = self._source_of(verified_state(name, carried), carried.places)

    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:  # noqa: ARG002
        """Take in events with their source partition, in any order; nothing is released yet."""
        for name, part in by_source(events):
            self._take(name, part)
        if self._held_bytes > self.held_limit:
            self._spill()
        return iter(())

    def _take(self, name: str, events: pa.Table) -> None:
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = self._source_of(VerifiedState(), {})
        events = arrived(events, self.now)
        numbers = np.arange(source.events, source.events + events.num_rows, dtype=np.int64)
        source.proofs.append(new_proof(events, numbers))
        source.events += events.num_rows
        for piece in model.pieces(events):
            source.segments.append(Segment(piece.num_rows, piece.nbytes, piece, storage=self.storage))
            self._held_bytes += source.segments[-1].bytes

    def finish(self) -> Iterator[ReleasedRows]:
        """Judge all events, and yield the released rows: those of a source in the order of its commits.

        Raises the errors of VerifiedAssembler.judge, of any source before the first row of another one.
        """
        judged = [(name, source, self._judge(name, source)) for name, source in self._sources.items()]
        for name, source, judgement in judged:
            rows = SourceRows(source.segments, self._texts)
            yield from released_rows(name, judgement.released, judgement.lost, rows, self.piece_rows)

    def _judge(self, name: str, source: _Source) -> Judgement:
        judgement = VerifiedAssembler(self.policy, name).judge(
            source.before,
            held_proof(source.segments[: source.held]),
            pa.concat_tables([NEW_PROOF.empty_table(), *source.proofs]),
            self.now,
            SourceRows(source.segments, self._texts).with_rows,
        )
        source.judgement = judgement
        source.proofs.clear()
        self.flows += replace(judgement.counters, open=0, open_rows=0)
        self.notices += judgement.notices
        return judgement

    @property
    def names(self) -> set[str]:
        """The sources with events in this task."""
        return set(self._sources)

    @property
    def source_partitions(self) -> int:
        """How many sources have events in this task."""
        return len(self._sources)

    def repeat_notices(self) -> list[Event]:
        """None more: `notices` has them."""
        return []

    def carry_over(self) -> dict[str, CarriedState]:
        """Write the events that wait; return the state of all sources, for the next micro-batch. After `finish`."""
        return {name: self._carry(source) for name, source in self._sources.items()}

    def _carry(self, source: _Source) -> CarriedState:
        judgement = source.judgement
        if judgement is None:
            return CarriedState(source.before, places_of(source.segments[: source.held]))
        kept = np.sort(judgement.events[AT].filter(pa.array(judgement.kept)).to_numpy())
        segments = carried_segments(source.segments, kept, self.storage, crowded=source.held > MANY_BLOBS)
        return with_blobs(judgement.state, segments)

    def _source_of(self, state: VerifiedState, places: Mapping[int, BlobPlace]) -> _Source:
        segments = segments_of(state, places, self.storage)
        return _Source(state, segments, held=len(segments), events=sum(segment.rows for segment in segments))

    def _spill(self) -> None:
        """Write the events in memory to the spill storage, in order; the rules' columns stay."""
        segments = [segment for source in self._sources.values() for segment in source.segments if segment.table]
        spill(segments, self.storage)
        self._held_bytes = 0


# --- events in ---


def verified_state(name: str, carried: CarriedState) -> VerifiedState:
    """The state of source `name`; raises InputError if other rules have written it."""
    if not isinstance(carried.state, VerifiedState):
        raise other_rules(name)
    return carried.state


def by_source(events: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The events of each source, in their order."""
    for part in group_by_partition(events).by_partition():
        yield str(part.names[0]), part.table if part.order is None else part.table.take(pa.array(part.order))


def arrived(events: pa.Table, now: float) -> pa.Table:
    """New events in the columns STORED."""
    chosen = events.select(v.EVENTS.names).cast(v.EVENTS)
    chosen = chosen.append_column(v.HELD_EVENTS.field(v.ARRIVED), pa.array(np.full(events.num_rows, float(now))))
    if v.ORIGIN in events.column_names:
        chosen = chosen.append_column(STORED.field(v.ORIGIN), events[v.ORIGIN])
    return stored(chosen)


def new_proof(events: pa.Table, numbers: Indexes) -> pa.Table:
    """What the rules read of new events."""
    sizes = pc.fill_null(pc.binary_length(events[model.ROW]), 0).cast(pa.int64())
    return with_places(events.drop_columns([model.ROW, v.ARRIVED, v.ORIGIN]), numbers, sizes)


def held_proof(segments: Sequence[Segment]) -> pa.Table:
    """What the rules read of the events of blobs, which are numbered from 0 on."""
    firsts = accumulate((segment.rows for segment in segments), initial=0)
    proofs = [segment.proof(first) for segment, first in zip(segments, firsts, strict=False)]
    return pa.concat_tables([HELD_PROOF.empty_table(), *proofs])


def spill(segments: Sequence[Segment], storage: SpillStorage) -> None:
    """Write the segments, which are in memory, to the spill storage."""
    places = storage.write([segment.table for segment in segments if segment.table is not None])
    for segment, place in zip(segments, places, strict=True):
        segment.table, segment.place, segment.storage = None, place, storage


# --- rows out ---


def released_rows(
    name: str, released: Sequence[Units], lost: Sequence[LostUnit], rows: SourceRows, piece_rows: int = PIECE_ROWS
) -> Iterator[ReleasedRows]:
    """The rows of the units of source `name`, in pieces."""
    for units in released:
        sizes = units.events[BYTES].to_numpy()[units.places]
        for piece in units.pieces(rows.with_rows, _stops(sizes, piece_rows)):
            yield ReleasedRows((name,), np.array([piece.num_rows]), piece)
    for unit in lost:
        for piece in unit.pieces(rows.with_rows):
            yield ReleasedRows((name + DEAD_LETTER_SUFFIX,), np.array([piece.num_rows]), piece)


def _stops(sizes: Indexes, piece_rows: int) -> Indexes:
    """Where to cut rows with texts of `sizes` into pieces."""
    if not len(sizes):
        return sizes
    piece = np.maximum(np.cumsum(sizes) // _PIECE_BYTES, np.arange(len(sizes)) // piece_rows)
    stops: Indexes = np.concatenate([np.flatnonzero(np.diff(piece)) + 1, [len(sizes)]])
    return stops


# --- events that wait ---


def carried_segments(
    segments: Sequence[Segment], kept: Indexes, storage: SpillStorage, *, crowded: bool
) -> list[Segment]:
    """Segments in `storage` with the events `kept` (ascending places in all `segments`); most are the given ones.

    If the blobs are `crowded`, small ones are merged.
    """
    stops = np.cumsum([segment.rows for segment in segments])
    bounds = np.searchsorted(kept, np.concatenate([[0], stops]))
    stay: list[Segment] = []
    rest: list[tuple[Segment, Mask]] = []
    for number, segment in enumerate(segments):
        count = int(bounds[number + 1] - bounds[number])
        small = segment.bytes < SMALL_BYTES and (crowded or segment.number is None)
        there = segment.place is not None and segment.storage is storage
        if count == segment.rows and there and not small:
            stay.append(segment)
        elif count:
            chosen = np.zeros(segment.rows, dtype=bool)
            chosen[kept[bounds[number] : bounds[number + 1]] - (stops[number] - segment.rows)] = True
            rest.append((segment, chosen))
    return [*stay, *_rewritten(rest, storage)]


def with_blobs(state: VerifiedState, segments: Sequence[Segment]) -> CarriedState:
    """The state with `segments`, which are in the spill storage, as its blobs."""
    following = state.next_blob
    for segment in segments:
        if segment.number is None:
            segment.number, following = following, following + 1
    blobs = tuple(HeldBlob(segment.number or 0, segment.rows, segment.bytes) for segment in segments)
    return CarriedState(replace(state, blobs=blobs, next_blob=following), places_of(segments))


def _rewritten(rest: Sequence[tuple[Segment, Mask]], storage: SpillStorage) -> list[Segment]:
    """New segments in the spill storage, of the events in the masks; about READ_BYTES are in memory at once."""
    written: list[Segment] = []
    waiting: list[pa.Table] = []
    for segment, chosen in rest:
        waiting.append(segment.events().filter(pa.array(chosen)))
        if sum(table.nbytes for table in waiting) > READ_BYTES:
            written += _write(waiting, storage, small=False)
            waiting = []
    return written + _write(waiting, storage, small=not written)


def _write(tables: Sequence[pa.Table], storage: SpillStorage, *, small: bool) -> list[Segment]:
    pieces = model.pieces(pa.concat_tables(tables).combine_chunks()) if tables else []
    places = storage.write(pieces, small=small)
    return [
        Segment(piece.num_rows, piece.nbytes, None, place, storage=storage)
        for piece, place in zip(pieces, places, strict=True)
    ]
