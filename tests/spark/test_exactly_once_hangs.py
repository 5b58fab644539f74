"""A peer that accepts and never answers: the deadline fires at every operation, and the error names the place.

Most cases run the lane and the driver's session in this process, without Spark, so that its threads and sockets can be
counted; the last one is a whole job.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import StarRocksSink
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import (
    BeginFailed,
    DeadlineExceeded,
    HttpRefused,
    LoadFailed,
    OutcomeUnknown,
    StarRocksSinkError,
)
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.session import Session, open_session
from tests.crash.query_proxy import QueryProxy
from tests.support.exactly_once_shop import Shop, rows_of
from tests.support.micro_batch import write_under
from tests.support.threads import running
from tests.support.waiting import wait_until

_DEADLINE = 1.0
_SLACK = (
    60.0  # a rollback may take 10 s after the deadline, and a busy machine its time; far below what would be waited for
)
_BEHIND = 120.0  # what a hanging server would take
ROWS = {
    "source_partition": pa.array(["p-0"]),
    "position": pa.array([1], pa.int64()),
    "table": pa.array(["items"]),
    "transaction_end": pa.array([True]),
    "payload": pa.array([',{"part":"p-0","position":1,"seq":0}']),
}


@pytest.fixture
def hanging_shop(server: Emulator, tmp_path: Path) -> Shop:
    """A label may stay open: after a commit without an answer nobody rolls it back."""
    return Shop(None, server, tmp_path)


def quick(shop: Shop, seconds: float = _DEADLINE, **changes: Any) -> SinkOptions:
    return shop.options(batch_deadline=seconds, **changes)


def write(options: SinkOptions, session: Session) -> list[Receipt]:
    return write_under(options, session, pa.RecordBatch.from_pydict(ROWS)).receipts


class Left:
    """Threads and connections to `ports` that this process has more than at first."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._threads = running()

    def gone(self, seconds: float = 60) -> None:
        """Wait until nothing is left; the assertion says what is."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.rest(), seconds)
        assert self.rest() == []

    def rest(self) -> list[Any]:
        """What is left; the service of turns is one for each process, and stays."""
        started = {
            thread
            for thread in threading.enumerate()
            if thread.name.startswith("starrocks-") and thread.name != "starrocks-turns"
        }
        return [*(started - self._threads), *self._sockets()]

    def _sockets(self) -> list[Any]:
        connections = psutil.Process().net_connections("tcp")
        return [
            connection
            for connection in connections
            if connection.raddr and connection.raddr.port in self._ports and connection.status == "ESTABLISHED"
        ]


def hits(shop: Shop) -> int:
    """How many requests the faults of the emulator have met."""
    return sum(int(rule["matched"]) for rule in shop.server.faults.report()["rules"])


def fails_in_time(work: Callable[[], object], *kinds: type[Exception], seconds: float = _DEADLINE) -> str:
    began = time.monotonic()
    with pytest.raises(kinds) as failed:
        work()
    assert time.monotonic() - began < seconds + _SLACK
    return str(failed.value)


def ends(work: Callable[[float], object], is_reached: Callable[[], object], *kinds: type[Exception]) -> str:
    """What `work` says at the end of its deadline; a busy machine gets more time until `is_reached`."""
    for seconds in (_DEADLINE, 4 * _DEADLINE, 16 * _DEADLINE):
        message = fails_in_time(partial(work, seconds), *kinds, seconds=seconds)
        if is_reached():
            return message
    raise AssertionError(message)


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        pytest.param({"operation": "begin"}, "beginning|begin", marks=pytest.mark.deep),
        pytest.param({"operation": "load_probe"}, "load", marks=pytest.mark.deep),
        pytest.param({"operation": "load"}, "load", marks=pytest.mark.deep),
        ({"operation": "commit"}, "commit"),
        pytest.param({"operation": "get_load_state"}, "commit", marks=pytest.mark.deep),
    ],
    ids=lambda value: value["operation"] if isinstance(value, dict) else "",
)
def test_a_lane_ends_by_its_deadline_wherever_the_server_hangs(
    hanging_shop: Shop, rule: dict[str, Any], place: str
) -> None:
    session = open_session(hanging_shop.options(), "run", "test", "checkpoint")
    leftovers = Left(hanging_shop.server.fe_port, hanging_shop.server.be_port, hanging_shop.server.query_port)
    hanging_shop.fault({**rule, "action": "hang", "seconds": _BEHIND})
    message = ends(
        lambda seconds: write(quick(hanging_shop, seconds), session),
        lambda: hits(hanging_shop),
        BeginFailed,  # its cause is the answer that did not come before the deadline
        LoadFailed,  # likewise
        DeadlineExceeded,
        OutcomeUnknown,
    )
    assert any(word in message for word in place.split("|")), message
    assert "deadline" in message or "reply did not arrive" in message
    hanging_shop.fault()
    leftovers.gone()


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        pytest.param("SHOW FRONTENDS", "ledger", marks=pytest.mark.deep),
        pytest.param("SELECT @@version_comment", "", marks=pytest.mark.deep),
        pytest.param("INSERT INTO .*'driver'", "owner row", marks=pytest.mark.deep),
        pytest.param("SELECT DISTINCT LABEL", "ListUnfinished", marks=pytest.mark.deep),
        ("INSERT INTO .*'marker'", "marker"),
        pytest.param("SELECT name, position", "ReadPositions", marks=pytest.mark.deep),
    ],
)
def test_a_take_over_ends_by_its_deadline_wherever_the_query_port_hangs(
    hanging_shop: Shop, statement: str, place: str
) -> None:
    with QueryProxy(hanging_shop.server.query_port) as proxy:
        holds = [proxy.hold(statement) for _ in range(9)]
        leftovers = Left(proxy.port, hanging_shop.server.fe_port)

        def take_over(seconds: float) -> object:
            return open_session(quick(hanging_shop, seconds, query_url=proxy.url), "run", "test", "checkpoint")

        message = ends(take_over, lambda: any(hold.reached.is_set() for hold in holds), StarRocksSinkError)
        assert "deadline" in message.lower() or "did not answer" in message
        assert place in message or "did not answer" in message, message
        assert leftovers.rest() == []


def test_a_query_port_that_accepts_and_never_greets(hanging_shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = quick(hanging_shop, query_url=f"mysql://127.0.0.1:{silent.getsockname()[1]}")
        fails_in_time(lambda: open_session(options, "run", "test", "checkpoint"), StarRocksSinkError)


def test_an_owner_check_that_hangs_ends_by_the_deadline(hanging_shop: Shop) -> None:
    with QueryProxy(hanging_shop.server.query_port) as proxy:
        session = open_session(hanging_shop.options(query_url=proxy.url), "run", "test", "checkpoint")
        leftovers = Left(proxy.port, hanging_shop.server.fe_port, hanging_shop.server.be_port)
        holds = [proxy.hold("SELECT token, epoch") for _ in range(9)]

        def one_lane(seconds: float) -> object:
            return write(quick(hanging_shop, seconds, query_url=proxy.url), session)

        message = ends(one_lane, lambda: any(hold.reached.is_set() for hold in holds), DeadlineExceeded)
        assert "check" in message or "ledger" in message
        leftovers.gone()
    assert hanging_shop.open_labels() == []
    assert hanging_shop.written() == (0, 0)


@pytest.mark.parametrize(
    "operation", ["load", "commit", *(pytest.param(name, marks=pytest.mark.deep) for name in ("begin", "load_probe"))]
)
def test_an_answer_that_cannot_get_better_ends_the_lane_at_once(hanging_shop: Shop, operation: str) -> None:
    session = open_session(hanging_shop.options(), "run", "test", "checkpoint")
    refusal = {"operation": operation, "action": "answer", "when": "before", "status": 413, "body": "<html>"}
    hanging_shop.fault(
        refusal, *({"operation": name, "action": "delay", "seconds": 0} for name in ("begin", "rollback"))
    )
    message = fails_in_time(lambda: write(hanging_shop.options(), session), HttpRefused)
    assert "HTTP 413" in message
    assert "lower chunk_bytes" in message
    if operation != "begin":
        assert hanging_shop.requests()["begin"] == 1
    assert hanging_shop.written() == (0, 0)


@pytest.mark.deep
@pytest.mark.spark
def test_a_whole_job_ends_when_the_server_hangs_and_leaves_nothing_on_the_driver(shop: Shop) -> None:
    leftovers = Left(shop.server.fe_port, shop.server.be_port, shop.server.query_port)
    shop.fault({"operation": "load", "table": "items", "action": "hang", "seconds": _BEHIND})

    def job(seconds: float) -> None:
        StarRocksSink(quick(shop, seconds)).write(shop.frame(rows_of("p-0", [1])))

    # A load that began late waits until the deadline too, and may say so first.
    message = ends(job, lambda: hits(shop), DeadlineExceeded, LoadFailed)
    assert "deadline" in message or "reply did not arrive" in message
    leftovers.gone()
    shop.fault()
    assert shop.written() == (0, 0)
