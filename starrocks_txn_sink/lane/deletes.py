"""How many deletes a lane's rows have, by table, if the input has the column `op`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.lane.columns import DELETED, PARTITION, POSITION, TABLE
from starrocks_txn_sink.ledger.ledger import Position


@dataclass(slots=True)
class Deletes:
    """Counts the deletes among rows that are new to StarRocks; `committed` are the ledger's positions."""

    committed: Mapping[str, Position] = field(default_factory=dict)
    by_table: dict[str, int] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of rows, with positions or plain; without the column nothing is done."""
        if DELETED not in batch.schema.names:
            return
        deleted = pc.indices_nonzero(batch.column(DELETED))
        if not len(deleted):
            return
        tables = batch.column(TABLE).take(deleted)
        if POSITION in batch.schema.names and self.committed:
            tables = tables.filter(self._new(batch.select([PARTITION, POSITION]).take(deleted)))
        for found in pc.value_counts(tables).to_pylist():
            table = found["values"]
            self.by_table[table] = self.by_table.get(table, 0) + found["counts"]

    def _new(self, rows: pa.RecordBatch) -> pa.Array:
        names = pa.array(list(self.committed), pa.string())
        reached = pa.array([position.position for position in self.committed.values()], pa.int64())
        known = reached.take(pc.index_in(rows.column(PARTITION), names))
        return pc.fill_null(pc.greater(rows.column(POSITION), known), True)
