"""What a person at a terminal sees of `sync`: what runs, how it does, and a sum at Ctrl-C; no noise."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
import uuid
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.kafka.test_sync_new_source import FILE, notes
from tests.support.debezium_topics import send
from tests.support.quick_start import ROOT, Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class OnTerminal:
    """A command whose output is a terminal; `text` has what came there."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._terminal, end = os.openpty()
        self.text, self._came = "", threading.Condition()
        # A group of its own, since Ctrl-C reaches all processes of the terminal's.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=end, stderr=end, env=environment, start_new_session=True
        )
        os.close(end)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._terminal, 65536)
            except OSError:  # the last process has ended
                return
            with self._came:
                self.text += piece.decode(errors="replace")
                self._came.notify_all()

    def wait_for(self, pattern: str, seconds: float) -> None:
        with self._came:
            assert self._came.wait_for(lambda: re.search(pattern, self.text), seconds), self.text

    def interrupt(self) -> int:
        os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(60)

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)
        self._reader.join(20)
        os.close(self._terminal)


def test_a_person_sees_what_runs_and_what_it_has_done(
    broker: Broker, warehouse: Warehouse, spark_kafka: str, tmp_path: Path
) -> None:
    prefix = f"n{uuid.uuid4().hex[:8]}"
    broker.create({f"{prefix}.transaction": 1, f"{prefix}.public.notes": 1})
    send(broker.servers, notes(prefix, "x", *range(10)))
    warehouse.run("CREATE DATABASE shop;")
    text = (
        FILE.replace("until_end = true\n", "")
        .replace("[target]\n", "[target]\nmetrics_port = 0\n")
        .format(
            brokers=broker.servers, prefix=prefix, checkpoint=tmp_path / "checkpoint", archives=json.dumps(spark_kafka)
        )
    )
    text = warehouse.placed(text)
    (tmp_path / "shop.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "starrocks_txn_sink", "sync", str(tmp_path / "shop.toml")]
    more = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    sync = OnTerminal(command, os.environ | {**warehouse.environment, **more})
    try:
        sync.wait_for("last commit .*10 rows in 1 commit", 120)
        assert sync.interrupt() == 0, sync.text
    finally:
        sync.close()
    lines = [line.rpartition("\x1b[K")[2].strip() for line in sync.text.split("\n")]
    created, starting, running, ended = [line for line in lines if line]
    assert created.startswith("CREATE TABLE IF NOT EXISTS")
    (file,) = tmp_path.glob("starrocks-txn-sink-shop-*.log")
    assert starting == f"sync: starting Spark; what Spark, Ivy and Kafka's client say is in {file}"
    database = tomllib.loads(text)["target"]["database"]
    page = r"http://127\.0\.0\.1:\d+/"  # of a free port
    assert re.fullmatch(f"sync: running, 1 table, into database {database}, page at {page}, Ctrl-C ends it", running)
    assert re.fullmatch(r"sync: ended: 10 rows in 1 commit, .*rows/s", ended)
    assert "WARN" in file.read_text(encoding="utf-8")
