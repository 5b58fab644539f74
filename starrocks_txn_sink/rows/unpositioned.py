"""Rows without positions: all rows of a micro-batch are one unpositioned batch.

For the ledger it is a source partition whose position is the micro-batch's number. The digest is the sum of the rows'
hashes (made in the JVM), because such rows come in any order; the driver adds up the sums of all lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.coordinator.model import PositionSpan, Segment
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows import segments
from starrocks_txn_sink.rows.columns import HASH, PAYLOAD, TABLE

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class UnpositionedSegmenter:
    """Splits one lane's rows without positions into segments; `end` yields the end of the unpositioned batch.

    `name` is its source partition in the ledger, `number` the micro-batch, `committed` the ledger's position;
    `compare` says whether the contents of a replay are compared; `check` and `fit` as in `Segmenter`. `rows` counts the
    rows so far, and `sum` adds up their hashes; without the column HASH it stays 0.
    """

    name: str
    number: int
    committed: Position | None = None
    compare: bool = True
    check: segments.CheckRows | None = None
    fit: segments.FitRows = segments.as_they_are
    rows: int = 0
    sum: int = 0

    @classmethod
    def of(
        cls,
        checkpoint: str,
        number: int,
        positions: Mapping[str, Position],
        compare: bool,
        check: segments.CheckRows | None = None,
        fit: segments.FitRows = segments.as_they_are,
    ) -> UnpositionedSegmenter:
        """The segmenter for micro-batch `number` of a query; `positions` is the whole ledger."""
        name = f"{checkpoint}/0/1"
        return cls(name, number, positions.get(name), compare, check, fit)

    @property
    def replayed(self) -> bool:
        """Whether the rows are in StarRocks already."""
        return self.committed is not None and self.committed.position >= self.number

    def split(self, batch: pa.RecordBatch) -> Iterator[Segment]:
        """Yield the batch's segments, one a table, or nothing in a replay; raises InputError for NULLs.

        Raises SourceChanged if the ledger is ahead of this micro-batch, because it keeps the last micro-batch only.
        """
        for rows in segments.slices_of(batch):
            yield from self._split(rows)

    def _split(self, batch: pa.RecordBatch) -> Iterator[Segment]:
        segments.refuse_nulls(batch, (TABLE, PAYLOAD))
        if self.committed is not None and self.committed.position > self.number:
            raise SourceChanged(
                f"Micro-batch {self.number} comes again, but the ledger has micro-batch {self.committed.position} of "
                "this query: its checkpoint was rolled back, or lost its offsets.",
                hint="Rows without positions are identified by their micro-batch alone. Restore the newer "
                "checkpoint, or give the query another `job` and write what is missing by hand.",
            )
        rows = batch.num_rows
        total = 0
        if HASH in batch.schema.names:
            total = int(batch.column(HASH).to_numpy(zero_copy_only=False).view(np.uint64).sum(dtype=np.uint64))
        self.add(rows, total)
        if not self.replayed:
            if self.check is not None:
                self.check(batch)
            batch = self.fit(batch)
            offsets, _ = segments.layout(batch.column(PAYLOAD))
            nothing = segments.BatchRows(np.zeros(rows, np.int64), np.zeros(rows, np.bool_), offsets, memoryview(b""))
            yield from segments.segments_of(batch, [(self.name, 0, rows)], nothing, {})

    def end(self) -> Iterator[Segment]:
        """Yield the end, unless there were no rows or this is a replay; raises SourceChanged for other contents."""
        if self.replayed:
            self.compare_replay()
        elif self.rows:
            yield PositionSpan(self.name, self.number, self.number, 0, self.digest)

    @property
    def digest(self) -> str:
        """The number of all rows so far, and the sum of their hashes."""
        return f"sum1:{self.rows}:{self.sum:016x}"

    def compare_replay(self) -> None:
        """Raise SourceChanged if the rows of a replay differ from those that are in StarRocks already."""
        unit = self.committed
        if unit is not None and self.replayed and self.rows and self.compare and unit.digest != self.digest:
            raise segments.source_changed(f"micro-batch {self.number}", unit)

    def add(self, rows: int, total: int) -> None:
        """Add the number of a lane's rows, and the sum of their hashes."""
        self.rows += rows
        self.sum = (self.sum + total) & _MASK
