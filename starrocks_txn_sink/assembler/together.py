"""The rules for many source partitions in one pass, as long as nothing is out of the ordinary.

Applying the rules to one source partition costs most of a millisecond, however few its events are. Here the source
partitions are groups of one array, judged by the same functions (`segments`, `fates`). Whatever needs a decision of a
policy, a notice or an error is left to `rules`, one source partition at a time (`ordinary` tells which).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.fates import Fates, Mask, judge
from starrocks_txn_sink.assembler.grouping import openers
from starrocks_txn_sink.assembler.intake import KIND, Indexes, Kind
from starrocks_txn_sink.assembler.policy import MissingBegin
from starrocks_txn_sink.assembler.release import Released, marked
from starrocks_txn_sink.assembler.segments import Closer, Opener, Segments, cut, spread
from starrocks_txn_sink.assembler.state import AssemblerState, OpenTransaction, pieces

READ_BYTES: Final = 4 << 20  # of rows that were carried and are released now; more are read piece by piece by `rules`

ReadOf = Callable[[int, int], pa.Table]
"""Gives the table of a blob: group, number."""


@dataclass(frozen=True, slots=True)
class Many:
    """Events of several source partitions, one after the other.

    `ends` holds each one's exclusive end; `events` has neither SOURCE_PARTITION nor KIND.
    """

    names: list[str]
    ends: Indexes
    events: pa.Table
    kinds: npt.NDArray[np.int8]
    positions: Indexes

    @property
    def payload(self) -> pa.Table:
        """What rows of them keep."""
        return self.events.select(schema.payload_names(self.events.schema))

    @property
    def groups(self) -> Indexes:
        """The source partition of each event, as its place in `names`."""
        groups: Indexes = np.repeat(np.arange(len(self.names)), self._sizes)
        return groups

    def only(self, chosen: Mask) -> Many:
        """Those source partitions that `chosen` marks."""
        if chosen.all():
            return self
        mine = chosen[self.groups]
        names = [name for name, one in zip(self.names, chosen, strict=True) if one]
        ends = np.cumsum(self._sizes[chosen])
        return Many(names, ends, self.events.filter(pa.array(mine)), self.kinds[mine], self.positions[mine])

    def parts(self) -> Iterator[tuple[str, pa.Table]]:
        """The events of each, with KIND."""
        events = self.events.append_column(KIND, pa.array(self.kinds))
        for name, end, size in zip(self.names, self.ends.tolist(), self._sizes.tolist(), strict=True):
            yield name, events.slice(end - size, size)

    @property
    def _sizes(self) -> Indexes:
        sizes: Indexes = np.diff(self.ends, prepend=0)
        return sizes


@dataclass(frozen=True, slots=True)
class Steps:
    """What `rules.Step` is, for each source partition; the released rows are those of all of them."""

    names: list[str]
    states: list[AssemblerState]
    removed: list[tuple[int, ...]]
    added: list[dict[int, pa.Table]]
    counters: Counters
    released: Released | None


def many(events: pa.Table, *, any_order: bool) -> Many | None:
    """`events` arranged; None when they have no column KIND (`intake.looked_through`), or no source partition.

    With `any_order` they are sorted, and source partitions too, by their names.
    """
    partitions = events[schema.SOURCE_PARTITION].combine_chunks()
    if KIND not in events.schema.names or partitions.null_count:
        return None
    encoded = partitions.dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    positions = events[schema.POSITION].to_numpy()
    if any_order:
        ranks = np.argsort(np.array(names, dtype=object))
        names, codes = [names[rank] for rank in ranks], np.argsort(ranks)[codes]
    order = _order(codes, positions, any_order=any_order)
    if order is not None:
        events, codes, positions = events.take(pa.array(order)), codes[order], positions[order]
    kinds = events[KIND].to_numpy()
    ends = np.searchsorted(codes, np.arange(len(names)), side="right")
    return Many(names, ends, events.drop_columns([schema.SOURCE_PARTITION, KIND]), kinds, positions)


def _order(codes: Indexes, positions: Indexes, *, any_order: bool) -> Indexes | None:
    behind = codes[1:] < codes[:-1]
    if any_order:
        behind |= (codes[1:] == codes[:-1]) & (positions[1:] < positions[:-1])
    if not behind.any():
        return None
    order: Indexes = np.lexsort((positions, codes)) if any_order else np.argsort(codes, kind="stable")
    return order


def ordinary(judged: Judged) -> Mask:
    """Which source partitions need neither a decision of the policy, nor a notice or an error."""
    given, fates, groups, count = judged.given, judged.fates, judged.given.groups, len(judged.given.names)
    starts = np.concatenate(([0], given.ends[:-1]))
    seen = [state.last_position for state in judged.states]
    strange = np.array([len(state.open) > 1 for state in judged.states])
    strange |= [at is not None and given.positions[start] <= at for at, start in zip(seen, starts, strict=True)]
    back = (groups[1:] == groups[:-1]) & (given.positions[1:] <= given.positions[:-1])
    strange |= np.bincount(groups[1:][back], minlength=count) > 0
    lost = fates.orphan | fates.abandoned | fates.skipped
    strange |= np.bincount(judged.segments.group[lost], minlength=count) > 0
    strange |= np.bincount(groups[judged.owners.strangers(given, judged.segments)], minlength=count) > 0
    return ~strange


def together(judged: Judged, now: float, read: ReadOf) -> Steps | None:
    """One step for all, which are `ordinary`; None when what was carried should be read in another way."""
    given, carried = judged.given, judged.carried
    segments, fates, held, owners = judged.segments, judged.fates, judged.held, judged.owners
    ended = np.flatnonzero(fates.released)
    resumed = [(int(group), carried[group]) for group in segments.group[ended[held[ended] > 0]]]
    before = _carried_rows(resumed, read, given.payload.schema)
    if before is None:
        return None
    after, removed, added = _after(given, judged.states, segments, fates, owners, now)
    counters = Counters(
        events=len(given.kinds),
        data=int(np.count_nonzero(given.kinds == Kind.DATA)),
        released=int(fates.released.sum()),
        rows=int((segments.rows + held)[fates.released].sum()),
        empty=int(fates.empty.sum()),
    )
    return Steps(given.names, after, removed, added, counters, _released(given, segments, ended, held, owners, before))


@dataclass(frozen=True, slots=True)
class Judged:
    """The segments of all source partitions, and what becomes of them; `carried` and `held` as in `grouping`."""

    given: Many
    states: Sequence[AssemblerState]
    carried: list[OpenTransaction | None]
    segments: Segments
    held: Indexes
    fates: Fates
    owners: _Owners

    @classmethod
    def of(cls, given: Many, states: Sequence[AssemblerState], missing_begin: MissingBegin) -> Judged:
        carried = [state.open[0] if state.open else None for state in states]
        segments = cut(given.kinds, given.ends, openers(carried))
        rows = np.array([each.rows if each else 0 for each in carried], dtype=np.int64)
        held = np.where(segments.first, rows[segments.group], 0)
        fates = judge(segments, held, missing_begin)
        return cls(given, states, carried, segments, held, fates, _Owners.of(given, segments, carried))


@dataclass(frozen=True, slots=True)
class _Owners:
    """The transaction id of each segment: `places` in `ids`, the events' ids followed by those of what was carried."""

    ids: pa.StringArray
    places: Indexes

    @classmethod
    def of(cls, given: Many, segments: Segments, carried: Sequence[OpenTransaction | None]) -> _Owners:
        own = given.events[schema.TXN_ID].combine_chunks()
        before = pa.array([each.txn_id if each else None for each in carried], pa.string())
        began = ~segments.first & (segments.opener == Opener.LIVE)
        places = np.minimum(segments.start - began, len(given.kinds) - 1)
        inherited = segments.first & (segments.opener == Opener.LIVE)
        return cls(pa.concat_arrays([own, before]), np.where(inherited, len(own) + segments.group, places))

    def strangers(self, given: Many, segments: Segments) -> Mask:
        """Which DATA and END name another transaction than the one they fall into; NULL names none."""
        encoded = self.ids.dictionary_encode().indices
        codes = encoded.fill_null(-1).to_numpy(zero_copy_only=False)
        expected = np.repeat(codes[self.places], segments.rows + (segments.closer != Closer.TAIL))
        own = codes[: len(given.kinds)]
        strange: Mask = (own != expected) & (own >= 0) & (expected >= 0) & (given.kinds != Kind.BEGIN)
        return strange


