"""A row for a table of the sink's own is refused on each way in: it would forge positions, owners or dead letters."""

from __future__ import annotations

import pyarrow as pa
import pytest

from starrocks_txn_sink import TableRoute
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from starrocks_txn_sink.rows.columns import HASH, PAYLOAD, TABLE
from starrocks_txn_sink.rows.segments import Segmenter
from starrocks_txn_sink.rows.unpositioned import UnpositionedSegmenter
from tests.support.lane_rows import batch

SPELLINGS = [
    LEDGER_TABLE,
    "_starrocks_txn_sink_dead_letter",
    "_starrocks_txn_sink_receipts",
    "_starrocks_txn_sink_future",
    LEDGER_TABLE.upper(),
    "_StarRocks_Txn_Sink_Ledger",
]


@pytest.mark.parametrize("table", SPELLINGS)
def test_a_row_with_a_position_is_refused_with_its_place(table: str) -> None:
    rows = [
        ("a", 1, "orders", True, ',{"id":1}'),
        ("b", 6, "orders", False, ',{"id":2}'),
        ("b", 6, "items", False, ',{"id":2}'),
        ("b", 6, table, True, ',{"secret":3}'),
    ]
    with pytest.raises(InputError, match=r"belongs to the sink, first at source partition b, position 6\.") as refused:
        list(Segmenter().split(batch(rows)))
    assert table in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("table", SPELLINGS)
def test_a_row_without_a_position_is_refused(table: str) -> None:
    rows = pa.RecordBatch.from_pydict(
        {TABLE: ["orders", table], PAYLOAD: [',{"id":1}'] * 2, HASH: pa.array([1, 2], pa.int64())}
    )
    with pytest.raises(InputError, match="belongs to the sink"):
        list(UnpositionedSegmenter("checkpoint/0/1", 7).split(rows))


@pytest.mark.parametrize("table", SPELLINGS)
def test_a_route_is_refused(table: str) -> None:
    with pytest.raises(OptionError, match="belongs to the sink"):
        TableRoute(table, ["id"])


@pytest.mark.parametrize("columns", [["id", "__op"], {"id": "id", "__OP": "o"}])
def test_a_route_for_the_column_of_operations_is_refused(columns: list[str] | dict[str, str]) -> None:
    """Where the table's columns are not known, an insert would be a delete that nobody has counted."""
    with pytest.raises(OptionError, match="the column __op, which belongs to the sink"):
        TableRoute("orders", columns)


def test_a_name_that_holds_the_prefix_elsewhere_is_a_users() -> None:
    rows = [("a", 1, "my" + LEDGER_TABLE, True, ',{"id":1}')]
    assert len(list(Segmenter().split(batch(rows)))) == 2
