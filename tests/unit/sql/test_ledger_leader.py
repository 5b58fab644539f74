"""The ledger is read on the leader: a follower of the emulator lags, and its answer would be wrong."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from starrocks_emulator.process import EmulatorProcess
from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import Fenced, QueryFailed
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.protocol import fencing
from starrocks_txn_sink.protocol.label import LedgerRequest, run
from starrocks_txn_sink.protocol.ledger import Owner, WriteClaim, check_owner
from starrocks_txn_sink.protocol.wire import Reply, Request
from starrocks_txn_sink.sink import session as sessions
from starrocks_txn_sink.sink.failures import outage_of
from starrocks_txn_sink.sink.session import Session, open_session, run_once
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlConnection, SqlLedger
from tests.support.query_port import connect

pytestmark = pytest.mark.emulator(followers=2)

OWNERS = "SELECT count(*) FROM shop._starrocks_txn_sink_ledger WHERE kind = 'driver'"


def ask_port(port: int, sql: str) -> list[dict[str, Any]]:
    with connect(port) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def options(server: Emulator, *ports: int) -> SinkOptions:
    addresses = ",".join(f"mysql://127.0.0.1:{port}" for port in ports)
    return SinkOptions(load_url=server.load_url, query_url=addresses, database="shop", job="shop")


class NoTransport:
    """Sends nothing: an owner check needs only the query port."""

    def send(self, request: Request, deadline: Deadline) -> Reply:
        raise AssertionError(f"{request} of {deadline}")

    def close(self) -> None:
        """Nothing is open."""


def count(rows: list[dict[str, Any]]) -> int:
    ((number,),) = (row.values() for row in rows)
    return int(number)


def test_a_session_may_have_its_queries_passed_on(server: Emulator) -> None:
    ask_port(server.query_port, "CREATE TABLE shop.t (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)")
    connection = SqlConnection(
        options(server, server.query_port), Address("mysql", "127.0.0.1", server.follower_query_ports[0])
    )
    with closing(connection):
        assert connection.value("SELECT count(*) FROM shop.t") == 0


def test_every_frontend_shows_all_of_them_and_who_leads(server: Emulator) -> None:
    ports = [server.query_port, *server.follower_query_ports]
    for port in ports:
        frontends = ask_port(port, "SHOW FRONTENDS")
        assert sorted(int(row["QueryPort"]) for row in frontends) == sorted(ports)
        assert [int(row["QueryPort"]) for row in frontends if row["Role"] == "LEADER"] == [server.query_port]


def test_the_leader_is_asked_even_when_a_follower_is_named_first_and_would_have_lied(server: Emulator) -> None:
    follower = server.follower_query_ports[0]
    sink_options = options(server, follower, server.query_port)
    open_session(sink_options, "run-1", "shop", "checkpoint")
    server.catch_up()
    ask_port(server.query_port, "DELETE FROM shop._starrocks_txn_sink_ledger WHERE job = 'shop'")
    with closing(LeaderConnection(sink_options)) as connection:
        ((owner_count,),) = connection.query(OWNERS, (), Deadline.after(20, SystemClock()))
    assert owner_count == 0
    assert count(ask_port(follower, OWNERS)) == 1  # the lie
    server.catch_up()
    assert count(ask_port(follower, OWNERS)) == 0


def test_a_take_over_through_a_follower_that_knows_nothing_yet(server: Emulator) -> None:
    """The follower has not even heard of the ledger's table."""
    session = open_session(options(server, *server.follower_query_ports), "run-1", "shop", "checkpoint")
    assert session.token
    assert count(ask_port(server.query_port, OWNERS)) == 1


UNKNOWN = {"operation": "query", "label": "follower_query_forward_mode", "action": "answer", "status": 1193}
"""A server that does not know the variable."""


def take_over(sink_options: SinkOptions) -> Session:
    return open_session(sink_options, "run-2", "shop", "checkpoint")


@pytest.mark.parametrize("rules", [[], [UNKNOWN]], ids=["forwarding", "older server"])
def test_a_writer_whose_leader_has_stepped_down_in_place_sees_who_took_over(
    server: Emulator, rules: list[dict[str, object]]
) -> None:
    """Its connection was the leader's, stays open, and ends at a follower now."""
    server.faults.replace({"rules": rules})
    sink_options = options(server, server.query_port, *server.follower_query_ports)
    clock = SystemClock()
    session = open_session(sink_options, "run-1", "shop", "checkpoint")
    with closing(LeaderConnection(sink_options)) as connection:
        ledger = SqlLedger(connection, "shop")

        def check() -> None:
            steps = check_owner("shop", Owner(session.token, session.epoch, "checkpoint"), random.Random(1))
            run(steps, NoTransport(), clock, Deadline.after(20, clock), ledger)

        check()
        server.step_down()
        check()
        take_over(options(server, server.query_port))
        with pytest.raises(Fenced):
            check()


