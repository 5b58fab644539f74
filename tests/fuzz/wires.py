"""Random bytes on the two wires, HTTP and the MySQL protocol, read by the very clients of the product.

Replies go from nearly right to noise: wrong lengths and chunks, torn heads, redirects to hostile places, packets that
are flipped, cut off, doubled or replaced. Every outcome is a result or an error of the package's own root class, no
error repeats the password, and no connection leads to a host that the rules do not allow.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import urllib3.util.connection

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.protocol import ledger
from starrocks_txn_sink.protocol.label import LabelPrefix, LedgerRequest
from starrocks_txn_sink.protocol.wire import Operation, Request
from starrocks_txn_sink.sql import connection
from starrocks_txn_sink.sql.connection import LeaderConnection, QueryPort, SqlLedger
from tests.fuzz.replies import answer
from tests.support import query_peer
from tests.support.manual_clock import ManualClock

PASSWORD = "S3CRETPASSWORD"
OPTIONS = SinkOptions(
    load_url="http://fe1:8030",
    query_url="mysql://fe1:9030",
    database="shop",
    job="job",
    password=PASSWORD,
    redirect_hosts=["*.svc.cluster.local", "10.0.0.0/8"],
)
_MOST_ERROR = 2000


class MemorySocket:
    """A connected socket whose peer has already said everything; at the end it closes, resets or goes silent."""

    def __init__(self, reply: bytes, ending: Exception | None, idle: int) -> None:
        self._reply = memoryview(reply)
        self._ending = ending
        self._idle = idle

    def recv_into(self, buffer: Any) -> int:
        if not self._reply and self._ending is not None:
            raise self._ending
        count = min(len(buffer), len(self._reply))
        buffer[:count] = self._reply[:count]
        self._reply = self._reply[count:]
        return count

    readinto = recv_into

    def makefile(self, *_: Any, **__: Any) -> MemorySocket:
        return self

    def sendall(self, data: Any) -> None: ...

    def settimeout(self, seconds: float | None) -> None: ...

    def setsockopt(self, *_: Any) -> None: ...

    def shutdown(self, _: int) -> None: ...

    def fileno(self) -> int:
        return self._idle

    def getpeername(self) -> tuple[str, int]:
        return ("10.0.0.1", 9030)

    def close(self) -> None: ...


def outcome(run: Callable[[], object]) -> str:
    """The name of what `run` ended with. AssertionError for an error that is not typed, too long, or tells too much."""
    try:
        run()
    except StarRocksSinkError as error:
        text = f"{error} {error!r} {error.context}"
        if PASSWORD in text or "Basic " in text or len(str(error)) > _MOST_ERROR:
            raise AssertionError(f"An error tells too much: {type(error).__name__}") from error
        return error.code
    except Exception as error:
        raise AssertionError(f"An error that is not typed: {type(error).__name__}: {error}") from error
    return "result"


def _ending(rng: random.Random) -> Exception | None:
    return rng.choice((None, None, TimeoutError("timed out"), ConnectionResetError(104, "reset"), OSError(113, "gone")))


def _damaged(data: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    """`data` with bytes flipped, cut off, doubled, removed or put in."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place, how = rng.randrange(len(damaged) + 1), rng.randrange(6)
        if how == 0 and place < len(damaged):
            damaged[place] ^= 1 << rng.randrange(8)
        elif how == 1 and place < len(damaged):
            damaged[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF))
        elif how == 2:
            del damaged[place:]
        elif how == 3:
            del damaged[place : place + rng.randrange(1, 9)]
        elif how == 4:
            damaged[place:place] = damaged[: rng.randrange(40)]
        else:
            damaged[place:place] = rng.choice(pieces)
    return bytes(damaged)


# --- HTTP ---

_HOSTS = ("fe1", "be-0.svc.cluster.local", "10.1.2.3", "evil.example", "127.0.0.66", "[::1]", "10.evil", "")
_GLUE = (
    "\\",
    "/",
    "@",
    "#",
    "?",
    "%2f",
    "%5c",
    "\t",
    "\r",
    "\n",
    ":",
    "..",
    "%00",
    "ü",
    "。",
    " ",
    ";",
    "[",
    "]",
    "//",
)
_BREAKS = (b"\r\n", b"\n", b"\r\n\r\n", b":", b" ", b"\x00", b"HTTP/1.1 100 Continue\r\n\r\n", b"-1\r\n", b"\xff\xfe")
_LENGTHS = ("-1", "0", "99999999999999999999", "1, 2", "5;5", "0x10", "", " 7", "+3", "１")
_CHUNKS = (b"-5", b"FFFFFFFFFFFFFFFFFFFF", b"0x5", b" 5", b"", b"zz", b"1e3", b"5;x=" + b"y" * 70, b"+2")


