"""What a lane makes of released rows, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.errors import InputError
from tests.support.key_only_rows import KEY_ONLY, REQUIRED


def only(name: str, rows: pa.Table) -> ReleasedRows:
    """Rows of one source partition."""
    return ReleasedRows((name,), np.array([rows.num_rows]), rows)


def released(*rows: tuple[str | None, str | None], table: str = "items", database: str | None = "shop") -> pa.Table:
    """Rows as (op, row)."""
    count = len(rows)
    kind = pa.string()
    return pa.table(
        {
            "position": pa.array([9] * count, pa.int64()),
            "table": pa.array([table] * count, kind),
            "database": pa.array([database] * count, kind),
            "op": pa.array([op for op, _ in rows], kind),
            "row": pa.array([row for _, row in rows], kind),
            "transaction_end": pa.array([n == count - 1 for n in range(count)]),
        }
    )


def payloads(*rows: tuple[str | None, str | None], content: PayloadEncoder | None = None) -> list[Any]:
    payload_texts: list[Any] = (
        (content or PayloadEncoder("shop")).batch([only("p", released(*rows))]).column("payload").to_pylist()
    )
    return payload_texts


def test_every_row_has_the_separator_in_front() -> None:
    assert payloads((None, '{"a":1}'), ("c", "{}")) == [',{"a":1}', ",{}"]


def test_deletes_say_so_inside_the_row() -> None:
    assert payloads(("D", '{"a":1}'), ("u", '{"a":2}'), ("-d", " { }"), ("1", "{}"), (None, "{}")) == [
        ',{"__op":1,"a":1}',
        ',{"a":2}',
        ',{"__op":1 }',
        ',{"__op":1}',
        ",{}",
    ]


def test_deletes_are_marked_where_there_are_any() -> None:
    def marked(*rows: tuple[str | None, str | None]) -> pa.RecordBatch:
        return PayloadEncoder("shop").batch([only("p", released(*rows))])

    assert marked(("D", "{}"), ("u", "{}"), (None, "{}"), ("1", "{}")).column("deleted").to_pylist() == [
        True,
        False,
        False,
        True,
    ]
    assert "deleted" not in marked(("c", "{}"), (None, "{}")).schema.names


def test_a_null_row_stays_null_so_that_it_is_refused() -> None:
    assert payloads((None, None), ("d", None)) == [None, None]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (released(("x", "{}")), "unknown op 'x' at source partition p, position 9"),
        (released(("c", "{}"), ("d", "{}"), table="log"), "delete for the table log, which has no primary key"),
        (released((None, "{}"), database="other"), "a row for database 'other'"),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_place(rows: pa.Table, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PayloadEncoder("shop", ("log",)).batch([only("p", rows)])


def test_no_database_is_this_one() -> None:
    assert PayloadEncoder("shop").batch([only("p", released((None, "{}"), database=None))]).num_rows == 1


def test_the_events_time_goes_along_when_it_is_there() -> None:
    rows = released((None, "{}")).append_column("event_time", pa.array([7], pa.int64()))
    assert PayloadEncoder("shop").batch([only("p", rows)]).column("event_time").to_pylist() == [7]


def test_rows_of_several_source_partitions_go_together_and_errors_name_the_right_one() -> None:
    good, bad = released((None, "{}"), ("c", "[1]")), released(("c", "{}"), ("x", "{}"))
    (batch,) = PayloadEncoder("shop").batches([only("p", good), only("q", good)])
    assert batch.column("source_partition").to_pylist() == ["p", "p", "q", "q"]
    assert batch.column("payload").to_pylist() == [",{}", ",[1]"] * 2
    with pytest.raises(InputError, match="unknown op 'x' at source partition q"):
        list(PayloadEncoder("shop").batches([only("p", good), only("q", bad)]))


def test_large_rows_and_rows_with_other_columns_stay_apart() -> None:
    large, timed = (
        released((None, "x" * (5 << 20))),
        released((None, "{}")).append_column("event_time", pa.array([7], pa.int64())),
    )
    batches = list(PayloadEncoder("shop").batches([only("p", large), only("q", large), only("r", timed)]))
    assert [batch.column("source_partition").to_pylist() for batch in batches] == [["p"], ["q"], ["r"]]


@pytest.mark.parametrize(("row", "expected"), KEY_ONLY)
def test_a_delete_gets_values_for_columns_that_are_not_null(row: str, expected: str) -> None:
    """A key-only delete is judged like any row. A field of its own stays, and no field comes twice."""
    filling = PayloadEncoder("shop", placeholders=REQUIRED)
    assert payloads(("u", row), ("d", row), content=filling) == [f",{row}", f',{{"__op":1,{expected}']
    (payload,) = payloads(("d", row), content=filling)
    names = [name for name, _ in pairs_of(payload[1:])]
    assert len(names) == len(set(names))


def pairs_of(text: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    return pairs


def test_deletes_of_other_tables_stay_as_they_came() -> None:
    filling = PayloadEncoder("shop", placeholders={"orders": {"n": "0"}})
    assert payloads(("d", '{"id":1}'), content=filling) == [',{"__op":1,"id":1}']
