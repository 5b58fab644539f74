"""The events of a source in segments, in memory or in a spill storage, and the texts of their rows.

The rules read all columns but the texts, which are most of the bytes. So a segment's texts are read alone, when its
rows are released.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes
from starrocks_txn_sink.assembler.rules.spill import BlobPlace, SpillStorage
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.intake import VerifiedState
from starrocks_txn_sink.rows.columns import EVENT_TIME

READ_BYTES: Final = 64 << 20
"""Texts read back and kept: a piece of released rows has rows of several blobs, and the next piece of the same ones."""

AT, BYTES = "at", "bytes"
"""In place of a row's text: the number of its event in the source's events, and the size of the text."""

STORED: Final = v.HELD_EVENTS.append(pa.field(v.ORIGIN, pa.string()))
"""The columns of a blob; those of an earlier release have no ORIGIN."""
_PROOF: Final = tuple(name for name in v.HELD_EVENTS.names if name != model.ROW)


@dataclass(slots=True)
class Segment:
    """Consecutive events of a source, in memory or in `storage`. `number` is that of a blob of the state."""

    rows: int
    bytes: int
    table: pa.Table | None = None  # STORED
    place: BlobPlace | None = None
    number: int | None = None
    storage: SpillStorage | None = None

    def events(self) -> pa.Table:
        """The events in the columns STORED."""
        return stored(self.read())

    def read(self, *columns: str) -> pa.Table:
        """The events, or those of the `columns` that they have."""
        if self.table is not None:
            return self.table.select([*(columns or self.table.column_names)])
        assert self.place is not None
        assert self.storage is not None
        return self.storage.read(self.place, columns)

    def proof(self, first: int) -> pa.Table:
        """What the rules read of the events, and their numbers from `first` on."""
        proof = self.read(*_PROOF).select(_PROOF)
        arrived = proof[v.ARRIVED]
        sizes = pa.repeat(pa.scalar(self.bytes // max(self.rows, 1), pa.int64()), self.rows)  # only pieces need them
        numbers = np.arange(first, first + self.rows, dtype=np.int64)
        proof = with_places(proof.drop_columns([v.ARRIVED]), numbers, sizes)
        return proof.append_column(v.HELD_EVENTS.field(v.ARRIVED), arrived)


def segments_of(state: VerifiedState, places: Mapping[int, BlobPlace], storage: SpillStorage) -> list[Segment]:
    """The segments of the blobs of `state`."""
    return [Segment(blob.events, blob.bytes, None, places[blob.number], blob.number, storage) for blob in state.blobs]


def places_of(segments: Sequence[Segment]) -> dict[int, BlobPlace]:
    """The places of the blobs among `segments`."""
    return {segment.number: segment.place for segment in segments if segment.number is not None and segment.place}


def stored(events: pa.Table) -> pa.Table:
    """The events in the columns STORED; an ORIGIN that they lack is NULL."""
    if v.ORIGIN not in events.column_names:
        events = events.append_column(STORED.field(v.ORIGIN), pa.nulls(events.num_rows, pa.string()))
    return events.select(STORED.names)


def with_places(events: pa.Table, numbers: Indexes, sizes: pa.Array) -> pa.Table:
    return events.append_column(AT, pa.array(numbers)).append_column(BYTES, sizes)


NEW_PROOF: Final = with_places(
    v.EVENTS.empty_table().drop_columns([model.ROW]), np.arange(0), pa.array([], pa.int64())
).schema
HELD_PROOF: Final = NEW_PROOF.append(v.HELD_EVENTS.field(v.ARRIVED))


@dataclass(slots=True)
class TextCache:
    """Texts of rows that are in a spill storage: the newest READ_BYTES of them are kept."""

    _texts: OrderedDict[BlobPlace, pa.Array] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def texts_of(self, segment: Segment) -> pa.Array:
        """The texts of a segment, one for each event."""
        if segment.place is None:
            return _one_array(segment.read(model.ROW)[model.ROW])
        texts = self._texts.pop(segment.place, None)
        if texts is None:
            texts = _one_array(segment.read(model.ROW)[model.ROW])
            self._bytes += texts.nbytes
        self._texts[segment.place] = texts
        while self._bytes > READ_BYTES and len(self._texts) > 1:
            self._bytes -= self._texts.popitem(last=False)[1].nbytes
        return texts


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The texts of a source's rows, by the numbers of their events."""

    segments: Sequence[Segment]
    texts: TextCache

    def with_rows(self, events: pa.Table) -> pa.Table:
        """The events with their rows, and EVENT_TIME of Kafka's timestamps (WithRows)."""
        columns = {name: events[name] for name in events.column_names if name not in (AT, BYTES)}
        columns[model.ROW] = self._take(events[AT].to_numpy())
        columns[EVENT_TIME] = pc.multiply(events[v.TIMESTAMP], 1000)
        return pa.table(columns)

    def _take(self, at: Indexes) -> pa.Array:
        if not len(at):
            return pa.array([], pa.string())
        starts = np.cumsum([0, *(segment.rows for segment in self.segments)])
        owner = np.searchsorted(starts, at, side="right") - 1
        order = np.argsort(owner, kind="stable")
        numbers, begins = np.unique(owner[order], return_index=True)
        parts = [
            self.texts.texts_of(self.segments[number]).take(pa.array(at[places] - starts[number]))
            for number, places in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True)
        ]
        if len(parts) == 1 and (order[1:] > order[:-1]).all():
            return parts[0]
        return pa.concat_arrays(parts).take(pa.array(np.argsort(order)))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
