"""The emulator's transactions of one table, Stream Load, merge commit and scans: deadlines, faults, lost backends."""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Limits, Settings
from starrocks_emulator.sql.scan import _I32, _STRUCT, _TEXT, _field, _read, _text
from tests.support.manual_clock import ManualClock
from tests.support.query_port import query as execute

AUTH = ("root", "")
ROW = b'{"id": 1}'


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def emulator(tmp_path: Path, clock: ManualClock) -> Iterator[Emulator]:
    settings = Settings(Generation.C, backends=2, limits=Limits(max_running_txn_num_per_db=2))
    with Emulator(tmp_path, settings, clock=clock) as emulator:
        execute(emulator, "CREATE DATABASE shop")
        execute(emulator, "CREATE TABLE shop.t (id INT NOT NULL, d DATETIME) PRIMARY KEY (id) DISTRIBUTED BY HASH(id)")
        yield emulator


def send(emulator: Emulator, operation: str, label: str, body: bytes | None = None, **more: str) -> dict[str, Any]:
    """One operation, redirect and all."""
    headers = {"db": "shop", "label": label, "table": "t", "format": "json", **more}
    method, url = ("PUT" if operation == "load" else "POST"), f"{emulator.load_url}/api/transaction/{operation}"
    answer = requests.request(method, url, headers=headers, auth=AUTH, allow_redirects=False, timeout=20)
    if answer.status_code == 307:
        answer = requests.request(method, answer.headers["Location"], headers=headers, data=body, auth=AUTH, timeout=20)
    return dict(answer.json())


def load(emulator: Emulator, label: str) -> None:
    assert send(emulator, "begin", label)["Status"] == "OK"
    assert send(emulator, "load", label, ROW)["Status"] == "OK"


