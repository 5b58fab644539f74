"""Each fault of a plan, seen from a client over HTTP, with and without the operation's effect."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from tests.support.query_port import connect, query
from tests.support.waiting import wait_until

AUTH = ("root", "")
LABEL = "job-1"
HEADERS = {"db": "shop", "transaction_type": "multi", "label": LABEL, "table": "t", "format": "json"}
BODY = b'{"id": 1}{"id": 2}'


class Faulty:
    """An emulator with one table and short words for one label's operations."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.session = requests.Session()
        self.session.auth = AUTH

    def plan(self, *rules: dict[str, Any]) -> None:
        answer = self.session.post(
            f"{self.emulator.load_url}/_emulator/faults", json={"rules": list(rules)}, timeout=20
        )
        assert answer.status_code == 200, answer.text

    def report(self) -> dict[str, Any]:
        return dict(self.session.get(f"{self.emulator.load_url}/_emulator/faults", timeout=20).json())

    def op(self, name: str, timeout: float = 20, **headers: str) -> requests.Response:
        url = f"{self.emulator.load_url}/api/transaction/{name}"
        method = "PUT" if name == "load" else "POST"
        headers = {**HEADERS, "timeout": "600", **headers}
        return self.session.request(method, url, headers=headers, allow_redirects=False, timeout=timeout)

    def status(self, name: str, **headers: str) -> str:
        return str(self.op(name, 20, **headers).json()["Status"])

    def load(self, body: bytes = BODY, table: str = "t") -> str:
        url = self.op("load", table=table).headers["Location"]
        headers = {**HEADERS, "timeout": "600", "table": table, "Connection": "close"}  # it may be refused unread
        answer = self.session.put(url, headers=headers, data=body, timeout=20)
        return str(answer.json()["Status"])

    def begun_and_loaded(self) -> None:
        assert self.status("begin") == "OK"
        assert self.load() == "OK"

    def state(self) -> str:
        url = f"{self.emulator.load_url}/api/shop/get_load_state?label={LABEL}"
        return str(self.session.get(url, timeout=20).json()["state"])

    def rows(self) -> int:
        return len(self.sql("SELECT * FROM shop.t"))

    def sql(self, statement: str) -> list[Any]:
        return query(self.emulator, statement)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Faulty]:
    with Emulator(tmp_path, Settings()) as emulator:
        faulty = Faulty(emulator)
        with faulty.session:
            faulty.sql("CREATE DATABASE shop")
            faulty.sql("CREATE TABLE shop.t (id INT NOT NULL) PRIMARY KEY (id) DISTRIBUTED BY HASH(id)")
            yield faulty


def no_reply(call: Callable[[], object]) -> bool:
    try:
        call()
    except requests.ConnectionError:
        return True
    return False


@pytest.mark.parametrize("action", ["drop", "reset"])
@pytest.mark.parametrize(("when", "state"), [("before", "UNKNOWN"), ("after", "VISIBLE")])
def test_a_commit_without_a_reply(faulty: Faulty, action: str, when: str, state: str) -> None:
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": action, "when": when, "times": 1})
    assert no_reply(lambda: faulty.op("commit"))
    assert faulty.state() == state
    assert faulty.status("commit") == "OK"
    assert faulty.rows() == 2
    assert faulty.report()["rules"][0]["applied"] == 1


def test_a_begin_whose_reply_is_lost_has_taken_effect(faulty: Faulty) -> None:
    faulty.plan({"operation": "begin", "action": "drop", "when": "after", "times": 1})
    assert no_reply(lambda: faulty.op("begin"))
    assert faulty.status("begin") == "LABEL_ALREADY_EXISTS"


def test_a_delay_keeps_the_reply_back(faulty: Faulty) -> None:
    faulty.plan({"operation": "begin", "action": "delay", "seconds": 0.3})
    started = time.monotonic()
    assert faulty.status("begin") == "OK"
    assert time.monotonic() - started >= 0.3


