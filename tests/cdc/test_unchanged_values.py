"""PostgreSQL's large values that an update leaves alone, with Debezium's own settings: an error before the load."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from starrocks_emulator.process import EmulatorProcess
from tests.cdc.connect import CONNECT, Connect, for_postgres
from tests.cdc.postgres import NoPostgres, Postgres
from tests.cdc.run import asking, task_of
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives, fetched
from tests.kafka.query_process import QueryProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

# So long, and so hard to compress, that PostgreSQL keeps it outside of the row.
LARGE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n)"
TABLE = "CREATE TABLE documents (id INT PRIMARY KEY, title TEXT, body TEXT)"
TARGET = (
    "CREATE TABLE shop.documents (id INT NOT NULL, title STRING, body STRING) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
)


def test_an_unchanged_large_value_is_never_overwritten(tmp_path: Path) -> None:
    with ExitStack() as stack:
        try:
            fetched(CONNECT)
            jars, postgres = archives(SPARK), stack.enter_context(Postgres())
        except (NoMaven, NoPostgres) as missing:
            pytest.skip(str(missing))
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        starrocks = stack.enter_context(EmulatorProcess(tmp_path / "starrocks"))
        ask = asking(starrocks)
        ask("CREATE DATABASE shop")
        ask(TARGET)
        postgres.sql(TABLE)
        connect = stack.enter_context(Connect(tmp_path / "connect", broker.servers, for_postgres(postgres.port)))
        wait_until(
            lambda: postgres.sql("SELECT 1 FROM pg_replication_slots WHERE active"),
            what=connect.messages,
            alive=lambda: connect.running,
        )
        postgres.sql(f"INSERT INTO documents VALUES (1, 'draft', {LARGE})")
        wait_until(lambda: "shop.public.documents" in broker.topics(), what=connect.messages)
        query = QueryProcess(task_of(broker, starrocks, jars, tmp_path))
        stack.callback(lambda: query.kill())
        written = "SELECT id, title, LENGTH(body) FROM shop.documents"
        wait_until(lambda: ask(written) == [(1, "draft", 12_800)], what=query.messages, alive=lambda: query.running)
        postgres.sql("UPDATE documents SET title = 'final' WHERE id = 1")
        wait_until(lambda: not query.running, what=connect.messages)
        said = query.messages()
        assert "Debezium sent a placeholder for a value that did not change" in said
        assert "table=documents columns=body" in said
        assert "ALTER TABLE public.documents REPLICA IDENTITY FULL" in said
        assert ask(written) == [(1, "draft", 12_800)]
