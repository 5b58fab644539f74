"""Connections per thread, and one HTTP exchange on them, bounded by the request's deadline.

The exchange uses an adapter of `requests` without a `requests.Session`: the session's cookies, hooks, proxies and
redirect preparation are not needed here, and they cost 28 % of a small load's processor time. Where many tables get a
few rows each, a micro-batch costs what its requests cost. So the adapter remembers its pools by address, nothing checks
headers a second time, and the answer is handed on as urllib3 has read it.

`http.sockets` has what sends and receives. An error before the first byte of a request, or of a load's body, proves
that it had no effect.
"""

import http.client
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import requests
import urllib3
import urllib3.exceptions
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import BadReply, NotSent, OptionError, ReplyLost, StarRocksSinkError, TransportError
from starrocks_txn_sink.http.sockets import REQUEST, DeadlineSocket, RequestTimer
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.protocol.wire import Body, Operation, Request

REPLY_LIMIT = 1 << 20
"""Most bytes of a reply; the longest real ones have a few hundred."""


class BodyPieces:
    """Iterates over a body's buffers as views, without a copy; each iteration starts from the beginning.

    The HTTP library iterates once the head is sent. Nothing comes before the peer has said `100 Continue`, and nothing
    at all if it has answered instead (wire contract 2.5).

    `begun`: whether the last iteration yielded anything; `complete`: whether it yielded the whole body. The HTTP
    library does not report this: it reads the reply even if the peer closed its side in the middle of the body.
    """

    def __init__(self, body: Body | Sequence[memoryview | bytes] | None) -> None:
        self._body: Body | Sequence[memoryview | bytes] = () if body is None else body
        measured = isinstance(self._body, Sequence)
        self._length = sum(_view(piece).nbytes for piece in self._body) if measured else len(self._body)
        self.begun, self.complete = False, self._length == 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[memoryview]:
        self.begun = self.complete = False
        if not REQUEST.get().may_send_body():
            return
        remaining = self._length
        for piece in self._body:
            view = _view(piece)
            remaining -= view.nbytes
            if remaining < 0:
                break
            self.begun = True
            yield view
        if remaining != 0:
            raise ReplyLost(
                f"A body announced {self._length} bytes but had {'more' if remaining < 0 else 'fewer'}.",
                hint="The buffers of a load must not change while it is sent.",
            )
        self.complete = True


def _view(piece: memoryview | bytes) -> memoryview:
    view = memoryview(piece)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class _PlainConnection(HTTPConnection):
    def connect(self) -> None:
        REQUEST.get().connected = True
        super().connect()
        self.sock = DeadlineSocket(self.sock)

    def putheader(self, header: str | bytes, *values: Any) -> None:
        """Take a header as it is: `transport.headers_of` has checked names and values."""
        self._output(b"%b: %b" % (_as_bytes(header), _as_bytes(values[0])))  # type: ignore[attr-defined]


def _as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


class _SecureConnection(_PlainConnection, HTTPSConnection):
    """The same over TLS: `super().connect()` is that of HTTPSConnection here."""


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _Pools(urllib3.PoolManager):
    """Pools that can be closed at once."""

    def clear(self) -> None:
        """Close every pool now: urllib3 waits for garbage collection, and a traceback may keep a pool alive."""
        for place in self.pools.keys():  # noqa: SIM118 - `pools` itself cannot be iterated
            pool = self.pools.get(place)
            if pool is not None:
                pool.close()
        super().clear()


_MOST_ADDRESSES: Final = 256
"""Frontends and backends whose connections a thread keeps."""


class _Answer(requests.Response):
    """An answer with all that `_read_body` and `perform` look at; without a jar of cookies."""

    _content_consumed = False

    def __init__(self, raw: Any) -> None:
        self.raw, self.status_code, self.headers = raw, raw.status, raw.headers


