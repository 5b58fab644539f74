"""Segments: runs of DATA events between markers, and their classification. Index arithmetic only, no Python per row.

The event before a segment (a BEGIN, an END, or the carried-over state) and the event after it (an END, a BEGIN, or none
yet) determine its class, so a few array operations classify the events of any number of source partitions. A group is a
source partition or, with interleaved source transactions, a single source transaction. In grouped order the events of a
group are adjacent, so interleaving needs no rule of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes, Intake, Mask, one_array
from starrocks_txn_sink.assembler.rules.model import (
    AssemblerState,
    EventKind,
    MissingBegin,
    OpenTransaction,
    Partition,
    Policy,
)
from starrocks_txn_sink.assembler.rules.numbered import with_marks

Bytes = npt.NDArray[np.int8]


class Opener:
    """State of the transaction that a segment's DATA events belong to."""

    NOTHING: Final = 0  # no BEGIN was seen
    LIVE: Final = 1  # an open transaction
    DROPPED: Final = 2  # a dropped transaction, skipped to its END


class Closer:
    """The event after a segment's DATA events; markers use their EventKind."""

    TAIL: Final = 0  # none yet: the events end here
    BEGIN: Final = EventKind.BEGIN
    END: Final = EventKind.END


@dataclass(frozen=True, slots=True)
class Segments:
    """Parallel arrays, one entry per segment, in the order of (group, position).

    The DATA events of a segment are `start:stop` in grouped order; the closing event, if any, is at `stop`.
    """

    start: Indexes
    stop: Indexes
    group: Indexes
    closer: Bytes
    opener: Bytes  # in the first segment of a group from the carried-over state
    first: Mask  # the first segments of groups

    @property
    def rows(self) -> Indexes:
        """The number of DATA events of each segment."""
        return self.stop - self.start


def cut_segments(kinds: Bytes, group_ends: Indexes, openers: Bytes) -> Segments:
    """Cut events into segments.

    `kinds` are in grouped order; `group_ends` holds each group's exclusive end, ascending, the last one equal to
    len(kinds); `openers` holds each group's Opener. Every group yields one segment per marker and a tail, which may be
    empty.
    """
    markers = np.flatnonzero(kinds != EventKind.DATA)
    stops = np.concatenate([group_ends, markers])
    closers = np.concatenate([np.full(len(group_ends), Closer.TAIL, np.int8), kinds[markers]])
    order = np.argsort(stops, kind="stable")  # a group's tail comes before a marker that opens the next group
    stop, closer = stops[order], closers[order]
    after = stop + (closer != Closer.TAIL)
    start = np.concatenate([np.zeros(1, np.int64), after[:-1]])
    first = np.concatenate([np.ones(1, bool), closer[:-1] == Closer.TAIL])
    group = np.cumsum(first) - 1
    before = np.concatenate([np.zeros(1, np.int8), closer[:-1]])
    opener = np.where(first, openers[group], np.where(before == Closer.BEGIN, Opener.LIVE, Opener.NOTHING))
    return Segments(start, stop, group, closer, opener.astype(np.int8), first)


