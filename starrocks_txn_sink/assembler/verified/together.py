"""Several lanes assemble verified transactions: they prove together, and each lane loads its own rows.

The rows of a key come through one partition of a topic, and so to one lane. But a transaction has rows in any lane. So

    1. each lane reads its events, puts them into a storage of its own, and sends their *proof*: all columns but the
       texts of rows (`ProvingLane`);
    2. the driver judges the proofs of all lanes and the held events as one lane judges them (`judge_together`): the
       rules, and so the outcome, are the same;
    3. each lane gets its `SourceVerdict`, the numbers of its events to load and to keep, and loads (`LoadingLane`).

An event's number is that of its offset among the offsets of the lane, so it does not depend on the order in which the
lane reads. A lane that has lost its storage reads its events again. Pure: storages are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.assembler.rules.spill import CarriedState, SpillStorage
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.intake import HeldBlob, VerifiedCounters, VerifiedState
from starrocks_txn_sink.assembler.verified.lane import (
    arrived,
    by_source,
    carried_segments,
    held_proof,
    released_rows,
    spill,
    verified_state,
    with_blobs,
)
from starrocks_txn_sink.assembler.verified.rules import MANY_BLOBS, Judgement, VerifiedAssembler, VerifiedPolicy
from starrocks_txn_sink.assembler.verified.texts import (
    AT,
    NEW_PROOF,
    Segment,
    SourceRows,
    TextCache,
    segments_of,
    with_places,
)
from starrocks_txn_sink.assembler.verified.units import DEAD_LETTER_SUFFIX, LostUnit, Units
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.telemetry import Event

_LANE_BIT: Final = 40  # in a number that is unique over all lanes, the lane stands above the number in its lane
_NUMBER_MASK: Final = (1 << _LANE_BIT) - 1
_WRITE_BYTES: Final = 32 << 20  # events of a proving lane that are in memory at once
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")  # a proof goes to the driver as a Spark result


class OneLaneNeeded(Exception):
    """One lane has to take this micro-batch, because only it sees what the rules ask for; no error."""


# --- 1. a lane's proof ---


@dataclass(slots=True)
class ProvingLane:
    """Puts the events of one task into `storage`, by source: `segments`, which also have the events' NUMBER."""

    now: float
    storage: SpillStorage
    segments: dict[str, list[Segment]] = field(default_factory=dict)
    _proofs: dict[str, list[pa.Table]] = field(default_factory=dict)
    _waiting: list[Segment] = field(default_factory=list)

    def feed(self, events: pa.Table) -> None:
        """Take in events with their source partition, ORIGIN and NUMBER, in any order."""
        for name, part in by_source(events):
            table = arrived(part, self.now)
            proof = table.select(_SENT).append_column(v.NUMBER, part[v.NUMBER])
            self._proofs.setdefault(name, []).append(_with_codes(proof))
            for piece in model.pieces(table.append_column(v.NUMBER, part[v.NUMBER])):
                self._waiting.append(Segment(piece.num_rows, piece.nbytes, piece))
                self.segments.setdefault(name, []).append(self._waiting[-1])
        if sum(segment.bytes for segment in self._waiting) > _WRITE_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write the events that are still in memory."""
        spill(self._waiting, self.storage)
        self._waiting = []

    def proofs(self) -> dict[str, bytes]:
        """The proof of each source, for `read_proof`."""
        return {name: _to_bytes(pa.concat_tables(parts)) for name, parts in self._proofs.items()}


_SENT: Final = tuple(name for name in v.EVENTS.names if name != model.ROW)
_TEXTS: Final = tuple(name for name in _SENT if pa.types.is_string(v.EVENTS.field(name).type))


def _with_codes(proof: pa.Table) -> pa.Table:
    """The proof with a code in place of each text: few texts are different."""
    for name in _TEXTS:
        proof = proof.set_column(proof.schema.get_field_index(name), name, proof[name].dictionary_encode())
    return proof


def _to_bytes(proof: pa.Table) -> bytes:
    proof = proof.unify_dictionaries().combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, proof.schema, options=_COMPRESSED) as writer:
        writer.write_table(proof)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_proof(content: bytes) -> pa.Table:
    """A lane's proof of a source: EVENTS without rows, and NUMBER."""
    proof = pa.ipc.open_stream(content).read_all()
    return proof.cast(pa.schema([*(v.EVENTS.field(name) for name in _SENT), (v.NUMBER, pa.int64())]))


