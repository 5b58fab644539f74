"""Plain rows, without positions and marked ends: the rows of a lane in a micro-batch are one unit.

For the ledger a unit is a source partition of its own whose position is the micro-batch's number. Its digest is the sum
of its rows' hashes (made in the JVM), because plain rows come in any order. Which rows are a lane's depends on the
number of lanes, so that is part of the unit's name, and a micro-batch that was written in part is finished with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.coordinator.region import Segment, TransactionEnds
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows.columns import HASH, PAYLOAD, TABLE
from starrocks_txn_sink.rows.replay import BatchRows, source_changed
from starrocks_txn_sink.rows.segments import offsets_of, refuse_nulls, segments_of

_MASK = (1 << 64) - 1


def unpositioned_segmenter(
    checkpoint: str, lane: int, lanes: int, number: int, positions: Mapping[str, Position], compare: bool
) -> UnpositionedSegmenter:
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
    return UnpositionedSegmenter(name, number, positions.get(name), compare)


@dataclass(slots=True)
class UnpositionedSegmenter:
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
            nothing = BatchRows(np.zeros(rows, np.int64), np.zeros(rows, np.bool_), offsets_of(batch), memoryview(b""))
            yield from segments_of(batch, [(self.name, 0, rows)], nothing, {})

    def end(self) -> Iterator[Segment]:
        """Yield the unit's end, unless it had no rows or is a replay; raises SourceChanged for other content."""
        digest = f"sum1:{self._rows}:{self._sum:016x}"
        if not self.replayed:
            if self._rows:
                yield TransactionEnds(self.name, self.number, self.number, 0, digest)
            return
        known = self.committed
        if known is not None and self._rows and self.compare and known.digest != digest:
            raise source_changed(f"micro-batch {self.number}", known)
