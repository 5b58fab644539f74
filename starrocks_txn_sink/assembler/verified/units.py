"""What a step of verified transactions gives out: released units of rows, and units of dead letters.

A unit becomes rows of a source partition only when it is read, and piece by piece where it is large: the rows' texts
may be in files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import orjson
import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes
from starrocks_txn_sink.assembler.rules.release import with_transaction_columns
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.repeats import WithRows

DEAD_LETTER_SUFFIX: Final = "#quarantine"
"""Suffix of the source partition of dead letters. They need their own partition, because they number positions."""

_LETTERS: Final = 10_000  # dead letters that are made at once, each of them in Python


@dataclass(frozen=True, slots=True)
class Units:
    """Whole units of the rows of `events` at `places`: unit i has the next `counts[i]`, `positions[i]` and `ids[i]`."""

    events: pa.Table
    places: Indexes
    counts: Indexes
    positions: Indexes
    ids: pa.Array

    @classmethod
    def of(cls, events: pa.Table, places: Indexes, lengths: Indexes, positions: Indexes, ids: pa.Array) -> Units:
        """Units of `lengths[i]` rows, of which those that have no table are left out, and so are units without rows."""
        with_table = events[model.TABLE].is_valid().to_numpy()[places]
        counts = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[with_table], minlength=len(lengths))
        filled = counts > 0
        return cls(events, places[with_table], counts[filled], positions[filled], ids.filter(pa.array(filled)))

    @property
    def rows(self) -> int:
        """The number of rows in all units."""
        return len(self.places)

    def table(self, with_rows: WithRows) -> pa.Table:
        """All rows, without their source partition."""
        return self._marked(self._taken(0, self.rows, with_rows), 0, self.rows)

    def pieces(self, with_rows: WithRows, stops: Indexes) -> Iterator[pa.Table]:
        """The rows up to each of the ascending `stops`, which may be within a unit."""
        start = 0
        for stop in stops.tolist():
            if stop > start:
                yield self._marked(self._taken(start, stop, with_rows), start, stop)
            start = stop

    def _taken(self, start: int, stop: int, with_rows: WithRows) -> pa.Table:
        """The columns of the rows `start` to `stop` that are released."""
        needed = self.events.select([name for name in self.events.column_names if name not in v.ONLY_JUDGED])
        rows = with_rows(needed.take(pa.array(self.places[start:stop])))
        return rows.select([*model.PAYLOAD, *(name for name in rows.schema.names if name not in v.HELD_EVENTS.names)])

    def _marked(self, rows: pa.Table, start: int, stop: int) -> pa.Table:
        """The rows `start` to `stop` with the columns of their units."""
        if start == stop:
            nothing = np.zeros(1, dtype=np.int64)
            return with_transaction_columns(rows, nothing, nothing, pa.nulls(1, pa.string()))
        ends = np.cumsum(self.counts)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        units = slice(first, last + 1)
        begins, ended = (ends - self.counts)[units], ends[units] <= stop
        counts = np.minimum(ends[units], stop) - np.maximum(begins, start)
        seq = np.maximum(start - begins, 0)
        return with_transaction_columns(rows, counts, self.positions[units], self.ids[units], seq, ended=ended)


@dataclass(frozen=True, slots=True)
class LostUnit:
    """Rows that are never released, as one unit for the dead-letter table `table`; one JSON object per row."""

    events: pa.Table
    position: int
    txn_id: str
    reason: str
    table: str

    def pieces(self, with_rows: WithRows) -> Iterator[pa.Table]:
        """The dead letters, some at a time."""
        for start in range(0, self.events.num_rows, _LETTERS):
            events = with_rows(self.events.slice(start, _LETTERS))
            count, stop = events.num_rows, start + events.num_rows
            letters = pa.table(
                {
                    "txn_id": pa.repeat(self.txn_id, count),
                    "total_order": events[v.TOTAL_ORDER],
                    "collection": events[v.COLLECTION],
                    "position": events[model.POSITION],
                    "reason": pa.repeat(self.reason, count),
                    "op": events[model.OP],
                    "content": events[model.ROW],
                }
            )
            content = [orjson.dumps(letter).decode() for letter in letters.to_pylist()]
            nothing = pa.nulls(count, pa.string())
            columns = [nothing, pa.repeat(pa.scalar(self.table), count), nothing, pa.array(content)]
            yield with_transaction_columns(
                pa.table(columns, list(model.PAYLOAD)),
                np.array([count]),
                np.array([self.position]),
                pa.array([self.txn_id]),
                np.array([start]),
                ended=stop == self.events.num_rows,
            )


def same_events(events: pa.Table) -> pa.Table:
    """For events that have their rows with them (WithRows)."""
    return events
