"""Fifty tables of PostgreSQL and MariaDB: `init` writes the file, `sync` makes StarRocks equal the source.

The rows come by the connector's snapshot and by transactions behind it.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from starrocks_txn_ops import cli
from tests.cdc.changing_tables import plain
from tests.cdc.databases import set_up
from tests.cdc.sync_process import SyncProcess
from tests.kafka.broker import Broker
from tests.support.quick_start import Warehouse
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TABLES = [f"t{number:02}" for number in range(50)]
SECONDS = 120.0


@pytest.mark.emulator(cores=8)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_fifty_tables_from_a_file_to_equal_contents(kind: str, warehouse: Warehouse, tmp_path: Path) -> None:
    with ExitStack() as stack:
        jars, db = set_up(kind, tmp_path, stack)
        for number, table in enumerate(TABLES):
            db.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, price DECIMAL(10,2), name VARCHAR(40), born DATE)")
            rows = ", ".join(f"({id_}, {id_}.5, 'é{number}', '2024-02-29')" for id_ in range(40))
            db.run(f"INSERT INTO {table} VALUES {rows}")
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        connect = stack.enter_context(db.captured(broker, tmp_path))
        for number in range(20):
            db.commit(
                *(f"UPDATE {table} SET name = 'late' WHERE id = {number}" for table in TABLES[number::7]),
                *(f"DELETE FROM {table} WHERE id = {39 - number}" for table in TABLES[number::9]),
                *(f"INSERT INTO {table} VALUES ({100 + number}, NULL, NULL, NULL)" for table in TABLES[number::11]),
            )
        topics = {f"shop.{db.schema}.{table}" for table in TABLES} | {"shop.transaction"}
        wait_until(lambda: topics <= broker.topics(), reason=connect.messages, alive=lambda: connect.running)
        warehouse.ask("CREATE DATABASE shop")
        file = tmp_path / "shop.toml"
        began = time.monotonic()
        assert cli.main(["init", "--kafka", broker.servers, "--prefix", "shop", "--output", str(file)]) == 0
        text = warehouse.placed(file.read_text(encoding="utf-8"))
        file.write_text(f'{text}\n[spark]\n"spark.jars" = {json.dumps(jars)}\n', encoding="utf-8")
        expected = {
            table: [tuple(map(plain, row)) for row in db.rows(f"SELECT * FROM {table} ORDER BY id")] for table in TABLES
        }
        process = SyncProcess(file, tmp_path / "sync", warehouse.environment)
        stack.callback(process.kill)

        def equal() -> bool:
            table_names = {str(name) for (name,) in warehouse.ask("SHOW TABLES FROM shop")}
            return table_names.issuperset(TABLES) and all(
                [tuple(map(plain, row)) for row in warehouse.ask(f"SELECT * FROM shop.{table} ORDER BY id")] == rows
                for table, rows in expected.items()
            )

        remaining = SECONDS - (time.monotonic() - began)
        wait_until(equal, remaining, process.messages, alive=lambda: process.running)
