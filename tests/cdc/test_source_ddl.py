"""Fourteen kinds of DDL on PostgreSQL and MariaDB under load, with kills of driver, worker and server.

`sync` follows with each `schema_changes`: StarRocks has every row of every transaction right afterwards, and what a
rule masks or drops is in no file. CDC_TICKS sets how many transactions stand between two DDLs; with it both databases
have all three settings, which takes minutes.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from starrocks_emulator.process import EmulatorProcess
from starrocks_emulator.settings import Settings
from starrocks_txn_ops.sync.command import newest, planned
from starrocks_txn_ops.sync.settings import read_sync
from tests.cdc.changing_tables import CHANGES, HIDDEN, SECRET, Source, plain
from tests.cdc.databases import set_up
from tests.cdc.sync_process import SyncProcess
from tests.kafka.broker import Broker
from tests.support.quick_start import PASSWORD, USER, Warehouse
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

TICKS = int(os.environ.get("CDC_TICKS", "3"))
ALSO = {"postgres": ["fail"], "mariadb": ["ignore"]} if "CDC_TICKS" not in os.environ else {}
SALT = "a salt that is long enough"
STATEMENT = re.compile(r"ALTER TABLE `(\w+)` (\w+) COLUMN `(\w+)` (\w+(?:\([\d,]+\))?(?: NOT NULL)?)")


class Target:
    """One `sync` into a database of its own, with one `schema_changes`."""

    def __init__(self, setting: str, home: Path, starrocks: Warehouse, servers: str, topics: str, jars: str) -> None:
        self.setting, self.starrocks, self.name = setting, starrocks, f"shop_{setting}"
        self.folder = home / self.name
        self.folder.mkdir()
        self.file = self.folder / "shop.toml"
        starrocks.ask(f"CREATE DATABASE {self.name}")
        self.file.write_text(
            f"""
[source]
brokers = "{servers}"
topics = '{topics}'
max_offsets = 400

[target]
load_url = "{starrocks.server.load_url}"
query_url = "{starrocks.server.query_url}"
database = "{self.name}"
job = "{self.name}"
username = "{USER}"
password_environment = "STARROCKS_PASSWORD"
schema_changes = "{setting}"

[tables]
create = false

[[rules]]
tables = '.*'
metadata = ["_txn_id"]

[[rules]]
tables = 't_.*'
mask = {{ secret = "sha256" }}
drop = ["hidden"]
salt_environment = "MASK_SALT"

[[rules]]
tables = 't_drop_column'
history = "{{0}}_log"
deletes = "mark"

[query]
checkpoint = "{self.folder / "checkpoint"}"

