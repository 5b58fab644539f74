"""No wait is without an end: peers that never answer, that trickle, and that stop reading."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import DeadlineExceeded, NotSent, ReplyLost
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.wire import Operation, Reply, Request, Status
from tests.support.http_peer import Caller, Got, Peer, points_to, says

OK = {"Status": "OK", "Message": ""}
SOON = 20.0  # seconds: far above what the limits allow on a busy machine, far below what a peer would take


def send(operation: Operation, url: str, seconds: float, body: Any = None, **options: Any) -> Reply:
    transport = HttpTransport(SinkOptions(load_url=url, database="shop", delivery="at-least-once", **options))
    table = "orders" if operation is Operation.LOAD else None
    try:
        deadline = Deadline.after(seconds, SystemClock())
        return transport.send(Request(operation, "shop", "job-1", table, {}, body), deadline)
    finally:
        transport.close()


def silent(caller: Caller, _: Got) -> None:
    caller.stopping.wait(30)


def trickling(piece: Iterator[bytes]) -> Any:
    def script(caller: Caller, _: Got) -> None:
        while not caller.stopping.wait(0.02):
            caller.sock.sendall(next(piece))

    return script


def took(start: float) -> float:
    return time.monotonic() - start


def test_a_peer_that_never_answers_is_left_at_the_deadline() -> None:
    with Peer(silent) as frontend:
        start = time.monotonic()
        with pytest.raises(ReplyLost):
            send(Operation.COMMIT, frontend.url, 1.0, read_timeout=60)
        assert 0.95 < took(start) < SOON
        assert len(frontend.got) == 1


@pytest.mark.parametrize("operation", [Operation.ROLLBACK, Operation.COMMIT])
def test_requests_wait_for_read_timeout_only(operation: Operation) -> None:
    """A commit too: its fate is asked for, rather than a half-open connection waited out."""
    with Peer(silent) as frontend:
        start = time.monotonic()
        with pytest.raises(ReplyLost):
            send(operation, frontend.url, 60, read_timeout=0.2)
        assert took(start) < SOON


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([b"H", b"T", b"T", b"P", b"/", b"1", b".", b"1", b" ", *[b"2"] * 500], id="status line"),
        pytest.param([b"HTTP/1.1 200 X\r\n", *[b"a: b\r\n"] * 90, *[b"c"] * 5000], id="headers"),
        pytest.param([b"HTTP/1.1 200 X\r\nContent-Length: 100000\r\n\r\n", *[b" "] * 5000], id="body"),
    ],
)
def test_a_peer_that_trickles_cannot_hold_us(pieces: list[bytes]) -> None:
    with Peer(trickling(itertools.chain(pieces, itertools.repeat(b" ")))) as frontend:
        start = time.monotonic()
        with pytest.raises(ReplyLost):
            send(Operation.BEGIN, frontend.url, 60, read_timeout=0.3)
        assert took(start) < SOON


def test_a_backend_that_stops_reading_is_left_at_the_deadline() -> None:
    with Peer(silent, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        start = time.monotonic()
        with pytest.raises(ReplyLost):
            send(Operation.LOAD, frontend.url, 2.0, [bytes(64 << 20)])
        assert took(start) < SOON


def test_a_slow_backend_may_take_longer_than_one_timeout_for_the_whole_body() -> None:
    def slow(caller: Caller, request: Got) -> None:
        caller.ask_for_body(request)
        remaining = int(request.headers["content-length"]) - len(caller.buffer)
        while remaining:
            if remaining > 12 << 20:  # what is in the sockets' buffers at the end counts as the wait for the reply
                caller.stopping.wait(0.05)
            remaining -= len(caller.sock.recv(1 << 18))
        caller.answer(OK)

    with Peer(slow, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        start = time.monotonic()
        reply = send(Operation.LOAD, frontend.url, 60, [bytes(24 << 20)], read_timeout=2, connect_timeout=2)
        assert reply.status is Status.OK
        assert took(start) > 2


def test_without_time_nothing_is_sent() -> None:
    with Peer(says(OK)) as frontend:
        with pytest.raises(DeadlineExceeded, match="begin"):
            send(Operation.BEGIN, frontend.url, 0.0)
        assert frontend.got == []


def test_closing_closes_connections_that_the_traceback_of_an_error_still_holds() -> None:
    def first_silent(caller: Caller, request: Got) -> None:
        (silent if len(frontend.got) == 1 else says(OK))(caller, request)

    with Peer(first_silent) as frontend:
        transport = HttpTransport(SinkOptions(load_url=frontend.url, database="shop", delivery="at-least-once"))
        with pytest.raises(ReplyLost) as failure:
            transport.send(Request(Operation.BEGIN, "shop", "job-1"), Deadline.after(1.0, SystemClock()))
        transport.send(Request(Operation.ROLLBACK, "shop", "job-1"), Deadline.after(20, SystemClock()))
        assert len(connections_to(frontend)) == 1
        transport.close()
        assert connections_to(frontend) == []
        assert failure.value.__context__ is not None


def connections_to(peer: Peer) -> list[Any]:
    """This process's connections to `peer` that are open."""
    port = int(peer.url.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    return [
        connection
        for connection in connections
        if connection.raddr and connection.raddr.port == port and connection.status == "ESTABLISHED"
    ]


def test_threads_share_a_transport_and_closing_it_ends_its_use() -> None:
    with Peer(says(OK)) as frontend:
        transport = HttpTransport(SinkOptions(load_url=frontend.url, database="shop", delivery="at-least-once"))
        begin = Request(Operation.BEGIN, "shop", "job-1")
        replies: list[Reply] = []

        def work() -> None:
            replies.extend(transport.send(begin, Deadline.after(20, SystemClock())) for _ in range(5))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        transport.close()
        assert [reply.status for reply in replies] == [Status.OK] * 20
        assert len({request.connection for request in frontend.got}) == 4  # one kept-alive connection for each thread
        with pytest.raises(NotSent, match="closed"):
            transport.send(begin, Deadline.after(20, SystemClock()))
