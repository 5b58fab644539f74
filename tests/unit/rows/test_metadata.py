"""Members about a row's source: their text is that of the value alone."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from starrocks_txn_sink.rows.metadata import TableNumbers, heads_of

VALUES = ["é", "é", "x", None, 'q"', "a\\b", "\n", "\x7f", "\u2028", "😀"]


@pytest.mark.parametrize("beside", VALUES)
def test_a_value_is_written_alike_whatever_the_rows_beside_it_have(beside: str | None) -> None:
    """A replay may read a row among others, and compares its text."""
    for value in VALUES:
        rows = pa.array([value, beside, value], pa.string())
        (alone,) = heads_of([["_txn_id"]], np.zeros(1, int), {"_txn_id": rows.slice(0, 1)}).to_pylist()  # type: ignore[union-attr]
        texts = heads_of([["_txn_id"]], np.zeros(3, int), {"_txn_id": rows}).to_pylist()  # type: ignore[union-attr]
        assert (texts[0], texts[2]) == (alone, alone)
        assert json.loads(f"{{{alone}}}") == {"_txn_id": value}


def test_the_tables_of_a_batch_are_found_once_and_those_of_the_next_one_anew() -> None:
    numbers = TableNumbers()
    for names in (["b", None, "a", "b"], ["a"]):
        batch = pa.record_batch({"table": pa.array(names, pa.string())})
        found = numbers(batch)
        assert numbers(batch) is found
        tables, of_row = found
        assert [[*tables, None][number] for number in of_row] == names
