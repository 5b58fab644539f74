"""The running transactions of the database and the server's limit: read by who may read them, and never in the way."""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import closing

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Limits
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.state import dashboard_state
from starrocks_txn_sink.metrics.verdict import Light, health_status
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import WriteMarker
from starrocks_txn_sink.protocol.verified import VERIFIED, Verified
from starrocks_txn_sink.protocol.wire import Operation, Request
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.sql.server_limits import (
    ServerLimitsWatch,
    TabletRoom,
    TransactionRoom,
    measure,
    measure_tablets,
)
from starrocks_txn_sink.telemetry import Event
from tests.support.manual_clock import ManualClock

TABLE = "CREATE TABLE shop.t (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)"
SHOP = pytest.mark.emulator(TABLE, generation=Generation.C, limits=Limits(max_running_txn_num_per_db=7))


def options(server: Emulator, username: str = "root", password: str = "") -> SinkOptions:
    urls = {"load_url": server.load_url, "query_url": server.query_url}
    return SinkOptions.from_properties({**urls, "database": "shop", "username": username, "password": password})


@SHOP
def test_the_running_transactions_of_the_database_are_counted(server: Emulator) -> None:
    own, clock = options(server), SystemClock()
    assert measure(own, clock) == TransactionRoom(0, 7)
    with closing(HttpTransport(own)) as transport:
        for number, operation in itertools.product(range(2), (Operation.BEGIN, Operation.LOAD)):
            loads = operation is Operation.LOAD  # which registers the transaction (wire contract 4.13)
            terms = {"table": "t", "headers": {"format": "json"}, "body": [b'{"id": 1}']} if loads else {}
            transport.send(Request(operation, "shop", f"open-{number}", **terms), Deadline.after(10, clock))  # type: ignore[arg-type]
    assert measure(own, clock) == TransactionRoom(2, 7)


@pytest.mark.emulator("CREATE USER loader IDENTIFIED BY 'x'")
def test_without_the_privilege_nothing_is_known(server: Emulator) -> None:
    events = list[Event]()
    watch = ServerLimitsWatch(options(server, "loader", "x"), events.append)
    watch.touch()
    assert watch._thread is not None
    watch._thread.join()
    assert [(event.name, event.fields.get("room")) for event in events] == [
        ("server.measured", None),
        ("threads.measured", None),
        ("tables.verified", None),
        ("tablets.measured", None),
    ]
    assert events[2].fields["found"] == {}


def test_the_rowsets_of_the_tablets_are_read(server: Emulator) -> None:
    """The emulator has no tablets; the answers have the shape that StarRocks' documentation describes."""
    rows = [["orders", 812], ["items", 3], ["empty", None]]
    answers = {
        "be_configs": {"columns": ["VALUE"], "rows": [["1000"], ["900"]]},
        "be_tablets": {"columns": ["TABLE_NAME", "max"], "rows": rows},
    }
    rule = {"operation": "query", "action": "answer"}
    server.faults.replace([{**rule, "label": sql, "body": json.dumps(body)} for sql, body in answers.items()])
    assert measure_tablets(options(server), SystemClock()) == TabletRoom({"orders": 812, "items": 3}, 900)


def test_a_server_is_asked_once_a_minute_and_for_tablets_every_five() -> None:
    clock, events = ManualClock(), list[Event]()
    unreachable = SinkOptions(load_url="http://127.0.0.1:1", query_url="mysql://127.0.0.1:2", database="shop")
    watch = ServerLimitsWatch(unreachable, events.append, clock)
    for seconds, count in ((0, 4), (1, 4), (58, 4), (2, 7), (60, 10), (178, 13), (60, 17)):
        clock.advance(seconds)
        watch.touch()
        for thread in threading.enumerate():
            if thread.name == "starrocks-server-limits":
                thread.join()
        assert len(events) == count


def test_one_that_paces_commits_looks_at_the_tablets_each_minute() -> None:
    clock, events = ManualClock(), list[Event]()
    unreachable = SinkOptions(load_url="http://127.0.0.1:1", query_url="mysql://127.0.0.1:2", database="shop")
    watch = ServerLimitsWatch(unreachable, events.append, clock, often=True)
    for count in (4, 8):
        watch.touch()
        assert watch._thread is not None
        watch._thread.join()
        assert len(events) == count
        clock.advance(60)


