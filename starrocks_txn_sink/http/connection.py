"""Connections per thread, and one HTTP exchange on them, bounded by the request's deadline.

An exchange is one request and one reply, on a socket of its own thread; `http.client` reads the reply. A general HTTP
library would prepare cookies, hooks, proxies and redirects for each load, at five times the processor time.

A socket's own timeout restarts with each byte. DeadlineSocket gives every send and receive only the remaining time, so
a request ends by its deadline even if the peer sends one byte at a time. DeadlineSocket also counts sent bytes: an
error before the first byte proves that the request had no effect.
"""

import http.client
import io
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import quote

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import BadReply, NotSent, ReplyLost, StarRocksSinkError, TransportError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import DEFAULT_PORTS, Address
from starrocks_txn_sink.protocol.wire import Body, Operation, Request
from starrocks_txn_sink.rows.body import LoadBody
from starrocks_txn_sink.tls import tls_context

REPLY_LIMIT = 1 << 20
"""Most bytes of a reply; the longest real ones have a few hundred."""


class BodyPieces:
    """Iterates over a body's buffers as views, without a copy; each iteration starts from the beginning.

    `ready`: the buffers are all there, so that iterating neither waits nor frees anything.
    """

    def __init__(self, body: Body | Sequence[memoryview | bytes] | None) -> None:
        self._body: Body | Sequence[memoryview | bytes] = () if body is None else body
        measured = isinstance(self._body, Sequence)
        self.ready = measured or isinstance(self._body, LoadBody)
        self._length = sum(_view(piece).nbytes for piece in self._body) if measured else len(self._body)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[memoryview]:
        left = self._length
        for piece in self._body:
            view = _view(piece)
            left -= view.nbytes
            if left < 0:
                break
            yield view
        if left != 0:
            raise ReplyLost(
                f"A body announced {self._length} bytes but had {'more' if left < 0 else 'fewer'}.",
                hint="The buffers of a load must not change while it is sent.",
            )


def _view(piece: memoryview | bytes) -> memoryview:
    view = memoryview(piece)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


SEND_SIZE = 1 << 20
"""Bytes per socket send; the timeout is recomputed before each."""


class RequestTimer:
    """Remaining time and progress of one request.

    `connected`: a new connection was opened for this request. `sent`: bytes given to the socket so far.
    """

    def __init__(self, deadline: Deadline, reply_seconds: float) -> None:
        self._deadline = deadline
        self._reply_seconds = reply_seconds
        self.connected = False
        self.sent = 0

    def begin_reply(self) -> None:
        """Start the wait for the reply; the whole reply must arrive within `reply_seconds`."""
        self._deadline = self._deadline.earlier(self._reply_seconds)

    def timeout(self) -> float:
        """Timeout in seconds for the next send or receive; raises TimeoutError when no time is left."""
        left = min(self._deadline.remaining(), self._reply_seconds)
        if left <= 0.0:
            raise TimeoutError("no time is left")
        return left


