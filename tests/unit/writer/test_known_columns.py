"""Two tables whose names differ in case alone are two tables, and a worker keeps their columns apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.rows.target import spelled
from starrocks_txn_sink.writer.table_checks import KnownColumns

COLUMNS = {"items": "a", "Items": "b"}


class Connection:
    """The columns of COLUMNS as StarRocks lists them: the case of a table's name counts."""

    def query(self, sql: str, parameters: Sequence[str], _: Deadline) -> list[tuple[Any, ...]]:
        tables = parameters[1:] or COLUMNS
        if "GENERATION_EXPRESSION" not in sql:
            return []
        return [(name, COLUMNS[name], "int(11)", "YES", None, "", "") for name in tables if name in COLUMNS]


def test_the_case_of_a_tables_name_counts() -> None:
    connection: Any = Connection()
    known, deadline = KnownColumns(connection, "shop"), Deadline.after(60, SystemClock())
    for again in (False, True):
        assert known.of("items", again, deadline) == frozenset("a")
        assert known.of("Items", again, deadline) == frozenset("b")
        assert [column.name for column in known.columns("Items", again, deadline)] == ["b"]


def test_a_cluster_that_folds_names_lists_them_in_lower_case() -> None:
    assert spelled("Orders", {"orders", "items"}) == "orders"
    assert spelled("Orders", {"orders", "Orders"}) == "Orders"
    assert spelled("Orders", set()) == "Orders"
