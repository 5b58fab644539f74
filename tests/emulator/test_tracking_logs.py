"""What a server says of filtered rows: load_tracking_logs and SHOW ALL STREAM LOAD (wire contract 5.10, 6.5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymysql
import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from tests.support.contract_client import Client, Server
from tests.support.query_port import query

LOG_SECONDS = 0.2


@dataclass
class Refused:
    """A label of three tables whose commit failed: one has good and bad rows, one only a bad row, one only good."""

    emulator: Emulator
    label: str
    tables: list[str]

    def ask(self, sql: str, user: str = "root") -> list[tuple[Any, ...]]:
        return query(self.emulator, sql, user=user)

    def logs(self) -> list[tuple[str, str, str]]:
        sql = "SELECT TABLE_NAME, TYPE, TRACKING_LOG FROM information_schema.load_tracking_logs WHERE LABEL = "
        return [(str(table), str(kind), str(text)) for table, kind, text in self.ask(f"{sql}'{self.label}'")]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refused]:
    folder: Path = tmp_path_factory.mktemp("emulator")
    with Emulator(folder, Settings(log_seconds=LOG_SECONDS)) as emulator:
        query(emulator, "CREATE DATABASE d")
        client = Client(Server(emulator.load_url, emulator.query_url, "root", "", "d", "B"))
        with client.session:
            tables, label = [client.table() for _ in range(3)], client.begin()
            for table, rows in zip(tables, ('{"id": 1}{"id": null}', '{"id": null}', '{"id": 1}'), strict=True):
                client.loaded(label, table, rows.encode())
            assert not client.commit(label).ok
            yield Refused(emulator, label, tables)


def test_each_table_has_two_logs_also_without_a_filtered_row_and_texts_grow(refused: Refused) -> None:
    logs = refused.logs()
    assert [(table, kind) for table, kind, _ in logs] == [
        (table, kind) for table in refused.tables for kind in ("PARALLEL_STREAM_LOAD", "STREAM_LOAD")
    ]
    texts = [text for *_, text in logs]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert texts[1].count("Error: NULL value in non-nullable column 'id'") == 2
    assert texts[-1].count("Failed to access  err: Internal error: URL using bad/illegal format or missing URL") == 4


def test_each_missing_log_takes_its_time(refused: Refused) -> None:
    started = time.monotonic()
    refused.logs()
    assert time.monotonic() - started >= 4 * LOG_SECONDS


def test_the_statement_that_loads_shows_finds_nothing(refused: Refused) -> None:
    (sql,) = refused.ask(
        f"SELECT TRACKING_SQL FROM information_schema.loads WHERE TABLE_NAME = '{refused.tables[0]}'"
        f" AND LABEL = '{refused.label}'"
    )[0]
    assert "job_id=" in sql
    assert refused.ask(sql) == []


def test_a_table_is_shown_to_those_who_may_load_it(refused: Refused) -> None:
    show = f"SHOW ALL STREAM LOAD FOR `{refused.label}` FROM d"
    assert {row[5] for row in refused.ask(show)} == set(refused.tables)
    refused.ask("CREATE USER 'w' IDENTIFIED BY ''")
    with pytest.raises(pymysql.err.Error, match="There is no label named"):
        refused.ask(show, user="w")
    refused.ask(f"GRANT INSERT ON TABLE d.{refused.tables[1]} TO USER 'w'")
    assert [(row[5], row[12]) for row in refused.ask(show, user="w")] == [(refused.tables[1], "1")]