def test_after_an_outage_the_job_is_taken_over_again_unless_another_run_has_it(
    server: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that fails after its claim is still this run; so only another run's token ends it."""
    sink_options, tokens = options(server, server.query_port), set[str]()
    before = take_over(sink_options)
    session = open_session(sink_options, "run-1", "shop", "checkpoint", tokens=tokens)
    assert {before.token, session.token} <= tokens

    def lose_the_answer(*_: object) -> None:
        raise QueryFailed("The connection broke.")

    with monkeypatch.context() as patched:
        patched.setattr(fencing, "roll_back_unfinished", lose_the_answer)
        with pytest.raises(QueryFailed):
            open_session(sink_options, "run-1", "shop", "checkpoint", tokens=tokens)
    again = open_session(sink_options, "run-1", "shop", "checkpoint", tokens=tokens)
    assert again.token in tokens
    successor = take_over(sink_options)
    with pytest.raises(Fenced, match="taken over by another writer"):
        open_session(sink_options, "run-1", "shop", "checkpoint", tokens=tokens)
    run_once(sink_options, successor.check_owner(random.Random(1)), 20)  # it still has the job
    open_session(sink_options, "run-3", "shop", "checkpoint")  # a new start takes it over, as ever


def test_a_writer_whose_own_claim_took_effect_late_takes_the_job_over_again(server: Emulator) -> None:
    """It is no other writer, so the query goes on; but it may hide who claimed in between, so nothing is committed."""
    sink_options, tokens = options(server, server.query_port), set[str]()
    with closing(LeaderConnection(sink_options)) as connection:
        ledger, late = SqlLedger(connection, "shop"), list[WriteClaim]()

        class Late(SqlLedger):
            """The first claim has no answer, and takes effect at a time that the test chooses."""

            def execute(self, request: LedgerRequest, deadline: Deadline) -> Any:
                if isinstance(request, WriteClaim) and not late:
                    late.append(request)
                    return QueryFailed("The read timed out.")
                return super().execute(request, deadline)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sessions, "SqlLedger", Late)
            session = open_session(sink_options, "run-1", "shop", "checkpoint", tokens=tokens)
        run_once(sink_options, session.check_owner(random.Random(1)), 20)
        ledger.execute(late[0], Deadline.after(20, SystemClock()))
        with pytest.raises(QueryFailed, match="after its last one") as raised:
            run_once(sink_options, session.check_owner(random.Random(1)), 20)
        assert outage_of(raised.value) is not None
        again = open_session(sink_options, "run-1", "shop", "checkpoint", tokens=tokens)
        run_once(sink_options, again.check_owner(random.Random(1)), 20)
        ledger.execute(late[0], Deadline.after(20, SystemClock()))  # the claim of an earlier session, too
        with pytest.raises(QueryFailed, match="after its last one"):
            run_once(sink_options, again.check_owner(random.Random(1)), 20)


@pytest.mark.parametrize("rules", [[], [UNKNOWN]], ids=["forwarding", "older server"])
def test_a_reconnect_finds_the_leader_of_that_moment(server: Emulator, rules: list[dict[str, object]]) -> None:
    server.faults.replace({"rules": rules})
    first = server.query_port
    sink_options = options(server, first, *server.follower_query_ports)
    with closing(LeaderConnection(sink_options)) as connection:
        deadline = Deadline.after(20, SystemClock())
        connection.query("SELECT 1", (), deadline)
        server.step_down()
        ask_port(server.query_port, "CREATE TABLE shop.t (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)")
        server.catch_up()
        connection.close()
        ask_port(server.query_port, "INSERT INTO shop.t VALUES (1)")
        assert connection.query("SELECT count(*) FROM shop.t", (), deadline) == [(1,)]
        assert connection._port is not None
        assert connection._port.address.port == server.query_port != first
    assert count(ask_port(first, "SELECT count(*) FROM shop.t")) == 0  # the lie


def test_a_follower_forwards_what_changes_something(server: Emulator) -> None:
    follower = server.follower_query_ports[0]
    ask_port(follower, "CREATE TABLE shop.t (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)")
    server.catch_up()
    ask_port(follower, "INSERT INTO shop.t VALUES (1)")
    assert count(ask_port(follower, "SELECT count(*) FROM shop.t")) == 0
    assert count(ask_port(server.query_port, "SELECT count(*) FROM shop.t")) == 1


def test_the_emulator_as_a_process_has_followers_too(tmp_path: Path) -> None:
    with EmulatorProcess(tmp_path / "data", Settings(followers=1)) as process:
        (port,) = process.follower_query_ports
        ask_port(process.query_port, "CREATE DATABASE shop")
        ask_port(process.query_port, "CREATE TABLE shop.t (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)")
        process.catch_up()
        ask_port(process.query_port, "INSERT INTO shop.t VALUES (1)")
        assert count(ask_port(port, "SELECT count(*) FROM shop.t")) == 0
        process.catch_up()
        assert count(ask_port(port, "SELECT count(*) FROM shop.t")) == 1