def concat_ranges(start: Indexes, rows: Indexes) -> Indexes:
    """Concatenate the ranges `start[i] : start[i] + rows[i]`."""
    before = np.cumsum(rows) - rows
    return np.repeat(start - before, rows) + np.arange(int(rows.sum()), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SegmentClasses:
    """One mask per class of segments; every segment with rows or an END is in exactly one class.

    `orphan` marks segments whose BEGIN was never seen; by policy they are also `skipped`, or count as begun.
    """

    orphan: Mask
    released: Mask  # whole, with rows: its END came
    empty: Mask  # whole, without rows
    abandoned: Mask  # unfinished when the next BEGIN came
    open: Mask  # unfinished when the events ended
    skipped: Mask  # belongs to a transaction that was dropped
    waiting: Mask  # skipped, and its END has not come yet


def classify(segments: Segments, held_rows: Indexes, missing_begin: MissingBegin) -> SegmentClasses:
    """Classify every segment; `held_rows` counts the rows of its transaction in the carried-over state."""
    ended, tail = segments.closer == Closer.END, segments.closer == Closer.TAIL
    orphan = (segments.opener == Opener.NOTHING) & (ended | (segments.rows > 0))
    live, skipped = segments.opener == Opener.LIVE, segments.opener == Opener.DROPPED
    if missing_begin == "accept":
        live = live | orphan
    else:
        skipped = skipped | orphan
    full = segments.rows + held_rows > 0
    return SegmentClasses(
        orphan=orphan,
        released=live & ended & full,
        empty=live & ended & ~full,
        abandoned=live & (segments.closer == Closer.BEGIN),
        open=live & tail,
        skipped=skipped,
        waiting=skipped & tail,
    )


@dataclass(frozen=True, slots=True)
class Grouped:
    """Events in grouped order, cut into segments. Only `intake` keeps its own order."""

    intake: Intake
    order: Indexes | None  # order[i] is the event at place i in grouped order, or that of the mark there; None: event i
    partition: Indexes  # per group: its source partition, as an index into Intake.names
    carried: dict[int, OpenTransaction]  # per group: the open transaction of the carried-over state
    positions: Indexes
    segments: Segments
    held: Indexes  # per segment: how many rows of its transaction are in the carried-over state
    opened_by: Indexes  # per segment: the place of its transaction's BEGIN, or of the first event without BEGIN
    owners: pa.StringArray  # per segment: the id of its transaction

    @classmethod
    def of(cls, intake: Intake, states: Mapping[Partition, AssemblerState], policy: Policy) -> Grouped:
        """Group the events of `intake` by source partition or, if `interleaved`, by transaction, and cut segments.

        Numbered rows get marks where their transactions begin and end.
        """
        opened = [(at, states[name].open) for at, name in enumerate(intake.names) if name in states]
        order, ends, partition = None, intake.ends, np.arange(len(intake.names))
        carried = {at: several[0] for at, several in opened if several}
        kinds, positions = intake.kinds, intake.positions
        if model.is_numbered(intake.table.schema):
            order, kinds, ends = with_marks(intake, states, in_front=policy.missing_begin == "fail")
            positions = positions[order]
        elif policy.interleaved and len(kinds):
            several = [(at, transaction) for at, transactions in opened for transaction in transactions]
            order, ends, partition, carried = _group_by_transaction(intake, several)
            kinds, positions = kinds[order], positions[order]
        segments = cut_segments(kinds, ends, _openers(carried, len(ends)))
        resumed = np.flatnonzero(segments.first)[list(carried)]  # segments of carried-over transactions
        held_rows = np.zeros(len(segments.start), dtype=np.int64)
        held_rows[resumed] = [transaction.rows for transaction in carried.values()]
        began = ~segments.first & (segments.opener == Opener.LIVE)
        opened_by, ids = np.minimum(segments.start - began, len(kinds) - 1), one_array(intake.table[model.TXN_ID])
        owners = pa.nulls(len(opened_by), ids.type)
        if len(kinds):
            owners = ids.take(pa.array(opened_by if order is None else order[opened_by]))
        if carried:
            index = np.arange(len(owners))
            index[resumed] = len(owners) + np.arange(len(carried))
            carried_ids = pa.array([transaction.txn_id for transaction in carried.values()], pa.string())
            owners = pa.concat_arrays([owners, carried_ids]).take(pa.array(index))
        return cls(intake, order, partition, carried, positions, segments, held_rows, opened_by, owners)

    def partition_of(self, segments: Indexes | slice) -> Indexes:
        """The source partition of each of `segments`, as an index into Intake.names."""
        return self.partition[self.segments.group[segments]]

    def carried_into(self, segment: int) -> OpenTransaction | None:
        """The carried-over transaction that the segment continues, if any."""
        return self.carried.get(int(self.segments.group[segment])) if self.segments.first[segment] else None

    def first_foreign_event(self) -> int | None:
        """The first DATA or END whose transaction id differs from its segment's owner; NULL never differs.

        Only without interleaving: interleaved events are grouped by transaction id.
        """
        lengths = self.segments.rows + (self.segments.closer != Closer.TAIL)
        expected = self.owners.take(pa.array(np.repeat(np.arange(len(lengths)), lengths)))
        ids = one_array(self.intake.table[model.TXN_ID])
        differs = pc.fill_null(pc.not_equal(ids, expected), False).to_numpy(zero_copy_only=False)
        foreign = differs & (self.intake.kinds != EventKind.BEGIN)
        return int(foreign.argmax()) if foreign.any() else None


def _group_by_transaction(
    intake: Intake, opened: list[tuple[int, OpenTransaction]]
) -> tuple[Indexes, Indexes, Indexes, dict[int, OpenTransaction]]:
    """(order, exclusive ends, source partitions, carried-over transactions) of groups, one per source transaction.

    A pair (source partition, transaction id) is one integer: index of the partition * width + index of the id.
    """
    ids = one_array(intake.table[model.TXN_ID]).dictionary_encode()
    partitions = np.repeat(np.arange(len(intake.names)), intake.counts)
    width = len(ids.dictionary)
    pairs = pa.array(partitions * width + ids.indices.to_numpy()).dictionary_encode()
    group = pairs.indices.to_numpy()  # numbered by first appearance, so one source partition after the other
    opened_ids = pc.index_in(
        pa.array([transaction.txn_id for _, transaction in opened], pa.string()), value_set=ids.dictionary
    )
    opened_pairs = pc.add(pa.array([at * width for at, _ in opened], pa.int64()), opened_ids)
    resumed = pc.index_in(opened_pairs, value_set=pairs.dictionary, skip_nulls=True).to_pylist()
    carried = {at: transaction for at, (_, transaction) in zip(resumed, opened, strict=True) if at is not None}
    order, ends = np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))
    return order, ends, pairs.dictionary.to_numpy() // width, carried


def _openers(carried: Mapping[int, OpenTransaction], groups: int) -> Bytes:
    """The Opener of each group's first segment."""
    openers = np.full(groups, Opener.NOTHING, dtype=np.int8)
    for group, transaction in carried.items():
        openers[group] = Opener.DROPPED if transaction.dropped else Opener.LIVE
    return openers