class DeadlineAdapter(HTTPAdapter):
    """Makes `requests` use DeadlineSocket, without retries of its own. For one thread."""

    address: Address
    """Where the next request goes; set before each one."""
    target: str
    """Its path and query, as `address`."""

    def __init__(self) -> None:
        self._by_address: dict[str, Any] = {}  # pools
        super().__init__(_MOST_ADDRESSES)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 - always, so that the caller bounds the body
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,  # noqa: ARG002 - none
    ) -> requests.Response:
        """Send a request of `_prepare_request`, and return its answer; raises urllib3's errors."""
        url = self.address.url
        pool: Any = self._by_address.get(url)
        if pool is None or pool.pool is None:  # closed
            pool = self._by_address[url] = self.get_connection_with_tls_context(request, verify, cert=cert)
            self.cert_verify(pool, request.url, verify, cert)  # type: ignore[no-untyped-call]
        connect, reply = timeout
        return _Answer(
            pool.urlopen(
                request.method,
                self.target,
                request.body,
                request.headers,
                self.max_retries,
                redirect=False,
                assert_same_host=False,
                timeout=urllib3.Timeout(connect=connect, read=reply),
                preload_content=False,
                decode_content=False,
            )
        )

    def drop(self, address: Address) -> None:
        """Close the connection to `address` that was used last; the pool opens it again."""
        pool = self._by_address.get(address.url)
        if pool is None or pool.pool is None:
            return
        connection = pool.pool.get_nowait()
        if connection is not None:
            connection.close()
        pool.pool.put_nowait(connection)

    def close(self) -> None:
        """Close the connections that no request uses; a later request opens others."""
        super().close()
        self._by_address.clear()

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> Any:
        """Connect to `address`, whose host was checked; the library's reading of a URL may find another host."""
        _, settings = super().build_connection_pool_key_attributes(request, verify, cert)
        address = self.address
        return {"scheme": address.scheme, "host": address.host, "port": address.port}, settings

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **settings: Any) -> None:
        """Make pools whose connections have a DeadlineSocket."""
        self.poolmanager = _Pools(num_pools=connections, maxsize=maxsize, block=block, **settings)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}


def transport_error(error: Exception, waiting: RequestTimer, exchange: "Exchange") -> TransportError:
    """The typed error for `error`, which the HTTP library raised during `exchange`.

    NotSent requires proof: no connection was made, a connection made for this request broke before its first byte, or
    any connection was closed before the first byte of a load's body. Anything else may have reached the server,
    including another request on a kept-alive connection that died. Do not chain the library's exceptions: they hold the
    request with its credentials.
    """
    chain = _cause_chain(error)
    name = type(chain[-1]).__name__
    step, place = exchange.step, {"url": str(exchange.address)}
    if _has(chain, *_NEVER_CONNECTED):
        return NotSent(f"No connection could be made for {step}: {_unreachable(chain)}.", **place)
    if waiting.sent == 0 and _has(chain, urllib3.exceptions.SSLError):
        return NotSent(
            f"The TLS handshake for {step} failed ({name}).",
            hint="Check tls_ca, tls_certificate and tls_key, and that the port speaks TLS.",
            **place,
        )
    if waiting.sent == 0 and waiting.connected:
        return NotSent(f"The new connection broke before {step} was sent ({name}).", **place)
    if exchange.without_effect and _has(chain, ConnectionError):
        return NotSent(f"The connection was closed before the body of the {step} was sent ({name}).", **place)
    if _has(chain, http.client.BadStatusLine) and not _has(chain, http.client.RemoteDisconnected):
        return BadReply(f"The answer to {step} is not HTTP.", **place)
    return ReplyLost(
        f"{step} was sent at least in part, but its reply did not arrive ({name}).",
        hint="After a commit the sink asks for the label's state; after another request it rolls the label back. "
        "Check the network and the server's log.",
        **place,
    )


_NEVER_CONNECTED = (
    requests.exceptions.ConnectTimeout,
    requests.exceptions.InvalidURL,
    urllib3.exceptions.LocationValueError,  # no host name
    urllib3.exceptions.ConnectTimeoutError,  # also refused, unreachable and not resolved
)


def _has(chain: list[BaseException], *kinds: type[BaseException]) -> bool:
    return any(isinstance(error, kinds) for error in chain)


def _unreachable(chain: list[BaseException]) -> str:
    """Why no connection was made."""
    unresolved = getattr(urllib3.exceptions, "NameResolutionError", socket.gaierror)  # urllib3 1.26 has none
    if _has(chain, socket.gaierror, unresolved):
        return "the host name cannot be resolved"
    if _has(chain, ConnectionRefusedError):
        return "nothing listens there"
    if _has(chain[-1:], TimeoutError, urllib3.exceptions.ConnectTimeoutError):
        return "no answer in time"
    return type(chain[-1]).__name__


