"""The connections of each thread, and a single exchange on them: bytes out, status and bytes back, all of it in time.

An adapter of `requests` does it, without a `requests.Session` around it: cookies, hooks, proxies and the preparation of
the next request after a redirect, none of which is used here, were 28 % of a small load's processor time.

A socket's own timeout starts anew with each byte. Here every send and every receive is given what is left of the
request's time, so a request ends by its deadline whatever the peer does. The same place counts what was sent: an error
before the first byte is proof that the request had no effect.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import urllib3
import urllib3.exceptions
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import BadReply, NotSent, OptionError, ReplyLost, TransportError
from starrocks_txn_sink.http.messages import REPLY_LIMIT
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.protocol.wire import Body


class BodyPieces:
    """Views of a body's buffers; nothing is copied or joined. Each iteration starts from the beginning.

    `complete` says whether the last iteration handed out everything. That is known only here: the HTTP library reads
    the reply also when the peer closed its side in the middle of the body.
    """

    def __init__(self, body: Body | Sequence[memoryview | bytes] | None) -> None:
        self._body: Body | Sequence[memoryview | bytes] = () if body is None else body
        if isinstance(self._body, (bytes, bytearray, memoryview)):
            self._body = (self._body,)
        measured = isinstance(self._body, Sequence)
        self._length = sum(_view(piece).nbytes for piece in self._body) if measured else len(self._body)
        self.complete = self._length == 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[memoryview]:
        self.complete = False
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
        self.complete = True


def _view(piece: memoryview | bytes) -> memoryview:
    view = memoryview(piece)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


SEND_SIZE = 1 << 20
"""Bytes handed to the socket at once: one wait is for these, not for a whole body."""


class RequestTimer:
    """The time one request may take, and how far it came. One per request; connections look it up in a `Slot`."""

    def __init__(self, deadline: Deadline, reply_seconds: float) -> None:
        self._deadline = deadline
        self._reply_seconds = reply_seconds
        self._reply: Deadline | None = None
        self.connected = False
        self.sent = 0

    def send_timeout(self) -> float:
        """Seconds that the next piece may take."""
        return self._bounded(self._deadline, self._reply_seconds)

    def begin_reply(self) -> None:
        """From now on the reply is waited for, all of it within `reply_seconds`."""
        self._reply = self._deadline.earlier(self._reply_seconds)

    def reply_timeout(self) -> float:
        """Seconds left for the rest of the reply."""
        return self._bounded(self._reply or self._deadline, self._reply_seconds)

    @staticmethod
    def _bounded(deadline: Deadline, most: float) -> float:
        left = min(deadline.remaining(), most)
        if left <= 0.0:
            raise TimeoutError("no time is left")
        return left


class RequestSlot:
    """Where the connections of one thread find the request that is under way."""

    def __init__(self) -> None:
        self.waiting: RequestTimer | None = None

    def current(self) -> RequestTimer:
        if self.waiting is None:
            raise RuntimeError("a connection is used outside a request")
        return self.waiting


class DeadlineSocket:
    """A connected socket (plain or TLS) whose waits are bounded by the slot's request."""

    def __init__(self, connected: socket.socket, slot: RequestSlot) -> None:
        self._socket = connected
        self._slot = slot

    def sendall(self, data: Any) -> None:
        view = memoryview(data)
        for start in range(0, len(view), SEND_SIZE):
            piece = view[start : start + SEND_SIZE]
            waiting = self._slot.current()
            self._socket.settimeout(waiting.send_timeout())
            waiting.sent += len(piece)  # before the call: a part of it may go out although it fails
            self._socket.sendall(piece)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """What the HTTP library reads the reply from; when it asks, the wait for the reply begins."""
        self._slot.current().begin_reply()
        return io.BufferedReader(_ReplyStream(self._socket, self._slot))

    def fileno(self) -> int:
        return self._socket.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _ReplyStream(io.RawIOBase):
    """Received bytes; each receive is given what is left of the reply's time."""

    def __init__(self, connected: socket.socket, slot: RequestSlot) -> None:
        self._socket = connected
        self._slot = slot
        self._raw = connected.makefile("rb", buffering=0)  # holds the socket open until the reply is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._slot.current().reply_timeout())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PlainConnection(HTTPConnection):
    slot: RequestSlot

    def connect(self) -> None:
        self.slot.current().connected = True
        super().connect()
        self.sock = DeadlineSocket(self.sock, self.slot)


