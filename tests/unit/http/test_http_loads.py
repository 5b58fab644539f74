"""The two-step load: who is asked, who gets the body, and who gets to see the credentials."""

from __future__ import annotations

import socket
import time
import tracemalloc
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import BadReply, HttpRefused, InputError, NotSent, RedirectRefused, ReplyLost
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.http.sockets import CONTINUE_SECONDS
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.wire import Operation, Reply, Request, Status
from tests.support.http_peer import Caller, Got, Peer, points_to, redirects, says, unused_port

OK = {"Status": "OK", "Message": "", "Label": "job-1", "TxnId": 7, "LoadBytes": 2}
BASIC = "Basic " + b64encode(b"root:geheim").decode()


def send(url: str, body: Any = (b"[]",), *, seconds: float = 20.0, table: str = "orders", **options: Any) -> Reply:
    sink_options = SinkOptions(load_url=url, database="shop", delivery="at-least-once", password="geheim", **options)
    transport = HttpTransport(sink_options)
    request = Request(Operation.LOAD, "shop", "job-1", table, {"format": "json"}, body)
    try:
        return transport.send(request, Deadline.after(seconds, SystemClock()))
    finally:
        transport.close()


def test_the_frontend_is_asked_with_an_empty_put_and_the_backend_gets_the_body() -> None:
    pieces = [b"[", memoryview(b'{"id":1}'), memoryview(bytearray(b',{"id":2}')), b"]"]
    with Peer(says(OK)) as backend, Peer(points_to(backend)) as frontend:
        reply = send(frontend.url, pieces)
    assert reply == Reply(Status.OK, label="job-1", txn_id=7)
    (question,), (load,) = frontend.got, backend.got
    assert question.line == load.line == "PUT /api/transaction/load HTTP/1.1"
    assert (question.body, load.body) == (b"", b'[{"id":1},{"id":2}]')
    assert question.headers["content-length"] == "0"
    for request in (question, load):
        expected = {"db": "shop", "label": "job-1", "table": "orders", "transaction_type": "multi", "format": "json"}
        assert expected.items() <= request.headers.items()
        assert request.headers["authorization"] == BASIC
        assert {"transfer-encoding", "cookie"}.isdisjoint(request.headers)
    assert ("expect" in question.headers, load.headers["expect"]) == (False, "100-continue")


