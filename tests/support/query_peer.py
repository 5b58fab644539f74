"""A scripted query port on a raw socket: it greets, reads packets and answers with the packets that a test wants."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Sequence

from tests.support.listening_peer import ListeningPeer

NATIVE = "mysql_native_password"
SSL = 0x0800
_CAPABILITIES = 0x0008_0000 | 0x8000 | 0x0200 | 0x0001  # PLUGIN_AUTH, SECURE_CONNECTION, PROTOCOL_41, LONG_PASSWORD
OK = b"\x00\x00\x00\x02\x00\x00\x00"
END = b"\xfe\x00\x00\x02\x00"


def greeting(plugin: str = NATIVE, *, tls: bool = False, capabilities: int = _CAPABILITIES) -> bytes:
    flags = capabilities | (SSL if tls else 0)
    start = b"\x0a8.0.33\x00" + struct.pack("<I", 7) + b"saltsalt\x00" + struct.pack("<H", flags & 0xFFFF)
    tail = struct.pack("<BHHB", 33, 2, flags >> 16, 21) + bytes(10) + b"saltsaltsalt\x00"
    return start + tail + plugin.encode() + b"\x00"


def auth_switch(plugin: str, data: bytes = b"saltsaltsaltsaltsalt\x00") -> bytes:
    return b"\xfe" + plugin.encode() + b"\x00" + data


def error(number: int, text: str) -> bytes:
    return b"\xff" + struct.pack("<H", number) + b"#HY000" + text.encode()


def _text(value: str | None) -> bytes:
    if value is None:
        return b"\xfb"
    content = value.encode()
    return (bytes([len(content)]) if len(content) < 251 else b"\xfc" + struct.pack("<H", len(content))) + content


def result(columns: Sequence[str], rows: Sequence[Sequence[str | None]]) -> list[bytes]:
    """The packets of a result set of texts."""
    described = [
        b"".join(map(_text, ("def", "", "", "", name, name)))
        + b"\x0c"
        + struct.pack("<HIBHB", 33, 1024, 0xFD, 0, 0)
        + b"\x00\x00"
        for name in columns
    ]
    return [bytes([len(columns)]), *described, END, *(b"".join(map(_text, row)) for row in rows), END]


class Talk:
    """The peer's end of one connection. `received` holds every byte of the client, decrypted."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.sequence = 0

    def send(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.sock.sendall(struct.pack("<I", len(payload))[:3] + bytes([self.sequence % 256]) + payload)
            self.sequence += 1

    def read(self) -> bytes:
        """The next packet's payload; raises ConnectionError at the end."""
        head = self._exactly(4)
        self.sequence = head[3] + 1
        return self._exactly(int.from_bytes(head[:3], "little"))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        self.received += data
        return data

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.sock = context.wrap_socket(self.sock, server_side=True)

    def log_in(self, context: ssl.SSLContext | None = None) -> None:
        """Greet and accept the login, with TLS if `context` is given."""
        self.send(greeting(tls=context is not None))
        self.read()
        if context is not None:
            self.start_tls(context)
            self.read()
        self.send(OK)

    def serve(self, answers: dict[str, list[bytes]] | None = None) -> None:
        """Answer statements: by `answers`, others with OK."""
        while True:
            statement = self.read()[1:].decode()
            self.send(*(answers or {}).get(statement, [OK]))


Script = Callable[[Talk], None]


class QueryPeer(ListeningPeer[Talk]):
    """Runs `script` on each connection."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script
        self.url = f"mysql://127.0.0.1:{self.port}"

    @property
    def received(self) -> bytes:
        return b"".join(bytes(talk.received) for talk in self.connections)

    def connection(self, sock: socket.socket) -> Talk:
        return Talk(sock)

    def serve(self, connection: Talk) -> None:
        self._script(connection)
