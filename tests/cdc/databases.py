"""PostgreSQL and MariaDB behind one face, with a connector that writes schemas and transactions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cdc.connect import CONNECT, CONNECT_MARIADB, PREFIX, Connect, for_postgres
from tests.cdc.mariadb import MariaDB, NoMariaDB
from tests.cdc.postgres import NoPostgres, Postgres
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives, fetched
from tests.support.quick_start import blocks
from tests.support.waiting import wait_until

POMS = {"postgres": CONNECT, "mariadb": CONNECT_MARIADB}
_WITH_SCHEMAS = {
    **{f"{part}.converter": "org.apache.kafka.connect.json.JsonConverter" for part in ("key", "value")},
    "provide.transaction.metadata": "true",
    **json.loads(blocks("docs/start/debezium.md", "json")[2]),
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "1",
}


@dataclass(frozen=True)
class Database:
    """A running database; `schema` is the first part of its tables' names."""

    kind: str
    server: Any
    schema: str

    @property
    def topics(self) -> str:
        """A regular expression for all topics of the connector."""
        return rf"{PREFIX}\.({self.schema}\..*|transaction)"

    def commit(self, *statements: str) -> None:
        """Run statements as one transaction."""
        if self.kind == "postgres":
            self.server.sql(f"BEGIN; {'; '.join(statements)}; COMMIT;")
        else:
            self.server.sql("USE shop", "BEGIN", *statements, "COMMIT")

    def run(self, statement: str) -> None:
        """Run a statement outside of a transaction."""
        self.server.sql(*(["USE shop"] if self.kind == "mariadb" else []), statement)

    def rows(self, select: str) -> list[tuple[Any, ...]]:
        if self.kind == "mariadb":
            rows: list[tuple[Any, ...]] = self.server.sql("USE shop", select)
            return rows
        return [tuple(None if text == "" else text for text in row) for row in self.server.sql(select)]

    def connector(self, servers: str) -> dict[str, str]:
        if self.kind == "postgres":
            return for_postgres(self.server.port) | _WITH_SCHEMAS
        return {
            "name": PREFIX,
            "topic.prefix": PREFIX,
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.server.port),
            "database.user": "root",
            "database.password": "",
            "database.server.id": "5400",
            "database.include.list": "shop",
            "schema.history.internal.kafka.bootstrap.servers": servers,
            "schema.history.internal.kafka.topic": "history",
        } | _WITH_SCHEMAS

    @contextmanager
    def captured(self, broker: Broker, home: Path) -> Iterator[Connect]:
        """A connector that streams."""
        with Connect(home / "connect", broker.servers, self.connector(broker.servers), POMS[self.kind]) as connect:
            wait_until(self._streams, reason=connect.messages, alive=lambda: connect.running)
            yield connect

    def _streams(self) -> bool:
        if self.kind == "postgres":
            return bool(self.server.sql("SELECT 1 FROM pg_replication_slots WHERE active"))
        return "Binlog Dump" in str(self.server.sql("SHOW PROCESSLIST"))


@contextmanager
def database(kind: str, home: Path) -> Iterator[Database]:
    """A database, empty; raises NoPostgres or NoMariaDB."""
    if kind == "postgres":
        with Postgres() as postgres:
            yield Database(kind, postgres, "public")
    else:
        with MariaDB(home / "mariadb") as mariadb:
            mariadb.sql("CREATE DATABASE shop")
            yield Database(kind, mariadb, "shop")


def set_up(kind: str, home: Path, stack: ExitStack) -> tuple[str, Database]:
    """Spark's archives for Kafka, and an empty database, until the stack ends; skips a test that cannot have them."""
    try:
        fetched(POMS[kind])
        return archives(SPARK), stack.enter_context(database(kind, home))
    except (NoMaven, NoPostgres, NoMariaDB) as missing:
        pytest.skip(str(missing))
