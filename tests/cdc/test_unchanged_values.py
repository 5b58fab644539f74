"""PostgreSQL's large values that an update leaves alone, with Debezium's own settings: the columns keep them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cdc.connect import CONNECT, Connect, for_postgres
from tests.cdc.postgres import NoPostgres, Postgres
from tests.cdc.run import asking, task_of
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives, fetched
from tests.kafka.query_process import QueryProcess
from tests.support.servers import Server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

# So long, and so hard to compress, that PostgreSQL keeps it outside of the row.
LARGE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n)"
TABLE = "CREATE TABLE documents (id INT PRIMARY KEY, title TEXT, body TEXT, content JSONB, numbers INT[])"
TARGET = (
    "CREATE TABLE shop.documents (id INT NOT NULL, title STRING, body STRING, content JSON, numbers ARRAY<INT>) "
    "PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
)
NUMBERS = "(SELECT array_agg((n * 7919) % 1000003) FROM generate_series(1, 2000) n)"


def test_an_unchanged_large_value_is_never_overwritten(tmp_path: Path, starrocks: Server) -> None:
    with ExitStack() as stack:
        try:
            fetched(CONNECT)
            jars, postgres = archives(SPARK), stack.enter_context(Postgres())
        except (NoMaven, NoPostgres) as missing:
            pytest.skip(str(missing))
        broker = stack.enter_context(Broker(tmp_path / "broker"))
        ask = asking(starrocks)
        ask("CREATE DATABASE shop")
        ask(TARGET)
        postgres.sql(TABLE)
        connect = stack.enter_context(Connect(tmp_path / "connect", broker.servers, for_postgres(postgres.port)))
        wait_until(
            lambda: postgres.sql("SELECT 1 FROM pg_replication_slots WHERE active"),
            reason=connect.messages,
            alive=lambda: connect.running,
        )
        content = f"jsonb_build_object('text', {LARGE}, 'price', 0.10)"
        postgres.sql(f"INSERT INTO documents VALUES (1, 'draft', {LARGE}, {content}, {NUMBERS})")
        wait_until(lambda: "shop.public.documents" in broker.topics(), reason=connect.messages)
        task = task_of(broker, starrocks, jars, tmp_path) | {"assemble": "lanes", "reader": "librdkafka"}
        query = QueryProcess(task)
        stack.callback(lambda: query.kill())
        values = "MD5(body), content, numbers FROM shop.documents"
        wait_until(lambda: ask("SELECT title FROM shop.documents") == [("draft",)], reason=query.messages)
        values_before = ask(f"SELECT {values}")
        postgres.sql("UPDATE documents SET title = 'final' WHERE id = 1")
        wait_until(lambda: ask("SELECT title FROM shop.documents") == [("final",)], reason=query.messages)
        assert ask(f"SELECT {values}") == values_before
        ((_, content, numbers),) = values_before
        document = json.loads(content)  # it comes as a text, and becomes the document
        assert (len(document["text"]), len(json.loads(numbers))) == (12_800, 2000)
