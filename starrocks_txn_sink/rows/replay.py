"""Replays: which rows are in StarRocks already, and whether the source still tells the same story.

Positions decide: rows at or below the partition's position in the ledger are visible and are left out, however the
micro-batch was cut this time (docs/exactly-once.md, "How it works"). The content at that very position is compared by
a fingerprint of its bytes, in order; a source that went back to its beginning with other content is an error, not a
skipped row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from starrocks_txn_sink.coordinator.input import Ended, Ints, Segment
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.protocol.label import epoch_of, run_of
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows.columns import HASH, PAYLOAD, TABLE
from starrocks_txn_sink.rows.segments import offsets_of, refuse_nulls, segments_of

Bools = npt.NDArray[np.bool_]
Run = tuple[str, int, int]  # source partition, first row, row after the last


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a batch that matter here: `bounds` are the byte offsets of each row's content in `data`.

    `kind` names the way fingerprints are made: those made in another way are not compared.
    """

    positions: Ints
    ends: Bools
    bounds: Ints
    data: memoryview
    kind: str = "crc1:"

    def fingerprint(self, low: int, high: int, start: int) -> int:
        """The checksum of rows `low` to `high`, continuing `start`."""
        return zlib.crc32(self.data[self.bounds[low] : self.bounds[high]], start)


@dataclass(slots=True)
class Replay:
    """Follows the rows of one lane through its batches.

    `committed` is the ledger's positions by source partition; `compare` says whether fingerprints are compared. With an
    `epoch`, rows below a position that an earlier micro-batch of that very run has written are no replay: Spark repeats
    a micro-batch only in another run, so the source's positions do not grow.
    """

    committed: Mapping[str, Position] = field(default_factory=dict)
    compare: bool = True
    epoch: str = ""
    batch: int = 0
    skipped_rows: int = 0
    skipped_transactions: int = 0
    _partition: str | None = None
    _open: int = 0  # the checksum of the source transaction that was not finished in the batch before

    def fingerprints(self, runs: Sequence[Run], rows: Rows) -> dict[str, str]:
        """The fingerprint of the last source transaction that each run ends; call it for every batch, in order.

        Raises SourceChanged when the source transaction at the ledger's position has other content than it had.
        """
        found: dict[str, str] = {}
        for partition, low, high in runs:
            start = self._open if partition == self._partition else 0
            self._compare(partition, low, high, start, rows)
            ended = np.flatnonzero(rows.ends[low:high]) + low
            if not ended.size:
                self._partition, self._open = partition, rows.fingerprint(low, high, start)
                continue
            begin, seed = (int(ended[-2]) + 1, 0) if ended.size > 1 else (low, start)
            after = int(ended[-1]) + 1
            found[partition] = _text(rows.kind, rows.fingerprint(begin, after, seed))
            self._partition, self._open = partition, rows.fingerprint(after, high, 0)
        return found

    def new_rows(self, runs: Sequence[Run], rows: Rows) -> Bools | None:
        """Which rows are not in StarRocks yet; None when all of them are new, as nearly always."""
        keep: Bools | None = None
        for partition, low, high in runs:
            known = self.committed.get(partition)
            if known is None or rows.positions[low] > known.position:
                continue
            self._refuse_going_back(known, int(rows.positions[low]))
            if keep is None:
                keep = np.ones(len(rows.positions), np.bool_)
            cut = low + int(np.searchsorted(rows.positions[low:high], known.position, side="right"))
            keep[low:cut] = False
            self.skipped_rows += cut - low
            self.skipped_transactions += int(rows.ends[low:cut].sum())
        return keep

    def _refuse_going_back(self, known: Position, position: int) -> None:
        if self.epoch and run_of(epoch_of(known.label)) == self.epoch and known.batch < self.batch:
            raise InputError(
                f"Source partition {known.partition} went back to position {position}, after position {known.position} "
                f"was written in micro-batch {known.batch}.",
                hint="Give each source transaction a position that grows within its partition, over all micro-batches.",
            )

    def _compare(self, partition: str, low: int, high: int, start: int, rows: Rows) -> None:
        known = self.committed.get(partition)
        if known is None or not self.compare or not known.digest.startswith(rows.kind):
            return
        first, after = (
            low + int(np.searchsorted(rows.positions[low:high], known.position, side=side))
            for side in ("left", "right")
        )
        if after == first or not rows.ends[after - 1]:
            return
        if _text(rows.kind, rows.fingerprint(first, after, start if first == low else 0)) != known.digest:
            raise changed(f"source partition {partition}, position {known.position}", known)