def stream(emulator: Emulator, body: bytes = ROW, **headers: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{emulator.be_port}/api/shop/t/_stream_load"
    return dict(requests.put(url, headers={"format": "json", **headers}, data=body, auth=AUTH, timeout=20).json())


def state(emulator: Emulator, label: str) -> tuple[str, str]:
    url = f"{emulator.load_url}/api/shop/get_load_state?label={label}"
    answer = requests.get(url, auth=AUTH, timeout=20).json()
    return answer["state"], answer.get("reason", "")


def count(emulator: Emulator) -> int:
    return int(execute(emulator, "SELECT count(*) FROM shop.t")[0][0])


def test_a_transaction_past_its_timeout_takes_no_load_and_is_aborted(emulator: Emulator, clock: ManualClock) -> None:
    """Wire contract 2.5, 4.12."""
    assert send(emulator, "begin", "l", timeout="5")["Status"] == "OK"
    clock.advance(6)
    refused = send(emulator, "load", "l", ROW)
    assert (refused["Status"], refused["Message"]) == ("ABORTED", "The load is timeout, and will be aborted")
    clock.advance(31)
    assert state(emulator, "l") == ("ABORTED", "timeout by txn manager")
    assert send(emulator, "load", "l", ROW)["Status"] == "TXN_NOT_EXISTS"


def test_what_is_prepared_waits_for_its_own_timeout(emulator: Emulator, clock: ManualClock) -> None:
    """Wire contract 3.1."""
    load(emulator, "l")
    assert send(emulator, "prepare", "l", prepared_timeout="1000")["Status"] == "OK"
    clock.advance(900)
    assert state(emulator, "l")[0] == "PREPARED"
    clock.advance(200)
    assert state(emulator, "l") == ("ABORTED", "timeout by txn manager")
    assert list(emulator.store.spool_dir.glob("body-*")) == []


def test_one_of_two_commits_of_a_prepared_transaction_does_the_work(emulator: Emulator) -> None:
    """Wire contract 3.1."""
    load(emulator, "l")
    send(emulator, "prepare", "l")
    replies: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: replies.append(send(emulator, "commit", "l"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply["Status"] for reply in replies] == ["OK", "OK"]
    assert sorted(bool(reply["Message"]) for reply in replies) == [False, True]
    assert count(emulator) == 1


def test_a_backend_that_restarts_loses_what_is_begun_and_not_what_is_prepared(emulator: Emulator) -> None:
    """Wire contract 3.1."""
    load(emulator, "begun")
    load(emulator, "prepared")
    send(emulator, "prepare", "prepared")
    emulator._lose_backends()
    assert send(emulator, "commit", "begun")["Status"] == "TXN_NOT_EXISTS"
    assert send(emulator, "commit", "prepared")["Status"] == "OK"
    assert count(emulator) == 1


def test_running_transactions_are_limited(emulator: Emulator) -> None:
    """Wire contract 4.13."""
    for label in ("a", "b"):
        load(emulator, label)
    refused = send(emulator, "begin", "c")
    assert refused["Message"] == "current running txns on db shop is 2, larger than limit 2"
    assert stream(emulator)["Status"] == "Fail"


def test_the_modes_have_contexts_of_their_own(emulator: Emulator) -> None:
    multi = {"transaction_type": "multi"}
    assert send(emulator, "begin", "l", None, **multi)["Status"] == "OK"
    assert send(emulator, "load", "l", ROW, **multi)["Status"] == "OK"
    assert send(emulator, "rollback", "l", None, **multi)["Status"] == "OK"
    load(emulator, "l")
    assert send(emulator, "commit", "l")["Status"] == "OK"
    assert count(emulator) == 1


def test_a_stream_load_that_breaks_off_is_aborted(emulator: Emulator) -> None:
    """Wire contract 11.1."""
    emulator.faults.replace(
        [{"operation": "stream_load", "listener": "be", "action": "hang", "seconds": 0, "times": 1}]
    )
    with pytest.raises(requests.ConnectionError):
        stream(emulator, label="hung")
    assert state(emulator, "hung")[0] == "UNKNOWN"
    lines = [
        "PUT /api/shop/t/_stream_load HTTP/1.1",
        "Authorization: Basic cm9vdDo=",
        "label: cut",
        "Content-Length: 9",
    ]
    with socket.create_connection(("127.0.0.1", emulator.be_port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "", "1"]).encode())
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert state(emulator, "cut") == ("ABORTED", "Cancelled")
    assert list(emulator.store.spool_dir.glob("body-*")) == []


def test_a_held_commit_is_a_publish_timeout(emulator: Emulator) -> None:
    """Wire contract 11.2."""
    emulator.faults.replace([{"operation": "stream_load", "action": "hold_commit"}])
    reply = stream(emulator, label="held")
    assert (reply["Status"], reply["NumberLoadedRows"]) == ("Publish Timeout", 1)
    assert reply["Message"].startswith("Publish timeout.")
    assert (state(emulator, "held")[0], count(emulator)) == ("COMMITTED", 0)
    emulator.release_held()
    assert (state(emulator, "held")[0], count(emulator)) == ("VISIBLE", 1)


@pytest.mark.parametrize(
    ("auth", "message"), [(None, "no valid Basic authorization"), (("root", "x"), "Access denied for")]
)
def test_a_backend_asked_for_a_transaction_wants_credentials(emulator: Emulator, auth: Any, message: str) -> None:
    """Wire contract 11.1."""
    url = f"http://127.0.0.1:{emulator.be_port}/api"
    headers = {"db": "shop", "label": "l", "table": "t"}
    for answer in (
        requests.post(f"{url}/transaction/begin", headers=headers, auth=auth, timeout=20),
        requests.put(f"{url}/shop/t/_stream_load", headers=headers, data=ROW, auth=auth, timeout=20),
    ):
        assert answer.json()["Message"].startswith(message)
    assert state(emulator, "l")[0] == "UNKNOWN"


def test_a_merged_load_ends_with_the_emulator(emulator: Emulator) -> None:
    replies: list[dict[str, Any]] = []
    window = {"enable_merge_commit": "true", "merge_commit_interval_ms": "60000", "merge_commit_parallel": "1"}
    waiting = threading.Thread(target=lambda: replies.append(stream(emulator, ROW, **window)))
    waiting.start()
    while not execute(emulator, "SHOW PROC '/transactions/shop/running'"):
        pass
    emulator.stop()
    waiting.join()
    assert replies[0]["Message"] == "Load is aborted, reason: Batch write is stopped"


# --- scans ------------------------------------------------------------------------------------------------------------


class Scanner:
    """What the official connectors' sources speak."""

    def __init__(self, emulator: Emulator, sql: str) -> None:
        url = f"{emulator.load_url}/api/shop/t/_query_plan"
        self.reply = requests.post(url, json={"sql": sql}, auth=AUTH, timeout=20)
        self.plan = self.reply.json()
        ((place, *_),) = [
            tablet["routings"] for tablet in self.plan.get("partitions", {"": {"routings": [""]}}).values()
        ]
        self.place = place

    def ask(self, operation: str, fields: bytes) -> dict[int, Any]:
        """One call, on a connection of its own."""
        host, _, port = self.place.partition(":")
        message = struct.pack(">I", 0x80010001) + _text(operation.encode()) + struct.pack(">i", 1)
        with socket.create_connection((host, int(port)), timeout=20) as connection, connection.makefile("rb") as reply:
            connection.sendall(message + _field(_STRUCT, 1, fields + b"\0") + b"\0")
            assert _read(reply, _I32) & 0xFFFFFFFF == 0x80010002
            assert _read(reply, _TEXT).decode() == operation
            _read(reply, _I32)
            return dict(_read(reply, _STRUCT)[0])


def test_a_table_can_be_scanned(emulator: Emulator) -> None:
    """Wire contract 11.4."""
    execute(emulator, "INSERT INTO shop.t VALUES (1, '2024-01-02 03:04:05'), (2, NULL), (3, NULL)")
    scanner = Scanner(emulator, "SELECT d, id FROM shop.t WHERE id < 3")
    opened = scanner.ask("open_scanner", _field(_TEXT, 5, _text(scanner.plan["opaqued_query_plan"].encode())))
    context, offset, rows = _field(_TEXT, 1, _text(opened[2])), 0, []
    while not (batch := scanner.ask("get_next", context + _field(10, 2, struct.pack(">q", offset))))[2]:
        table = pa.ipc.open_stream(io.BytesIO(batch[3])).read_all()
        offset += table.num_rows
        rows += table.to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == [{"d": "2024-01-02 03:04:05", "id": 1}, {"d": None, "id": 2}]
    assert scanner.ask("close_scanner", context)[1] == {1: 0}
    assert scanner.ask("get_next", context)[1][1] != 0


@pytest.mark.parametrize(
    "sql", ["SELECT count(*) FROM shop.t GROUP BY id", "SELECT * FROM shop.u", "SELECT * FROM shop.t LIMIT 1", "DROP"]
)
def test_only_a_scan_is_planned(emulator: Emulator, sql: str) -> None:
    """Wire contract 11.4."""
    scanner = Scanner(emulator, sql)
    assert (scanner.reply.status_code, "exception" in scanner.plan) == (scanner.plan["status"], True)
    assert scanner.plan["status"] in (400, 500)


def test_a_plan_that_cannot_be_run_is_refused(emulator: Emulator) -> None:
    scanner = Scanner(emulator, "SELECT nothing FROM shop.t")
    opaque = base64.b64encode(json.dumps({"database": "shop", "sql": "SELECT nothing FROM t"}).encode())
    assert scanner.ask("open_scanner", _field(_TEXT, 5, _text(opaque)))[1][1] == 6
