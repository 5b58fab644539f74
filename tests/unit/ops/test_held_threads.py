"""The commands while open loads hold all threads of a backend, and a commit waits for one (wire contract 4.16)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli
from starrocks_txn_ops.doctor import privileges
from starrocks_txn_sink.protocol.ledger import ListStreamLoads, ListUnfinished
from starrocks_txn_sink.sql import scan_threads
from tests.support.contract_client import Client, Server
from tests.support.left_behind import PASSWORD, write_a_position

DEAD = "first-0123456789abcdef012-all-7-0_0"
LATE = "The list of open labels did not come within 0.7 s. Open loads hold all threads of a backend"
pytestmark = [
    pytest.mark.emulator(
        "CREATE TABLE shop.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)", password=PASSWORD, cores=1
    ),
    pytest.mark.usefixtures("environment"),
]


@pytest.fixture
def held(server: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """A server whose threads are held by the labels of a dead driver of the job `first` and of another job."""
    for request in (ListUnfinished, ListStreamLoads):
        monkeypatch.setattr(request, "seconds", 0.7)
    monkeypatch.setattr(privileges, "_SECONDS", 0.7)
    monkeypatch.setattr(scan_threads, "_SECONDS", 0.7)
    write_a_position(server, "first")
    client = Client(Server(server.load_url, server.query_url, "root", PASSWORD, "shop", "B"))
    with client.session, ThreadPoolExecutor() as pool:
        for label in (DEAD, "other"):
            client.begin(label, timeout="600")
        for number in range(18):
            client.loaded(DEAD if number % 2 else "other", client.table(), b'{"id": 1, "v": "a"}')
        commit = pool.submit(Client(client.server).commit, "other")
        while client.state("other") != "PREPARE":  # the commit has begun
            time.sleep(0.05)
        yield server
        assert not commit.done()
        server.stop()


def test_they_end_before_their_deadline_and_say_what_is_held(
    held: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--query-url", held.query_url, "--database", "shop", "--password-environment", "SECRET"]
    for words in (["status"], ["recover", "--load-url", held.load_url, "--job", "first"]):
        assert cli.main([*words, *place, "--deadline", "50"]) == 1
        assert LATE in capsys.readouterr().err
    assert cli.main(["doctor", "--load-url", held.load_url, *place, "--no-spark"]) == 1
    found = capsys.readouterr().out
    assert " 0 failed, 3 warned" in found
    assert "WARN privilege.loads: information_schema.loads has not answered within 0.7 s." in found
    for check in ("transaction.listed", "transaction.headroom"):
        assert f"WARN {check}: {LATE.partition(' Open')[0]}" in found
