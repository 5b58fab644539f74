"""Primary keys of PostgreSQL and MariaDB change while `sync` runs: no row is lost, and the error helps."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from pathlib import Path

import pymysql
import pytest

from tests.cdc.connect import Connect
from tests.cdc.databases import Database, set_up
from tests.cdc.registry import CONNECT_AVRO, Registry
from tests.cdc.sync_process import SyncProcess
from tests.kafka.broker import Broker
from tests.kafka.jars import fetched
from tests.support.quick_start import Warehouse
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TABLES = ("replaced", "dropped", "reordered")


def new_key(db: Database, table: str, columns: str) -> None:
    """Another primary key; none without `columns`."""
    drop = f"DROP CONSTRAINT {table}_pkey" if db.kind == "postgres" else "DROP PRIMARY KEY"
    add = f", ADD PRIMARY KEY ({columns})" if columns else ""
    db.run(f"ALTER TABLE {table} {drop}{add}")
    if db.kind == "postgres" and not columns:
        db.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")


class Copy:
    """`sync` of the tables into StarRocks."""

    def __init__(self, home: Path, starrocks: Warehouse, servers: str, db: Database, jars: str, more: str = "") -> None:
        self.starrocks, self.db, self.folder, self.file = starrocks, db, home / "sync", home / "shop.toml"
        starrocks.ask("CREATE DATABASE shop")
        text = f"""
[source]
brokers = "{servers}"
topics = '{db.topics}'

[target]
load_url = "http://fe:8030"
query_url = "mysql://fe:9030"
database = "shop"
job = "shop"
username = "sink"
password_environment = "STARROCKS_PASSWORD"

[query]
checkpoint = "{self.folder / "checkpoint"}"

[spark]
"spark.jars" = "{jars}"

{more}
"""
        self.file.write_text(starrocks.placed(text), encoding="utf-8")
        self.start()

    def start(self) -> None:
        self.process = SyncProcess(self.file, self.folder, self.starrocks.environment)

    def add(self, text: str) -> None:
        """One more piece of the file."""
        self.file.write_text(f"{self.file.read_text()}\n{text}\n", encoding="utf-8")

    def rows(self, table: str) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        with suppress(pymysql.MySQLError):  # the table is not there yet
            rows = [(int(a), int(b)) for a, b in self.starrocks.ask(f"SELECT id, code FROM shop.{table} ORDER BY 1, 2")]
        return rows

    def wait(self, table: str, source: str = "") -> None:
        """Until a table is that of the source."""
        select = f"SELECT id, code FROM {source or table} ORDER BY 1, 2"
        rows = [(int(a), int(b)) for a, b in self.db.rows(select)]
        wait_until(
            lambda: self.rows(table) == rows,
            reason=self.process.messages,
            alive=lambda: self.process.running,
            seconds=120,
        )

    def refused(self) -> str:
        """The error that has ended the process."""
        wait_until(lambda: not self.process.running, reason=self.process.messages, seconds=120)
        return re.sub(r"\s+", " ", self.process.messages())


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_rows_under_another_key_stop_the_query_before_they_are_written(
    kind: str, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARROCKS_PASSWORD", warehouse.password)
    with ExitStack() as stack:
        jars, db = set_up(kind, tmp_path, stack)
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        for table in TABLES:
            key = "id, code" if table == "reordered" else "id"
            db.run(f"CREATE TABLE {table} (id INT NOT NULL, code INT NOT NULL, PRIMARY KEY ({key}))")
            db.commit(f"INSERT INTO {table} VALUES (1, 10), (2, 20)")
        connect = stack.enter_context(db.captured(broker, tmp_path))
        db.commit(*(f"INSERT INTO {table} VALUES (3, 30)" for table in TABLES))
        topics = {f"shop.{db.schema}.{table}" for table in TABLES} | {"shop.transaction"}
        wait_until(lambda: topics <= broker.topics(), reason=connect.messages)
        copy = Copy(tmp_path, warehouse, broker.servers, db, jars)
        stack.callback(lambda: copy.process.kill())
        for table in TABLES:
            copy.wait(table)

        new_key(db, "reordered", "code, id")
        db.commit("INSERT INTO reordered VALUES (4, 40)", "DELETE FROM reordered WHERE id = 1")
        copy.wait("reordered")

        new_key(db, "replaced", "code")
        db.commit("INSERT INTO replaced VALUES (3, 31)", "DELETE FROM replaced WHERE code = 10")
        error = copy.refused()
        assert f"table {db.schema}.replaced came under the key (code), and before under (id)" in error
        reason = "Table replaced: its key (id) has id, which the source's key (code) does not determine"
        assert reason in error
        copy.start()
        assert reason in copy.refused()  # at the start, too
        assert copy.rows("replaced") == [(1, 10), (2, 20), (3, 30)]
        copy.add(
            "[[routes]]\nfrom = '.*\\.replaced'\nto = 'replaced_anew'\n\n[[routes]]\nfrom = '.*\\.(.*)'\nto = '{1}'"
        )
        copy.start()
        wait_until(lambda: (3, 31) in copy.rows("replaced_anew"), reason=copy.process.messages, seconds=120)
        assert copy.rows("replaced_anew") == [(3, 31)]  # a snapshot would bring the rows before

        new_key(db, "dropped", "")
        db.commit("INSERT INTO dropped VALUES (4, 40)")
        error = copy.refused()
        assert f"table {db.schema}.dropped came under the key none, and before under (id)" in error
        assert copy.rows("dropped") == [(1, 10), (2, 20), (3, 30)]
        copy.add('[target.tables.dropped]\nkeys = ["id"]')
        copy.start()
        copy.wait("dropped")


@pytest.mark.parametrize("converter", ["AvroConverter", "ExtJsonConverter"])
def test_keys_whose_schema_a_registry_has_are_compared(
    converter: str, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARROCKS_PASSWORD", warehouse.password)
    with ExitStack() as stack:
        jars, db = set_up("postgres", tmp_path, stack)
        fetched(CONNECT_AVRO)
        registry = stack.enter_context(Registry(tmp_path / "registry"))
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        db.run("CREATE TABLE coded (id INT NOT NULL, code INT NOT NULL, PRIMARY KEY (id))")
        db.commit("INSERT INTO coded VALUES (1, 10)")
        connector = {name: value for name, value in db.connector(broker.servers).items() if "converter" not in name}
        connector |= registry.converters(converter)
        connect = stack.enter_context(Connect(tmp_path / "connect", broker.servers, connector, CONNECT_AVRO))
        wait_until(lambda: "shop.public.coded" in broker.topics(), reason=connect.messages)
        db.commit("INSERT INTO coded VALUES (2, 20)")
        copy = Copy(tmp_path, warehouse, broker.servers, db, jars, f'[assembly.registry]\nurl = "{registry.url}"')
        stack.callback(lambda: copy.process.kill())
        copy.wait("coded")
        new_key(db, "coded", "code")
        db.commit("INSERT INTO coded VALUES (1, 11)")
        assert "table public.coded came under the key (code), and before under (id)" in copy.refused()
        assert copy.rows("coded") == [(1, 10), (2, 20)]
