"""A scripted peer on a raw socket: it reads requests and answers with the bytes a test wants, also broken ones."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.listening_peer import ListeningPeer


@dataclass
class Got:
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes = b""
    connection: int = 0

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]


@dataclass
class Caller:
    """The peer's end of one connection."""

    sock: socket.socket
    number: int
    stopping: threading.Event
    buffer: bytearray = field(default_factory=bytearray)

    def fill(self) -> bool:
        received = self.sock.recv(1 << 20)
        self.buffer += received
        return bool(received)

    def read_head(self) -> Got | None:
        while b"\r\n\r\n" not in self.buffer:
            if not self.fill():
                return None
            if self.buffer[:1] == b"\x16":  # the hello of TLS, which this port does not speak
                self.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return None
        head, _, remainder = bytes(self.buffer).partition(b"\r\n\r\n")
        self.buffer = bytearray(remainder)
        line, *fields = head.decode("utf-8").split("\r\n")
        pairs = (field.split(":", 1) for field in fields)
        return Got(line, {name.strip().lower(): value.strip() for name, value in pairs}, connection=self.number)

    def ask_for_body(self, request: Got) -> None:
        if request.headers.get("expect") == "100-continue":
            self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def read_body(self, request: Got) -> Got:
        self.ask_for_body(request)
        length = int(request.headers.get("content-length", "0"))
        while len(self.buffer) < length:
            if not self.fill():
                break
        request.body = bytes(self.buffer[:length])
        del self.buffer[:length]
        return request

    def answer(self, body: object, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode() + content)

    def redirect(self, location: str) -> None:
        self.answer(b"", 307, Location=location)

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


Script = Callable[[Caller, Got], None]


class Peer(ListeningPeer[Caller]):
    """Calls `script` with each request's head. `got` holds what arrived whole."""

    def __init__(self, script: Script, *, read_body: bool = True, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self._script = script
        self._read_body = read_body
        self._tls = tls
        self.got: list[Got] = []
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def connection(self, sock: socket.socket) -> Caller:
        return Caller(sock, len(self.connections), self.stopping)

    def serve(self, connection: Caller) -> None:
        if self._tls is not None:
            connection.sock = self._tls.wrap_socket(connection.sock, server_side=True)
        while (request := connection.read_head()) is not None:
            if self._read_body:
                connection.read_body(request)
            self.got.append(request)
            self._script(connection, request)


def says(reply: object, status: int = 200) -> Script:
    return lambda caller, _: caller.answer(reply, status)


def redirects(location: str) -> Script:
    return lambda caller, _: caller.redirect(location)


def points_to(peer: Peer) -> Script:
    return redirects(f"{peer.url}/api/transaction/load?x=1")


_UNUSED: list[socket.socket] = []


def unused_port() -> int:
    """A port on which nobody listens. It stays bound while the process lives, so that no other one gets it."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    _UNUSED.append(bound)
    return int(bound.getsockname()[1])
