"""Primary keys that are longer than the server takes, found before their rows are sent (`rows.key_sizes`).

The compiled loop names the few rows whose key may be too long, and Python measures those. Only for a key above the
server's usual limit a backend is asked for its own one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.compiled.keys import LongKeys
from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.bad_rows import BadRow
from starrocks_txn_sink.rows.key_sizes import LIMIT, KeySize
from starrocks_txn_sink.rows.metadata import Numbers, TableNumbers
from starrocks_txn_sink.rows.target import TargetColumn

ColumnsOf = Callable[[str, bool], Sequence[TargetColumn]]
"""The columns of a table, none if nothing is known about it; with True the server is asked again."""


@dataclass(slots=True)
class KeyChecks:
    """Judges the keys of a lane's rows; a `bad_rows.Judge`. Rows of tables that are not known pass."""

    columns_of: ColumnsOf
    limit_of: Callable[[Deadline], int | None]
    deadline: Deadline
    numbers: TableNumbers = field(default_factory=TableNumbers)
    _limit: int = LIMIT
    _columns: dict[str, Sequence[TargetColumn]] = field(default_factory=dict)
    _sizes: dict[str, KeySize | None] = field(default_factory=dict)
    _loops: dict[tuple[str, ...], LongKeys] = field(default_factory=dict)  # by the tables of a batch

    def __call__(self, batch: pa.RecordBatch) -> list[BadRow]:
        """The rows whose key is too long."""
        names, of_row = self.numbers(batch)
        if not any(self._may_be_long(name) for name in names):
            return []
        payload = batch.column(columns.PAYLOAD)
        long = self._too_long(payload, names, of_row)
        if not long:
            return []
        limit = self.limit_of(self.deadline)
        if limit is None:  # the server decides
            return []
        if limit != self._limit:
            self._limit = limit
            self._loops.clear()
            long = self._too_long(payload, names, of_row)
        return [BadRow(number, _reason(self._sizes[names[of_row[number]]], size, self._limit)) for number, size in long]

    def _may_be_long(self, table: str) -> bool:
        """Whether the table's columns have room for a key that is too long."""
        found = () if is_own_table(table) else self.columns_of(table, False)
        if self._columns.get(table) is not found:
            self._columns[table], self._sizes[table] = found, KeySize.of(found)
            self._loops.clear()
        size = self._sizes[table]
        return size is not None and size.most > self._limit

    def _too_long(self, payload: pa.Array, names: list[str], of_row: Numbers) -> list[tuple[int, int]]:
        """Numbers of the rows above the limit, and the sizes of their keys."""
        key = (*names,)
        if key not in self._loops:
            wanted = [self._sizes[name] if self._may_be_long(name) else None for name in names]
            self._loops[key] = LongKeys(wanted, self._limit)
        numbers = self._loops[key].candidates(payload, of_row)
        texts = payload.take(pa.array(numbers, pa.int64())).cast(pa.large_binary()).to_pylist() if numbers else []
        sizes = (
            (number, size.of_row(text[len(SEPARATOR) :]))
            for number, text in zip(numbers, texts, strict=True)
            if (size := self._sizes[names[of_row[number]]]) is not None
        )
        return [(number, size) for number, size in sizes if size > self._limit]


def _reason(key: KeySize | None, size: int, limit: int) -> str:
    assert key is not None
    names = f"column{'s' if len(key.columns) > 1 else ''} {', '.join(key.columns)}"
    return f"has a primary key of {size} bytes ({names}), and StarRocks takes at most {limit}"