def test_a_body_of_many_buffers_arrives_exactly_and_is_never_copied_whole() -> None:
    block = bytes(range(256)) * 4096  # 1 MiB
    size, received = 50 << 20, []

    def drain(caller: Caller, request: Got) -> None:
        caller.ask_for_body(request)
        remaining = int(request.headers["content-length"])
        place = 0
        while remaining:
            if not caller.buffer:
                assert caller.fill()
            part = bytes(caller.buffer)
            caller.buffer.clear()
            received.append(part == (block + block)[place % len(block) :][: len(part)])
            place, remaining = place + len(part), remaining - len(part)
        caller.answer(OK)

    class Body:
        def __len__(self) -> int:
            return size

        def __iter__(self) -> Iterator[memoryview]:
            return iter([memoryview(block * 7), *[memoryview(block)] * 43])

    with Peer(drain, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        body = list(Body())
        tracemalloc.start()
        try:
            assert send(frontend.url, body).status is Status.OK
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert send(frontend.url, Body()).status is Status.OK
    assert all(received)
    assert peak < 16 << 20
    assert [request.headers["content-length"] for request in backend.got] == [str(size)] * 2


def test_a_refused_question_is_the_reply_and_no_body_is_sent() -> None:
    refusal = {"Status": "FAILED", "Message": "class X: stream load task job-1 does not exist"}
    with Peer(says(refusal)) as frontend:
        reply = send(frontend.url)
    assert reply.status is Status.FAILED
    assert reply.message.endswith("does not exist")
    assert [request.body for request in frontend.got] == [b""]


def test_an_ok_to_the_question_is_no_load() -> None:
    with Peer(says(OK)) as proxy, pytest.raises(BadReply, match="followed the redirect by itself"):
        send(proxy.url)


def test_a_table_that_another_load_plans_is_busy_and_a_frontend_is_no_proxy() -> None:
    """Wire contract 4.5: both come from a frontend, with OK and without a redirect."""
    planned, ended = "stream load task is in unexpected state BEGIN", "stream load task job-1 has already been finished"
    with Peer(says({"Status": "OK", "Message": planned})) as frontend:
        assert send(frontend.url).status is Status.TXN_IN_PROCESSING
    with Peer(says({"Status": "OK", "Message": ended})) as frontend, pytest.raises(BadReply) as failure:
        send(frontend.url)
    assert "has already been finished" in failure.value.message
    assert "proxy" not in str(failure.value)


def test_a_redirect_to_a_host_that_is_not_allowed_is_refused_before_anything_is_sent() -> None:
    with Peer(says(OK)) as backend:
        location = f"http://localhost:{backend.port}/api/transaction/load"
        with Peer(redirects(location)) as frontend:
            with pytest.raises(RedirectRefused) as failure:
                send(frontend.url)
            assert send(frontend.url, redirect_hosts=["localhost"]).status is Status.OK
    assert f"localhost:{backend.port}" in str(failure.value)
    assert "redirect_hosts=['localhost']" in str(failure.value)
    assert "geheim" not in str(failure.value)
    assert BASIC not in str(failure.value)
    assert len(backend.got) == 1


def test_redirects_are_rewritten_by_the_map() -> None:
    with Peer(says(OK)) as backend:
        inside = "http://be-0.internal:8040/api/transaction/load"
        with Peer(redirects(inside)) as frontend:
            rewrite = {"be-0.internal:8040": f"127.0.0.1:{backend.port}"}
            assert send(frontend.url, redirect_map=rewrite).status is Status.OK


@pytest.mark.parametrize("location", ["", "/api/transaction/load", "ftp://be:1/", "http://:8040/", "http://be:x/"])
def test_a_redirect_without_a_usable_location(location: str) -> None:
    with Peer(redirects(location)) as frontend, pytest.raises(BadReply, match="redirect"):
        send(frontend.url)


def test_a_known_leader_is_asked_again_before_the_body_is_sent() -> None:
    with Peer(says(OK)) as backend, Peer(points_to(backend)) as leader, Peer(points_to(leader)) as follower:
        assert send(f"{follower.url},{leader.url}").status is Status.OK
    assert [request.body for request in follower.got + leader.got] == [b"", b""]
    assert [request.body for request in backend.got] == [b"[]"]


def test_an_unknown_leader_passes_the_body_on_to_the_backend() -> None:
    with Peer(says(OK)) as backend, Peer(points_to(backend)) as leader, Peer(points_to(leader)) as follower:
        assert send(follower.url).status is Status.OK
    assert [request.body for request in backend.got] == [b"[]"]


def test_a_reset_in_the_middle_of_the_body_leaves_the_effect_unknown_and_nothing_is_sent_again() -> None:
    def broken(caller: Caller, request: Got) -> None:
        caller.ask_for_body(request)
        assert caller.fill()
        caller.reset()

    with Peer(broken, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        with pytest.raises(ReplyLost) as failure:
            send(frontend.url, [bytes(8 << 20)])
        assert len(backend.got) == len(frontend.got) == 1
    assert failure.value.context["table"] == "orders"


def test_a_refusal_in_the_middle_of_the_body_is_heard() -> None:
    def early(caller: Caller, request: Got) -> None:
        caller.ask_for_body(request)
        caller.answer({"Status": "INTERNAL_ERROR", "Message": "body size exceed limit"})
        caller.sock.shutdown(socket.SHUT_WR)
        while caller.fill():  # the rest is read away, so that no reset races the reply
            caller.buffer.clear()

    with Peer(early, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        assert send(frontend.url, [bytes(4 << 20)]).status is Status.INTERNAL_ERROR


BUSY = {"Status": "TXN_IN_PROCESSING", "Label": "job-1", "Message": "Transaction is in processing"}
"""What a backend says to a load at once, and does not read its body (wire contract 2.5)."""


def loads(transport: HttpTransport, count: int) -> list[Status]:
    request = Request(Operation.LOAD, "shop", "job-1", "orders", {"format": "json"}, [b"[]"])
    with closing(transport):
        return [transport.send(request, Deadline.after(20, SystemClock())).status for _ in range(count)]


def to(frontend: Peer) -> HttpTransport:
    return HttpTransport(SinkOptions(load_url=frontend.url, database="shop", delivery="at-least-once"))


def test_no_body_is_sent_to_a_backend_that_refuses_and_the_next_load_has_a_new_connection() -> None:
    def busy_once(caller: Caller, request: Got) -> None:
        if caller.number == 0:
            caller.answer(BUSY)
        else:
            caller.answer(OK) if caller.read_body(request).body == b"[]" else caller.reset()

    with Peer(busy_once, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        statuses = loads(to(frontend), 3)
    assert statuses == [Status.TXN_IN_PROCESSING, Status.OK, Status.OK]
    assert [(request.connection, request.body) for request in backend.got] == [(0, b""), (1, b"[]"), (1, b"[]")]


def test_a_server_that_never_says_continue_gets_the_body_and_costs_one_pause() -> None:
    def mute(caller: Caller, request: Got) -> None:
        while len(caller.buffer) < int(request.headers["content-length"]):
            assert caller.fill()
        caller.buffer.clear()
        caller.answer(OK)

    with Peer(mute, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        start = time.monotonic()
        statuses = loads(to(frontend), 30)
        seconds = time.monotonic() - start
    assert statuses == [Status.OK] * 30
    assert CONTINUE_SECONDS <= seconds < 30 * CONTINUE_SECONDS


@pytest.mark.parametrize("page", [b"<HTML><HEAD>\n<TITLE>400 Bad Request</TITLE>\n</HEAD></HTML>", b""])
def test_http_400_on_a_used_connection_is_repaired_by_a_new_one(page: bytes) -> None:
    def spoiled(caller: Caller, request: Got) -> None:
        if caller.number == 0 and len(backend.got) == 2:
            caller.answer(page, 400)
            caller.reset()
        else:
            caller.read_body(request)
            caller.answer(OK)

    with Peer(spoiled, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        assert loads(to(frontend), 2) == [Status.OK] * 2
        assert [request.connection for request in backend.got] == [0, 0, 1]


def test_http_400_on_a_new_connection_is_the_servers_word() -> None:
    with Peer(says(b"", 400)) as backend, Peer(points_to(backend)) as frontend, pytest.raises(HttpRefused):
        loads(to(frontend), 1)


def test_a_connection_that_is_closed_before_the_body_is_repaired_by_a_new_one() -> None:
    def closing_first(caller: Caller, request: Got) -> None:
        if len(backend.got) == 1:
            caller.sock.close()
        else:
            caller.read_body(request)
            caller.answer(OK)

    with Peer(closing_first, read_body=False) as backend, Peer(points_to(backend)) as frontend:
        assert loads(to(frontend), 1) == [Status.OK]
        assert [request.body for request in backend.got] == [b"", b"[]"]


def test_a_connection_that_is_closed_after_the_body_is_not() -> None:
    def closing_late(caller: Caller, _: Got) -> None:
        caller.sock.close()

    with Peer(closing_late) as backend, Peer(points_to(backend)) as frontend:
        with pytest.raises(ReplyLost):
            loads(to(frontend), 1)
        assert [request.body for request in backend.got] == [b"[]"]


def test_a_backend_that_cannot_be_reached_is_asked_for_again() -> None:
    dead = unused_port()
    with Peer(says(OK)) as backend:
        places = iter([f"http://127.0.0.1:{dead}/", f"{backend.url}/"])
        with Peer(lambda caller, _: caller.redirect(next(places))) as frontend:
            assert send(frontend.url).status is Status.OK
            assert len(frontend.got) == 2


def test_a_backend_that_stays_away_is_not_sent() -> None:
    dead = f"http://127.0.0.1:{unused_port()}/"
    with Peer(redirects(dead)) as frontend, pytest.raises(NotSent):
        send(frontend.url)


def test_a_body_that_is_not_as_long_as_it_said_breaks_the_connection() -> None:
    class Short:
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Iterator[bytes]:
            return iter([b"12345"])

    with Peer(says(OK)) as backend, Peer(points_to(backend)) as frontend, pytest.raises(ReplyLost, match="fewer"):
        send(frontend.url, Short())


def test_names_travel_as_utf8_and_cannot_smuggle_headers() -> None:
    with Peer(says(OK)) as backend, Peer(points_to(backend)) as frontend:
        assert send(frontend.url, table="bestellungen_größe_订单").status is Status.OK
        for table in ("orders\r\nlabel: other", "a\nb", " orders", ""):
            with pytest.raises(InputError, match="table"):
                send(frontend.url, table=table)
    assert backend.got[0].headers["table"] == "bestellungen_größe_订单"
    assert len(backend.got) == 1