def test_what_the_page_and_the_metrics_say() -> None:
    clock = ManualClock()
    model = Model(clock)
    model.record(Event("server.measured", {"database": "shop", "room": TransactionRoom(80, 100)}))
    assert health_status(model, 0.0, 60.0).light is Light.NONE
    model.record(Event("server.measured", {"database": "shop", "room": TransactionRoom(81, 100)}))
    status = health_status(model, 0.0, 60.0)
    assert (status.light, status.text[:49]) == (Light.WARN, "81 of 100 transactions are running in database sh")
    assert model.metrics.total("database_running_transactions") == 81
    assert model.metrics.total("database_transaction_limit") == 100
    assert health_status(model, clock.wall() + 299, 60.0).light is Light.WARN
    assert health_status(model, clock.wall() + 300, 60.0).light is Light.NONE  # an idle query does not ask
    model.record(Event("server.measured", {"database": "shop", "room": None}))
    assert health_status(model, 0.0, 60.0).light is Light.NONE
    assert model.metrics.total("database_transaction_limit") == 0


def test_the_metrics_of_open_loads(server: Emulator) -> None:
    events, model = list[Event](), Model(ManualClock())
    watch = ServerLimitsWatch(options(server), events.append, loads=lambda: 9)
    watch.touch()
    assert watch._thread is not None
    watch._thread.join()
    for event in events:
        model.record(event)
    assert model.metrics.value("open_loads", "shop") == 9
    assert model.metrics.value("open_load_limit", "shop") == 14
    model.record(Event("threads.measured", {"database": "shop", "room": None}))
    assert model.metrics.total("open_load_limit") == 0


def test_the_last_proof_is_read_from_the_ledger(server: Emulator) -> None:
    own, events, model = options(server), list[Event](), Model(ManualClock())
    results = {"j": Verified(1_790_000_000, 48, 1, 1, 7, "0/1D4C3A8"), "other": Verified(1, 1, 0, 0, 0, "g")}
    with closing(LeaderConnection(own)) as connection:
        ledger, deadline = SqlLedger(connection, "shop"), Deadline.after(10, SystemClock())
        ledger.create(None, deadline)
        for job, result in results.items():
            ledger.execute(WriteMarker(job, VERIFIED, result.token), deadline)
    model.record(Event("session.opened", {"job": "j", "exactly_once": True}))
    watch = ServerLimitsWatch(own, events.append)
    watch.touch()
    assert watch._thread is not None
    watch._thread.join()
    for event in events:
        model.record(event)
    for state, count in (("equal", 48), ("different", 1), ("unproven", 1)):
        assert model.metrics.value("verified_tables", "j", state) == count
    assert model.metrics.value("verified_timestamp_seconds", "j") == 1_790_000_000
    assert model.metrics.value("verified_different_rows", "j") == 7
    assert model.metrics.values("verified_info") == {("j", "0/1D4C3A8"): 1}
    said = dashboard_state(model, 0.0, 60.0)["right"]["verified"]
    assert said == [
        "j: not equal to the source at 2026-09-21 14:13 UTC, position 0/1D4C3A8: "
        "1 tables different (7 rows), 48 equal, 1 not proven."
    ]
    model.record(Event("tables.verified", {"database": "shop", "found": {"j": Verified(2, 50, 0, 0, 0, "a:7")}}))
    assert model.metrics.value("verified_tables", "j", "different") == 0
    assert model.metrics.values("verified_info") == {("j", "a:7"): 1}  # no series of the position before


def test_the_metrics_of_tablets() -> None:
    model = Model(ManualClock())
    model.record(Event("tablets.measured", {"database": "shop", "room": TabletRoom({"a": 5, "b": 7}, 1000)}))
    model.record(Event("tablets.measured", {"database": "other", "room": TabletRoom({"a": 9}, 500)}))
    assert [model.metrics.value("tablet_rowsets", table) for table in "ab"] == [9, 7]
    model.record(Event("tablets.measured", {"database": "other", "room": None}))
    assert model.metrics.value("tablet_rowsets", "a") == 5
    assert model.metrics.total("tablet_rowset_limit") == 1000
