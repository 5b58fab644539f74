"""Explicit ranges of a table: what SHOW CREATE TABLE says of them, and the rows that none takes."""

from __future__ import annotations

import pytest

from starrocks_txn_sink.rows.ranges import Ranges
from starrocks_txn_sink.rows.target import parse_type

BY = "CREATE TABLE `t` (`c` {}) PARTITION BY RANGE(`c`)\n({})\nDISTRIBUTED BY HASH(`c`) BUCKETS 1"
SHOWN = 'PARTITION p1 VALUES [("-10"), ("10")),\nPARTITION p2 VALUES [("20"), (MAXVALUE))'
WRITTEN = "PARTITION p1 VALUES LESS THAN ('10'), PARTITION p2 VALUES LESS THAN (20)"
DAYS = 'PARTITION p1 VALUES [("2024-01-01"), ("2024-02-01"))'
TIMES = 'PARTITION p1 VALUES [("2024-01-01 00:00:00"), ("2024-01-01 12:00:00"))'


@pytest.mark.parametrize(
    ("kind", "parts", "takes", "leaves_out"),
    [
        ("bigint(20)", SHOWN, ["-10", "9", "20", "99999999999"], ["-11", "10", "19"]),
        ("int(11)", WRITTEN, ["-99", "10", "19"], ["20", "21"]),
        ("int(11)", f"{WRITTEN}, PARTITION p3 VALUES LESS THAN MAXVALUE", ["20", "21"], []),
        ("date", DAYS, ["2024-01-01", "2024-01-31", "2024-01-31 10:00:00"], ["2023-12-31", "2024-02-01"]),
        ("datetime", TIMES, ["2024-01-01", "2024-01-01T11:59:59.5"], ["2024-01-01 12:00:00", "2025-01-01"]),
    ],
)
def test_the_rows_that_no_range_takes(kind: str, parts: str, takes: list[str], leaves_out: list[str]) -> None:
    ranges, column = Ranges.of(BY.format(kind, parts)), parse_type(kind)
    assert ranges is not None
    assert ranges.column == "c"
    assert [value for value in (*takes, *leaves_out) if ranges.leave_out(value, column)] == leaves_out


@pytest.mark.parametrize("value", [None, "", "soon", "1.5"])
def test_what_cannot_be_told_is_not_said(value: object) -> None:
    """NULL is in the partition of the least value, if there is one."""
    ranges = Ranges.of(BY.format("int(11)", SHOWN))
    assert ranges is not None
    assert not ranges.leave_out(value, parse_type("int(11)"))


def test_a_column_of_another_type_is_not_judged() -> None:
    ranges = Ranges.of(BY.format("varchar(9)", 'PARTITION p VALUES [("a"), ("b"))'))
    assert ranges is not None
    assert not ranges.leave_out("c", parse_type("varchar(9)"))


@pytest.mark.parametrize(
    "clause",
    [
        "",
        "PARTITION BY date_trunc('day', d)",
        'PARTITION BY LIST(`c`)\n(PARTITION p1 VALUES IN ("a"))',
        'PARTITION BY RANGE(`a`, `b`)\n(PARTITION p1 VALUES [("1", "1"), ("2", "2")))',
        "PARTITION BY RANGE(`c`) (START ('1') END ('9') EVERY (1))",
        "PARTITION BY RANGE(`c`) (PARTITION p VALUES LESS THAN ('1'), START ('1') END ('9') EVERY (1))",
    ],
)
def test_other_tables_have_none(clause: str) -> None:
    assert Ranges.of(f"CREATE TABLE `t` (`c` INT) {clause} DISTRIBUTED BY HASH(`c`)") is None