class DeadlineSocket:
    """A connected socket (plain or TLS) that never waits past the deadline of its request.

    `timer` is that of the current request; set before each one.
    """

    timer: RequestTimer

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._input = select.poll()
        self._input.register(connected.fileno(), select.POLLIN)

    @property
    def dropped(self) -> bool:
        """Whether the peer has closed the kept-alive connection, or sent what no request asked for."""
        return bool(self._input.poll(0))

    def sendall(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for start in range(0, len(view), SEND_SIZE):
            piece = view[start : start + SEND_SIZE]
            self._socket.settimeout(self.timer.timeout())
            self.timer.sent += len(piece)  # before the call: a failed sendall may have sent a part
            self._socket.sendall(piece)

    def receive_into(self, buffer: Any) -> int:
        self._socket.settimeout(self.timer.timeout())
        return self._socket.recv_into(buffer)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """The reply stream of one request, as `http.client` asks for it."""
        return io.BufferedReader(_ReplyStream(self))

    def close(self) -> None:
        self._socket.close()


class _ReplyStream(io.RawIOBase):
    """Received bytes; each receive may take the remaining reply time."""

    def __init__(self, connected: DeadlineSocket) -> None:
        self._connected = connected

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connected.receive_into(buffer)


def _connect(address: Address, seconds: float, context: ssl.SSLContext | None, step: str) -> DeadlineSocket:
    """A new connection to `address`, over TLS with a `context`. Raises NotSent."""
    place = {"url": str(address)}
    try:
        connected = socket.create_connection((address.host, address.port), seconds)
    except (OSError, ValueError) as error:  # ValueError: a name that DNS cannot have
        raise NotSent(f"No connection could be made for {step}: {_unreachable(error)}.", **place) from None
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connected = context.wrap_socket(connected, server_hostname=address.host)
    except (OSError, ValueError) as error:
        connected.close()
        raise NotSent(
            f"The TLS handshake for {step} failed ({type(error).__name__}).",
            hint="Check tls_ca, tls_certificate and tls_key, and that the port speaks TLS.",
            **place,
        ) from None
    return DeadlineSocket(connected)


def _unreachable(error: Exception) -> str:
    """Why no connection was made."""
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "the host name cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__


def transport_error(error: Exception, timer: RequestTimer, address: Address, step: str) -> TransportError:
    """The typed error for `error`, which broke the exchange of `step` with `address` on an open connection.

    NotSent requires proof: a connection made for this request broke before its first byte. Anything else may have
    reached the server, including a kept-alive connection that died. Do not chain `error`: its traceback holds the
    request with its credentials.
    """
    name = type(error).__name__
    place = {"url": str(address)}
    if timer.sent == 0 and timer.connected:
        return NotSent(f"The new connection broke before {step} was sent ({name}).", **place)
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        return BadReply(f"The answer to {step} is not HTTP.", **place)
    return ReplyLost(
        f"{step} was sent at least in part, but its reply did not arrive ({name}).",
        hint="The sink asks for the label's state to find out whether it took effect; check the network and the "
        "server's log.",
        **place,
    )


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An unparsed HTTP response with at most REPLY_LIMIT + 1 bytes of `body`.

    `whole` is False if the peer answered and closed its side before it had the whole request.
    """

    status: int
    location: str | None
    body: bytes
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Exchange:
    """One HTTP request to one address; `reply_seconds` bounds the wait for the reply."""

    request: Request
    address: Address
    headers: Mapping[str, bytes] = field(repr=False)
    body: BodyPieces | None
    deadline: Deadline
    reply_seconds: float

    @property
    def step(self) -> str:
        """The request's name in errors."""
        return self.request.operation.value

    @property
    def method(self) -> str:
        return _METHODS.get(self.request.operation, "POST")

    @property
    def path(self) -> str:
        """Path and query of the request; equal on every server of a redirect chain."""
        if self.request.operation is Operation.LOAD_STATE:
            database, label = quote(self.request.database, safe=""), quote(self.request.label, safe="")
            return f"/api/{database}/get_load_state?label={label}"
        return f"/api/transaction/{self.step}"


_METHODS = {Operation.LOAD: "PUT", Operation.LOAD_STATE: "GET"}  # all other operations: POST

_SMALL_BODY = 64 << 10
"""A body of so many bytes is sent together with its headers: copying it costs less than another send."""

_KEPT = 32
"""Kept-alive connections of a thread, each a file: enough for the frontends and backends of most clusters."""


class ThreadConnections:
    """The connections of one thread; between two requests they are kept by address, the last used last.

    Ignores HTTP_PROXY, .netrc and cookies.
    """

    def __init__(self, options: SinkOptions, tls: "Tls") -> None:
        self._connect_timeout = options.connect_timeout
        self._tls = tls
        self._kept: dict[Address, DeadlineSocket] = {}
        self._closed = False

    def perform(self, exchange: Exchange) -> HttpResponse:
        """Send one request and read its response; never follows a redirect.

        Raises NotSent, ReplyLost or BadReply; DeadlineExceeded if no time is left at the start.
        """
        connect_seconds = exchange.deadline.limit(self._connect_timeout, exchange.step)
        timer = RequestTimer(exchange.deadline, exchange.reply_seconds)
        connection = self._connection(exchange, connect_seconds, timer)
        connection.timer = timer
        try:
            whole = _send(connection, exchange)
            timer.begin_reply()
            response, may_keep = _read_response(connection, exchange)
        except BaseException as error:
            connection.close()
            if isinstance(error, StarRocksSinkError) or not isinstance(error, Exception):
                raise
            # A broken reply makes http.client raise more than its own errors, as ValueError.
            raise transport_error(error, timer, exchange.address, exchange.step) from None
        if whole and may_keep:
            self._keep(exchange.address, connection)
        else:
            connection.close()  # else the server would read the rest of this body as the next request
        return response if whole else replace(response, whole=False)

    def _connection(self, exchange: Exchange, seconds: float, timer: RequestTimer) -> DeadlineSocket:
        """The connection that was kept for the address, if it is alive, or a new one."""
        address = exchange.address
        kept = self._kept.pop(address, None)
        if kept is not None:
            if not kept.dropped:
                return kept
            kept.close()
        timer.connected = True
        return _connect(address, seconds, self._tls.context if address.scheme == "https" else None, exchange.step)

    def _keep(self, address: Address, connection: DeadlineSocket) -> None:
        self._kept[address] = connection
        if len(self._kept) > _KEPT:
            self._kept.pop(next(iter(self._kept))).close()
        if self._closed:  # meanwhile, by another thread
            self.close()

    def close(self) -> None:
        """Close the connections that no request uses; one in use is closed after its request."""
        self._closed = True
        while self._kept:
            self._kept.popitem()[1].close()

    def __del__(self) -> None:
        self.close()


class Tls:
    """The TLS context of a transport, made for its first https address: it reads all certificates of the machine."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @cached_property
    def context(self) -> ssl.SSLContext:
        return tls_context(self._options)


class ConnectionsByThread:
    """One ThreadConnections per calling thread."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._tls = Tls(options)
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[ThreadConnections] = weakref.WeakSet()  # weak: a thread's connections end with it
        self._own = threading.local()
        self._closed = False

    def for_this_thread(self) -> ThreadConnections:
        """The calling thread's connections. Raises NotSent after `close`."""
        with self._lock:
            if self._closed:
                raise NotSent("The transport is closed.", hint="Make a new one.")
            own: ThreadConnections | None = getattr(self._own, "connections", None)
            if own is None:
                own = self._own.connections = ThreadConnections(self._options, self._tls)
                self._all.add(own)
            return own

    def close(self) -> None:
        with self._lock:
            self._closed = True
            opened = list(self._all)
        for connections in opened:
            connections.close()


def _send(connection: DeadlineSocket, exchange: Exchange) -> bool:
    """Send the request; False if the peer closed its side in the middle of the body: it may have answered before."""
    body = exchange.body
    head = _head(exchange, 0 if body is None else len(body))
    try:
        if body is None or (body.ready and len(body) <= _SMALL_BODY):
            connection.sendall(b"".join((head, *(() if body is None else body))))
        else:
            connection.sendall(head)
            for piece in body:
                connection.sendall(piece)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _head(exchange: Exchange, length: int) -> bytes:
    """The request line and all headers; adds only those of the connection and of the body to the exchange's."""
    method, address = exchange.method, exchange.address
    host = address.netloc
    if address.port == DEFAULT_PORTS[address.scheme]:
        host = host.rpartition(":")[0]
    lines = [f"{method} {exchange.path} HTTP/1.1\r\nHost: {host}".encode("ascii")]
    lines += [b"%b: %b" % (name.encode("ascii"), value) for name, value in exchange.headers.items()]
    if method != "GET":
        lines.append(b"content-length: %d" % length)
    return b"\r\n".join((*lines, b"", b""))


def _read_response(connection: DeadlineSocket, exchange: Exchange) -> tuple[HttpResponse, bool]:
    """The response with at most REPLY_LIMIT + 1 bytes of its body, and whether the connection takes another request.

    Raises IncompleteRead if the peer cut the body short.
    """
    # The type wants a whole socket; http.client only asks for its file.
    with http.client.HTTPResponse(connection, method=exchange.method) as response:  # type: ignore[arg-type]
        response.begin()
        length = REPLY_LIMIT + 1 if response.length is None else min(response.length, REPLY_LIMIT + 1)
        body = response.read(length)
        if response.length and len(body) <= REPLY_LIMIT:
            raise http.client.IncompleteRead(body, response.length)
        ended = response.isclosed() and not response.will_close
        return HttpResponse(response.status, response.getheader("Location"), body), ended
