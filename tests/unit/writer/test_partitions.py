"""A lane makes the automatic partitions of its rows, on a server that lets no load do so (wire contract 4.17)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Settings
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import PartitionClosed
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.writer.known_columns import KnownColumns
from starrocks_txn_sink.writer.partitions import KnownPartitions, PartitionCheck
from tests.support.contract_client import Client, Server
from tests.support.query_port import query

TABLES = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.days (id INT NOT NULL, d DATETIME NOT NULL) PRIMARY KEY(id, d) PARTITION BY date_trunc('day', d)"
    " DISTRIBUTED BY HASH(id)",
    "CREATE TABLE shop.kinds (id INT, kind VARCHAR(9), n INT) DUPLICATE KEY(id) PARTITION BY (kind, n)"
    " DISTRIBUTED BY HASH(id)",
    "CREATE TABLE shop.slices (id INT, d DATE) DUPLICATE KEY(id) PARTITION BY time_slice(d, INTERVAL 7 DAY)"
    " DISTRIBUTED BY HASH(id)",
    "CREATE TABLE shop.notes (id INT, d DATE) DUPLICATE KEY(id) PARTITION BY date_trunc('day', d)"
    " DISTRIBUTED BY HASH(id)",
    "CREATE TABLE shop.plain (id INT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path) as emulator:
        for sql in TABLES:
            query(emulator, sql)
        yield emulator


class Checks:
    """Checks of lanes, each with a connection of its own."""

    def __init__(self, server: Emulator, **more: Any) -> None:
        self.server, self.more, self.open = server, more, list[LeaderConnection]()

    def __call__(self, most: int = 1000) -> PartitionCheck:
        options = SinkOptions(
            load_url=self.server.load_url, query_url=self.server.query_url, database="shop", job="j", **self.more
        )
        connection = LeaderConnection(options)
        self.open.append(connection)
        deadline, columns = Deadline.after(60, SystemClock()), KnownColumns(connection, "shop")
        known = KnownPartitions(connection, "shop")
        return PartitionCheck(known, lambda table, again: columns.columns(table, again, deadline), most, deadline)


@pytest.fixture
def checks(server: Emulator) -> Iterator[Checks]:
    made = Checks(server)
    yield made
    for connection in made.open:
        connection.close()


def batch(*rows: tuple[str, dict[str, Any]]) -> pa.RecordBatch:
    count = len(rows)
    return pa.record_batch(
        {
            "source_partition": pa.array(["p"] * count),
            "position": pa.array(range(7, 7 + count)),
            "table": pa.array([table for table, _ in rows]),
            "payload": pa.array([f",{json.dumps(row)}" for _, row in rows]),
        }
    )


def names(server: Emulator, table: str) -> list[str]:
    return [row[1] for row in query(server, f"SHOW PARTITIONS FROM shop.{table}")]


def test_lanes_at_once_make_each_partition_once_and_loads_commit(server: Emulator, checks: Checks) -> None:
    lanes = [
        batch(
            *(("days", {"id": n, "d": f"2024-03-{1 + (n + lane) % 20:02} 12:00:00"}) for n in range(15)),
            *(("kinds", {"id": n, "kind": ["a", None, "it's"][n % 3], "n": lane % 2}) for n in range(3)),
            ("plain", {"id": 1}),
        )
        for lane in range(4)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda rows: checks()(rows), lanes))
    assert len(names(server, "days")) == len(set(names(server, "days"))) == 18
    assert len(names(server, "kinds")) == len(set(names(server, "kinds"))) == 6
    client = Client(Server(server.load_url, server.query_url, "root", "", "shop", "B", {}))
    label = client.begin()
    rows = json.dumps([json.loads(text[1:]) for text in lanes[0].column("payload").to_pylist()[:15]])
    assert client.load(label, "days", rows.encode(), strip_outer_array="true").json["Status"] == "OK"
    assert client.commit(label).json["Status"] == "OK"


def test_a_value_that_another_partition_has_is_there(server: Emulator, checks: Checks) -> None:
    query(server, "INSERT INTO shop.kinds VALUES (1, 'a', 1)")
    checks()(batch(("kinds", {"id": 1, "kind": "a", "n": 1}), ("kinds", {"id": 1, "kind": "b", "n": 1})))
    assert len(names(server, "kinds")) == 2


def test_a_wrong_date_makes_no_thousand_partitions(server: Emulator, checks: Checks) -> None:
    check = checks(most=3)
    check(batch(*(("days", {"id": 1, "d": f"2024-03-0{day}"}) for day in (1, 2, 3))))
    check(batch(("days", {"id": 1, "d": "2024-03-01"})))
    with pytest.raises(PartitionClosed, match=r"days lacks 4 partitions .* by d at source partition p, position 7"):
        check(batch(("days", {"id": 1, "d": "2025-03-01"})))
    assert len(names(server, "days")) == 3


def test_more_partitions_than_a_load_opens_end_the_query_with_the_setting(server: Emulator, checks: Checks) -> None:
    rows = [("days", {"id": 1, "d": f"2024-{month:02}-{day:02}"}) for month in (1, 2) for day in range(1, 17)]
    checks()(batch(*rows[:31]))
    query(server, "INSERT INTO shop.days VALUES (1, '2030-01-01')")
    with pytest.raises(PartitionClosed, match=r"has 33 partitions, .* is 32") as failure:
        checks()(batch(rows[0], rows[31]))
    assert "ADMIN SET FRONTEND CONFIG ('max_load_initial_open_partition_number' = '100')" in failure.value.advice
    query(server, "ADMIN SET FRONTEND CONFIG ('max_load_initial_open_partition_number' = '100')")
    checks()(batch(rows[0], rows[31]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            ("slices", {"id": 1, "d": "2024-02-29"}),
            r"Table slices lacks a partition .*no statement that makes one .*time_slice",
        ),
        (
            ("notes", {"id": 1, "d": None}),
            r"notes has rows whose d is NULL,.*at source partition p, position 7.* StarRocks 4\.0\.7",
        ),
        (("notes", {"id": 1, "d": "0000-02-29"}), r"notes has rows whose d is .*in the year 0"),
    ],
)
def test_what_no_statement_makes_ends_the_query(checks: Checks, row: Any, message: str) -> None:
    with pytest.raises(PartitionClosed, match=message):
        checks()(batch(row))


@pytest.mark.parametrize(("table", "moment"), [("notes", None), ("notes", "0001-01-01"), ("slices", None)])
def test_what_an_insert_made_is_known(server: Emulator, checks: Checks, table: str, moment: str | None) -> None:
    query(server, f"INSERT INTO shop.{table} VALUES (1, %s)", moment)
    checks()(batch((table, {"id": 2, "d": moment})))
    assert len(names(server, table)) == 1


def test_a_user_without_the_right_is_told(server: Emulator) -> None:
    query(server, "CREATE USER 'w' IDENTIFIED BY 'pw'")
    query(server, "GRANT SELECT, INSERT ON ALL TABLES IN DATABASE shop TO USER 'w'")
    made = Checks(server, username="w", password="pw", find_leader=False)
    with pytest.raises(PartitionClosed, match=r"StarRocks did not make it: .*ALTER") as failure:
        made()(batch(("days", {"id": 1, "d": "2024-02-29"})))
    assert "Grant the user ALTER on the table" in failure.value.advice
    made.open[0].close()


def test_a_server_that_makes_partitions_itself_is_left_alone(tmp_path: Path) -> None:
    with Emulator(tmp_path, Settings(generation=Generation.C)) as server:
        for sql in TABLES:
            query(server, sql)
        made = Checks(server)
        made()(batch(("days", {"id": 1, "d": "2024-02-29"}), ("slices", {"id": 1, "d": "2024-02-29"})))
        assert names(server, "days") == []
        made.open[0].close()
