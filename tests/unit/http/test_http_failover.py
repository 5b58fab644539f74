"""Which address is asked next, what is never asked twice, and what an error of the HTTP library means."""

from __future__ import annotations

import http.client
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import requests
import responses
import urllib3.exceptions

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import (
    AuthenticationFailed,
    BadReply,
    DeadlineExceeded,
    HttpRefused,
    NotSent,
    OptionError,
    ReplyLost,
    StarRocksSinkError,
)
from starrocks_txn_sink.http import HttpTransport, connection
from starrocks_txn_sink.http.connection import BodyPieces, Exchange, HttpResponse, ThreadConnections
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from tests.support.http_peer import Caller, Got, Peer, redirects, says, unused_port

OK = {"Status": "OK", "Message": ""}
BEGIN, COMMIT = Request(Operation.BEGIN, "shop", "job-1"), Request(Operation.COMMIT, "shop", "job-1")
STATE = Request(Operation.LOAD_STATE, "größe/2", "job-1")


class FakeTime:
    """A clock on which sleeping takes no time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def transport(load_url: str, **settings: Any) -> HttpTransport:
    return HttpTransport(
        SinkOptions(load_url=load_url, database="shop", delivery="at-least-once", password="geheim"), **settings
    )


def soon(clock: Any = None, seconds: float = 20.0) -> Deadline:
    return Deadline.after(seconds, clock or SystemClock())


@pytest.fixture
def web() -> Iterator[responses.RequestsMock]:
    target = "starrocks_txn_sink.http.connection.DeadlineAdapter.send"
    with responses.RequestsMock(assert_all_requests_are_fired=False, target=target) as mock:
        yield mock


def refused_connection() -> requests.ConnectionError:
    cause = urllib3.exceptions.NewConnectionError(None, "refused")  # type: ignore[arg-type]
    return requests.ConnectionError(urllib3.exceptions.MaxRetryError(None, "/", cause))  # type: ignore[arg-type]


def asked(web: responses.RequestsMock) -> list[str]:
    return [str(call.request.url).split("/")[2] for call in web.calls]


def test_the_next_address_is_asked_when_no_connection_can_be_made() -> None:
    with Peer(says(OK)) as frontend:
        http = transport(f"http://127.0.0.1:{unused_port()},{frontend.url}")
        assert http.send(BEGIN, soon()).status is Status.OK
        assert http.send(COMMIT, soon()).status is Status.OK
        http.close()
        assert [request.line.split()[1] for request in frontend.got] == [
            "/api/transaction/begin",
            "/api/transaction/commit",
        ]
        assert {request.connection for request in frontend.got} == {0}
        assert all(
            request.headers["content-length"] == "0" and "table" not in request.headers for request in frontend.got
        )


@pytest.mark.parametrize("error", [refused_connection(), requests.ConnectTimeout(), requests.exceptions.InvalidURL()])
def test_all_addresses_are_tried_in_order_three_times_with_growing_pauses(
    web: responses.RequestsMock, error: Exception
) -> None:
    for host in ("fe1", "fe2"):
        web.post(f"http://{host}:8030/api/transaction/begin", body=error)
    clock = FakeTime()
    with pytest.raises(NotSent) as failure:
        transport("fe1,fe2", clock=clock, rng=random.Random(1)).send(BEGIN, soon(clock))
    assert asked(web) == ["fe1:8030", "fe2:8030"] * 3
    first, second = [pause for pause in clock.slept if pause]
    assert 0.05 <= first <= 0.1 < second <= 0.4
    assert failure.value.context["label"] == "job-1"


def test_pauses_end_at_the_deadline(web: responses.RequestsMock) -> None:
    web.post("http://fe1:8030/api/transaction/begin", body=refused_connection())
    clock = FakeTime()
    with pytest.raises((NotSent, DeadlineExceeded)):
        transport("fe1", clock=clock).send(BEGIN, soon(clock, 0.06))
    assert clock.now <= 1000.061


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            requests.ConnectionError(urllib3.exceptions.ProtocolError("x", ConnectionResetError(104, "reset"))),
            ReplyLost,
        ),
        (
            requests.ConnectionError(urllib3.exceptions.ProtocolError("x", http.client.RemoteDisconnected("y"))),
            ReplyLost,
        ),
        (requests.ConnectionError(urllib3.exceptions.ProtocolError("x", http.client.BadStatusLine("z"))), BadReply),
        (requests.ReadTimeout(), ReplyLost),
        (requests.exceptions.ChunkedEncodingError(), ReplyLost),
    ],
)
def test_a_request_whose_effect_is_possible_is_sent_once(
    web: responses.RequestsMock, error: Exception, kind: type[StarRocksSinkError]
) -> None:
    for host in ("fe1", "fe2"):
        web.post(f"http://{host}:8030/api/transaction/commit", body=error)
    with pytest.raises(kind) as failure:
        transport("fe1,fe2").send(COMMIT, soon())
    assert asked(web) == ["fe1:8030"]
    assert failure.value.__cause__ is None  # it would hold the request with its credentials


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthenticationFailed),
        (500, BadReply),
        (503, BadReply),
        (429, BadReply),
        (404, HttpRefused),
        (301, HttpRefused),
    ],
)
def test_http_errors_are_not_asked_again(
    web: responses.RequestsMock, status: int, kind: type[StarRocksSinkError]
) -> None:
    web.post("http://fe1:8030/api/transaction/commit", status=status, body="<html>")
    with pytest.raises(kind):
        transport("fe1,fe2").send(COMMIT, soon())
    assert len(web.calls) == 1


def test_the_state_of_a_label_is_asked_for_until_a_frontend_answers(web: responses.RequestsMock) -> None:
    path = "/api/gr%C3%B6%C3%9Fe%2F2/get_load_state?label=job-1"
    web.get(f"http://fe1:8030{path}", body=requests.ReadTimeout())
    web.get(f"http://fe2:8030{path}", status=503, body="<html>")
    web.get(f"http://fe3:8030{path}", json={"status": "OK", "state": "VISIBLE", "msg": "Success"})
    reply = transport("fe1,fe2,fe3").send(STATE, soon())
    assert (reply.status, reply.state) == (Status.OK, LabelState.VISIBLE)
    assert asked(web) == ["fe1:8030", "fe2:8030", "fe3:8030"]


def test_a_follower_points_to_the_leader_which_is_then_asked_first() -> None:
    with Peer(says(OK)) as leader, Peer(redirects(f"{leader.url}/api/transaction/begin")) as follower:
        http = transport(follower.url)
        assert http.send(BEGIN, soon()).status is Status.OK
        assert http.send(COMMIT, soon()).status is Status.OK
        http.close()
        assert [len(follower.got), len(leader.got)] == [1, 2]
        assert [request.path for request in leader.got] == ["/api/transaction/begin", "/api/transaction/commit"]


def test_a_leader_that_went_away_is_forgotten() -> None:
    with Peer(says(OK)) as follower:
        http = transport(follower.url)
        http._frontends.remember_leader(Address("http", "127.0.0.1", unused_port()))
        assert http.send(BEGIN, soon()).status is Status.OK
        assert [str(address) for address in http._frontends.in_order()] == [follower.url]
        http.close()


def test_a_leader_that_went_away_is_forgotten_also_when_nobody_answers() -> None:
    configured = Address("http", "127.0.0.1", unused_port())
    http = transport(str(configured))
    http._frontends.remember_leader(Address("http", "127.0.0.1", unused_port()))
    with pytest.raises(NotSent):
        http.send(BEGIN, soon())
    assert http._frontends.in_order() == (configured,)
    http.close()


def test_frontends_that_point_to_each_other_reach_nobody() -> None:
    places: dict[str, str] = {}

    def other(caller: Caller, request: Got) -> None:
        caller.redirect(places[request.headers["host"]])

    with Peer(other) as first, Peer(other) as second:
        places.update({first.url.removeprefix("http://"): second.url, second.url.removeprefix("http://"): first.url})
        http = transport(f"{first.url},{second.url}")
        with pytest.raises(NotSent, match="redirect begin to each other"):
            http.send(BEGIN, soon())
        http.close()


def test_a_chain_of_redirects_has_an_end() -> None:
    hops = iter(f"http://127.0.0.1:{port}/" for port in range(20_000, 30_000))
    with pytest.raises(NotSent, match="to each other"):
        follow(BEGIN, lambda _: HttpResponse(307, next(hops), b""))


@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.66\\.svc.cluster.local:8040/x", "http://a%40b.svc.cluster.local", "http://[::1", "//be1"],
)
def test_a_location_that_two_readers_read_differently_is_followed_by_neither(location: str) -> None:
    addresses: list[Address] = []

    def perform(exchange: Exchange) -> HttpResponse:
        addresses.append(exchange.address)
        return HttpResponse(307, location, b"")

    with pytest.raises(BadReply, match="names no usable host"):
        follow(BEGIN, perform, redirect_hosts=["*.svc.cluster.local"])
    assert addresses == [Address("http", "127.0.0.1", 8030)]


def test_a_connection_goes_to_the_checked_address_whatever_the_url_says(monkeypatch: pytest.MonkeyPatch) -> None:
    send = connection.DeadlineAdapter.send

    def elsewhere(adapter: Any, request: requests.PreparedRequest, **settings: Any) -> requests.Response:
        request.url = "http://127.0.0.66\\.example" + adapter.target
        return send(adapter, request, **settings)

    monkeypatch.setattr(connection.DeadlineAdapter, "send", elsewhere)
    with Peer(says(OK)) as frontend:
        http = transport(frontend.url)
        assert http.send(BEGIN, soon()).status is Status.OK
        http.close()
        assert [request.headers["host"] for request in frontend.got] == [frontend.url.removeprefix("http://")]
        assert [request.line.split()[1] for request in frontend.got] == ["/api/transaction/begin"]


def test_an_address_is_looked_up_once_and_again_after_its_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[str] = []
    look_up = connection.DeadlineAdapter.get_connection_with_tls_context

    def counting(
        self: connection.DeadlineAdapter, request: requests.PreparedRequest, *arguments: Any, **more: Any
    ) -> Any:
        looked_up.append(str(self.address))
        return look_up(self, request, *arguments, **more)

    monkeypatch.setattr(connection.DeadlineAdapter, "get_connection_with_tls_context", counting)
    with Peer(says(OK)) as frontend:
        http = transport(frontend.url)
        for _ in range(3):
            http.send(BEGIN, soon())
        own = http._connections.for_this_thread()
        assert looked_up == [str(own._adapter.address)]
        own.close()
        assert http.send(BEGIN, soon()).status is Status.OK
        assert len(looked_up) == 2
        assert {request.connection for request in frontend.got} == {0, 1}
        http.close()


def test_a_reply_that_breaks_the_http_library_is_a_typed_error() -> None:
    def negative_chunk(caller: Caller, _: Got) -> None:
        caller.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n")

    with Peer(negative_chunk) as frontend:
        http = transport(frontend.url)
        with pytest.raises(ReplyLost):
            http.send(COMMIT, soon())
        http.close()


def exchange_of(request: Request) -> Exchange:
    first = Address("http", "127.0.0.1", 8030)
    return Exchange(request, first, {"authorization": b"Basic secret"}, None, soon(), 1.0)


def follow(request: Request, perform: Any, body: Any = None, **changes: Any) -> Reply:
    """The reply to a request whose exchanges `perform` makes."""
    options = SinkOptions(load_url="http://127.0.0.1:8030", database="shop", delivery="at-least-once", **changes)
    http = HttpTransport(options)
    with mock.patch.object(ThreadConnections, "perform", lambda _, exchange: perform(exchange)):
        return http._follow(exchange_of(request), BodyPieces(body))


def test_an_exchange_does_not_show_the_password() -> None:
    assert "secret" not in repr(exchange_of(BEGIN))


def test_an_ok_to_half_a_body_is_not_believed() -> None:
    answers = iter(
        [HttpResponse(307, "http://127.0.0.1:8040/", b""), HttpResponse(200, None, b'{"Status":"OK"}', whole=False)]
    )
    load = Request(Operation.LOAD, "shop", "job-1", "orders")
    with pytest.raises(ReplyLost, match="before its body was sent"):
        follow(load, lambda _: next(answers), [b"[]"])


def test_a_kept_alive_connection_that_died_leaves_the_effect_unknown() -> None:
    def once(caller: Caller, request: Got) -> None:
        if request.path.endswith("begin"):
            caller.answer(OK)
        else:
            caller.reset()

    with Peer(once) as frontend:
        http = transport(frontend.url)
        assert http.send(BEGIN, soon()).status is Status.OK
        with pytest.raises(ReplyLost):
            http.send(COMMIT, soon())
        http.close()
        assert len(frontend.got) == 2


def test_a_reply_cut_short_is_lost() -> None:
    def cut(caller: Caller, _: Got) -> None:
        caller.sock.sendall(b'HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{"Status":"OK"')
        caller.sock.close()

    with Peer(cut) as frontend, pytest.raises(ReplyLost):
        transport(frontend.url).send(COMMIT, soon())


def test_a_flood_is_not_read_to_its_end() -> None:
    def flood(caller: Caller, _: Got) -> None:
        caller.sock.sendall(b"HTTP/1.1 200 X\r\nContent-Length: 99999999999\r\n\r\n{")
        while True:
            caller.sock.sendall(b" " * 65536)

    with Peer(flood) as frontend, pytest.raises(BadReply, match="more than"):
        transport(frontend.url).send(COMMIT, soon())


def test_a_peer_that_speaks_no_http_is_a_bad_reply() -> None:
    with Peer(lambda caller, _: caller.sock.sendall(b"J\x00\x00\x00\x0a8.0.33 mysql\r\n\r\n")) as frontend:
        http = transport(frontend.url)
        with pytest.raises(BadReply, match="not HTTP"):
            http.send(BEGIN, soon())
        http.close()


def test_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login thief password stolen")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_port()}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_port()}")
    with Peer(lambda caller, _: caller.answer(OK, 200, **{"Set-Cookie": "session=1"})) as frontend:
        http = transport(frontend.url)
        assert http.send(BEGIN, soon()).status is Status.OK
        assert http.send(COMMIT, soon()).status is Status.OK
        http.close()
        assert len({request.headers["authorization"] for request in frontend.got}) == 1
        assert "cookie" not in frontend.got[1].headers


def test_tls_files_that_are_missing_are_named(tmp_path: Any) -> None:
    options = SinkOptions(
        load_url="https://127.0.0.1:1", database="shop", delivery="at-least-once", tls_ca=str(tmp_path / "ca.pem")
    )
    with pytest.raises(OptionError, match="tls_ca"):
        HttpTransport(options).send(BEGIN, soon())


def test_a_port_that_speaks_no_tls_is_proof_that_nothing_was_sent() -> None:
    with Peer(says(OK)) as frontend:
        http = transport(frontend.url.replace("http:", "https:"))
        with pytest.raises(NotSent, match="TLS") as failure:
            http.send(BEGIN, soon(seconds=5))
        http.close()
        assert frontend.got == []
    assert "geheim" not in str(failure.value)


def test_a_frontend_that_never_answers_does_not_get_every_attempt() -> None:
    def hang(caller: Caller, _: Got) -> None:
        caller.stopping.wait(20)

    with Peer(hang) as silent, Peer(says(OK)) as well:
        sender = transport(f"{silent.url},{well.url}", clock=SystemClock())
        with pytest.raises(ReplyLost):
            sender.send(BEGIN, soon(seconds=0.5))
        assert sender.send(Request(Operation.BEGIN, "shop", "job-2"), soon()).status is Status.OK
        sender.close()