def changed(place: str, known: Position) -> SourceChanged:
    """The error for other content at a place that the ledger has."""
    return SourceChanged(
        f"The rows at {place} are not the ones that were written there before (label {known.label}): the source was "
        "recreated or rewound, or the query computes something else now.",
        hint="If the source is a new one, give the query another `job`, or delete this job's position rows from the "
        "ledger (starrocks-txn-sink recover shows them). If the query computes values that differ from run to run, set "
        "check_replays=False.",
    )


def _text(kind: str, checksum: int) -> str:
    return f"{kind}{checksum:08x}"


_MASK = (1 << 64) - 1


def unit_of(
    checkpoint: str, lane: int, lanes: int, number: int, positions: Mapping[str, Position], compare: bool
) -> UnitSegmenter:
    """The segmenter for one of `lanes` lanes of micro-batch `number` of a query; `positions` is the whole ledger.

    Raises SourceChanged when lanes of this micro-batch, or of a later one, were written with another number of lanes.
    """
    for name, known in positions.items():
        query, _, text = name.rpartition("/")
        ours = text.isdigit() and query.rpartition("/")[0] == checkpoint
        if ours and text != str(lanes) and known.position >= number:
            raise SourceChanged(
                f"Micro-batch {number} comes again with lanes={lanes}, but the ledger has rows of micro-batch "
                f"{known.position} that were written with lanes={text} (label {known.label}).",
                hint=f"Rows without positions are told apart by their lane: set lanes={text} until a new micro-batch "
                "was written, and change it then.",
            )
    name = f"{checkpoint}/{lane}/{lanes}"
    return UnitSegmenter(name, number, positions.get(name), compare)


@dataclass(slots=True)
class UnitSegmenter:
    """Splits the batches of one lane of plain rows; `end` closes the unit.

    `name` is the unit's in the ledger, `number` the micro-batch's; `committed` is what the ledger has for it, `compare`
    whether a replay's content is compared.
    """

    name: str
    number: int
    committed: Position | None = None
    compare: bool = True
    _rows: int = 0
    _sum: int = 0

    @property
    def replayed(self) -> bool:
        """Whether the unit is in StarRocks already."""
        return self.committed is not None and self.committed.position >= self.number

    def split(self, batch: pa.RecordBatch) -> Iterator[Segment]:
        """Yield the batch's segments, one a table, or nothing in a replay; raises InputError for NULLs.

        Raises SourceChanged when the ledger is ahead of this micro-batch, so that nobody can tell what it holds of it.
        """
        if not batch.num_rows:
            return
        refuse_nulls(batch, (TABLE, PAYLOAD))
        if self.committed is not None and self.committed.position > self.number:
            raise SourceChanged(
                f"Micro-batch {self.number} comes again, but the ledger has micro-batch {self.committed.position} of "
                "this query: its checkpoint was rolled back, or lost its offsets.",
                hint="Rows without positions can only be told apart by their micro-batch. Restore the newer "
                "checkpoint, or give the query another `job` and write what is missing by hand.",
            )
        rows = batch.num_rows
        self._rows += rows
        hashes = batch.column(HASH).to_numpy(zero_copy_only=False)
        self._sum = (self._sum + int(hashes.view(np.uint64).sum(dtype=np.uint64))) & _MASK
        if not self.replayed:
            nothing = Rows(np.zeros(rows, np.int64), np.zeros(rows, np.bool_), offsets_of(batch), memoryview(b""))
            yield from segments_of(batch, [(self.name, 0, rows)], nothing, {})

    def end(self) -> Iterator[Segment]:
        """Yield the unit's end, unless it had no rows or is a replay; raises SourceChanged for other content."""
        digest = f"sum1:{self._rows}:{self._sum:016x}"
        if not self.replayed:
            if self._rows:
                yield Ended(self.name, self.number, self.number, 0, digest)
            return
        known = self.committed
        if known is not None and self._rows and self.compare and known.digest != digest:
            raise changed(f"micro-batch {self.number}", known)
