"""The list of open labels while open loads hold all threads of a backend (wire contract 4.16)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import QueryFailed
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.label import LabelPrefix
from starrocks_txn_sink.protocol.ledger import ListStreamLoads, ListUnfinished
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.sql.scan_threads import measure
from tests.support.contract_client import Client, Server

DEAD = "orders-0123456789abcdef012-all-7-0_0"
pytestmark = pytest.mark.emulator(cores=1)


@pytest.fixture
def client(server: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for request in (ListUnfinished, ListStreamLoads):
        monkeypatch.setattr(request, "seconds", 0.7)
    client = Client(Server(server.load_url, server.query_url, "root", "", "shop", "B"))
    with client.session:
        yield client


def options(server: Emulator) -> SinkOptions:
    return SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", job="orders")


def listed(server: Emulator) -> object:
    with closing(LeaderConnection(options(server))) as connection:
        request = ListUnfinished(LabelPrefix("orders"))
        return SqlLedger(connection, "shop").execute(request, Deadline.after(20, SystemClock()))


def open_loads(client: Client, count: int) -> None:
    for label in (DEAD, "other"):
        client.begin(label, timeout="600")
    for number in range(count):
        client.loaded(DEAD if number % 2 else "other", client.table(), b'{"id": 1, "v": "a"}')


def test_a_list_needs_no_thread_of_a_backend_when_its_own_dead_job_holds_all(client: Client, server: Emulator) -> None:
    open_loads(client, 8)
    assert listed(server) == (DEAD,)


def test_a_list_that_waits_for_a_commit_ends_and_says_why(client: Client, server: Emulator) -> None:
    open_loads(client, 18)
    with ThreadPoolExecutor() as pool:
        commit = pool.submit(Client(client.server).commit, "other")
        while client.state("other") != "PREPARE":  # the commit has begun
            time.sleep(0.05)
        with pytest.raises(QueryFailed, match=r"did not come within 0\.7 s.* Open loads hold all threads"):
            listed(server)
        assert not commit.done()
        server.stop()


def test_the_threads_are_measured_and_guessed_while_all_are_held(
    client: Client, server: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starrocks_txn_sink.sql.scan_threads._SECONDS", 2.0)
    threads = measure(options(server), SystemClock())
    assert (threads.count, threads.reserve, threads.exact) == (8, 1, True)
    open_loads(client, 8)
    threads = measure(options(server), SystemClock())
    assert (threads.count, threads.exact) == (8, False)
    server.stop()
    assert not measure(options(server), SystemClock()).exact
