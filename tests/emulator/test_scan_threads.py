"""Connector scan threads (wire contract 4.16): open loads hold them, and queries and commits wait for them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
import requests

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Settings
from starrocks_emulator.transactions.scan_threads import ScanThreads
from tests.support.contract_client import Client, Server
from tests.support.query_port import query

THREADS = 8  # of one core


@dataclass
class Stage:
    """An emulator with one backend of one core, and a client of it with `tables`."""

    emulator: Emulator
    client: Client
    tables: list[str]
    pool: ThreadPoolExecutor

    def opened(self, tables: int, **headers: str) -> str:
        """A label with an open load of the first tables."""
        label = self.client.begin(**headers)
        for table in self.tables[:tables]:
            self.client.loaded(label, table, b'{"id": 1, "v": "a"}')
        return label

    def commit(self, label: str) -> Future[Any]:
        return self.pool.submit(Client(self.client.server).commit, label)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.emulator, sql, database="d", read_timeout=10)

    def waits(self, sql: str) -> bool:
        with pytest.raises(pymysql.err.OperationalError, match="timed out") as lost:
            query(self.emulator, sql, database="d", read_timeout=0.4)
        return bool(lost.value.args[0] == 2013)


@pytest.fixture(params=Generation)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with Emulator(tmp_path, Settings(request.param, cores=1)) as emulator, ThreadPoolExecutor() as pool:
        query(emulator, "CREATE DATABASE d")
        client = Client(Server(emulator.load_url, emulator.query_url, "root", "", "d", request.param.value))
        with client.session:
            yield Stage(emulator, client, [client.table() for _ in range(THREADS + 1)], pool)
            emulator.stop()  # what still waits ends


def test_each_open_load_holds_a_thread_until_its_transaction_ends(stage: Stage) -> None:
    (threads,) = stage.emulator.scan_threads
    first, second = stage.opened(3), stage.opened(2)
    assert (threads.running, threads.waiting) == (5, 0)
    stage.client.loaded(first, stage.tables[0], b'{"id": 2, "v": "b"}')
    assert threads.running == 5
    assert stage.client.commit(first).ok
    assert threads.running == 2
    assert stage.client.rollback(second).ok
    assert threads.running == 0


def test_a_load_holds_its_thread_until_the_timeout_of_begin(stage: Stage) -> None:
    (threads,) = stage.emulator.scan_threads
    stage.opened(1, timeout="2")
    assert threads.running == 1
    deadline = time.monotonic() + 10
    while threads.running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not threads.running


def test_a_metric_of_the_backend_counts_them(stage: Stage) -> None:
    def held() -> list[int]:
        text = requests.get(f"http://127.0.0.1:{stage.emulator.be_port}/metrics", timeout=10).text
        return [int(line.split()[1]) for line in text.splitlines() if not line.startswith("#")]

    label = stage.opened(THREADS + 1)
    assert held() == [THREADS, 1]
    stage.client.rollback(label)
    assert held() == [0, 0]


def test_as_many_tables_as_threads_commit_and_queries_wait_before(stage: Stage) -> None:
    label = stage.opened(THREADS - 1)
    assert stage.ask("SELECT count(*) FROM information_schema.loads")
    stage.client.loaded(label, stage.tables[THREADS - 1], b'{"id": 1, "v": "a"}')
    assert stage.client.commit(label).ok
    assert stage.ask("SELECT count(*) FROM information_schema.loads")


def test_a_query_that_waits_for_the_last_thread_blocks_the_commit_of_b(stage: Stage) -> None:
    label = stage.opened(THREADS)
    for relation in ("loads", "be_configs", "be_tablets", "load_tracking_logs"):
        assert stage.waits(f"SELECT count(*) FROM information_schema.{relation}")
    assert stage.ask("SELECT count(*) FROM information_schema.columns")
    commit = stage.commit(label)
    if stage.client.server.generation == "B":
        with pytest.raises(TimeoutError):
            commit.result(0.5)
    else:
        assert commit.result(10).ok


def test_a_commit_of_more_tables_than_threads_never_ends_in_b(stage: Stage) -> None:
    label, other = stage.opened(THREADS + 1, timeout="600"), stage.client.begin()
    commit = stage.commit(label)
    if stage.client.server.generation == "C":
        assert commit.result(10).ok
        return
    with pytest.raises(TimeoutError):
        commit.result(0.5)
    assert stage.client.state(label) == "PREPARE"
    assert "during committing" in stage.client.rollback(label).message
    assert stage.waits(f"SHOW ALL STREAM LOAD FOR `{label}` FROM d")
    assert stage.waits("SELECT count(*) FROM information_schema.loads")
    assert stage.ask(f"SELECT count(*) FROM d.{stage.tables[0]}") == [(0,)]
    with pytest.raises(pymysql.err.ProgrammingError, match="no label named"):  # answered: it has no load yet
        stage.ask(f"SHOW ALL STREAM LOAD FOR `{other}` FROM d")
    assert stage.ask("SHOW PROC '/transactions/d/running'")
    assert stage.client.loaded(stage.client.begin(), stage.tables[0], b'{"id": 1, "v": "a"}').ok


def test_a_commit_that_waits_ends_at_the_timeout_of_begin(stage: Stage) -> None:
    label = stage.opened(THREADS + 1, timeout="3")
    answer = stage.commit(label).result(20)
    if stage.client.server.generation == "B":
        assert "coordinator could not finished before job timeout" in answer.message
        assert stage.client.state(label) == "ABORTED"
    assert stage.ask("SELECT count(*) FROM information_schema.loads")


def test_more_threads_take_effect_at_once_and_fewer_never(stage: Stage) -> None:
    label = stage.opened(THREADS + 1)
    (threads,) = stage.emulator.scan_threads
    assert (threads.running, threads.waiting) == (THREADS, 1)
    setting = "pipeline_connector_scan_thread_num_per_cpu"
    stage.ask(f"UPDATE information_schema.be_configs SET value = '16' WHERE name = '{setting}'")
    assert (threads.running, threads.waiting) == (THREADS + 1, 0)
    stage.ask(f"UPDATE information_schema.be_configs SET value = '1' WHERE name = '{setting}'")
    assert stage.ask(f"SELECT VALUE FROM information_schema.be_configs WHERE NAME = '{setting}'") == [("1",)]
    assert (threads.running, threads.waiting) == (THREADS + 1, 0)
    assert stage.client.commit(label).ok


def test_backends_show_their_cores(stage: Stage) -> None:
    ((*_, cores, _, _, _, _, _, _, _),) = stage.ask("SHOW BACKENDS")
    assert cores == "1"


def test_a_restarted_frontend_and_lost_backends_free_all_threads(stage: Stage) -> None:
    (threads,) = stage.emulator.scan_threads
    commit = stage.commit(stage.opened(THREADS + 1))
    stage.emulator.restart_frontend()
    commit.exception(10)
    assert threads.running == 0
    stage.opened(2)
    stage.emulator.end_backends()
    assert threads.running == 0


def test_threads_are_given_in_the_order_of_arrival() -> None:
    threads = ScanThreads(lambda: 2, lambda: 0.0, lambda: False)
    for table in "abc":
        threads.hold(("l", table), 1.0)
    threads.end(("l", "c"))
    assert not threads.wait(("l", "c"), 0.0)  # has no thread
    threads.end(("l", "a"))
    assert threads.wait(("l", "a"), 0.0)  # c, in front of the rest of a, had all of its rows
    assert threads.wait(("l", "c"), 0.0)
    assert threads.running == 1


def test_the_end_of_the_emulator_ends_all_waiting() -> None:
    stopped = threading.Event()
    threads = ScanThreads(lambda: 1, lambda: 0.0, stopped.is_set)
    threads.hold(("l", "a"), 1.0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(threads.wait, ("l", "a"), 1.0)
        stopped.set()
        assert not waiting.result(10)


def test_who_waits_does_not_wake_others_who_wait() -> None:
    looks = itertools.count()

    def now() -> float:
        next(looks)
        return time.monotonic()

    threads = ScanThreads(lambda: 1, now, lambda: False)
    until = time.monotonic() + 0.5
    threads.hold(("l", "a"), until + 60)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(threads.wait, ("l", "a"), until) for _ in range(3)]
        assert [done.result(10) for done in waiting] == [False] * 3
    assert next(looks) < 300  # ten a second and thread, and two for each; thousands where each look wakes the others
