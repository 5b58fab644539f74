"""The emulator's listeners: followers, large bodies, keep-alive, clean stop, what it refuses to do."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import FRONTEND_BODY_LIMIT, Generation, Limits, SettingError, Settings
from tests.support.query_port import query as execute

AUTH = ("root", "")
MULTI = {"db": "shop", "transaction_type": "multi", "table": "t", "format": "json"}


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path, Settings(backends=2, followers=1, limits=Limits(streaming_load_max_mb=1))) as emulator:
        execute(emulator, "CREATE DATABASE shop")
        for table in ("t", "u"):
            execute(emulator, f"CREATE TABLE shop.{table} (id INT NOT NULL) PRIMARY KEY (id) DISTRIBUTED BY HASH(id)")
        yield emulator


def call(method: str, url: str, **more: object) -> requests.Response:
    return requests.request(method, url, auth=AUTH, allow_redirects=False, timeout=20, **more)  # type: ignore[arg-type]


def begin(emulator: Emulator, label: str) -> dict[str, str]:
    headers = {**MULTI, "label": label}
    answer = call("POST", f"{emulator.load_url}/api/transaction/begin", headers={**headers, "timeout": "600"})
    assert answer.json()["Status"] == "OK"
    return headers


def target(emulator: Emulator, headers: dict[str, str]) -> str:
    answer = call("PUT", f"{emulator.load_url}/api/transaction/load", headers=headers)
    assert answer.status_code == 307
    return answer.headers["Location"]


def test_a_follower_redirects_every_call_to_the_leader(emulator: Emulator) -> None:
    """Wire contract 1.1."""
    follower = f"http://127.0.0.1:{emulator.follower_ports[0]}"
    for method, path in (
        ("POST", "/api/transaction/begin"),
        ("PUT", "/api/transaction/load"),
        ("POST", "/api/transaction/commit?source_type=12"),
        ("GET", "/api/shop/get_load_state?label=l"),
    ):
        answer = call(method, follower + path, headers={**MULTI, "label": "l"})
        assert answer.status_code == 307
        assert answer.headers["Location"] == emulator.load_url + path


def test_a_follower_wants_credentials(emulator: Emulator) -> None:
    url = f"http://127.0.0.1:{emulator.follower_ports[0]}/api/transaction/begin"
    assert requests.post(url, timeout=20).status_code == 401


def test_tables_go_to_different_backends(emulator: Emulator) -> None:
    headers = begin(emulator, "l")
    places = {target(emulator, {**headers, "table": table}) for table in ("t", "u")}
    assert places == {f"http://127.0.0.1:{port}/api/transaction/load" for port in emulator.be_ports}


def test_a_large_body_without_expect_is_redirected_and_the_connection_ends(emulator: Emulator) -> None:
    headers = begin(emulator, "l")
    size = FRONTEND_BODY_LIMIT + 1
    lines = [f"{name}: {value}" for name, value in headers.items()]
    lines += ["Host: x", "Authorization: Basic cm9vdDo=", f"Content-Length: {size}"]
    head = "\r\n".join(["PUT /api/transaction/load HTTP/1.1", *lines])
    with socket.create_connection(("127.0.0.1", emulator.fe_port), timeout=20) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + b"x" * 1000)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 307 ")
    assert b"Connection: close" in answer


def test_the_body_limit_counts_over_the_loads_of_a_table(emulator: Emulator) -> None:
    """Wire contract 2.5: announced and chunked bodies alike."""
    for label, chunked in (("announced", False), ("chunked", True)):
        headers = begin(emulator, label)
        url = target(emulator, headers)
        half = b" " * (700 * 1024)
        for status in ("OK", "INTERNAL_ERROR", "ABORTED"):
            answer = call("PUT", url, headers=headers, data=iter([half]) if chunked else half)
            assert answer.json()["Status"] == status
            if status == "INTERNAL_ERROR":
                assert "exceed limit: 1048576, " in answer.json()["Message"]
                assert answer.json()["Message"].endswith("by setting streaming_load_max_mb in be.conf.")


def test_what_follows_an_early_answer_is_read_as_the_next_request(emulator: Emulator) -> None:
    """Wire contract 2.5: but for what has come with the headers."""
    headers = {**begin(emulator, "l"), "label": "another", "Content-Length": "6", "Host": "x"}
    head = "\r\n".join(["PUT /api/transaction/load HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)])
    whole = head.encode() + b"\r\n\r\n"
    for first, second in ((whole + b"[1, 2]", whole + b"[1, 2]"), (whole, b"[1, 2]" + whole)):
        with socket.create_connection(("127.0.0.1", emulator.be_port), timeout=20) as connection:
            connection.sendall(first)
            assert b"TXN_NOT_EXISTS" in connection.recv(65_536)
            connection.sendall(second)
            answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200 OK" if second.startswith(b"PUT") else b"HTTP/1.1 400 Bad Request")


def test_parallel_stream_load_is_refused_in_plain_words(emulator: Emulator) -> None:
    headers = {"db": "shop", "label": "l", "table": "t", "channel_id": "0", "channel_num": "1"}
    answer = call("POST", f"{emulator.load_url}/api/transaction/begin", headers=headers).json()
    assert answer["Status"] == "FAILED"
    assert "does not serve parallel stream load" in answer["Message"]


def test_the_backend_lists_and_knows_no_other_path(emulator: Emulator) -> None:
    backend = f"http://127.0.0.1:{emulator.be_port}"
    assert call("GET", f"{backend}/api/transaction/list").json()["Status"] == "OK"
    assert call("GET", f"{backend}/nothing").status_code == 404


def test_other_addresses_than_loopback_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="loopback"):
        Emulator(tmp_path, Settings(host="0.0.0.0"))


def test_stop_leaves_no_thread_and_no_open_port(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    emulator = Emulator(tmp_path)
    emulator.start()
    port = emulator.fe_port
    with socket.create_connection(("127.0.0.1", port), timeout=20) as idle:
        emulator.stop()
        emulator.stop()
        with contextlib.suppress(ConnectionResetError):  # how a close arrives depends on its moment
            assert idle.recv(1) == b""
    gc.collect()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("emulator")} <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=20)


def test_a_taken_port_fails_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other_socket:
        emulator = Emulator(tmp_path, Settings(fe_port=other_socket.getsockname()[1]))
        with pytest.raises(OSError, match="in use"):
            emulator.start()
    with Emulator(tmp_path):
        pass


@pytest.mark.parametrize(("generation", "version"), [("B", "4.0.7-emulator"), ("C", "4.1.5-emulator")])
def test_each_generation_tells_a_version_that_the_sink_supports(tmp_path: Path, generation: str, version: str) -> None:
    with Emulator(tmp_path, Settings(generation=Generation(generation))) as emulator:
        assert execute(emulator, "SELECT current_version()") == [(version,)]