def test_hanging_never_answers_and_ends_with_the_emulator(faulty: Faulty) -> None:
    faulty.plan({"operation": "begin", "action": "hang", "seconds": 600, "when": "after"})
    with pytest.raises(requests.Timeout):
        faulty.op("begin", timeout=1.0)
    faulty.plan()
    assert faulty.status("begin") == "LABEL_ALREADY_EXISTS"
    started = time.monotonic()
    faulty.emulator.stop()
    assert time.monotonic() - started < 9


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (503, {"Content-Type": "text/html"}, "<html>busy</html>"),
        (200, {"Content-Type": "application/json"}, '{"Status": "O'),
        (200, {}, '{"Status": "PERHAPS", "Message": ""}'),
        (307, {"Location": "http://127.0.0.1:1/api/transaction/begin"}, ""),
        (599, {}, ""),
    ],
)
def test_any_answer_can_be_given(faulty: Faulty, status: int, headers: dict[str, str], body: str) -> None:
    faulty.plan(
        {"operation": "begin", "action": "answer", "status": status, "headers": headers, "body": body, "times": 1}
    )
    answer = faulty.op("begin")
    assert (answer.status_code, answer.text) == (status, body)
    assert headers.items() <= dict(answer.headers).items()
    assert faulty.status("begin") == "OK"


def test_an_answer_after_the_effect_hides_it(faulty: Faulty) -> None:
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "answer", "status": 502, "when": "after", "times": 1})
    assert faulty.op("commit").status_code == 502
    assert faulty.state() == "VISIBLE"


def test_a_body_is_cut_and_the_next_one_is_glued_to_it(faulty: Faulty) -> None:
    """Wire contract 4.8."""
    assert faulty.status("begin") == "OK"
    faulty.plan({"operation": "load", "table": "t", "action": "cut_body", "bytes": 5, "times": 1})
    assert no_reply(faulty.load)
    assert faulty.load() == "OK"
    assert faulty.status("commit") == "FAILED"
    assert faulty.rows() == 0


def test_busy_so_many_times(faulty: Faulty) -> None:
    assert faulty.status("begin") == "OK"
    faulty.plan({"operation": "load", "action": "busy", "times": 2})
    assert [faulty.load() for _ in range(3)] == ["TXN_IN_PROCESSING", "TXN_IN_PROCESSING", "OK"]
    assert faulty.status("commit") == "OK"
    assert faulty.rows() == 2


def test_labels_are_forgotten(faulty: Faulty) -> None:
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "forget_labels", "forget": "^job-", "when": "after", "times": 1})
    assert faulty.status("commit") == "OK"
    assert faulty.state() == "UNKNOWN"
    assert faulty.status("begin") == "OK"
    assert faulty.rows() == 2


@pytest.mark.parametrize(("when", "state", "rows"), [("before", "UNKNOWN", 0), ("after", "VISIBLE", 2)])
def test_the_frontend_restarts_around_a_commit(faulty: Faulty, when: str, state: str, rows: int) -> None:
    """Wire contract 10.5: the label is CANCELLED either way, so a rollback's OK proves nothing."""
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "restart_frontend", "when": when, "times": 1})
    assert no_reply(lambda: faulty.op("commit"))
    assert "Can not commit CANCELLED" in faulty.op("commit").json()["Message"]
    assert faulty.status("rollback") == "OK"
    assert faulty.status("begin") == "LABEL_ALREADY_EXISTS"
    assert (faulty.state(), faulty.rows()) == (state, rows)


def test_lost_backends_fail_the_commit(faulty: Faulty) -> None:
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "lose_backends", "times": 1})
    assert faulty.status("commit") == "FAILED"
    assert faulty.rows() == 0


def test_a_commit_is_held_at_committed_until_released(faulty: Faulty) -> None:
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "hold_commit", "times": 1})
    assert faulty.status("commit") == "OK"
    assert (faulty.state(), faulty.rows()) == ("COMMITTED", 0)
    faulty.session.post(f"{faulty.emulator.load_url}/_emulator/release", timeout=20)
    assert (faulty.state(), faulty.rows()) == ("VISIBLE", 2)


def test_a_commit_is_held_for_a_time(faulty: Faulty) -> None:
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "hold_commit", "seconds": 0.5, "times": 1})
    assert faulty.status("commit") == "OK"
    wait_until(lambda: faulty.state() == "VISIBLE", 10)
    assert faulty.rows() == 2


