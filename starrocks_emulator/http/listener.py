"""An HTTP/1.1 listener on loopback: keep-alive, `Expect: 100-continue`, clean stop.

A body, of announced length or chunked, is read only on request (wire contract 1.1).
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Protocol, cast

from starrocks_emulator.transactions.backend import BodyBroken
from starrocks_emulator.transactions.messages import Request, Response

_IDLE_SECONDS = 300.0
_REPLY_SECONDS = 1.0  # for replies under way when the listener stops
_LINGER_SECONDS = 1.0

_LINE_LIMIT = 65_536
_UNREAD_LIMIT = 64 * 1024 * 1024  # of a line that is the rest of a body: JSON has no line break
_REQUEST_LINE = re.compile(rb"[A-Z]+ /\S* HTTP/1\.[01]\r?\n")
_BAD_REQUEST = b"<HTML><HEAD>\n<TITLE>400 Bad Request</TITLE>\n</HEAD><BODY>\n<H1>Bad Request</H1>\n</BODY></HTML>\n"


class _Buffered(Protocol):
    def readline(self, size: int = -1, /) -> bytes: ...

    def readinto1(self, buffer: memoryview, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...


class HttpBody:
    """One body. `ask` is called once before the first byte is read (it sends `100 Continue` where that is due)."""

    def __init__(self, headers: Mapping[str, str], stream: BufferedIOBase, ask: Callable[[], None]) -> None:
        self._stream = cast(_Buffered, stream)
        self._ask = ask
        self._asked = False
        self.chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self.expects_continue = headers.get("expect", "").lower() == "100-continue"
        self._left = _length(headers) if not self.chunked else 0
        self.length: int | None = None if self.chunked else self._left
        self.finished = not self.chunked and self._left == 0
        self.broken = False

    @property
    def may_never_come(self) -> bool:
        """True when the client still waits for `100 Continue`, so that the body is perhaps not sent at all."""
        return self.expects_continue and not self._asked and not self.finished

    def readinto(self, view: memoryview) -> int:
        """Fill part of `view`; 0 at the end. Raises `BodyBroken` when the connection ends first."""
        if not self._asked:
            self._asked = True
            self._ask()
        if self.finished:
            return 0
        try:
            if self.chunked and self._left == 0 and not self._next_chunk():
                return 0
            count = self._stream.readinto1(view[: self._left])
        except (OSError, ValueError) as error:
            raise self._break() from error
        if count == 0:
            raise self._break()
        self._left -= count
        if self._left == 0:
            self._end_of_piece()
        return count

    def _break(self) -> BodyBroken:
        self.broken = self.finished = True
        return BodyBroken("the connection ended before the body did")

    def _next_chunk(self) -> bool:
        """Read a chunk's size line; False after the last chunk and its trailers."""
        self._left = int(self._line().partition(b";")[0], 16)
        if self._left < 0:
            raise ValueError("negative chunk size")
        if self._left:
            return True
        while self._line():
            pass
        self.finished = True
        return False

    def _end_of_piece(self) -> None:
        if not self.chunked:
            self.finished = True
        elif self._stream.readline(3) not in (b"\r\n", b"\n"):
            raise self._break()

    def _line(self) -> bytes:
        line = self._stream.readline(_LINE_LIMIT)
        if not line.endswith(b"\n"):
            raise ValueError("incomplete line")
        return line.strip()

    def read(self, limit: int) -> bytes | None:
        """The whole body, or None when it is longer than `limit`."""
        data, view = bytearray(), memoryview(bytearray(65_536))
        while count := self.readinto(view):
            data += view[:count]
            if len(data) > limit:
                return None
        return bytes(data)

    @property
    def read_in_part(self) -> bool:
        """Whether any of it was asked for."""
        return self._asked

    def drop(self, limit: int) -> None:
        """Drop up to `limit` bytes of an announced body, which are there."""
        self._left -= len(self._stream.read(min(limit, self._left)))
        self.finished = not self.chunked and self._left == 0

    def discard(self, limit: int) -> bool:
        """Read and drop up to `limit` bytes; True when that was the whole body."""
        if self.length is not None and self._left > limit:
            return False
        view, count_dropped = memoryview(bytearray(65_536)), 0
        while count := self.readinto(view):
            count_dropped += count
            if count_dropped > limit:
                return False
        return True


def _length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "0").strip()
    return int(text) if text.isdecimal() else 0


class Hangup(Exception):
    """End this connection without an answer; `reset` sends RST instead of FIN."""

    def __init__(self, *, reset: bool = False) -> None:
        self.reset = reset
        super().__init__("connection ended on purpose")


class Service(ABC):
    """What a listener serves.

    `body_limit` is how much of an unread body is swallowed to keep a connection alive. With None nothing is: an answer
    that does not wait for the body keeps the connection, and what comes of the body is read as the next request.
    """

    body_limit: int | None

    @abstractmethod
    def answer(self, request: Request, body: HttpBody) -> Response:
        """Answer one request. May raise `Hangup` or `BodyBroken`, which end the connection."""