class _SecureConnection(HTTPSConnection):
    slot: RequestSlot

    def connect(self) -> None:
        self.slot.current().connected = True
        super().connect()
        self.sock = DeadlineSocket(self.sock, self.slot)


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection
    slot: RequestSlot

    def _new_conn(self) -> Any:
        return _with_slot(super()._new_conn, self.slot)


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection
    slot: RequestSlot

    def _new_conn(self) -> Any:
        return _with_slot(super()._new_conn, self.slot)


class _Pools(urllib3.PoolManager):
    """Pools whose connections know the slot."""

    def __init__(self, slot: RequestSlot, **settings: Any) -> None:
        super().__init__(**settings)
        self._slot = slot
        self.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}

    def _new_pool(self, *place: Any, **settings: Any) -> Any:
        return _with_slot(super()._new_pool, self._slot, *place, **settings)

    def clear(self) -> None:
        """Close every pool, also one that the traceback of an error still holds; urllib3 would wait for its end."""
        for place in self.pools.keys():  # noqa: SIM118 - it cannot be iterated itself
            pool = self.pools.get(place)
            if pool is not None:
                pool.close()
        super().clear()


def _with_slot(make: Callable[..., Any], slot: RequestSlot, *place: Any, **settings: Any) -> Any:
    made = make(*place, **settings)
    made.slot = slot
    return made


class DeadlineAdapter(HTTPAdapter):
    """Lets `requests` use bounded connections, without retries of its own. For one thread."""

    def __init__(self, slot: RequestSlot) -> None:
        self._slot = slot
        super().__init__(max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **settings: Any) -> None:
        self.poolmanager = _Pools(self._slot, num_pools=connections, maxsize=maxsize, block=block, **settings)


def transport_error(error: Exception, waiting: RequestTimer, address: Address, step: str) -> TransportError:
    """The typed error for `error`, raised by the HTTP library while `step` was asked of `address`.

    `NotSent` needs proof: the address could not be connected to, or the connection was made for this request and not
    one byte of it went out. Everything else may have reached the server, a kept-alive connection that died among it.
    The library's exceptions are not chained, because they hold the request with its credentials.
    """
    chain = _cause_chain(error)
    name = type(chain[-1]).__name__
    place = {"url": str(address)}
    if _never_connected(chain):
        return NotSent(f"No connection could be made for {step} ({name}).", **place)
    if waiting.sent == 0 and any(isinstance(one, urllib3.exceptions.SSLError) for one in chain):
        return NotSent(
            f"The TLS handshake for {step} failed ({name}).",
            hint="Check tls_ca, tls_certificate and tls_key, and that the port speaks TLS.",
            **place,
        )
    if waiting.sent == 0 and waiting.connected:
        return NotSent(f"The new connection broke before {step} was sent ({name}).", **place)
    if any(isinstance(one, http.client.BadStatusLine) for one in chain) and not _disconnected(chain):
        return BadReply(f"What answered to {step} was not HTTP.", **place)
    return ReplyLost(
        f"{step} was sent at least in part, but its reply did not arrive ({name}).",
        hint="Whether it took effect is found out by asking for the label; check the network and the server's log.",
        **place,
    )


def _never_connected(chain: list[BaseException]) -> bool:
    kinds = (
        requests.exceptions.ConnectTimeout,
        requests.exceptions.InvalidURL,
        urllib3.exceptions.ConnectTimeoutError,  # also refused, unreachable and not resolved
    )
    return any(isinstance(one, kinds) for one in chain)


def _disconnected(chain: list[BaseException]) -> bool:
    return any(isinstance(one, http.client.RemoteDisconnected) for one in chain)