def test_commits_behind_a_held_one_wait_for_it(faulty: Faulty) -> None:
    """Wire contract 4.11: versions of a table become visible in commit order."""
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "hold_commit", "times": 1})
    assert faulty.status("commit") == "OK"
    assert faulty.status("begin", label="job-2") == "OK"
    url = faulty.op("load", label="job-2").headers["Location"]
    headers = {**HEADERS, "timeout": "600", "label": "job-2"}
    assert faulty.session.put(url, headers=headers, data=b'{"id": 3}', timeout=20).json()["Status"] == "OK"
    assert faulty.status("commit", label="job-2") == "OK"
    assert faulty.rows() == 0
    faulty.session.delete(f"{faulty.emulator.load_url}/_emulator/faults", timeout=20)
    assert (faulty.state(), faulty.rows()) == ("VISIBLE", 3)


def test_ok_but_rolled_back(faulty: Faulty) -> None:
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "commit_ok_rolled_back", "times": 1})
    assert faulty.status("commit") == "OK"
    assert (faulty.state(), faulty.rows()) == ("PREPARE", 0)


@pytest.mark.parametrize("locked", [False, True])
def test_a_query_sees_one_table_early_unless_it_locks_the_database(faulty: Faulty, locked: bool) -> None:
    """Wire contract 4.11."""
    with contextlib.closing(connect(faulty.emulator.query_port)) as reader:
        cursor = reader.cursor()
        cursor.execute("CREATE TABLE shop.u (id INT NOT NULL, v VARCHAR(9)) PRIMARY KEY(id)")
        cursor.execute(f"SET cbo_use_lock_db = {str(locked).lower()}")
        faulty.plan({"operation": "commit", "action": "publish_apart", "seconds": 1.0})
        faulty.begun_and_loaded()
        assert faulty.load(table="u") == "OK"
        writer = threading.Thread(target=faulty.status, args=("commit",))
        writer.start()
        sums = set()
        while writer.is_alive():
            cursor.execute("SELECT (SELECT count(*) FROM shop.t), (SELECT count(*) FROM shop.u)")
            sums.add(cursor.fetchone())
        writer.join()
    assert ((2, 0) in sums) is not locked
    assert sums <= {(0, 0), (2, 0), (2, 2)}
    assert faulty.state() == "VISIBLE"


def test_a_rollback_may_be_pending(faulty: Faulty) -> None:
    """Wire contract 2.2, 10.5."""
    faulty.begun_and_loaded()
    faulty.plan({"operation": "rollback", "action": "abort_pending", "times": 2})
    messages = [faulty.op("rollback").json()["Message"] for _ in range(3)]
    assert [
        "rollback pending" in messages[0],
        "already in progress" in messages[1],
        "already aborted" in messages[2],
    ] == [True] * 3


def test_a_privilege_is_denied_by_401(faulty: Faulty) -> None:
    """Wire contract 7.2."""
    faulty.plan({"operation": "get_load_state", "action": "deny"})
    denied = faulty.session.get(f"{faulty.emulator.load_url}/api/shop/get_load_state?label=l", timeout=20)
    assert denied.status_code == 401
    assert "INSERT privilege" in denied.json()["msg"]


def test_the_running_limit_in_b_fails_the_commit(faulty: Faulty) -> None:
    """Wire contract 4.13."""
    faulty.begun_and_loaded()
    faulty.plan({"operation": "commit", "action": "running_limit", "times": 1})
    assert faulty.status("commit") == "FAILED"
    assert (faulty.state(), faulty.rows()) == ("UNKNOWN", 0)


def test_a_wrong_plan_is_answered_400_with_the_reason(faulty: Faulty) -> None:
    url = f"{faulty.emulator.load_url}/_emulator/faults"
    answer = faulty.session.post(url, json=[{"action": "explode"}], timeout=20)
    assert answer.status_code == 400
    assert "hold_commit" in answer.json()["error"]
    assert faulty.session.post(url, data=b"{", timeout=20).status_code == 400
    assert faulty.session.put(url, timeout=20).status_code == 404


def test_deleting_the_plan_ends_its_faults(faulty: Faulty) -> None:
    faulty.plan({"action": "drop"})
    assert no_reply(lambda: faulty.op("begin"))
    faulty.session.delete(f"{faulty.emulator.load_url}/_emulator/faults", timeout=20)
    assert faulty.report()["rules"] == []
    assert faulty.status("begin") == "OK"
