"""Dates and times that come as bare numbers: what they count, only the converter's schema says.

The server would read the digits of a number as a date (1711010101010 as 1711-01-01), or reject the row. So before the
first load the first rows of each table are looked at: a column of numbers has them in each row, and all rows cost time.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows import columns, segments
from starrocks_txn_sink.rows.value_kinds import members_of

DatesOf = Callable[[str], Set[str]]
"""The columns of a table that have dates, or dates and times, and whose values no schema explains."""

_LOOKED_AT: Final = 100  # rows of a table: half a millisecond, and a column is NULL in all of them rarely
_PLACE: Final = (columns.PARTITION, columns.POSITION)


@dataclass(slots=True)
class CountedDates:
    """Refuses numbers in columns of dates among the first rows of each table of a lane; call it for each batch."""

    dates_of: DatesOf
    _left: dict[str, int] = field(default_factory=dict)  # rows to look at, by table

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Raise InputError with table, column and place for a number, without its value."""
        tables = batch.column(columns.TABLE)
        for table in pc.unique(tables).to_pylist():
            if self._left.get(table, _LOOKED_AT):
                self._look_at(batch, table, pc.indices_nonzero(pc.equal(tables, table)))

    def _look_at(self, batch: pa.RecordBatch, table: str, rows: pa.Array) -> None:
        left = self._left.get(table, _LOOKED_AT)
        dates = self.dates_of(table)
        self._left[table] = max(0, left - len(rows)) if dates else 0
        for row in rows[:left].to_pylist() if dates else ():
            text = batch.column(columns.PAYLOAD)[row].cast(pa.large_binary()).as_py()
            members = members_of(memoryview(text)[1:]) or {}
            counted = sorted(name for name in dates & members.keys() if type(members[name]) is int)
            if counted:
                raise InputError(
                    f"A row has a number for column {counted[0]} of table {table}, which has dates"
                    f"{segments.place_of(batch, row, ' at ', _PLACE)}; what it counts, the message does not say.",
                    hint="Set schemas.enable=true for value.converter, with any time.precision.mode, or "
                    "time.precision.mode=isostring at the connector; or give the column the type BIGINT to keep the "
                    "numbers.",
                    table=table,
                )
