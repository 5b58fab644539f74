"""Rows that wait for the END of their transaction: what their schemas say of columns is not lost meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from starrocks_txn_sink import DebeziumAssembly
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import ColumnNeeds
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.writer.assembling import LaneAssembler
from starrocks_txn_sink.writer.messages import decode, encode
from starrocks_txn_sink.writer.table_checks import TableChecks, TablesLackColumns
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.connect_schema import change as described, field
from tests.support.manual_clock import ManualClock
from tests.unit.writer.test_single_changes import ORDERS, messages, spec

FIELDS = {"id": field("int64"), "note": field("string"), "gone": field("int32") | {"default": 7}}
TRANSACTION = {"id": "5:9", "total_order": 1, "data_collection_order": 1}


class Known:
    """The columns of the table `orders`: a narrow one, and none for the rest."""

    key_limit = 128

    def of(self, *_: object) -> frozenset[str]:
        return frozenset({"id"})

    def columns(self, *_: object) -> Sequence[TargetColumn]:
        return (TargetColumn("id", parse_type("int(11)")),)


def lane_with_an_open_transaction() -> tuple[LaneAssembler, list[Any]]:
    """A lane that has read one row of a transaction without END, and the rows that it gives."""
    assembly = DebeziumAssembly()
    lane = spec(assembly).open(Attempt(0, 0, False))
    row = {"id": 1, "note": None, "gone": 2}
    text = described("orders", FIELDS, row, transaction=TRANSACTION, lsn=90).decode()
    return lane, [*lane([messages((ORDERS, 0, 5, text))])]


def checks(lane: LaneAssembler, **options: Any) -> TableChecks:
    given = SinkOptions(
        load_url="http://h:1", query_url="mysql://h:2", database="shop", job="j", schema_changes="apply", **options
    )
    return TableChecks(given, lane.schema, cast(Any, Known()), Deadline.after(60, ManualClock()))


def test_a_column_too_narrow_for_a_waiting_row_is_found_when_its_schema_is_read() -> None:
    lane, rows = lane_with_an_open_transaction()
    assert rows == []
    with pytest.raises(TablesLackColumns) as found:
        list(checks(lane)(iter(())))
    assert found.value.columns == {"orders": {"id": ColumnNeeds(types=("BIGINT",))}}
    lane.close()


def test_the_types_of_a_waiting_row_s_new_columns_are_carried_to_the_micro_batch_of_its_end() -> None:
    lane, _ = lane_with_an_open_transaction()
    with pytest.raises(TablesLackColumns):
        list(checks(lane)(iter(())))
    carried = cast(Any, decode(encode(lane.carry_over())))
    lane.close()
    assert set(carried.described) == {"orders"}
    later = spec(DebeziumAssembly(), described=carried.described).open(Attempt(0, 0, False))
    assert later.schema.types_of("orders", "note") == ["STRING"]
    assert later.schema.types_of("orders", "gone") == ["INT"]
    assert later.schema.types_of("orders", "id") == [], "the table has it"
    filled = [name for name in ("note", "gone") if later.schema.filled("orders", name)]
    assert filled == ["gone"], "the source has filled it in its rows, which is said when the column is added"
    assert list(later([pa.RecordBatch.from_pylist([], schema=messages((ORDERS, 0, 5, None)).schema)])) == []
    later.close()
