"""Rows judged by the columns of their tables: the compiled loops for most of them, `RowRules` for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.compiled.findings import find
from starrocks_txn_sink.compiled.layout import ColumnKind
from starrocks_txn_sink.compiled.rewrites import Column, ColumnRules, ValueRule
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.rows.metadata import Numbers
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.rows.target import BITS, TargetType
from starrocks_txn_sink.rows.values.judgement import RowRules, UnfitColumn
from starrocks_txn_sink.rows.values.rules import DOCUMENT_BYTES, TABLE

_KINDS: Final = {
    "BOOLEAN": ColumnKind.BOOLEAN,
    **dict.fromkeys(BITS, ColumnKind.INTEGER),
    **dict.fromkeys(("FLOAT", "DOUBLE"), ColumnKind.FLOATING),
    "DECIMAL": ColumnKind.DECIMAL,
    "DATE": ColumnKind.DAY,
    "DATETIME": ColumnKind.MOMENT,
    **dict.fromkeys(("VARCHAR", "STRING", "VARBINARY"), ColumnKind.TEXT),
    "CHAR": ColumnKind.CHAR,
    "JSON": ColumnKind.DOCUMENT,
    "ARRAY": ColumnKind.ARRAY,
    "MAP": ColumnKind.MAP,
    "STRUCT": ColumnKind.STRUCT,
}
_FLOAT_BITS: Final = {"FLOAT": 32, "DOUBLE": 64}
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True)
class ValueJudge:
    """Judges rows by the rules of their `tables`."""

    tables: Sequence[RowRules]

    def fit(self, rows: pa.Array, numbers: Numbers) -> tuple[pa.Array, dict[int, UnfitColumn]]:
        """The rows as they are sent, and the faults of those that their tables would not keep, by the rows' numbers.

        `numbers` has the table of each row, -1 for a row that is not judged, as those of a table without columns are. A
        row with a fault stays as it is.
        """
        findings = find(rows, numbers, rules=self.columns)
        return self.fit_misfits(rows, numbers, None if findings is None else findings.misfits)

    def fit_misfits(
        self, rows: pa.Array, numbers: Numbers, misfits: Numbers | None
    ) -> tuple[pa.Array, dict[int, UnfitColumn]]:
        """What `fit` gives, by the numbers of the rows that are not plainly kept; None: all may be such rows."""
        faults: dict[int, UnfitColumn] = {}
        if misfits is not None and not len(misfits):
            return rows, faults

        def judge(number: int) -> bytes:
            text = _text(rows[number])
            try:
                text = self.tables[numbers[number]].fit(text)
            except UnfitColumn as fault:
                faults[number] = fault
            return text.encode()

        numbers = self._with_columns[numbers]
        odd: Bools = numbers >= 0
        if misfits is not None:
            odd = np.zeros(len(rows), dtype=bool)
            odd[misfits] = True
        fitted = self.columns.fit(rows, np.where(odd, numbers, np.int32(-1)), judge) if odd.any() else (rows, odd)
        if fitted is not None:
            return fitted[0].cast(rows.type), faults
        texts = [judge(number).decode() if is_odd else _text(rows[number]) for number, is_odd in enumerate(odd)]
        return pa.array(texts, rows.type), faults

    @cached_property
    def columns(self) -> ColumnRules:
        """The rules of the tables, and of none for rows without a table."""
        return ColumnRules([*map(_columns_of, self.tables), ()])

    @cached_property
    def _with_columns(self) -> Numbers:
        """The number of each table, -1 for one without columns and for none."""
        numbers = [number if table.columns else -1 for number, table in enumerate(self.tables)]
        return np.array([*numbers, -1], dtype=np.int32)

    @cached_property
    def timed(self) -> bool:
        """Whether a column's DEFAULT is the time, so that the judge gets old."""
        return any(table.timed for table in self.tables)


def _text(row: pa.Scalar) -> str:
    """The text of a row, whose column may be one of bytes."""
    value: str | bytes = row.as_py()
    return value.decode() if isinstance(value, bytes) else value


def _columns_of(table: RowRules) -> list[Column]:
    needed_names, key = {*table.needed}, {*table.key}
    rules = []
    for name, column in table.columns.items():
        rule = _rule_of(column.type, column.nullable, utc=table.zone is None)
        if name in table.decoded:
            limit = _NO_LIMIT if column.type.length is None else column.type.length
            rule = ColumnKind.BYTES, limit, int(table.decoded[name] is Encoding.HEX), column.nullable, ()
        elif table.encodes_bytes and column.type.name == "VARBINARY":
            rule = ColumnKind.ASK, 0, 0, column.nullable, ()
        rules.append((name, rule, (name in needed_names) + 2 * (name in key), *table.filler(name)))
    return rules


def _rule_of(kind: TargetType, nullable: bool, *, utc: bool) -> ValueRule:
    if kind.name not in TABLE:
        return ColumnKind.ANY, 0, 0, nullable, ()
    number, whole = 0, 0
    if kind.name in ("CHAR", "VARCHAR", "STRING", "VARBINARY"):
        number = _NO_LIMIT if kind.length is None else kind.length
    elif kind.name == "JSON":
        number = DOCUMENT_BYTES
    elif kind.name == "DECIMAL":
        number, whole = kind.scale, kind.precision - kind.scale
    elif kind.name in ("DATE", "DATETIME"):
        whole = not utc
    elif kind.items:
        number = len(kind.items)
    else:
        number = BITS.get(kind.name, _FLOAT_BITS.get(kind.name, 0))
    parts = tuple((name, _rule_of(part, True, utc=utc)) for name, part in kind.items)
    return _KINDS.get(kind.name, ColumnKind.ASK), number, whole, nullable, parts