def _cause_chain(error: BaseException) -> list[BaseException]:
    """`error` and its causes, outermost first; urllib3 and requests store a cause in `args` or `reason`."""
    causes: list[BaseException] = []
    current: object = error
    while isinstance(current, BaseException) and current not in causes:
        causes.append(current)
        inner = getattr(current, "reason", None)
        nested = [error for error in (inner, *reversed(current.args)) if isinstance(error, BaseException)]
        current = nested[0] if nested else current.__cause__ or current.__context__
    return causes


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An unparsed HTTP response with at most REPLY_LIMIT + 1 bytes of `body`.

    `whole` is False if the peer answered before it had the whole request; `reused`: on a connection that an earlier
    request was sent on.
    """

    status: int
    location: str | None
    body: bytes
    whole: bool = True
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """One HTTP request to one address; `reply_seconds` bounds the wait for the reply.

    With `log` it asks a backend for the log of rejected rows of that name, whatever its request is.
    """

    request: Request
    address: Address
    headers: Mapping[str, bytes] = field(repr=False)
    body: BodyPieces | None
    deadline: Deadline
    reply_seconds: float
    log: str = ""

    @property
    def step(self) -> str:
        """The request's name in errors."""
        return self.request.operation.value

    @property
    def without_effect(self) -> bool:
        """Whether it cannot have had an effect yet: a load of which no byte of the body was sent."""
        return self.request.operation is Operation.LOAD and (self.body is None or not self.body.begun)

    @property
    def method(self) -> str:
        """`PUT` for a load, `GET` for a question, `POST` for the other operations (wire contract 1.1, 6.1)."""
        return "GET" if self.log else _METHODS.get(self.request.operation, "POST")

    @property
    def path(self) -> str:
        """Path and query of the request; equal on every server of a redirect chain."""
        if self.log:
            return f"/api/_load_error_log?file={quote(self.log, safe='')}"
        if self.request.operation is Operation.LOAD_STATE:
            database, label = quote(self.request.database, safe=""), quote(self.request.label, safe="")
            return f"/api/{database}/get_load_state?label={label}"
        return f"/api/transaction/{self.step}"


_METHODS = {Operation.LOAD: "PUT", Operation.LOAD_STATE: "GET"}  # all other operations: POST


class ThreadConnections:
    """The connections of one thread. Ignores HTTP_PROXY, .netrc and cookies."""

    def __init__(self, options: SinkOptions) -> None:
        self._connect_timeout = options.connect_timeout
        self._verify: bool | str = options.tls_ca or options.tls_verify
        self._certificate = _client_certificate(options)
        self._adapter = DeadlineAdapter()

    def perform(self, exchange: Exchange) -> HttpResponse:
        """Send one request and read its response; never follows a redirect.

        Raises NotSent, ReplyLost or BadReply; DeadlineExceeded if no time is left at the start.
        """
        connect = exchange.deadline.limit(self._connect_timeout, exchange.step)
        reply = min(exchange.reply_seconds, exchange.deadline.remaining()) or connect
        waiting = RequestTimer(exchange.deadline, exchange.reply_seconds)
        REQUEST.set(waiting)
        self._adapter.address, self._adapter.target = exchange.address, exchange.path
        try:
            with self._adapter.send(
                _prepare_request(exchange),
                stream=True,
                timeout=(connect, reply),
                verify=self._verify,
                cert=self._certificate,
            ) as response:
                received = _read_body(response)
        except StarRocksSinkError:
            raise
        except Exception as error:  # a broken reply makes the library raise more than its own errors, as ValueError
            raise transport_error(error, waiting, exchange) from None
        whole = exchange.body is None or exchange.body.complete
        return HttpResponse(
            response.status_code, response.headers.get("Location"), received, whole, reused=not waiting.connected
        )

    def drop(self, address: Address) -> None:
        """Close the connection to `address`; the next request opens another one."""
        self._adapter.drop(address)

    def close(self) -> None:
        """Close the connections that no request uses; any thread may call it."""
        self._adapter.close()


class ConnectionsByThread:
    """One ThreadConnections per calling thread."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
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
                own = self._own.connections = ThreadConnections(self._options)
                self._all.add(own)
            return own

    def close(self) -> None:
        """Close the idle connections of all threads, and refuse new requests."""
        with self._lock:
            self._closed = True
            opened = list(self._all)
        for connections in opened:
            connections.close()


def _client_certificate(options: SinkOptions) -> str | tuple[str, str] | None:
    """The `cert` argument of `requests`. Raises OptionError if a TLS file is missing."""
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
    """The request as an adapter takes it; adds only the headers of the body to those of the exchange."""
    prepared, size = requests.PreparedRequest(), 0 if exchange.body is None else len(exchange.body)
    prepared.method, prepared.url = exchange.method, exchange.address.url + exchange.path
    of_body = {"content-length": b"%d" % size} if size or exchange.method != "GET" else {}
    if size:
        of_body["expect"] = b"100-continue"
    prepared.headers = {**exchange.headers, **of_body}  # type: ignore[assignment]
    prepared.body = exchange.body if size else None  # type: ignore[assignment]
    return prepared


def _read_body(response: requests.Response) -> bytes:
    """At most REPLY_LIMIT + 1 bytes of the body; raises IncompleteRead if the peer cut it short."""
    body: bytes = response.raw.read(REPLY_LIMIT + 1, decode_content=False)
    missing = getattr(response.raw, "length_remaining", None)
    if missing and len(body) <= REPLY_LIMIT:
        raise urllib3.exceptions.IncompleteRead(len(body), missing)
    return body
