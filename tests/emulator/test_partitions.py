"""Automatic partitions as a server of generation B has them (wire contract 4.17)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.sql.session import SqlError
from starrocks_emulator.tables.partitions import CHUNK_ROWS, Opening, Partitioning, finishing_order
from starrocks_emulator.tables.store import CommitRejected, Store
from tests.support.store_setup import JSON_ARRAY, body, load, rows, with_tables

DAYS = (
    "CREATE TABLE test.days (k INT NOT NULL, d DATETIME NOT NULL) PRIMARY KEY(k, d) PARTITION BY date_trunc('day', d)"
)
MINUTES = "CREATE TABLE test.minutes (k INT, d DATETIME) DUPLICATE KEY(k) PARTITION BY date_trunc('minute', d)"
PAIRS = (
    "CREATE TABLE test.pairs (k INT, a VARCHAR(9), n INT) DUPLICATE KEY(k) PARTITION BY (a, n) DISTRIBUTED BY HASH(k)"
)
SLICES = (
    "CREATE TABLE test.slices (k INT, d DATE) DUPLICATE KEY(k) PARTITION BY time_slice(d, INTERVAL 7 DAY) "
    "DISTRIBUTED BY HASH(k)"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = with_tables(Store(tmp_path))
    for ddl in (DAYS, PAIRS, SLICES, MINUTES):
        rows(store, ddl)
    yield store
    store.close()


def names(store: Store, table: str) -> list[str]:
    return [row[1] for row in rows(store, f"SHOW PARTITIONS FROM test.{table}")]


def commit(store: Store, content: list[dict[str, Any]], opening: Opening, table: str = "days") -> None:
    plan = store.plan("test", table, JSON_ARRAY)
    store.commit("test", store.next_txn_id(), "l", [(plan, [body(store, content)])], opening=opening)


def test_a_load_of_one_table_and_insert_make_them(store: Store) -> None:
    load(store, "days", [{"k": 1, "d": "2024-03-01 12:00:00"}, {"k": 2, "d": "2024-02-29"}])
    rows(store, "INSERT INTO days VALUES (3, '2024-02-29 23:59:59'), (4, '0001-01-01')")
    assert names(store, "days") == ["p20240229", "p20240301", "p00010101"]
    load(store, "pairs", [{"k": 1, "a": "x", "n": 1}, {"k": 2, "a": None, "n": 1}, {"k": 3, "a": "é-", "n": -1}])
    assert sorted(names(store, "pairs")) == ["pNULL_1", "px_1", "pé2d_2d1"]
    load(store, "slices", [{"k": 1, "d": "2024-02-29"}, {"k": 2, "d": None}])
    assert sorted(names(store, "slices")) == ["p00000101", "p20240226"]
    assert names(store, "orders") == ["orders"], "a table without partitions has one of its name"


def test_a_load_that_may_not_ask_needs_open_partitions(store: Store) -> None:
    first = Opening(lambda *_: False, limit=3)
    with pytest.raises(CommitRejected, match="No rows were imported from upstream") as failure:
        commit(store, [{"k": 1, "d": "2024-02-29"}], first)
    assert failure.value.counts == {}, "it counts no rows"
    for day in (1, 2, 3):
        load(store, "days", [{"k": 1, "d": f"2024-02-0{day}"}])
    with pytest.raises(CommitRejected, match="No rows"):
        commit(store, [{"k": 1, "d": "2024-02-05"}], first)
    rows(store, "ALTER TABLE test.days ADD PARTITIONS START ('2024-01-01') END ('2024-01-02') EVERY (INTERVAL 1 DAY)")
    commit(store, [{"k": 1, "d": "2024-01-01"}, {"k": 1, "d": "2024-02-03"}], first)
    with pytest.raises(CommitRejected, match="No rows"):
        commit(store, [{"k": 1, "d": "2024-02-01"}], first)
    commit(store, [{"k": 2, "d": "2024-02-01"}], Opening(lambda *_: False, limit=5))
    assert len(names(store, "days")) == 4


@pytest.mark.parametrize(
    ("ranges", "outside"),
    [
        ("PARTITION p1 VALUES LESS THAN ('2024-01-01'), PARTITION p2 VALUES LESS THAN ('2025-01-01')", [2, 4]),
        ("START ('2023-12-01') END ('2025-01-01') EVERY (INTERVAL 1 MONTH)", [1, 2, 4]),
    ],
)
def test_rows_outside_of_all_ranges_are_filtered(store: Store, ranges: str, outside: list[int]) -> None:
    rows(
        store,
        f"CREATE TABLE test.r (k INT NOT NULL, d DATE NOT NULL) DUPLICATE KEY(k) PARTITION BY RANGE(d) ({ranges})",
    )
    content = [{"k": k, "d": d} for k, d in enumerate(("2023-01-01", "2025-01-01", "2024-02-29", "9999-12-31"), 1)]
    with pytest.raises(CommitRejected, match="abnormal data more than max filter rate") as failure:
        load(store, "r", content)
    assert failure.value.filtered == len(outside)
    assert failure.value.reasons[0].startswith("The row is out of partition ranges. Please add a new partition.")
    load(store, "r", [row for row in content if row["k"] not in outside])


@pytest.mark.parametrize(
    ("ranges", "outside"),
    [
        ("PARTITION p1 VALUES LESS THAN ('9'), PARTITION p2 VALUES LESS THAN ('100')", [100, 101]),
        ("PARTITION p1 VALUES LESS THAN (100)", [100, 101]),
        ("PARTITION p1 VALUES LESS THAN ('9'), PARTITION p2 VALUES LESS THAN (MAXVALUE)", []),
        ("PARTITION p1 VALUES LESS THAN ('9'), PARTITION p2 VALUES LESS THAN maxvalue", []),
        ("START ('2') END ('100') EVERY (7)", [1, 100, 101]),
    ],
)
def test_ranges_of_a_primary_key_are_those_of_numbers(store: Store, ranges: str, outside: list[int]) -> None:
    rows(store, f"CREATE TABLE test.r (k BIGINT NOT NULL) PRIMARY KEY(k) PARTITION BY RANGE(k) ({ranges})")
    content = [{"k": k} for k in (1, 2, 99, 100, 101)]
    if outside:
        with pytest.raises(CommitRejected, match="abnormal data more than max filter rate") as failure:
            load(store, "r", content)
        assert failure.value.filtered == len(outside)
    load(store, "r", [row for row in content if row["k"] not in outside])


def test_a_commit_finishes_tables_in_the_order_of_their_hashes() -> None:
    ledger = "_starrocks_txn_sink_ledger"
    assert finishing_order([ledger, "ev_list"]) == ["ev_list", ledger]
    assert finishing_order(["events", ledger, "items", "orders", "customers"]) == [
        *("orders", "customers", ledger, "items", "events"),
    ]
    assert CHUNK_ROWS == 4096


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "ALTER TABLE test.slices ADD PARTITIONS START ('2024-01-01') END ('2024-01-08') EVERY (INTERVAL 7 DAY)",
            "time_sl",
        ),
        (
            "ALTER TABLE test.days ADD PARTITIONS START ('2024-01-01') END ('2024-02-01') EVERY (INTERVAL 1 MONTH)",
            "granul",
        ),
        ("ALTER TABLE test.days ADD PARTITIONS START ('2024-01-01') END ('2024-01-03') EVERY (INTERVAL 2 DAY)", "be 1"),
        (
            "ALTER TABLE test.minutes ADD PARTITIONS START ('2024-01-01') END ('2024-01-02') EVERY (INTERVAL 1 MINUTE)",
            "not support time interval type: minute",
        ),
        ("ALTER TABLE test.days ADD PARTITION p1 VALUES [('2024-01-01'), ('2024-01-02'))", "only supports"),
        ("ALTER TABLE test.pairs ADD PARTITION p1 VALUES IN ('a')", "column size"),
        ("ALTER TABLE test.nope ADD PARTITION p1 VALUES IN ('a')", "nope is not found"),
        ("CREATE TABLE test.u (k INT, d DATE) PRIMARY KEY(k) PARTITION BY date_trunc('day', d)", "must be key column"),
        ("CREATE TABLE test.u (d DECIMAL(10,2)) PRIMARY KEY(d)", r"column\[d\] type not supported: decimal\(10, 2\)"),
        ("SELECT text FROM test.orders", "Unexpected input 'text'"),
        ("CREATE TABLE test.files (k INT) DUPLICATE KEY(k)", "Unexpected input 'files'"),
    ],
)
def test_statements_that_a_server_refuses(store: Store, sql: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        rows(store, sql)


def test_lists_get_partitions_by_name(store: Store) -> None:
    add = "ALTER TABLE test.pairs ADD PARTITION IF NOT EXISTS"
    rows(store, f"{add} `p1` VALUES IN (('it\\'s', '1'))")
    rows(store, f"{add} p1 VALUES IN (('b', '1'))")
    rows(store, f"{add} p2 VALUES IN ((NULL, '1'))")
    assert names(store, "pairs") == ["p1", "p2"]
    assert [part.values for part in store.registry.table("test", "pairs").partitions] == [("it's", "1"), (None, "1")]
    with pytest.raises(SqlError, match="Duplicate values"):
        rows(store, f"{add} p3 VALUES IN ((NULL, '1'))")
    with pytest.raises(SqlError, match="Duplicate partition name p1"):
        rows(store, "ALTER TABLE test.pairs ADD PARTITION p1 VALUES IN (('c', '1'))")


@pytest.mark.parametrize(
    ("clause", "name", "ends"),
    [
        ("date_trunc('day', d)", "p00000101", ("0000-01-01", "0000-01-02")),
        ("date_trunc('month', d)", "p000001", ("0000-01-01", "0000-02-01")),
        ("date_trunc('year', d)", "p0000", ("0000-01-01", "0001-01-01")),
        ("time_slice(d, INTERVAL 7 DAY)", "p00000101", ("0000-01-01", "0000-01-08")),
    ],
)
def test_rows_without_a_time_have_the_first_partition_of_all(
    store: Store, clause: str, name: str, ends: tuple[str, str]
) -> None:
    rows(store, f"CREATE TABLE test.n (k INT, d DATE) DUPLICATE KEY(k) PARTITION BY {clause}")
    rows(store, "INSERT INTO test.n VALUES (1, NULL), (2, '0001-01-08'), (3, '0000-01-01')")
    bounds = {row[1]: row[-1] for row in rows(store, "SHOW PARTITIONS FROM test.n")}
    assert len(bounds) == 2
    assert bounds[name] == f"[types: [DATE]; keys: [{ends[0]}]; ..types: [DATE]; keys: [{ends[1]}]; )"


@pytest.mark.parametrize(
    ("clause", "moment", "begin", "end"),
    [
        ("date_trunc('hour', d)", "2024-02-29 12:34:56", "2024-02-29 12:00:00", "2024-02-29 13:00:00"),
        ("date_trunc('month', `d`)", "2024-12-31", "2024-12-01 00:00:00", "2025-01-01 00:00:00"),
        ("date_trunc('year', d)", "2024-12-31", "2024-01-01 00:00:00", "2025-01-01 00:00:00"),
        ("time_slice(d, INTERVAL 3 MONTH)", "2024-06-30", "2024-04-01 00:00:00", "2024-07-01 00:00:00"),
        (
            "time_slice(d, INTERVAL 5 MINUTE, floor)",
            "2024-02-29 12:34:56",
            "2024-02-29 12:30:00",
            "2024-02-29 12:35:00",
        ),
    ],
)
def test_units_of_time(clause: str, moment: str, begin: str, end: str) -> None:
    partitioning = Partitioning.of(f"PARTITION BY {clause}")
    assert partitioning is not None
    assert partitioning.values_of([moment]) == (begin,)
    assert partitioning.after(datetime.fromisoformat(begin)) == datetime.fromisoformat(end)
