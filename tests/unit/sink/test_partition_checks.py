"""A plain job names at its start the tables whose automatic partitions would end it later (wire contract 4.17)."""

from __future__ import annotations

from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation
from starrocks_txn_sink.errors import PartitionClosed
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink import partition_checks
from starrocks_txn_sink.sink.session import open_session
from tests.support.log_records import records_of
from tests.support.query_port import query

DAYS = "CREATE TABLE shop.{} (d DATE) DUPLICATE KEY(d) PARTITION BY date_trunc('day', d) DISTRIBUTED BY HASH(d)"
WEEKS = "CREATE TABLE shop.weeks (d DATE) DUPLICATE KEY(d) PARTITION BY time_slice(d, INTERVAL 7 DAY)"
LIMIT = "ADMIN SET FRONTEND CONFIG ('max_load_initial_open_partition_number' = '2')"
TABLES = (DAYS.format("days"), DAYS.format("few"), WEEKS, LIMIT)

pytestmark = pytest.mark.emulator(*TABLES)


def options(server: Emulator, *tables: str, **more: Any) -> SinkOptions:
    more["tables"] = {table: {"columns": "d"} for table in tables}
    return SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", job="j", **more)


def fill(server: Emulator, table: str, days: int) -> None:
    query(server, f"INSERT INTO shop.{table} VALUES " + ", ".join(f"('2024-02-0{1 + day}')" for day in range(days)))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in records_of(caplog, "partitions.closed")]


def test_the_start_names_tables_and_setting_before_any_row(server: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    fill(server, "days", 3)
    fill(server, "few", 1)
    for run in ("first", "restarted"):
        open_session(options(server, "few"), run, "j", "checkpoint")
    days, weeks = said(caplog)
    assert "job=j" in days
    assert "table=days" in days
    assert "has 3 partitions, and a load opens the newest 2" in days
    assert "ADMIN SET FRONTEND CONFIG ('max_load_initial_open_partition_number' = '100')" in days
    assert "table=weeks" in weeks
    assert "time_slice" in weeks


@pytest.mark.parametrize("routed", [True, False])
def test_a_table_of_the_job_that_can_take_no_row_stops_its_start(
    server: Emulator, caplog: pytest.LogCaptureFixture, *, routed: bool
) -> None:
    with pytest.raises(PartitionClosed, match=r"Table weeks: .*time_slice.*StarRocks 4\.0\.7") as end:
        open_session(options(server, *["weeks"][routed:]), "run", "j", "", typed_tables=["weeks"][: int(routed)])
    assert "Make the partitions by an INSERT" in end.value.advice
    assert not [name for (name,) in query(server, "SHOW TABLES FROM shop") if name.startswith("_starrocks")]
    query(server, "INSERT INTO shop.weeks VALUES ('2024-02-29')")
    open_session(options(server, "weeks"), "run", "j", "")
    assert ["table=weeks" in line for line in said(caplog)] == [True]


def test_many_tables_are_counted(
    server: Emulator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_checks, "_MOST", 1)
    for table in ("days", "few"):
        fill(server, table, 2)
    open_session(options(server, "few"), "run", "j", "")
    first, more = said(caplog)
    assert ("table=few" in first, "more=2" in more) == (True, True)


def test_who_may_not_ask_starts_without_a_word(server: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    fill(server, "days", 3)
    query(server, "CREATE USER 'w' IDENTIFIED BY 'pw'")
    query(server, "GRANT SELECT, INSERT ON ALL TABLES IN DATABASE shop TO USER 'w'")
    query(server, "GRANT CREATE TABLE ON DATABASE shop TO USER 'w'")
    open_session(options(server, username="w", password="pw", find_leader=False), "run", "j", "")
    assert not [line for line in said(caplog) if "table=days" in line]


@pytest.mark.emulator(*TABLES, generation=Generation.C)
def test_a_server_that_makes_partitions_itself_needs_nothing(
    server: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "days", 3)
    open_session(options(server, "weeks"), "run", "j", "")
    assert said(caplog) == []