class Listener:
    """Runs a service on one port. Port 0 asks the system for a free one; `port` tells which."""

    def __init__(self, host: str, port: int, service: Service, name: str) -> None:
        self._server = _Server((host, port), service)
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name=f"emulator-{name}", daemon=True
        )

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    @property
    def service(self) -> Service:
        """What answers the requests."""
        return self._server.service

    @service.setter
    def service(self, service: Service) -> None:
        """From the next request on; connections stay."""
        self._server.service = service

    def start(self) -> None:
        """Answer from now on, in threads of its own. The port is bound before."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, end every connection, wait for the threads. Safe to call before `start`."""
        if self._thread.is_alive():
            # The port is readable then, so that the thread sees its end now and not at its next look.
            with contextlib.suppress(OSError):
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.end_connections(wait=10.0)

    def end_connections(self) -> None:
        """Break every open connection, as a process that dies does; the listener goes on."""
        self._server.end_connections(wait=0.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], service: Service) -> None:
        self.service = service
        self._open: dict[socket.socket, threading.Thread] = {}
        self._guard = threading.Lock()
        super().__init__(address, _Connection)

    def server_bind(self) -> None:
        # The parent class asks the resolver for a host name; a loopback listener needs none.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind(self.server_address)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "{}:{}".format(*self.server_address)) from None
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="emulator-connection", daemon=True
        )
        with self._guard:
            self._open[request] = thread
        thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is the client's business; anything else is a fault of the emulator, and is shown."""
        if not isinstance(sys.exc_info()[1], OSError | BodyBroken):
            super().handle_error(request, client_address)

    def end_connections(self, wait: float) -> None:
        """Break every connection; with a `wait`, in seconds for all threads, what is being answered gets its reply."""
        with self._guard:
            connections = dict(self._open)
        if wait:
            _shut(connections, socket.SHUT_RD)
            _join(connections.values(), _REPLY_SECONDS)
        _shut(connections, socket.SHUT_RDWR)
        _join(connections.values(), wait)


def _shut(connections: Iterable[socket.socket], how: int) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(how)


def _join(threads: Iterable[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        if seconds and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD"})


class _Received(io.RawIOBase):
    """The bytes of a connection; none while it is paused, so that a buffered reader shows what it has."""

    def __init__(self, connection: socket.socket) -> None:
        self._raw = connection.makefile("rb", buffering=0)
        self._paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return None if self._paused else self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 65_536
    timeout = _IDLE_SECONDS
    server: _Server
    rfile: io.BufferedReader

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._received = _Received(self.connection)
        self.rfile = io.BufferedReader(self._received, self.rbufsize)

    def handle_expect_100(self) -> bool:
        """Say nothing yet: `100 Continue` is sent when the body is wanted."""
        return True

    def handle_one_request(self) -> None:
        """Read a request and serve it. Where bodies stay unread, a line that begins no request is answered with 400."""
        service = self.server.service
        try:
            limit = _LINE_LIMIT if service.body_limit is not None else _UNREAD_LIMIT
            self.raw_requestline = self.rfile.readline(limit + 1)
            if not self.raw_requestline:
                self.close_connection = True
            elif service.body_limit is None and not _REQUEST_LINE.fullmatch(self.raw_requestline):
                self._refuse_line()
            elif len(self.raw_requestline) > _LINE_LIMIT:
                self.requestline = self.request_version = self.command = ""
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            elif self.parse_request():
                self._dispatch()
        except TimeoutError:
            self.close_connection = True

    def _dispatch(self) -> None:
        if self.command in _METHODS:
            self._serve()
        else:
            self.send_error(HTTPStatus.NOT_IMPLEMENTED, f"Unsupported method ({self.command!r})")

    def _refuse_line(self) -> None:
        """What a backend says to the rest of a body that it has refused; then it closes (wire contract 2.5)."""
        self.close_connection = True
        head = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\nConnection: close\r\n"
        self.wfile.write(f"{head}Content-Length: {len(_BAD_REQUEST)}\r\n\r\n".encode() + _BAD_REQUEST)

    def log_message(self, format: str, *args: Any) -> None:
        """No access log: labels and tables are the users' own."""

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = HttpBody(headers, self.rfile, lambda: self._continue(headers))
        request = Request(self.command, self.path, headers, str(self.client_address[0]))
        try:
            response = self.server.service.answer(request, body)
            self._settle(response, body)
        except Hangup as hangup:
            self._hang_up(hangup.reset)
        except BodyBroken:
            self.close_connection = True

    def _continue(self, headers: Mapping[str, str]) -> None:
        if headers.get("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _settle(self, response: Response, body: HttpBody) -> None:
        """Answer; an unread body is swallowed if it is small, otherwise the connection ends after the answer.

        Without a limit only what has come with the headers is dropped, and what comes later is the next request.
        """
        limit = self.server.service.body_limit
        close = self.close_connection or response.close or body.broken
        close = close or (limit is not None and body.may_never_come)
        if not close and not body.finished:
            if limit is None and not body.read_in_part:
                with self._received.paused():
                    body.drop(len(self.rfile.peek()))
            else:
                close = not body.discard(_UNREAD_LIMIT if limit is None else limit)
        self._write(response, close)
        if close:
            self.close_connection = True
            if not body.finished:
                self._linger()

    def _write(self, response: Response, close: bool) -> None:
        try:
            phrase = HTTPStatus(response.status).phrase
        except ValueError:
            phrase = "Status"
        lines = [f"HTTP/1.1 {response.status} {phrase}"]
        header_names = {name.lower() for name in response.headers}
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        if "content-length" not in header_names:
            lines.append(f"Content-Length: {len(response.body)}")
        if "connection" not in header_names:
            lines.append(f"Connection: {'close' if close else 'keep-alive'}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        self.wfile.write(head + (b"" if self.command == "HEAD" else response.body))

    def _linger(self) -> None:
        """Swallow what the client is still sending for a moment, so that it can read the answer before the end."""
        deadline = time.monotonic() + _LINGER_SECONDS
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER_SECONDS / 4)
            while time.monotonic() < deadline and self.connection.recv(65_536):
                pass

    def _hang_up(self, reset: bool) -> None:
        self.close_connection = True
        if reset:
            with contextlib.suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Closing here, not by shutdown(), is what makes the kernel send RST.
                self.rfile.close()
                self.connection.close()
