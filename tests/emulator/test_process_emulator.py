"""The emulator as a process: what survives kill -9, what does not, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

import starrocks_emulator
from starrocks_emulator.process import EmulatorProcess, EmulatorProcessFailed
from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Settings
from tests.support.query_port import query
from tests.support.waiting import wait_until

SETTINGS = Settings(Generation.C, user="app", password="s3cret")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[EmulatorProcess]:
    with EmulatorProcess(tmp_path / "data", SETTINGS) as process:
        sql(process, "CREATE DATABASE shop")
        sql(process, "CREATE TABLE shop.t (id INT NOT NULL) PRIMARY KEY (id) DISTRIBUTED BY HASH(id)")
        yield process


def sql(process: EmulatorProcess, statement: str) -> list[Any]:
    return query(process, statement, user="app", password="s3cret")


def op(process: EmulatorProcess, operation: str, label: str) -> requests.Response:
    headers = {"db": "shop", "label": label, "transaction_type": "multi", "table": "t", "format": "json"}
    url = f"{process.load_url}/api/transaction/{operation}"
    return requests.post(url, headers=headers, auth=("app", "s3cret"), allow_redirects=False, timeout=20)


def load(process: EmulatorProcess, label: str, body: bytes) -> None:
    headers = {"db": "shop", "label": label, "table": "t", "format": "json"}
    url = op(process, "load", label).headers["Location"]
    assert requests.put(url, data=body, headers=headers, auth=("app", "s3cret"), timeout=20).json()["Status"] == "OK"


def state(process: EmulatorProcess, label: str) -> str:
    url = f"{process.load_url}/api/shop/get_load_state?label={label}"
    return str(requests.get(url, auth=("app", "s3cret"), timeout=20).json()["state"])


def test_committed_data_survive_kill_and_live_transactions_do_not(process: EmulatorProcess) -> None:
    for label, body in (("done", b'{"id": 1}'), ("live", b'{"id": 2}')):
        assert op(process, "begin", label).json()["Status"] == "OK"
        load(process, label, body)
    assert op(process, "commit", "done").json()["Status"] == "OK"
    ports = process.fe_port, process.be_port, process.query_port
    process.kill()
    assert not process.running
    process.start()
    assert (process.fe_port, process.be_port, process.query_port) == ports
    assert sql(process, "SELECT id FROM shop.t") == [(1,)]
    assert state(process, "done") == "VISIBLE"
    assert op(process, "begin", "done").json()["Status"] == "LABEL_ALREADY_EXISTS"
    assert "does not exist" in op(process, "commit", "live").json()["Message"]
    assert list((process.data_dir / "spool").iterdir()) == []


def test_a_commit_that_was_held_is_visible_after_the_restart(process: EmulatorProcess) -> None:
    process.faults({"rules": [{"operation": "commit", "action": "hold_commit"}]})
    assert op(process, "begin", "held").json()["Status"] == "OK"
    load(process, "held", b'{"id": 1}')
    assert op(process, "commit", "held").json()["Status"] == "OK"
    assert state(process, "held") == "COMMITTED"
    assert process.fault_report()["applied"] == 1
    process.kill()
    process.start()
    assert state(process, "held") == "VISIBLE"
    assert sql(process, "SELECT id FROM shop.t") == [(1,)]


def test_faults_are_set_and_ended_from_outside(process: EmulatorProcess) -> None:
    process.faults({"rules": [{"operation": "commit", "action": "hold_commit"}]})
    assert op(process, "begin", "l").json()["Status"] == "OK"
    load(process, "l", b'{"id": 1}')
    assert op(process, "commit", "l").json()["Status"] == "OK"
    assert len(process.release()) == 1
    assert state(process, "l") == "VISIBLE"
    with pytest.raises(EmulatorProcessFailed, match="explode"):
        process.faults({"rules": [{"action": "explode", "explode": 1}]})
    process.faults({})
    assert process.fault_report()["rules"] == []


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(process: EmulatorProcess, name: signal.Signals) -> None:
    child, port = psutil.Process(process.pid), process.fe_port
    with socket.create_connection(("127.0.0.1", port), timeout=20):
        child.send_signal(name)
        assert child.wait(20) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=20)
    assert process.stop() == 0


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from starrocks_emulator.process import EmulatorProcess\n"
        "process = EmulatorProcess(Path(sys.argv[1])); process.start(); print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    pid = int(ended.stdout)
    wait_until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE,
        20,
        "the emulator outlived its parent",
    )


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(EmulatorProcessFailed, match="loopback only"):
        EmulatorProcess(tmp_path, Settings(host="10.0.0.1")).start()


def test_the_command_says_that_it_is_an_emulator(tmp_path: Path) -> None:
    words = ["--data-dir", str(tmp_path), "--fe-port", "0", "--be-port", "0", "--query-port", "0", "--stop-at-eof"]
    ended = subprocess.run(
        [sys.executable, "-m", "starrocks_emulator", *words], input=b"", stdout=subprocess.PIPE, timeout=60
    )
    assert ended.returncode == 0
    assert ended.stdout.startswith(b"This is an emulator of StarRocks, not StarRocks")
    assert b"mysql://127.0.0.1:" in ended.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--limits", '{"speed": 1}'], b"--limits"),
        (["--password-file", "no/such/file"], b"--password-file"),
        (["--fault-plan", "no/such/file"], b"--fault-plan"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, words: list[str], complaint: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "starrocks_emulator", "--data-dir", str(tmp_path), *words],
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert ended.returncode == 1
    assert complaint in ended.stderr


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other_socket:
        port = str(other_socket.getsockname()[1])
        words = ["--data-dir", str(tmp_path), "--be-port", port, "--fe-port", "0", "--query-port", "0"]
        ended = subprocess.run(
            [sys.executable, "-m", "starrocks_emulator", *words], capture_output=True, text=True, timeout=60
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("The emulator cannot start: ")
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "in use"):
        with Emulator(tmp_path / "in use", Settings()):
            ended = subprocess.run(
                [sys.executable, "-m", "starrocks_emulator", "--data-dir", str(folder), "--fe-port", "0"],
                capture_output=True,
                text=True,
                timeout=60,
            )
        assert ended.returncode == 1
        assert ended.stderr.startswith(f"The data folder {folder} cannot be used: ")
        assert "Name another folder" in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.deep
def test_the_test_of_the_page_runs_as_printed(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "emulator.md").read_text()
    (printed,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_printed.py").write_text(printed)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(starrocks_emulator.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "4 passed" in ended.stdout