def _cause_chain(error: BaseException) -> list[BaseException]:
    """`error` and what it was made of, outermost first: the libraries nest causes as arguments or as `reason`."""
    found: list[BaseException] = []
    current: object = error
    while isinstance(current, BaseException) and current not in found:
        found.append(current)
        inner = getattr(current, "reason", None)
        nested = [one for one in (inner, *reversed(current.args)) if isinstance(one, BaseException)]
        current = nested[0] if nested else current.__cause__ or current.__context__
    return found


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What came back over HTTP, not yet understood. `body` ends one byte after the limit of replies at most; `whole`
    is false when the peer answered, and closed its side, before it had the whole request."""

    status: int
    location: str | None
    body: bytes
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Exchange:
    """One HTTP request to one address. `step` names it in errors; `reply_seconds` bounds the wait for the reply."""

    step: str
    method: str
    address: Address
    path: str
    headers: Mapping[str, bytes] = field(repr=False)
    body: BodyPieces | None
    deadline: Deadline
    reply_seconds: float


class ThreadConnections:
    """The connections of one thread. Nothing of the environment is used: no proxies, no netrc, no cookies."""

    def __init__(self, options: SinkOptions) -> None:
        self._slot = RequestSlot()
        self._connect_timeout = options.connect_timeout
        self._verify: bool | str = options.tls_ca or options.tls_verify
        self._certificate = _client_certificate(options)
        self._adapter = DeadlineAdapter(self._slot)

    def perform(self, exchange: Exchange) -> HttpResponse:
        """Send one request and read its answer, never following a redirect.

        Raises NotSent, ReplyLost or BadReply, and DeadlineExceeded when no time was left to begin with.
        """
        connect = exchange.deadline.bounded(self._connect_timeout, exchange.step)
        reply = min(exchange.reply_seconds, exchange.deadline.remaining()) or connect
        waiting = RequestTimer(exchange.deadline, exchange.reply_seconds)
        self._slot.waiting = waiting
        try:
            with self._adapter.send(
                _prepare_request(exchange),
                stream=True,
                timeout=(connect, reply),
                verify=self._verify,
                cert=self._certificate,
            ) as response:
                received = _read_body(response)
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise transport_error(error, waiting, exchange.address, exchange.step) from None
        whole = exchange.body is None or exchange.body.complete or waiting.sent == 0
        if not whole:
            self._adapter.close()  # the rest of this body must never be taken for the next request
        return HttpResponse(response.status_code, response.headers.get("Location"), received, whole)

    def close(self) -> None:
        self._adapter.close()


class ConnectionsByThread:
    """A link for each thread that asks for one."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[ThreadConnections] = weakref.WeakSet()  # a thread that ends takes its link along
        self._own = threading.local()
        self._closed = False

    def for_this_thread(self) -> ThreadConnections:
        """The calling thread's link. Raises NotSent after `close`."""
        with self._lock:
            if self._closed:
                raise NotSent("The transport is closed.", hint="Make a new one.")
            link: ThreadConnections | None = getattr(self._own, "link", None)
            if link is None:
                link = self._own.link = ThreadConnections(self._options)
                self._all.add(link)
            return link

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links = list(self._all)
        for link in links:
            link.close()


def _client_certificate(options: SinkOptions) -> str | tuple[str, str] | None:
    """The client's certificate as `requests` takes it. Raises OptionError when one of the TLS files is missing."""
    for name in ("tls_ca", "tls_certificate", "tls_key"):
        place: str | None = getattr(options, name)
        if place is not None and not Path(place).exists():
            raise OptionError(
                f"{name} names a file that does not exist.", hint="Put it on every executor.", option=name
            )
    if options.tls_certificate is None or options.tls_key is None:
        return options.tls_certificate
    return options.tls_certificate, options.tls_key


def _prepare_request(exchange: Exchange) -> requests.PreparedRequest:
    """The request as an adapter takes it, with the headers of the exchange and those of its body alone."""
    made = requests.PreparedRequest()
    made.prepare_method(exchange.method)
    made.prepare_url(f"{exchange.address}{exchange.path}", None)
    made.prepare_headers(exchange.headers)
    made.prepare_cookies({})  # an adapter asks for the jar
    made.prepare_body(exchange.body if exchange.body is not None and len(exchange.body) else None, None)
    return made


def _read_body(response: requests.Response) -> bytes:
    """The body as it came, up to one byte over the limit of replies; one that the peer cut short is an error."""
    body: bytes = response.raw.read(REPLY_LIMIT + 1, decode_content=False)
    missing = getattr(response.raw, "length_remaining", None)
    if missing and len(body) <= REPLY_LIMIT:
        raise urllib3.exceptions.IncompleteRead(len(body), missing)
    return body
