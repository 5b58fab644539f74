"""Reading tables back gives the truth's own form, page after page, without a gap."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from starrocks_demo.verdict import TABLES, cents, create_tables, read_all


def server(rows: list[tuple[Any, ...]], log: list[str]) -> Any:
    """Answers what read_all asks of a table whose rows these are."""

    def query(sql: str) -> Sequence[Sequence[Any]]:
        log.append(sql)
        if sql.lstrip().startswith("CREATE"):
            return []
        if "MIN(" in sql:
            keys = [row[0] for row in rows]
            return [(min(keys, default=None), max(keys, default=None))]
        low, high = map(int, re.findall(r"(?:>=|<) (-?\d+)", sql))
        return [row for row in rows if low <= row[0] < high]

    return query


@pytest.mark.parametrize("keys", [[], [5], [-7, 0, 3, 4, 10, 11, 29], [0, 10, 20]])
def test_reads_every_row_once(keys: list[int]) -> None:
    rows = [(key, 1, Decimal("12.30"), "paid") for key in keys]
    assert sorted(read_all(TABLES["orders"], server(rows, []), page=10)) == [(key, 1, 1230, "paid") for key in keys]


def test_pages_are_bounded() -> None:
    log: list[str] = []
    list(read_all(TABLES["orders"], server([(key, 1, "1.00", "") for key in range(95)], log), page=10))
    assert len(log) == 1 + 10


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0.00", 0), (Decimal("-12.34"), -1234), (99999999.99, 9999999999), (None, None), (3, 300), ("0.1", 10)],
)
def test_cents(value: Any, expected: int | None) -> None:
    assert cents(value) == expected


def test_creates_each_table_with_its_keys() -> None:
    log: list[str] = []
    create_tables(server([], log))
    assert len(log) == 4
    assert "DATABASE" in log[0]
    for statement, table in zip(log[1:], TABLES.values(), strict=True):
        assert f"`{table.name}`" in statement
        columns = re.findall(r"^  `(\w+)`", statement, re.MULTILINE)
        assert tuple(columns) == table.columns
        assert f"KEY(`{table.key}`)" in statement