def _carried_rows(
    resumed: Sequence[tuple[int, OpenTransaction | None]], read: ReadOf, payload: pa.Schema
) -> list[pa.Table] | None:
    """The blobs of source transactions that were carried, by group; None when they are large, or of other columns."""
    carried = [(group, each) for group, each in resumed if each is not None]
    if sum(each.bytes for _, each in carried) > READ_BYTES:
        return None
    tables = [read(group, number) for group, each in carried for number in each.blobs]
    return tables if all(table.schema == payload for table in tables) else None


def _released(
    given: Many, segments: Segments, ended: Indexes, held: Indexes, owners: _Owners, before: list[pa.Table]
) -> Released | None:
    """The rows of the segments `ended`, each after what its source transaction had before, which `before` has."""
    if not len(ended):
        return None
    rows = segments.rows[ended]
    whole = held[ended] + rows
    total = np.cumsum(whole)
    seq = np.arange(total[-1], dtype=np.int64) - np.repeat(total - whole, whole)
    index = _index(len(given.kinds), held[ended], segments.start[ended], rows)
    end = np.zeros(total[-1], dtype=bool)
    end[total - 1] = True
    positions = np.repeat(given.positions[segments.stop[ended]], whole)
    ids = owners.ids.take(pa.array(np.repeat(owners.places[ended], whole)))
    taken = pa.concat_tables([given.payload, *before]).combine_chunks().take(pa.array(index))
    counts = np.bincount(np.repeat(segments.group[ended], whole), minlength=len(given.names))
    there = np.flatnonzero(counts)
    names = tuple(given.names[group] for group in there)
    return Released(names, counts[there], marked(taken, positions, seq, end, ids))


