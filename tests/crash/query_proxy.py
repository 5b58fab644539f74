"""A way to the emulator's query port that sees every statement and can hold one: before its effect, or its reply."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from typing_extensions import Self

_COM_QUERY = 3
_FIRST = 0  # a command starts a new exchange; the packets of the login go on with one


@dataclass
class Hold:
    """A statement that matches `pattern` stops here, once: `before` it reaches the server, or `after` it did."""

    pattern: re.Pattern[str]
    when: str
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    forward: bool = True

    def release(self, *, forward: bool = True) -> None:
        """Let it go on; with `forward` False the statement (or its reply) is lost and the connection ends."""
        self.forward = forward
        self.released.set()


class QueryProxy:
    """Listens on a free loopback port and forwards to `port`. A context manager; leaves no thread and no socket."""

    def __init__(self, port: int) -> None:
        self.statements: list[str] = []
        self._target = port
        self._holds: list[Hold] = []
        self._guard = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"mysql://127.0.0.1:{self.port}"

    def hold(self, pattern: str, when: str = "before") -> Hold:
        """Hold the next statement that `pattern` is found in."""
        hold = Hold(re.compile(pattern), when)
        with self._guard:
            self._holds.append(hold)
        return hold

    def drop_holds(self) -> None:
        """Release everything; what is held now is lost."""
        with self._guard:
            holds, self._holds = self._holds, []
        for hold in holds:
            hold.release(forward=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop_holds()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            ends = list(self._sockets)
        for end in ends:
            _end(end)
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target), 5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                with self._guard:
                    self._sockets += [client, server]
                gate = threading.Event()
                gate.set()
                self._start(self._to_server, client, server, gate)
                self._start(self._to_client, client, server, gate)

    def _to_server(self, client: socket.socket, server: socket.socket, gate: threading.Event) -> None:
        buffer = bytearray()
        with suppress(OSError):
            while data := client.recv(65536):
                buffer += data
                while (packet := _take_packet(buffer)) is not None:
                    if not self._pass(packet, server, gate):
                        break
        self._close(client, server, gate)

    def _pass(self, packet: bytes, server: socket.socket, gate: threading.Event) -> bool:
        hold = None
        if packet[3] == _FIRST and packet[4:5] == bytes([_COM_QUERY]):
            hold = self._held(packet[5:].decode(errors="replace"))
        if hold is not None and hold.when == "before":
            hold.reached.set()
            hold.released.wait()
            if not hold.forward:
                raise OSError("the statement is lost")
        if hold is not None and hold.when == "after":
            gate.clear()
        server.sendall(packet)
        if hold is not None and hold.when == "after":
            hold.reached.set()
            hold.released.wait()
            if not hold.forward:
                raise OSError("the reply is lost")
            gate.set()
        return True

    def _held(self, sql: str) -> Hold | None:
        with self._guard:
            self.statements.append(sql)
            for hold in self._holds:
                if hold.pattern.search(sql) and not hold.reached.is_set():
                    return hold
        return None

    def _to_client(self, client: socket.socket, server: socket.socket, gate: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                gate.wait()
                client.sendall(data)
        self._close(client, server, gate)

    def _close(self, client: socket.socket, server: socket.socket, gate: threading.Event) -> None:
        for end in (client, server):
            _end(end)
        gate.set()
        with self._guard:
            self._sockets = [end for end in self._sockets if end not in (client, server)]


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _take_packet(buffer: bytearray) -> bytes | None:
    """The next whole packet with its header: three bytes of length, one of sequence (MySQL protocol)."""
    if len(buffer) < 4:
        return None
    size = 4 + int.from_bytes(buffer[:3], "little")
    if len(buffer) < size:
        return None
    packet = bytes(buffer[:size])
    del buffer[:size]
    return packet
