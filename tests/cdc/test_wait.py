"""An application commits on PostgreSQL or MariaDB, waits for its position, and reads its own row in StarRocks."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from starrocks_txn_ops import cli
from starrocks_txn_ops.sync.settings import read_sync
from starrocks_txn_sink import wait_for_position
from starrocks_txn_sink.errors import PositionNotReached, PositionOfOtherSource
from tests.cdc.connect import Connect
from tests.cdc.databases import POMS, Database, set_up
from tests.cdc.sync_process import SyncProcess
from tests.kafka.broker import Broker
from tests.support.quick_start import Warehouse, blocks
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TIMES = 20
_FILE = """
[source]
brokers = "{brokers}"
topics = '{topics}'

[target]
load_url = "http://fe:8030"
query_url = "mysql://fe:9030"
database = "shop"
job = "shop"
username = "sink"
password_environment = "STARROCKS_PASSWORD"

[tables]
exclude = ['.*\\.internal']

[query]
checkpoint = "{checkpoint}"

[spark]
"spark.jars" = "{jars}"
"""
_BEATING = json.loads(blocks("docs/guides/read-your-writes.md", "json")[0])
_QUERY = "heartbeat.action.query"
_BEAT = {"postgres": _BEATING[_QUERY], "mariadb": "REPLACE INTO shop.beats VALUES (1, now())"}
_ASK = {"postgres": "SELECT pg_current_wal_lsn()", "mariadb": "SELECT @@gtid_current_pos"}


def commit(db: Database, statement: str) -> str:
    """Commit a statement, and ask the same session for the position."""
    if db.kind == "postgres":
        ((position,),) = db.server.sql(f"{statement}; {_ASK[db.kind]};")
    else:
        ((position,),) = db.server.sql("USE shop", statement, _ASK[db.kind])
    return str(position)


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_an_application_reads_its_own_write(
    kind: str, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAL and GTIDs go on without rows of the job's tables, too: a heartbeat moves the ledger behind them."""
    monkeypatch.setenv("STARROCKS_PASSWORD", warehouse.password)
    with ExitStack() as stack:
        jars, db = set_up(kind, tmp_path, stack)
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        db.run("CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, note TEXT)")
        db.run("CREATE TABLE internal (id INT NOT NULL PRIMARY KEY)")
        db.run("CREATE TABLE beats (id INT NOT NULL PRIMARY KEY, at TIMESTAMP)")
        db.commit("INSERT INTO orders VALUES (0, 'of the snapshot')", "INSERT INTO internal VALUES (0)")
        db.run(_BEAT[kind])
        connector = db.connector(broker.servers) | _BEATING | {_QUERY: _BEAT[kind]}
        connect = stack.enter_context(Connect(tmp_path / "connect", broker.servers, connector, POMS[kind]))
        wait_until(
            lambda: "shop.transaction" in broker.topics(), reason=connect.messages, alive=lambda: connect.running
        )
        warehouse.ask("CREATE DATABASE shop")
        file, folder = tmp_path / "shop.toml", tmp_path / "sync"
        text = _FILE.format(brokers=broker.servers, topics=db.topics, checkpoint=folder / "checkpoint", jars=jars)
        file.write_text(warehouse.placed(text), encoding="utf-8")
        process = SyncProcess(file, folder, warehouse.environment)
        stack.callback(process.kill)

        options = read_sync(str(file)).options
        first = commit(db, "INSERT INTO orders VALUES (1, 'the first change')")
        wait_until(
            lambda: cli.main(["wait", str(file), "--position", first, "--timeout", "5"]) == 0,
            reason=process.messages,
            alive=lambda: process.running,
            seconds=300,
        )
        for number in range(2, TIMES + 2):
            position = commit(db, f"INSERT INTO orders VALUES ({number}, 'mine')")
            wait_for_position(options, position, timeout=120)
            assert warehouse.ask(f"SELECT note FROM shop.orders WHERE id = {number}") == [("mine",)], position
        assert warehouse.ask("SELECT count(*) FROM shop.orders") == [(TIMES + 2,)]

        unmapped = commit(db, "INSERT INTO internal VALUES (1)")
        wait_for_position(options, unmapped, timeout=120)  # a heartbeat comes behind it

        with pytest.raises(PositionOfOtherSource):
            wait_for_position(options, "0-1-1" if kind == "postgres" else "0/1")
        process.kill()
        behind = commit(db, "INSERT INTO orders VALUES (99, 'nobody writes it')")
        with pytest.raises(PositionNotReached, match=r"last commit was at .*; run .* owns it since"):
            wait_for_position(options, behind, timeout=1)
        assert warehouse.ask("SELECT count(*) FROM shop.orders WHERE id = 99") == [(0,)]