def location(rng: random.Random) -> str:
    """A redirect's target, from right to one that two readers read differently."""
    parts = [rng.choice(("http://", "http://", "https://", "//", "HTTP://", "ftp://", "http:", "")), rng.choice(_HOSTS)]
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        parts += [rng.choice(_GLUE), rng.choice(_HOSTS)]
    parts.append(rng.choice((":8040", ":8040", "", ":99999", ":-1", ":x", ":0")))
    return "".join(parts) + rng.choice(("/x", "", "\\x"))


def http_reply(rng: random.Random) -> bytes:
    status, body = answer(rng)
    if rng.random() < 0.3:
        status = 307
    head = [f"HTTP/1.{rng.choice('110')} {status} X"]
    if status == 307 or rng.random() < 0.05:
        head.append(f"Location: {location(rng)}")
    kind = rng.random()
    if kind < 0.6:
        head.append(f"Content-Length: {len(body)}")
    elif kind < 0.75:
        head.append(f"Content-Length: {rng.choice(_LENGTHS)}")
    elif kind < 0.95:
        head.append(f"Transfer-Encoding: {rng.choice(('chunked', 'chunked', 'Chunked, gzip', 'identity'))}")
        body = b"".join(_chunks(body, rng))
    if rng.random() < 0.1:
        head.append(rng.choice(("Connection: close", "Content-Encoding: gzip", "X" * 9000, ": y", "Set-Cookie: a=b")))
    reply = "\r\n".join([*head, "", ""]).encode() + body
    return _damaged(reply, rng, _BREAKS) if rng.random() < 0.5 else reply


def _chunks(body: bytes, rng: random.Random) -> Iterator[bytes]:
    while body:
        size = rng.randrange(1, len(body) + 1)
        size_text = f"{size:x}".encode() if rng.random() < 0.9 else rng.choice(_CHUNKS)
        yield size_text + b"\r\n" + body[:size] + b"\r\n"
        body = body[size:]
    yield rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"\r\n"))


@contextmanager
def _idle_descriptor() -> Iterator[int]:
    """A descriptor that is never readable, for the library's check of kept-alive connections."""
    reader, writer = os.pipe()
    try:
        yield reader
    finally:
        os.close(reader)
        os.close(writer)


def _check_host(host: str) -> None:
    """The rules of OPTIONS once more, read independently of the product."""
    is_named = host == "fe1" or (host.endswith(".svc.cluster.local") and re.fullmatch(r"[a-z0-9.-]+", host))
    if not is_named:
        try:
            is_named = ipaddress.ip_address(host) in ipaddress.ip_network("10.0.0.0/8")
        except ValueError:
            is_named = False
    if not is_named:
        raise AssertionError(f"A connection to a host that is not allowed: {host!r}")