# --- 2. the judgement over all lanes ---


@dataclass(frozen=True, slots=True)
class LostRows:
    """The numbers of one lane's rows in a unit of dead letters, and what `units.LostUnit` has besides its rows."""

    numbers: Indexes
    seq: Indexes
    unit: tuple[int, str, str, str]


@dataclass(frozen=True, slots=True)
class SourceVerdict:
    """The part of one lane in the judgement of a source.

    The lane has `events` new events. `numbers` are the events to load, in order: `counts[i]` of them at `positions[i]`,
    of transaction `ids[i]`, with `seq` as their numbers among the rows of all lanes. The lane keeps the events `kept`.
    Numbers are those of held events, from 0 in the order of the blobs, and of new events behind them.
    """

    events: int
    numbers: Indexes
    seq: Indexes
    counts: Indexes
    positions: Indexes
    ids: pa.Array
    lost: tuple[LostRows, ...]
    kept: Indexes


@dataclass(frozen=True, slots=True)
class JudgedTogether:
    """`verdicts` by lane and source; `positions` of all units by source partition, ascending.

    `states` are those after the micro-batch, with the blobs of the one before.
    """

    verdicts: Sequence[Mapping[str, SourceVerdict]]
    positions: Mapping[str, Indexes]
    states: Mapping[str, VerifiedState]
    flows: VerifiedCounters
    notices: tuple[Event, ...]

    def carried(self, shares: Sequence[Mapping[str, CarriedState]]) -> dict[str, CarriedState]:
        """The states for the next micro-batch, with the blobs that the lanes hand on."""
        return {name: _join(state, [share[name] for share in shares]) for name, state in self.states.items()}


def judge_together(
    policy: VerifiedPolicy,
    carried: Mapping[str, CarriedState],
    storage: SpillStorage,
    now: float,
    proofs: Sequence[Mapping[str, pa.Table]],
    lane_of: Callable[[str], int],
) -> JudgedTogether:
    """Judge the `proofs` of all lanes, by lane and source; `lane_of` says which lane loads the rows of an ORIGIN.

    Raises OneLaneNeeded, and the errors of VerifiedAssembler.judge.
    """
    names = list(dict.fromkeys([*carried, *(name for lane in proofs for name in lane)]))
    verdicts: list[dict[str, SourceVerdict]] = [{} for _ in proofs]
    positions, states = dict[str, Indexes](), dict[str, VerifiedState]()
    flows, notices = VerifiedCounters(), list[Event]()
    for name in names:
        before = carried.get(name, CarriedState(VerifiedState()))
        state = verified_state(name, before)
        source = _Source(segments_of(state, before.places, storage), [lane.get(name) for lane in proofs])
        judgement = VerifiedAssembler(policy, name).judge(state, source.held(lane_of), source.new(), now, _refuse_texts)
        for lane, verdict in zip(verdicts, source.verdicts(judgement), strict=True):
            lane[name] = verdict
        positions |= _positions(name, judgement)
        states[name] = judgement.state
        flows += replace(judgement.counters, open=0, open_rows=0)
        notices += judgement.notices
    return JudgedTogether(verdicts, positions, states, flows, tuple(notices))


def _refuse_texts(events: pa.Table) -> pa.Table:
    if events.num_rows:
        raise OneLaneNeeded("rows that may be copies have to be compared, because the connector has sent them again")
    return events.append_column(model.ROW, pa.nulls(0, pa.string()))


