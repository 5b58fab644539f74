"""The ordered rows of a lane, as they are drawn and as Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from starrocks_txn_sink.rows.columns import COLUMNS

Row = tuple[str, int, str, bool, str]
TYPES = (pa.string(), pa.int64(), pa.string(), pa.bool_(), pa.string())


def batch(rows: list[Any]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * 5
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


@st.composite
def lanes(draw: st.DrawFn) -> list[Row]:
    """The ordered rows of a lane: whole source transactions of a few partitions over a few tables."""
    rows: list[Row] = []
    for partition in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        position = 0
        for size in draw(st.lists(st.integers(1, 5), max_size=6)):
            position += draw(st.integers(1, 9))
            for seq in range(size):
                table = draw(st.sampled_from(["orders", "items", "événements"]))
                rows.append((partition, position, table, seq == size - 1, f",{len(rows)}é"))
    return rows