def fuzz_http(count: int, seed: int) -> dict[str, int]:
    """At least `count` replies to requests of all operations; how often each outcome came."""
    rng, outcomes = random.Random(seed), Counter[str]()
    refused: list[AssertionError] = []
    with _idle_descriptor() as idle:

        def dial(address: tuple[str, int], *_: Any, **__: Any) -> MemorySocket:
            try:
                _check_host(address[0])
            except AssertionError as error:  # the library would turn it into an error of its own
                refused.append(error)
            if rng.random() < 0.2:
                raise ConnectionRefusedError(111, "refused")
            replies = [http_reply(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
            outcomes["replies"] += len(replies)
            return MemorySocket(b"".join(replies), _ending(rng), idle)

        quiet = patch.object(logging.getLogger("urllib3.connection"), "disabled", True)  # a warning per broken head
        with quiet, patch.object(urllib3.util.connection, "create_connection", dial):
            while outcomes["replies"] < count:
                for name in _one_transport(rng):
                    outcomes[name] += 1
                if refused:
                    raise refused[0]
    return dict(outcomes)


def _one_transport(rng: random.Random) -> Iterator[str]:
    clock = ManualClock()
    with closing(HttpTransport(OPTIONS, clock=clock, rng=rng)) as transport:
        for _ in range(rng.choice((1, 1, 2, 3))):
            operation = rng.choice(list(Operation))
            loads = operation is Operation.LOAD
            request = Request(
                operation, "shop", "job-1", "t" if loads else None, body=[b'[{"id":1}]'] if loads else None
            )
            yield outcome(lambda sent_request=request: transport.send(sent_request, Deadline.after(30, clock)))  # type: ignore[misc]


# --- the query port ---

_COLUMNS = ("Name", "IP", "QueryPort", "Role", "IsMaster")
_PACKETS = (
    query_peer.OK,
    query_peer.END,
    query_peer.error(1064, "You have an error near 'x'"),
    query_peer.error(0, ""),
    query_peer.auth_switch("mysql_clear_password"),
    query_peer.auth_switch("caching_sha2_password"),
    query_peer.auth_switch("sha256_password", b""),
    query_peer.auth_switch("dialog", b"\x01Password: "),
    query_peer.auth_switch("client_ed25519"),
    b"\x01\x04",
    b"\x01\x03",
    b"\xfb/etc/passwd",
    b"\xfe",
    b"\xff",
    b"",
    b"\x00",
    b"\xfd\xff\xff\xff",
)
_BYTES = (b"\x00", b"\xff\xff\xff\x00", b"\xfe", b"\xfb", b"\xfc\xff\xff", b"\x00\x00\x00\x01", b"\x01\x00\x00\x01\xff")
_CELLS = (None, "", "0", "1", "-1", "9030", "LEADER", "driver", "lane", "x/y", "fe1", "10.0.0.7", "evil.example", "é")


def _framed(packets: Sequence[bytes], start: int) -> bytes:
    return b"".join(
        len(payload).to_bytes(3, "little") + bytes([(start + number) % 256]) + payload
        for number, payload in enumerate(packets)
    )


def _result(rng: random.Random) -> list[bytes]:
    if rng.random() < 0.1:
        return [rng.choice(_PACKETS)]
    width = rng.choice((1, 2, 6, 7, rng.randrange(1, 9)))
    rows = [[rng.choice(_CELLS) for _ in range(width)] for _ in range(rng.choice((0, 1, 1, 3)))]
    packets = query_peer.result([rng.choice(("a", *_COLUMNS)) for _ in range(width)], rows)
    if rng.random() < 0.3:  # other types: numbers, decimals, dates, JSON
        kind = rng.choice((0, 1, 3, 5, 7, 8, 10, 11, 12, 246, 245, 252))
        packets = [
            packet[:-6] + bytes([kind]) + packet[-5:] if packet[:4] == b"\x03def" else packet for packet in packets
        ]
    return packets


def _frontends(rng: random.Random) -> list[bytes]:
    rows = [
        [
            "a",
            rng.choice(("fe1", "10.0.0.7", "evil.example", "fe1\\x", "", None)),
            rng.choice(("9030", "x", None)),
            role,
            "1",
        ]
        for role in ("FOLLOWER", "LEADER")
    ]
    return query_peer.result(_COLUMNS, rows)


def query_stream(rng: random.Random) -> bytes:
    """All that a query port says on one connection: greeting, login, two SETs, SHOW FRONTENDS, answers."""
    plugin = rng.choice(("mysql_native_password", "mysql_native_password", "caching_sha2_password", "", "dialog"))
    greeting = query_peer.greeting(plugin, capabilities=rng.choice((0x0008_8201, 0x0008_8201, rng.getrandbits(32))))
    parts: list[tuple[int, list[bytes]]] = [(0, [greeting]), (2, [query_peer.OK]), (1, [query_peer.OK])]
    forwards = rng.choice((query_peer.OK, query_peer.error(1193, "Unknown system variable")))
    parts.append((1, [forwards]))
    parts.append((1, _frontends(rng) if rng.random() < 0.7 else _result(rng)))
    parts += [(1, _result(rng)) for _ in range(2)]
    spoilt = rng.choice((None, *range(len(parts))))
    stream = b""
    for number, (start, packets) in enumerate(parts):
        if number == spoilt and rng.random() < 0.5:
            packets = list(packets)
            packets[rng.randrange(len(packets))] = rng.choice(_PACKETS)
        packets_sent = _framed(packets, start)
        stream += _damaged(packets_sent, rng, _BYTES) if number == spoilt and rng.random() < 0.7 else packets_sent
    return stream


def _questions() -> tuple[LedgerRequest, ...]:
    return (
        ledger.ReadPositions("job"),
        ledger.ReadOwner("job"),
        ledger.ReadMarker("job", "scope", "token"),
        ledger.ListUnfinished(LabelPrefix("shop", "job-")),
    )


def fuzz_query_port(count: int, seed: int) -> dict[str, int]:
    """At least `count` connections, each with a stream of its own; how often each outcome came."""
    rng, outcomes, clock = random.Random(seed), Counter[str](), ManualClock()

    def dial(address: Address, _: float) -> MemorySocket:
        _check_host(address.host)
        outcomes["streams"] += 1
        return MemorySocket(query_stream(rng), _ending(rng), 0)

    with patch.object(connection, "dial", dial):
        while outcomes["streams"] < count:
            deadline = Deadline.after(30, clock)
            for run in _uses(rng, deadline):
                outcomes[outcome(run)] += 1
    return dict(outcomes)


def _uses(rng: random.Random, deadline: Deadline) -> Iterator[Callable[[], object]]:
    address = OPTIONS.query_addresses[0]
    if rng.random() < 0.3:
        with_port: Callable[[QueryPort], object] = rng.choice(
            (
                lambda opened: opened.excerpt("SELECT 1", rng.choice((1, 50)), deadline),
                lambda opened: opened.run("SELECT %s", (1,), deadline),
            )
        )
        yield lambda: _once(partial(QueryPort, OPTIONS, address, deadline, quotes_server=True), with_port)
        return
    with closing(LeaderConnection(OPTIONS)) as leader:
        store = SqlLedger(leader, "shop")
        for question in rng.sample(_questions(), 2):
            yield partial(store.execute, question, deadline)


def _once(opened: Callable[[], QueryPort], use: Callable[[QueryPort], object]) -> None:
    with closing(opened()) as port:
        use(port)
        use(port)