@dataclass(frozen=True, slots=True)
class _Source:
    """The held events of a source, and the proofs of its new events by lane."""

    segments: Sequence[Segment]
    proofs: Sequence[pa.Table | None]

    @property
    def held_events(self) -> int:
        return sum(segment.rows for segment in self.segments)

    def held(self, lane_of: Callable[[str], int]) -> pa.Table:
        """What the rules read of the held events, with numbers that name the lanes that load them."""
        proof = held_proof(self.segments)
        lanes = [_lanes_of(segment, lane_of) for segment in self.segments]
        numbers = np.concatenate([np.arange(0), *lanes]) * (1 << _LANE_BIT) + np.arange(self.held_events)
        return proof.set_column(proof.schema.get_field_index(AT), AT, pa.array(numbers, pa.int64()))

    def new(self) -> pa.Table:
        """What the rules read of the new events, with numbers that name their lanes."""
        parts = [NEW_PROOF.empty_table()]
        for lane, proof in enumerate(self.proofs):
            if proof is not None:
                numbers = proof[v.NUMBER].to_numpy() + (self.held_events + (lane << _LANE_BIT))
                sizes = pa.nulls(proof.num_rows, pa.int64())  # nobody cuts these rows into pieces
                parts.append(with_places(proof.drop_columns([v.NUMBER]), numbers, sizes))
        return pa.concat_tables(parts)

    def verdicts(self, judgement: Judgement) -> Iterator[SourceVerdict]:
        """The part of each lane."""
        at = _concat(units.events[AT].to_numpy()[units.places] for units in judgement.released)
        counts = _concat(units.counts for units in judgement.released)
        positions = _concat(units.positions for units in judgement.released)
        ids = pa.concat_arrays([pa.array([], pa.string()), *(_array(units.ids) for units in judgement.released)])
        unit = np.repeat(np.arange(len(counts)), counts)
        seq = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        kept, keepers = self._kept(judgement)
        lost = [
            ((letter.position, letter.txn_id, letter.reason, letter.table), letter.events[AT].to_numpy())
            for letter in judgement.lost
        ]
        for lane, proof in enumerate(self.proofs):
            mine = at >> _LANE_BIT == lane
            of_unit = np.bincount(unit[mine], minlength=len(counts))
            filled = of_unit > 0
            yield SourceVerdict(
                0 if proof is None else proof.num_rows,
                at[mine] & _NUMBER_MASK,
                seq[mine].astype(np.int32),
                of_unit[filled],
                positions[filled],
                ids.filter(pa.array(filled)),
                tuple(
                    LostRows(
                        rows[mine] & _NUMBER_MASK,
                        np.flatnonzero(mine),
                        unit_of,
                    )
                    for unit_of, rows in lost
                    for mine in (rows >> _LANE_BIT == lane,)
                    if mine.any()
                ),
                np.sort(kept[keepers == lane]),
            )

    def _kept(self, judgement: Judgement) -> tuple[Indexes, Indexes]:
        """The numbers of the events that wait, and the lane that keeps each of them.

        A blob is kept by one lane, so that it is written again at most once.
        """
        at = judgement.events[AT].filter(pa.array(judgement.kept)).to_numpy()
        numbers, lanes = at & _NUMBER_MASK, at >> _LANE_BIT
        is_held = numbers < self.held_events
        stops = np.cumsum([segment.rows for segment in self.segments], dtype=np.int64)
        lanes[is_held] = np.searchsorted(stops, numbers[is_held], side="right") % len(self.proofs)
        return numbers, lanes


def _lanes_of(segment: Segment, lane_of: Callable[[str], int]) -> Indexes:
    """The lane of each event of a blob."""
    read = segment.read(v.STATUS, v.ORIGIN)
    origins = read[v.ORIGIN] if v.ORIGIN in read.column_names else pa.chunked_array([pa.nulls(segment.rows)])
    if pc.any(pc.and_(origins.is_null(), read[v.STATUS].is_null())).as_py():
        raise OneLaneNeeded("rows wait of which the state does not say through which partition of a topic they came")
    if origins.null_count == len(origins):
        return np.zeros(segment.rows, dtype=np.int64)
    codes = origins.combine_chunks().dictionary_encode()
    lanes = np.array([*map(lane_of, codes.dictionary.to_pylist()), 0], dtype=np.int64)
    chosen: Indexes = lanes[pc.fill_null(codes.indices, len(lanes) - 1).to_numpy()]
    return chosen


def _positions(name: str, judgement: Judgement) -> dict[str, Indexes]:
    """The positions of the units of a source, and of its dead letters."""
    found = {
        name: _concat(units.positions for units in judgement.released),
        name + DEAD_LETTER_SUFFIX: np.array([unit.position for unit in judgement.lost], dtype=np.int64),
    }
    return {partition: np.sort(positions) for partition, positions in found.items() if len(positions)}


