"""The rows of a batch that somebody has to look at, found by one compiled pass over the text of each row."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.compiled.layout import RowKind
from starrocks_txn_sink.compiled.library import TEXTS, is_available, library
from starrocks_txn_sink.compiled.rewrites import ColumnRules
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.metadata import Numbers, TableNumbers
from starrocks_txn_sink.rows.segments import Bools, bounds_of

_SHAPES: Final = 1 << 13  # many more than a micro-batch has, unless rows leave members out at random
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)  # an odd number: what differs before differs after, in many bits

RulesOf = Callable[[Sequence[str]], ColumnRules]
"""The rules of these tables, then those of no table."""


class Shapes:
    """The shapes of JSON rows that were met: a row's table and its names, in their order and spelling.

    Beyond half of `limit` (a power of 2) no further shape is remembered, so its rows are new each time.
    """

    def __init__(self, limit: int = _SHAPES) -> None:
        self.seen, self.used = np.zeros(limit, dtype=np.uint64), ctypes.c_int64()
        self._tables: dict[str, int] = {}

    def begun_by(self, tables: Iterable[str]) -> Numbers:
        """A number for each table, then one for a row without a table."""
        numbers = [self._tables.setdefault(table, len(self._tables) + 1) for table in tables]
        spread: Numbers = np.array([*numbers, 0], dtype=np.uint64) * _SPREAD
        return spread

    def forget(self) -> None:
        """Every shape is new again."""
        self.seen.fill(0)
        self.used.value = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """Numbers of rows, by what was found in them.

    `doubtful` rows may be something else than one JSON object without `__op`: they are none, or are nested deeper than
    64, or have an escape in a name. `new` rows have a new shape, or are not one plain object. `misfits` are not plainly
    kept by the columns of their tables.
    """

    doubtful: list[int]
    new: list[int]
    misfits: Numbers


def find(
    payload: pa.Array,
    tables: Numbers | None = None,
    *,
    deleted: Bools | None = None,
    rules: ColumnRules | None = None,
    shapes: Shapes | None = None,
    names: Sequence[str] = ("",),
) -> Findings | None:
    """What there is to look at among rows with their separator in front; None without the compiled loop.

    `tables` has the number of each row's table among `names` and in the `rules`; None: it is 0. Rows in `deleted` begin
    with the sink's own `__op`. Without `rules` there are no misfits, nor new rows without `shapes`.
    """
    if not is_available() or payload.type not in TEXTS:
        return None
    rows, bounds, data = len(payload), bounds_of(payload), payload.buffers()[2]
    if data is None:  # all are empty
        return Findings([*range(rows)], [], np.arange(rows, dtype=np.int32))
    findings, counts = np.empty((len(RowKind), rows), dtype=np.int32), np.zeros(len(RowKind), dtype=np.int64)
    octets = None if deleted is None else np.ascontiguousarray(deleted, dtype=np.uint8)
    numbers = None if tables is None else np.ascontiguousarray(tables, dtype=np.int32)
    begun = None if shapes is None else shapes.begun_by(names)
    met = (None, 0, None) if shapes is None else (shapes.seen.ctypes.data, len(shapes.seen) - 1, shapes.used)
    library().txn_sink_find(
        *(bounds.ctypes.data, bounds.itemsize == 8, data.address, _address(octets), _address(numbers)),
        *(None if rules is None else rules.plans, _address(begun), *met),
        *(rows, findings.ctypes.data, counts.ctypes.data),
    )
    doubtful, new, misfits = (findings[kind, : counts[kind]] for kind in RowKind)
    return Findings(doubtful.tolist(), new.tolist(), misfits)


def _address(array: np.ndarray[Any, Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


class RowFindings:
    """The findings among the rows of a batch, found once for all who look at the same batch one after the other.

    Without `rules_of` there are no misfits, nor new rows without `shapes`. If nobody asks for the `new_rows` of a
    batch, all shapes are forgotten before the next one, which may have the same rows.
    """

    def __init__(
        self, shapes: Shapes | None = None, numbers: TableNumbers | None = None, rules_of: RulesOf | None = None
    ) -> None:
        self.shapes, self.numbers, self.rules_of = shapes, numbers or TableNumbers(), rules_of
        self._last: Callable[[], pa.RecordBatch | None] = lambda: None
        self._rules: ColumnRules | None = None
        self._found: Findings | None = None
        self._asked = True

    def doubtful(self, batch: pa.RecordBatch) -> list[int] | None:
        """Numbers of the rows that may be something else than one object; None without the loop."""
        findings = self._of(batch)
        return None if findings is None else findings.doubtful

    def new_rows(self, batch: pa.RecordBatch) -> list[int] | None:
        """Numbers of the rows with a new shape, and of those that are not one plain object; None without the loop."""
        findings = self._of(batch)
        self._asked = True
        return None if findings is None else findings.new

    def misfits(self, batch: pa.RecordBatch, rules: ColumnRules) -> Numbers | None:
        """Numbers of the rows that are not plainly kept by these rules; None without the loop."""
        findings = self._of(batch)
        if findings is not None and rules is not self._rules:  # the columns of a table have changed
            findings = find(batch.column(columns.PAYLOAD), self.numbers(batch)[1], rules=rules)
        return None if findings is None else findings.misfits

    def _of(self, batch: pa.RecordBatch) -> Findings | None:
        if self._last() is batch:
            return self._found
        if not self._asked and self.shapes is not None:
            self.shapes.forget()
        names, tables = self.numbers(batch)
        payload, deleted = batch.column(columns.PAYLOAD), None
        if columns.DELETED in batch.schema.names:
            deleted = batch.column(columns.DELETED).fill_null(False).to_numpy(zero_copy_only=False)
        self._rules = None if self.rules_of is None else self.rules_of(names)
        self._found = find(payload, tables, deleted=deleted, rules=self._rules, shapes=self.shapes, names=names)
        self._asked, self._last = False, weakref.ref(batch)
        return self._found
