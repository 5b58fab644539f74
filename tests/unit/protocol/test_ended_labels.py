"""Labels that end before their commit: by a load that cannot be planned, or by another user; against the emulator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest
import requests

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Settings
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import CommitFailed, LoadFailed, ServerRefused, StarRocksSinkError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.label import Aborted, Committed, Label, RetryPolicy, Steps
from tests.support.query_port import query

TABLES = (
    "CREATE TABLE shop.known (id INT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    "CREATE TABLE shop.strict (id INT NOT NULL, n INT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    "CREATE USER poor IDENTIFIED BY 'pw'",
)
pytestmark = pytest.mark.parametrize("server", list(Generation), indirect=True)
ROW, HEADERS = [b'{"id": 1}'], {"format": "json"}


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("emulator"), Settings(request.param)) as running:
        for sql in ("CREATE DATABASE shop", *TABLES):
            query(running, sql)
        yield running


class Writer:
    """Runs the steps of labels on a server."""

    def __init__(self, server: Emulator) -> None:
        self.options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop")
        self.rng = random.Random(1)

    def run(self, steps: Steps[protocol.Result]) -> protocol.Result:
        clock = SystemClock()
        with closing(HttpTransport(self.options)) as transport:
            return protocol.run(steps, transport, clock, Deadline.after(30.0, clock))

    def begin(self, name: str) -> Label:
        label = Label("shop", name)
        self.run(protocol.begin(label, {"timeout": "60"}))
        return label

    def load(self, label: Label, table: str, **headers: str) -> StarRocksSinkError | None:
        try:
            self.run(protocol.load(label, table, ROW, {**HEADERS, **headers}, RetryPolicy(), self.rng))
        except StarRocksSinkError as error:
            return error
        return None

    def commit(self, label: Label) -> protocol.Outcome:
        return self.run(protocol.commit(label, RetryPolicy(), self.rng))


def test_a_load_without_a_plan_names_its_table_and_later_loads_name_none(server: Emulator) -> None:
    """Wire contract 4.7, 4.8."""
    writer = Writer(server)
    label = writer.begin("planned")
    assert writer.load(label, "known") is None
    cause = writer.load(label, "strict", columns="id")
    assert isinstance(cause, ServerRefused)
    assert cause.context["table"] == "strict"
    assert cause.message.endswith("Column has no default value. column: n")
    after = writer.load(label, "known")
    assert isinstance(after, LoadFailed)
    assert "table" not in after.context
    assert query(server, "SELECT count(*) FROM shop.known") == [(0,)]


@pytest.mark.parametrize("step", ["load", "commit"])
def test_a_label_that_another_user_rolled_back_is_written_again_under_a_new_one(server: Emulator, step: str) -> None:
    """Wire contract 7.3."""
    writer = Writer(server)
    label = writer.begin("mine")
    assert writer.load(label, "known") is None
    rolled_back = requests.post(
        f"{server.load_url}/api/transaction/rollback",
        headers={"db": "shop", "label": "mine", "transaction_type": "multi"},
        auth=("poor", "pw"),
        timeout=20,
    )
    assert rolled_back.json()["Status"] == "OK"
    if step == "load":
        error = writer.load(label, "known")
        assert isinstance(error, LoadFailed)
    else:
        outcome = writer.commit(label)
        assert isinstance(outcome, Aborted)
        error = outcome.error
        assert isinstance(error, CommitFailed)
    assert "rolled back by another client" in error.message
    assert error.retryable
    again = writer.begin("mine-again")
    assert writer.load(again, "known") is None
    assert isinstance(writer.commit(again), Committed)
    assert query(server, "SELECT id FROM shop.known") == [(1,)]
