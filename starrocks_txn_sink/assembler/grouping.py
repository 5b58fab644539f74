"""Which events belong together: all of a source partition, or, interleaved, those of one source transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.intake import Indexes, Intake, Kind
from starrocks_txn_sink.assembler.segments import Opener, Segments, cut
from starrocks_txn_sink.assembler.state import OpenTransaction


@dataclass(frozen=True)
class Grouped:
    """A micro-batch in grouped order: `order[i]` is the event at place i (None: as they came), `carried` per group."""

    intake: Intake
    order: Indexes | None
    kinds: npt.NDArray[np.int8]
    positions: Indexes
    ids: pa.StringArray
    carried: list[OpenTransaction | None]
    segments: Segments

    @cached_property
    def held(self) -> Indexes:
        """Rows that each segment's transaction had before this micro-batch."""
        rows = np.array([each.rows if each else 0 for each in self.carried], dtype=np.int64)
        held: Indexes = np.where(self.segments.first, rows[self.segments.group], 0)
        return held

    @cached_property
    def opened_by(self) -> Indexes:
        """The event that names each segment's transaction: its BEGIN, or its first event when there was none."""
        began = ~self.segments.first & (self.segments.opener == Opener.LIVE)
        place: Indexes = np.minimum(self.segments.start - began, len(self.kinds) - 1)
        return place

    @cached_property
    def owners(self) -> pa.StringArray:
        """The transaction id of each segment."""
        owners = self.ids.take(pa.array(self.opened_by))
        if len(self.carried) == 1 and self.carried[0]:
            return pa.concat_arrays([pa.array([self.carried[0].txn_id], pa.string()), owners.slice(1)])
        return owners

    def carried_into(self, segment: int) -> OpenTransaction | None:
        return self.carried[self.segments.group[segment]] if self.segments.first[segment] else None

    def first_stranger(self) -> int | None:
        """The first DATA or END that names another transaction than the one it would fall into; NULL names none."""
        lengths = self.segments.rows + (self.segments.closer != 0)
        expected = self.owners.take(pa.array(np.repeat(np.arange(len(lengths)), lengths)))
        strange = pc.fill_null(pc.not_equal(self.ids, expected), False).to_numpy(zero_copy_only=False)
        strange &= self.kinds != Kind.BEGIN
        return int(strange.argmax()) if strange.any() else None


def group(intake: Intake, open_transactions: Sequence[OpenTransaction], *, interleaved: bool) -> Grouped:
    """Group the events of `intake`, which must not be empty, and cut them into segments."""
    ids = intake.table[schema.TXN_ID].combine_chunks()
    kinds, positions = intake.kinds, intake.positions
    if not interleaved:
        carried = [open_transactions[0] if open_transactions else None]
        segments = cut(kinds, np.array([len(kinds)]), openers(carried))
        return Grouped(intake, None, kinds, positions, ids, carried, segments)
    encoded = ids.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
    known = {each.txn_id: each for each in open_transactions}
    carried = [known.get(txn_id) for txn_id in encoded.dictionary.to_pylist()]
    kinds, positions, ids = kinds[order], positions[order], ids.take(pa.array(order))
    return Grouped(intake, order, kinds, positions, ids, carried, cut(kinds, ends, openers(carried)))


def openers(carried: Sequence[OpenTransaction | None]) -> npt.NDArray[np.int8]:
    """What the first events of each group belong to."""
    kinds = [Opener.NOTHING if each is None else Opener.DROPPED if each.dropped else Opener.LIVE for each in carried]
    return np.array(kinds, dtype=np.int8)
