"""A job of `sync` under traffic behind a real database, for tests of `verify`: columns of all types, and faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_ops import cli
from starrocks_txn_sink.rows.target import TargetType, parse_type
from tests.cdc import source_types
from tests.cdc.connect import Connect
from tests.cdc.databases import POMS, Database, set_up
from tests.cdc.source_types import Case
from tests.cdc.sync_process import SyncProcess
from tests.kafka.broker import Broker
from tests.support.quick_start import Warehouse
from tests.support.waiting import wait_until

Shown = pytest.CaptureFixture[str]

# What the connector itself loses (docs/reference/debezium-types.md), and what no column holds.
_LOST = ("NaN", "nfinity", "10000-01-01", " BC", "0001-01-01", "0000-00-00")
CASES = {
    kind: tuple(
        case
        for case in cases
        if case.type != "bit varying(10)" and not any(text in case.value for text in _LOST if "range" not in case.type)
    )
    for kind, cases in (("postgres", source_types.POSTGRES), ("mariadb", source_types.MARIADB))
}
OTHER = {
    "BOOLEAN": "NOT {0}",
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "DECIMAL"), "7"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "7.25"),
    "DATE": "'2001-01-01'",
    "DATETIME": "'2024-02-29 12:34:56.123457'",
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), "concat({0}, '!')"),
    "JSON": "parse_json('[7]')",
    **dict.fromkeys(("ARRAY", "MAP", "STRUCT"), "NULL"),
}
"""Another value for a column, by its type."""


class Traffic:
    """Writes `orders` all the time: rows come, change and go, and so the source's position moves.

    Who holds `committing` lets it rest.
    """

    def __init__(self, db: Database) -> None:
        self._db, self._end, self._number = db, threading.Event(), 0
        self.committing = threading.Lock()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        while not self._end.is_set():
            self._number += 1
            number = self._number
            with self.committing:
                self._db.commit(
                    f"INSERT INTO orders VALUES ({number}, 'n{number}', {number}.25)",
                    f"UPDATE orders SET price = price + 1 WHERE id = {number // 2}",
                    "UPDATE orders SET price = price + 1 WHERE id = 0",
                    f"DELETE FROM orders WHERE id = {number - 50}",
                )
            self._end.wait(0.02)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


class Fixture:
    """A job that runs, with its file."""

    def __init__(
        self,
        db: Database,
        warehouse: Warehouse,
        file: Path,
        process: SyncProcess,
        traffic: Traffic,
        broker: Broker,
        connect: Connect,
    ) -> None:
        self.db, self.warehouse, self.file, self.process = db, warehouse, file, process
        self.traffic, self.broker, self.connect = traffic, broker, connect

    def verified(
        self, capsys: Shown, *words: str, command: str = "verify"
    ) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
        """The exit code, the tables of the report by name, and the report."""
        capsys.readouterr()
        code = cli.main([command, str(self.file), "--json", "--keys", "100", "--wait", "60", *words])
        printed = capsys.readouterr()
        assert printed.out, printed.err
        report = json.loads(printed.out)
        return code, {table["table"]: table for table in report["tables"]}, report


@contextmanager
def running(kind: str, warehouse: Warehouse, tmp_path: Path, rules: str = "") -> Iterator[Fixture]:
    """A job, by a file with these `rules`, that has begun to write."""
    cases = CASES[kind]
    with ExitStack() as stack:
        jars, db = set_up(kind, tmp_path, stack)
        _create(db, cases)
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        settings = db.connector(broker.servers) | {"include.unknown.datatypes": "true"}
        connect = stack.enter_context(Connect(tmp_path / "connect", broker.servers, settings, POMS[kind]))
        wait_until(db._streams, reason=connect.messages, alive=lambda: connect.running)
        traffic = stack.enter_context(Traffic(db))
        topics = {f"shop.{db.schema}.{table}" for table in ("orders", "types", "codes", "items")} | {"shop.transaction"}
        wait_until(lambda: topics <= broker.topics(), reason=connect.messages, alive=lambda: connect.running)
        warehouse.ask("CREATE DATABASE shop")
        warehouse.ask("CREATE TABLE shop.items (id INT, name VARCHAR(160)) DUPLICATE KEY (id) DISTRIBUTED BY HASH (id)")
        file = tmp_path / "shop.toml"
        assert cli.main(["init", "--kafka", broker.servers, "--prefix", "shop", "--output", str(file)]) == 0
        text = warehouse.placed(file.read_text(encoding="utf-8"))
        user, scheme, name = ("postgres", "postgresql", "postgres") if kind == "postgres" else ("root", "mysql", "shop")
        url = f"{scheme}://{user}@127.0.0.1:{db.server.port}/{name}"
        text = text.replace("[source]\n", f'[source]\ndatabase = "{url}"\n')
        file.write_text(f'{text}\n{rules}[spark]\n"spark.jars" = {json.dumps(jars)}\n', encoding="utf-8")
        for name, value in warehouse.environment.items():
            stack.enter_context(pytest.MonkeyPatch.context()).setenv(name, value)
        process = SyncProcess(file, tmp_path / "sync", warehouse.environment)
        stack.callback(process.kill)

        def arrived() -> bool:
            names = {str(name) for (name,) in warehouse.ask("SHOW TABLES FROM shop")}
            return "orders" in names and bool(warehouse.ask("SELECT count(*) FROM shop.orders")[0][0])

        wait_until(arrived, 240, process.messages, alive=lambda: process.running)
        yield Fixture(db, warehouse, file, process, traffic, broker, connect)


def _create(db: Database, cases: tuple[Case, ...]) -> None:
    create_types(db, cases)
    more = _charset(db)
    for table, columns in (
        ("orders", "id BIGINT PRIMARY KEY, name VARCHAR(40), price DECIMAL(12,2)"),
        ("codes", "code VARCHAR(20), n INT, PRIMARY KEY (code, n)"),
        ("items", "id INT PRIMARY KEY, name VARCHAR(40)"),
    ):
        db.run(f"CREATE TABLE {table} ({columns}){more}")
    db.run("INSERT INTO orders VALUES (0, 'hot', 1)")
    db.run(f"INSERT INTO codes VALUES {', '.join(f'({chr(39)}é{number}{chr(39)}, {number})' for number in range(300))}")
    db.run("INSERT INTO items VALUES (1, 'a'), (2, 'b'), (3, 'c')")


def create_types(db: Database, cases: tuple[Case, ...]) -> None:
    """The table `types` with a column of each case, and a row for each column and more."""
    if db.kind == "postgres":
        for extension in ("hstore", "citext", "ltree"):
            db.run(f"CREATE EXTENSION {extension}")
        db.run("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    db.run(f"CREATE TABLE types (id INT PRIMARY KEY, {', '.join(source_types.columns(cases))}){_charset(db)}")
    for number in range(len(cases) + 2):
        db.run(f"INSERT INTO types VALUES ({number}, {source_types.values(cases)})")
    nothing = [f"NULL DEFAULT {case.value}" for case in cases if "NOT NULL" in case.type]
    assert not nothing
    db.run(f"INSERT INTO types VALUES (1000{', NULL' * len(cases)})")


def _charset(db: Database) -> str:
    return " CHARSET utf8mb4" if db.kind == "mariadb" else ""


def change_each_column(warehouse: Warehouse, cases: tuple[Case, ...]) -> None:
    """Change column number N of `types` in the row of this number."""
    kinds: dict[str, TargetType] = {
        str(name): parse_type(str(kind))
        for name, kind in warehouse.ask(
            "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.columns"
            " WHERE TABLE_SCHEMA = 'shop' AND TABLE_NAME = 'types'"
        )
    }
    for number in range(len(cases)):
        other = OTHER[kinds[f"c{number}"].name].format(f"c{number}")
        warehouse.ask(f"UPDATE shop.types SET c{number} = {other} WHERE id = {number}")
