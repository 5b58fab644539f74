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

_LOOKED_AT: Final = 100  # rows of a table: a millisecond at most, and a column is NULL in all of them rarely
_PLACE: Final = (columns.PARTITION, columns.POSITION)


@dataclass(slots=True)
class CountedDates:
    """Refuses numbers in columns of dates among the first rows of each table of a lane; call it for each batch.

    A table is looked at until each of its columns of dates has had a value, in _LOOKED_AT rows at most.
    """

    dates_of: DatesOf
    _left: dict[str, int] = field(default_factory=dict)  # rows to look at, by table
    _untold: dict[str, set[str]] = field(default_factory=dict)  # columns that have been NULL so far

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Raise InputError with table, column and place for a number, without its value."""
        tables = batch.column(columns.TABLE)
        for table in pc.unique(tables).to_pylist():
            if table not in self._left:
                self._untold[table] = set(self.dates_of(table))
                self._left[table] = _LOOKED_AT if self._untold[table] else 0
            if self._left[table]:
                self._look_at(batch, table, pc.indices_nonzero(pc.equal(tables, table)))

    def _look_at(self, batch: pa.RecordBatch, table: str, rows: pa.Array) -> None:
        untold = self._untold[table]
        for row in rows[: self._left[table]].to_pylist():
            text = batch.column(columns.PAYLOAD)[row].cast(pa.large_binary()).as_py()
            members = members_of(memoryview(text)[1:]) or {}
            number_columns = sorted(name for name in untold & members.keys() if type(members[name]) is int)
            if number_columns:
                raise InputError(
                    f"A row has a number for column {number_columns[0]} of table {table}, which has dates"
                    f"{segments.place_of(batch, row, ' at ', _PLACE)}; what it counts, the message does not say.",
                    hint="Set schemas.enable=true for value.converter, with any time.precision.mode, or "
                    "time.precision.mode=isostring at the connector; or give the column the type BIGINT to keep the "
                    "numbers.",
                    table=table,
                )
            untold -= {name for name in untold if members.get(name) is not None}
            self._left[table] = self._left[table] - 1 if untold else 0
            if not untold:
                return
