"""Automatic partitions that rows need, and the statements that make them (wire contract 4.17)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.rows.keys import KeyColumn
from starrocks_txn_sink.rows.partitions import Partitioning, Values, needed_by, statements


def created(clause: str) -> Partitioning:
    partitioning = Partitioning.of(
        f"CREATE TABLE `t` (\n  `d` date\n) ENGINE=OLAP\nPARTITION BY {clause}\nPROPERTIES ()"
    )
    assert partitioning is not None
    return partitioning


def needed(clause: str, types: dict[str, str], *rows: dict[str, Any]) -> list[Values]:
    partitioning = created(clause)
    key = [KeyColumn.of(name, types[name], None) for name in partitioning.columns]
    texts = pa.array([f",{json.dumps(row)}" for row in ({"d": "none of ours", "k": 0}, *rows, {"d": "", "k": 0})])
    return needed_by(texts[1:-1], partitioning, key)


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("date_trunc('day', d)", (("d",), "day", 1, True)),
        ("time_slice(`d`, 7, 'day', 'floor')", (("d",), "day", 7, False)),
        ("time_slice(d, INTERVAL 15 MINUTE)", (("d",), "minute", 15, False)),
        ("date_trunc('minute', d)", (("d",), "minute", 1, False)),
        ("date_trunc('hour', d)", (("d",), "hour", 1, True)),
        ("(`kind`)", (("kind",), "", 1, True)),
        ("(`kind`, city)", (("kind", "city"), "", 1, True)),
        ("date_trunc('day', d), kind", ((), "", 1, False)),
        ("str2date(s, '%Y')", ((), "", 1, False)),
    ],
)
def test_expressions(clause: str, expected: tuple[Any, ...]) -> None:
    partitioning = created(clause)
    assert (partitioning.columns, partitioning.unit, partitioning.step, partitioning.is_makeable) == expected


def test_explicit_partitions_are_none_of_ours() -> None:
    for clause in (
        "",
        "PARTITION BY RANGE(`d`)\n(PARTITION p1 VALUES LESS THAN ('2024-01-01'))",
        "PARTITION BY LIST(c)()",
    ):
        assert Partitioning.of(f"CREATE TABLE `t` (\n)\n{clause}\nDISTRIBUTED BY HASH(`d`)") is None


@pytest.mark.parametrize(
    ("clause", "kind", "values", "expected"),
    [
        ("date_trunc('day', d)", "DATETIME", ["2024-02-29 23:59:59.5", "2024-02-29T01:00:00Z"], ["2024-02-29"]),
        ("date_trunc('day', d)", "DATE", ["2024-2-9", "20240209", "2024-02-09 12:00:00"], ["2024-02-09"]),
        ("date_trunc('hour', d)", "DATETIME", ["2024-02-29 23:59", "2024-02-29T23:00:00Z"], ["2024-02-29 23:00:00"]),
        ("date_trunc('month', d)", "DATE", ["2024-02-29", "9999-12-31"], ["2024-02-01", "9999-12-01"]),
        ("date_trunc('year', d)", "DATETIME", ["2024-02-29 23:59:59"], ["2024-01-01"]),
        ("time_slice(d, INTERVAL 7 DAY)", "DATE", ["2024-02-29", "2024-03-03"], ["2024-02-26"]),
        ("time_slice(d, INTERVAL 5 MONTH)", "DATE", ["0001-06-01", "0001-05-31"], ["0001-01-01", "0001-06-01"]),
        ("date_trunc('day', d)", "DATE", ["2024-02-30", "x", "", "0000-00-00", "0000-02-30"], []),
        ("date_trunc('month', d)", "DATE", ["0000-02-29"], ["0000-02"]),
    ],
)  # fmt: skip
def test_times_need_the_partition_of_their_unit(clause: str, kind: str, values: list[str], expected: list[str]) -> None:
    rows = [{"k": 1, "d": value} for value in values]
    whole = [(text + "0001-01-01 00:00:00"[len(text) :],) for text in expected]
    assert needed(clause, {"d": kind}, *rows) == whole
    assert needed(clause, {"d": kind}, {"k": 1}, {"d": None}) == [(None,)]


def test_lists_need_a_partition_of_each_value() -> None:
    types = {"kind": "VARCHAR", "n": "INT"}
    rows: list[dict[str, Any]] = [
        {"kind": 'a"\\', "n": 1},
        {"n": "01", "kind": 'a"\\'},
        {"kind": None, "n": 2},
        {"kind": "?b", "n": "x"},
        {},
    ]
    assert needed("(kind, n)", types, *rows) == [('a"\\', "1"), (None, "2"), (None, None)]
    assert needed("(kind)", types, *rows) == [("?b",), ('a"\\',), (None,)]


def test_partitions_are_made_in_few_statements_under_the_servers_names() -> None:
    days: list[Values] = [(f"2024-{day} 00:00:00",) for day in ("03-01", "02-29", "12-31", "02-28")]
    assert list(statements("shop", "t", created("date_trunc('day', d)"), days)) == [
        ("ALTER TABLE `shop`.`t` ADD PARTITIONS START (%s) END (%s) EVERY (INTERVAL 1 DAY)", ends)
        for ends in (("2024-02-28", "2024-03-02"), ("2024-12-31", "2025-01-01"))
    ]
    hours = created("date_trunc('hour', d)")
    ((sql, ends),) = statements("shop", "t", hours, [("2024-02-29 23:00:00",)])
    assert ends == ("2024-02-29 23:00:00", "2024-03-01 00:00:00")
    assert sql.endswith("EVERY (INTERVAL 1 HOUR)")
    units = [created(f"date_trunc('{unit}', d)") for unit in ("year", "month", "day", "hour")]
    names = [partitioning.name_of(("2024-02-01 03:00:00",)) for partitioning in units]
    assert names == ["p2024", "p202402", "p20240201", "p2024020103"]
    assert not units[2].has_bounds((None,))
    assert not units[2].has_bounds(("9999-12-31 00:00:00",))
    assert units[2].has_bounds(("9999-12-30 00:00:00",))
    assert not units[2].has_bounds(("0000-02-29 00:00:00",))
    assert [partitioning.name_of((None,)) for partitioning in units] == ["p0000", "p000001", "p00000101", "p0000010100"]
    pairs = created("(a, b)")
    ((sql, values),) = statements("shop", "t", pairs, [("x", None)])
    assert sql == f"ALTER TABLE `shop`.`t` ADD PARTITION IF NOT EXISTS `{pairs.name_of(values)}` VALUES IN ((%s, %s))"
