"""`sync` after `source_changed`: what the error says to set goes on, without a row lost or written twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.support.connect_schema import field
from tests.support.debezium_topics import Message, send, transaction
from tests.support.quick_start import ROOT, Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

NOTES = {"id": field("int64"), "text": field("string")}
FILE = """
[source]
brokers = "{brokers}"
topics = '{prefix}\\.(public\\..*|transaction)'
[target]
load_url = "http://fe:8030"
query_url = "mysql://fe:9030"
database = "shop"
job = "shop"
username = "sink"
password_environment = "STARROCKS_PASSWORD"
[assembly]
open_timeout = "10 min"
on_open_timeout = "fail"
[query]
checkpoint = "{checkpoint}"
until_end = true
[spark]
"spark.master" = "local[1]"
"spark.jars" = {archives}
"spark.ui.enabled" = "false"
"spark.driver.memory" = "700m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""


def notes(prefix: str, text: str, *numbers: int) -> list[Message]:
    """A transaction of one row each; the id is the number, and the place grows with it."""
    return [
        message
        for number in numbers
        for message in transaction(number, ("notes", NOTES, {"id": number, "text": text}), prefix=prefix)
    ]


class Sync:
    """A file of sync, and the command."""

    def __init__(self, file: Path, text: str, environment: dict[str, str]) -> None:
        self._file, self._text = file, text
        self._environment = os.environ | {**environment, "PYTHONPATH": str(ROOT)}
        file.write_text(text, encoding="utf-8")

    def set(self, *changes: tuple[str, str]) -> None:
        for before, after in changes:
            assert self._text.count(before) == 1, before
            self._text = self._text.replace(before, after)
        self._file.write_text(self._text, encoding="utf-8")

    def run(self) -> tuple[int, str]:
        command = [sys.executable, "-m", "starrocks_txn_sink", "sync", str(self._file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=self._environment)
        return done.returncode, done.stdout + done.stderr


def test_what_the_error_says_goes_on_with_a_restored_database(
    broker: Broker, warehouse: Warehouse, spark_kafka: str, tmp_path: Path
) -> None:
    prefix = f"n{uuid.uuid4().hex[:8]}"
    broker.create({f"{prefix}.transaction": 1, f"{prefix}.public.notes": 1})
    send(broker.servers, notes(prefix, "old", *range(10, 20)))
    warehouse.run("CREATE DATABASE shop;")
    text = FILE.format(
        brokers=broker.servers,
        prefix=prefix,
        checkpoint=tmp_path / "checkpoint",
        archives=json.dumps(spark_kafka),
    )
    sync = Sync(tmp_path / "shop.toml", warehouse.placed(text), warehouse.environment)

    def rows() -> dict[int, str]:
        found = warehouse.ask("SELECT id, `text` FROM shop.notes")
        assert len(found) == len(dict(found))
        return dict(found)

    code, said = sync.run()
    assert (code, rows()) == (0, dict.fromkeys(range(10, 20), "old")), said
    # One more of the old database, then the restored one: with equal ids, and with others at places of before.
    send(broker.servers, notes(prefix, "old", 20))
    time.sleep(0.01)  # the sources are told apart by milliseconds
    send(broker.servers, [*notes(prefix, "restored", 8, *range(15, 23))])
    code, said = sync.run()
    assert code == 78, said
    assert rows() == dict.fromkeys(range(10, 20), "old")
    setting = re.search(r"new_sources = \[[^]]*\]", said)
    assert setting, said
    sync.set(("[assembly]", f"[assembly]\n{setting[0]}"))
    code, said = sync.run()
    assert code == 0, said
    after = dict.fromkeys(range(10, 15), "old") | dict.fromkeys([*range(15, 23), 8], "restored")
    assert rows() == after
