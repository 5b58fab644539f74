"""How old source transactions are when they become visible, if the input has the column `event_time`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.lane.columns import EVENT_TIME, PARTITION, POSITION, TRANSACTION_END
from starrocks_txn_sink.lane.durations import Durations, Floats
from starrocks_txn_sink.lane.receipt import Receipt
from starrocks_txn_sink.lane.replay import Ints

REMEMBERED = 1_000_000
"""Source transactions of one lane and micro-batch that are timed; more are not, so that memory stays bounded."""


@dataclass(slots=True)
class EventTimes:
    """Remembers position and event time of each source transaction that ended, until the receipts are there."""

    _seen: dict[str, list[tuple[Ints, Floats]]] = field(default_factory=dict)
    _count: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of rows in the lane's order; without the column nothing is done."""
        if EVENT_TIME not in batch.schema.names or self._count >= REMEMBERED:
            return
        ends = batch.select([PARTITION, POSITION, EVENT_TIME]).take(pc.indices_nonzero(batch.column(TRANSACTION_END)))
        if ends.column(EVENT_TIME).null_count:
            ends = ends.filter(ends.column(EVENT_TIME).is_valid())
        self._count += ends.num_rows
        named = pc.dictionary_encode(ends.column(PARTITION))
        codes = named.indices.to_numpy(zero_copy_only=False)
        positions = ends.column(POSITION).to_numpy(zero_copy_only=False)
        seconds = ends.column(EVENT_TIME).to_numpy(zero_copy_only=False) / 1e6
        for code, name in enumerate(named.dictionary.to_pylist()):
            mine = codes == code
            self._seen.setdefault(name, []).append((positions[mine], seconds[mine]))

    def settle(self, receipts: Iterable[Receipt]) -> tuple[Durations, dict[str, float]]:
        """The latencies from event time to commit of all in `receipts`, and the latest event time by partition."""
        latencies, latest = Durations(), dict[str, float]()
        seen = {
            name: (np.concatenate([at for at, _ in parts]), np.concatenate([time for _, time in parts]))
            for name, parts in self._seen.items()
        }
        for receipt in receipts:
            for span in receipt.positions:
                if span.partition not in seen:
                    continue
                positions, times = seen[span.partition]
                low, high = np.searchsorted(positions, [span.first, span.last + 1])
                mine = times[low:high]
                latencies.add_all(receipt.committed_at - mine)
                if mine.size:
                    latest[span.partition] = float(mine.max())
        return latencies, latest