[spark]
"spark.jars" = "{jars}"
""",
            encoding="utf-8",
        )
        self.process: SyncProcess | None = None
        self.helped: list[str] = []

    def create(self) -> None:
        """The tables, as the command makes them at its start."""
        sync = read_sync(str(self.file))
        plan = planned(sync, newest(sync, 60), 60)
        assert not plan.refusals, plan.refusals
        plan.apply()

    def start(self) -> SyncProcess:
        self.process = SyncProcess(self.file, self.folder, {**self.starrocks.environment, "MASK_SALT": SALT})
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()

    def columns(self) -> dict[str, list[str]]:
        column_names: dict[str, list[str]] = {}
        for table, column in self.starrocks.ask(
            f"SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.columns WHERE TABLE_SCHEMA = '{self.name}'"
        ):
            column_names.setdefault(table, []).append(column)
        return column_names

    def different(self, source: Source) -> dict[str, Any]:
        """Rows that only StarRocks has, and rows that only the source has, of each table that differs."""
        columns = self.columns()
        different: dict[str, Any] = {}
        for table, (names, rows) in source.expected(columns).items():
            live = " WHERE NOT _deleted" if "_deleted" in columns[table] else ""
            stored_rows = self.starrocks.ask(f"SELECT {', '.join(names)} FROM {self.name}.{table}{live} ORDER BY id")
            texts = [tuple(map(plain, row)) for row in stored_rows]
            if texts != rows:
                only_stored, only_expected = (
                    [row for row in a if row not in b][:3] for a, b in ((texts, rows), (rows, texts))
                )
                different[table] = (names, only_stored, only_expected)
        return different

    def check_history(self) -> None:
        """The table with marks is the fold of its history."""
        rows: dict[int, tuple[Any, ...]] = {}
        order = "ORDER BY _source_partition, _position, _seq"
        for op, *values in self.starrocks.ask(f"SELECT _op, id, s, filled FROM {self.name}.t_drop_column_log {order}"):
            deleted = op == "d"
            rows[values[0]] = (*(rows[values[0]][:3] if deleted else values), deleted)
        table = f"SELECT id, s, filled, _deleted FROM {self.name}.t_drop_column ORDER BY id"
        assert self.starrocks.ask(table) == [row for _, row in sorted(rows.items())]
        assert {row[3] for row in rows.values()} == {True, False}

    def count(self) -> int:
        """The source transactions that are there, whole; 0 while the server is down."""
        counts = ", ".join(f"(SELECT count(*) FROM {self.name}.{table})" for table in ("left_sum", "right_sum"))
        with suppress(pymysql.MySQLError, OSError):
            ((left_sum, right_sum),) = self.starrocks.ask(f"SELECT {counts}")
            assert left_sum == right_sum
            return int(left_sum)
        return 0

    def crash(self, what: str) -> None:
        """`kill -9`."""
        assert self.process is not None
        if what == "driver":
            self.process.kill()
            self.start()
        elif what == "server":
            self.starrocks.server.kill()
            self.starrocks.server.start()

    def catch_up(self, source: Source, until: int | None = None) -> None:
        """Wait for all transactions, or for `until`; what stops the query is done by hand, as the error says."""
        end = time.monotonic() + 600
        while self.count() < (until or source.number):
            assert self.process is not None
            assert time.monotonic() < end, self.process.messages()
            if not self.process.running:
                self.helped.append(self.help())
                self.start()
            time.sleep(0.3)  # between two looks; the condition is above

    def reached(self, source: Source) -> bool:
        return self.count() == source.number

    def help(self) -> str:
        """Do by hand what the error says; what was done."""
        assert self.process is not None
        output_tail = self.process.messages().rpartition("batch.failed")[2]
        statements = list(STATEMENT.finditer(output_tail))
        if statements:
            for match in statements:
                table, action, column, kind = match.groups()
                self.starrocks.ask(f"ALTER TABLE {self.name}.{table} {action} COLUMN {column} {kind}")
            return f"{output_tail[:60]}: {statements[0][0]}"
        unfit = re.search(r"does not fit column (?P<column>\w+) of table (?P<table>\w+)", output_tail)
        if unfit:
            self.starrocks.ask(
                f"ALTER TABLE {self.name}.{unfit['table']} MODIFY COLUMN {unfit['column']} VARCHAR(65533) NOT NULL"
            )
            return unfit[0]
        key = re.search(r"came under the key .*?Table (\w+): its key \((\w+)\)", output_tail)
        if key:  # which is still unique
            text = self.file.read_text(encoding="utf-8")
            self.file.write_text(f'{text}\n[target.tables.{key[1]}]\nkeys = ["{key[2]}"]\n', encoding="utf-8")
            return key[0]
        created = re.search(r"Run (CREATE TABLE .*?); or set", output_tail)
        if created:
            self.starrocks.ask(created[1])
            return created[1]
        raise AssertionError(output_tail)


def run_with_kills(target: Target, source: Source) -> None:
    """Each DDL between transactions, while the query runs; then it catches up."""
    process = target.start()
    wait_until(lambda: target.reached(source), reason=process.messages, alive=lambda: process.running)
    for number, change in enumerate(CHANGES):
        for _ in range(TICKS):
            source.tick()
        source.change(change)
        source.tick()
        target.crash(("nothing", "server", "driver", "nothing")[number % 4])
    source.tick()
    target.catch_up(source)


def catch_up_with_kills(target: Target, source: Source) -> None:
    """From the first message on; the driver, twice, and the server are killed on the way."""
    process = target.start()
    wait_until(lambda: target.count() > 0 or not process.running, reason=process.messages)
    target.crash("driver")
    target.catch_up(source, until=12)
    target.crash("server")
    target.crash("driver")
    target.catch_up(source)


def needles(folder: Path) -> list[str]:
    """Files that have a value which a rule masks or drops."""
    return [
        f"{file}: {text}"
        for file in folder.rglob("*")
        if file.is_file()
        for content in [file.read_bytes()]
        for text in (f"{SECRET}-", f"{HIDDEN}-")
        if text.encode() in content
    ]


@pytest.mark.own_emulator("it is killed")
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_starrocks_follows_a_source_whose_tables_change(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARROCKS_PASSWORD", PASSWORD)
    monkeypatch.setenv("MASK_SALT", SALT)
    with ExitStack() as stack:
        jars, db = set_up(kind, tmp_path, stack)
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        source = Source(db)
        connect = stack.enter_context(db.captured(broker, tmp_path))
        emulator = EmulatorProcess(tmp_path / "starrocks", Settings(user=USER, password=PASSWORD, cores=8))
        starrocks = Warehouse(stack.enter_context(emulator))
        source.tick()
        tables = {f"shop.{db.schema}.{table.name}" for table in source.tables.values() if table.live}
        wait_until(lambda: tables | {"shop.transaction"} <= broker.topics(), reason=connect.messages)
        settings = ["apply", *ALSO.get(kind, ["fail", "ignore"])]
        targets = [Target(setting, tmp_path, starrocks, broker.servers, db.topics, jars) for setting in settings]
        for target in targets:
            stack.callback(target.stop)
            target.create()
        run_with_kills(targets[0], source)
        for target in targets[1:]:
            catch_up_with_kills(target, source)
        for target in targets:
            target.stop()
            assert target.different(source) == {}, (target.setting, target.helped)
            target.check_history()
            assert "hidden" not in str(target.columns())
            assert needles(target.folder) == []
            assert len(target.helped) >= {"apply": 2, "fail": 9, "ignore": 5}[target.setting], target.helped
        masked = starrocks.ask("SELECT secret FROM shop_apply.t_widen_masked LIMIT 1")
        assert re.fullmatch("[0-9a-f]{64}", masked[0][0])
        assert needles(tmp_path / "starrocks") == []
        assert needles(tmp_path / "broker")  # the search finds it where it is