def _join(state: VerifiedState, shares: Sequence[CarriedState]) -> CarriedState:
    """The state with the blobs of all lanes; new ones get new numbers, because each lane has numbered its own."""
    blobs, places, following = list[HeldBlob](), {}, state.next_blob
    for share in shares:
        assert isinstance(share.state, VerifiedState)
        for blob in share.state.blobs:
            number = blob.number
            if number >= state.next_blob:
                number, following = following, following + 1
            blobs.append(replace(blob, number=number))
            places[number] = share.places[blob.number]
    return CarriedState(replace(state, blobs=tuple(blobs), next_blob=following), places)


def _concat(parts: Iterator[Indexes]) -> Indexes:
    return np.concatenate([np.arange(0), *parts])


def _array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


# --- 3. a lane loads ---


@dataclass(slots=True)
class LoadingLane:
    """Gives out the rows of one lane that the `verdicts` name, and keeps the events that wait.

    `carried` is the state of the micro-batch before, in `storage`. The driver has the counts and the notices.
    """

    carried: Mapping[str, CarriedState]
    storage: SpillStorage
    verdicts: Mapping[str, SourceVerdict]
    flows: VerifiedCounters = field(default_factory=VerifiedCounters)
    notices: list[Event] = field(default_factory=list)
    _sources: dict[str, _Events] = field(default_factory=dict)

    def take(self, new: Mapping[str, Sequence[Segment]]) -> None:
        """Take the segments of the ProvingLane; raises SourceChanged if they have other events than were judged."""
        for name, verdict in self.verdicts.items():
            before = self.carried.get(name, CarriedState(VerifiedState()))
            state = verified_state(name, before)
            held = segments_of(state, before.places, self.storage)
            self._sources[name] = _Events.of(name, state, held, new.get(name, ()), verdict)

    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:  # noqa: ARG002
        """Nothing: `take` has all events."""
        return iter(())

    def finish(self) -> Iterator[ReleasedRows]:
        """The released rows: those of a source in the order of its commits."""
        texts = TextCache()
        for name, source in self._sources.items():
            verdict, segments = self.verdicts[name], source.segments
            events = held_proof(segments)
            places = source.places[verdict.numbers]
            units = Units(events, places, verdict.counts, verdict.positions, verdict.ids, verdict.seq)
            lost = [
                LostUnit(events.take(pa.array(source.places[rows.numbers])), *rows.unit, rows.seq)
                for rows in verdict.lost
            ]
            yield from released_rows(name, [units], lost, SourceRows(segments, texts))

    @property
    def names(self) -> set[str]:
        """The sources of the micro-batch."""
        return set(self.verdicts)

    @property
    def source_partitions(self) -> int:
        return len(self.verdicts)

    def repeat_notices(self) -> list[Event]:
        """None: the driver has them."""
        return []

    def carry_over(self) -> dict[str, CarriedState]:
        """Write the events that wait; return the states with the blobs of this lane alone."""
        return {name: self._carry(source, self.verdicts[name]) for name, source in self._sources.items()}

    def _carry(self, source: _Events, verdict: SourceVerdict) -> CarriedState:
        kept = np.sort(source.places[verdict.kept])
        segments = carried_segments(source.segments, kept, self.storage, crowded=source.held > MANY_BLOBS)
        return with_blobs(source.before, segments)


@dataclass(frozen=True, slots=True)
class _Events:
    """The events of a source: `places[n]` is the place in all `segments` of the event with number n."""

    before: VerifiedState
    segments: Sequence[Segment]
    held: int  # segments of the state before
    places: Indexes

    @classmethod
    def of(
        cls, name: str, before: VerifiedState, held: Sequence[Segment], new: Sequence[Segment], verdict: SourceVerdict
    ) -> _Events:
        """Raises SourceChanged if the new events are others than those that were judged."""
        numbers = _concat(segment.read(v.NUMBER)[v.NUMBER].to_numpy() for segment in new)
        count = sum(segment.rows for segment in held)
        judged = np.concatenate([verdict.numbers, verdict.kept, *(rows.numbers for rows in verdict.lost)])
        places = np.full(count + int(max(numbers.max(initial=-1), judged.max(initial=-1))) + 1, -1, dtype=np.int64)
        places[:count] = np.arange(count)
        places[count + numbers] = count + np.arange(len(numbers))
        if len(numbers) != verdict.events or (places[judged] < 0).any():
            raise SourceChanged(
                "Kafka has other messages in the micro-batch's offsets than it had before.",
                hint="Do not compact the topics, and keep them longer than the query may stand still.",
                source=name,
            )
        return cls(before, [*held, *new], len(held), places)