def _index(events: int, held: Indexes, start: Indexes, rows: Indexes) -> Indexes:
    """Places in the events followed by the carried rows: for each source transaction its carried rows, then its own."""
    first = events + np.cumsum(held) - held
    return spread(np.stack([first, start], axis=1).ravel(), np.stack([held, rows], axis=1).ravel())


def _after(
    given: Many,
    states: Sequence[AssemblerState],
    segments: Segments,
    fates: Fates,
    owners: _Owners,
    now: float,
) -> tuple[list[AssemblerState], list[tuple[int, ...]], list[dict[int, pa.Table]]]:
    """Each source partition's state, the blobs that are not needed any more, and new ones."""
    tails = np.flatnonzero(segments.closer == Closer.TAIL)
    payload = given.payload
    after, removed, added = [], [], []
    for group, tail in enumerate(tails.tolist()):
        state, blobs = states[group], dict[int, pa.Table]()
        opened: tuple[OpenTransaction, ...] = ()
        resumed = bool(segments.first[tail])
        if fates.open[tail]:
            rows = payload.slice(int(segments.start[tail]), int(segments.rows[tail]))
            blobs = dict(enumerate(pieces(rows), state.next_blob))
            each = state.open[0] if resumed else _begun(given, segments, owners, tail, now)
            size = sum(blob.nbytes for blob in blobs.values())
            opened = (each.extended(rows.num_rows, size, tuple(blobs)),)
        last = int(given.positions[given.ends[group] - 1])
        after.append(AssemblerState(last, opened, state.next_blob + len(blobs)))
        gone = () if resumed and opened else tuple(number for each in state.open for number in each.blobs)
        removed.append(gone)
        added.append(blobs)
    return after, removed, added


def _begun(given: Many, segments: Segments, owners: _Owners, tail: int, now: float) -> OpenTransaction:
    begin = int(segments.start[tail]) - 1
    return OpenTransaction(owners.ids[int(owners.places[tail])].as_py(), int(given.positions[begin]), now)
