"""`wait_for_position` behind a query of Debezium's messages: what it answers is what is visible then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from starrocks_txn_sink import wait_for_position
from starrocks_txn_sink.errors import PositionDeadLettered, PositionNotReached, PositionOfOtherSource
from tests.support.debezium_feed import change, marker, mysql, postgres
from tests.support.debezium_shop import Changes, DebeziumShop, end, insert, whole

pytestmark = pytest.mark.spark


def lsn(number: int) -> str:
    return f"{number >> 32:X}/{number:X}"


@pytest.fixture
def visible(debezium: DebeziumShop) -> Callable[[str], bool]:
    """Whether a position is visible now."""

    def look(position: str) -> bool:
        try:
            wait_for_position(debezium.options(), position, timeout=0)
        except PositionNotReached:
            return False
        return True

    return look


def snapshot_row(number: int, mark: str) -> Changes:
    row = {"part": "snapshot", "position": number, "seq": 0, "note": "x"}
    return change(postgres("items", 900) | {"snapshot": mark}, None, None, row, op="r")


def test_an_lsn_is_visible_with_all_commits_up_to_it(debezium: DebeziumShop, visible: Callable[[str], bool]) -> None:
    """END is at 999 of its transaction's thousand."""
    debezium.put(snapshot_row(1, "first"), snapshot_row(2, "true"))
    debezium.go()
    with pytest.raises(PositionNotReached, match="the ledger says no place in the source's log"):
        wait_for_position(debezium.options(), lsn(1), timeout=0)
    debezium.put(*whole(5, 2))
    debezium.go()
    with pytest.raises(PositionNotReached, match="first snapshot is not over"):
        wait_for_position(debezium.options(), lsn(5001), timeout=0)
    debezium.put(snapshot_row(3, "last"), *whole(6, 1))
    debezium.go()
    assert (visible(lsn(6999)), visible(lsn(7000))) == (True, False)
    debezium.put(insert(7, 1), end(7, 2), *whole(8, 1))
    debezium.go()
    assert not visible(lsn(7000))  # 7 lacks a row, and holds 8 back
    debezium.put(insert(7, 2))
    debezium.go()
    assert (visible(lsn(8999)), visible(lsn(9000))) == (True, False)
    with pytest.raises(PositionOfOtherSource, match="The job has read: shop at 0/2327"):
        wait_for_position(debezium.options(), "0-1-1", timeout=0)


MARIADB_TABLES = {"shop.items": "items", "shop.internal": ""}


def commit(number: int, *notes: str, table: str = "items", server: int = 1, file: str = "000002") -> list[Changes]:
    """A transaction of MariaDB."""
    gtid, events = f"0-{server}-{number}", list[Changes]()
    for order, note in enumerate(notes, 1):
        row = {"part": "shop", "position": number, "seq": order, "note": note}
        events.append(change(mysql(table, f"binlog.{file}", 100 * number + order), gtid, order, row))
    return [marker("BEGIN", gtid), *events, marker("END", gtid, {f"shop.{table}": len(notes)} if notes else {})]


def test_a_gtid_is_visible_with_all_commits_up_to_it(debezium: DebeziumShop, visible: Callable[[str], bool]) -> None:
    debezium.put(*commit(5, "a"), *commit(6, "x", table="internal"))
    debezium.go(tables=MARIADB_TABLES)
    assert (visible("0-1-6"), visible("0-1-7")) == (True, False)
    debezium.put(*commit(7, "x", table="internal"), *commit(8))  # no row for the job: nothing is committed
    debezium.go(tables=MARIADB_TABLES)
    assert not visible("0-1-7")
    debezium.put(*commit(10, "b"))  # 9 was DDL, which has no marker
    debezium.go(tables=MARIADB_TABLES)
    assert [visible(f"0-1-{number}") for number in (7, 8, 9, 10, 11)] == [True] * 4 + [False]
    assert not visible("0-2-11")
    debezium.put(*commit(11, "c", server=2, file="000001"))  # another primary, whose files are lower
    debezium.go(tables=MARIADB_TABLES)
    assert visible("0-2-11,0-1-10")
    with pytest.raises(PositionOfOtherSource, match="is asked by GTID"):
        visible("binlog.000001:1101")
    with pytest.raises(PositionOfOtherSource):
        visible("0-3-11")


def test_a_binlog_without_gtids_is_asked_by_its_places(debezium: DebeziumShop, visible: Callable[[str], bool]) -> None:
    row = {"part": "shop", "position": 1, "seq": 1, "note": "x"}
    txn = "file=binlog.000003,pos=120"
    debezium.put(
        marker("BEGIN", txn), change(mysql("items", "binlog.000003", 154), txn, 1, row),
        marker("END", txn, {"shop.items": 1}),
    )  # fmt: skip
    debezium.go(tables=MARIADB_TABLES)
    assert (visible("binlog.000003:154"), visible("binlog.000003:155")) == (True, False)
    assert (visible("binlog.000002:999"), visible("binlog.000004:4")) == (True, False)


def test_what_is_no_row_is_not_visible_though_the_ledger_has_passed_it(
    debezium: DebeziumShop, visible: Callable[[str], bool]
) -> None:
    debezium.put(*commit(5, "a"))
    debezium.go(tables=MARIADB_TABLES)
    debezium.put(*commit(6, "x" * 99), *commit(7, "b"))
    debezium.go(tables=MARIADB_TABLES, on_bad_rows="quarantine")
    assert debezium.rows() == [(5, 1), (7, 1)]
    with pytest.raises(PositionDeadLettered, match="but 1 source transaction"):
        visible("0-1-7")


def test_what_was_given_up_is_counted(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 1), end(5, 2), *whole(6, 1))
    debezium.put(*whole(7, 1))
    debezium.go(open_timeout="1ms")
    assert debezium.rows() == [(6, 1), (7, 1)]
    assert wait_for_position(debezium.options(), lsn(7999), timeout=0).given_up == 1


@pytest.mark.parametrize("mode", ["whole", "none"])
def test_a_source_partitions_own_number(debezium: DebeziumShop, visible: Callable[[str], bool], mode: Any) -> None:
    debezium.put(*whole(5, 1))
    debezium.go(transactions=mode)
    (number,) = debezium.positions().values()
    assert (visible(str(number)), visible(str(number + 1))) == (True, False)
    if mode == "none":
        assert not visible(lsn(5999))  # its ledger has offsets alone
