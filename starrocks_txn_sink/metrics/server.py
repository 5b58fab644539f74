"""The metrics endpoint: `MetricsServer`, and a small HTTP server under it for the page's files and the metrics."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import orjson

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.source_lag import LagWatch, has_ended
from starrocks_txn_sink.metrics.spark_progress import ProgressWatch
from starrocks_txn_sink.metrics.state import RUNBOOK, dashboard_state
from starrocks_txn_sink.metrics.verdict import readiness
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.telemetry import Event

if TYPE_CHECKING:
    from typing_extensions import Self

ASSETS = {
    "index.html": "text/html; charset=utf-8",
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "drawing.js": "text/javascript; charset=utf-8",
    "words.js": "text/javascript; charset=utf-8",
    "operations.html": "text/html; charset=utf-8",
}


@cache
def read_asset(name: str) -> bytes:
    """Content of a file of ASSETS."""
    return resources.files("starrocks_txn_sink.metrics").joinpath(f"page/{name}").read_bytes()


_IDLE_SECONDS = 5.0
_REQUEST_SECONDS = 10.0
_CLOSE_SECONDS = 1.5
MOST_REQUESTS = 32
"""Requests that are answered at the same time; more connections are closed at once."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply of the endpoint."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


@dataclass(frozen=True, slots=True)
class HttpQuery:
    """Query parameters and Accept header of a request."""

    parameters: Mapping[str, list[str]]
    accept: str


Route = Callable[[HttpQuery], HttpReply]


class HttpListener(ThreadingHTTPServer):
    """Serves `routes` in daemon threads from `start` to `close`. Raises OSError if the port is taken.

    A connection is cut off _REQUEST_SECONDS after it was accepted, however slowly its client sends or reads, so that
    nobody holds the MOST_REQUESTS threads.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self.local = is_loopback(host)
        self._busy: dict[threading.Thread, tuple[Any, float]] = {}  # thread → its connection, and its end
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="starrocks-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait up to _CLOSE_SECONDS for the requests under way; then cut them off."""
        self.shutdown()
        self.server_close()
        self._thread.join()
        end = time.monotonic() + _CLOSE_SECONDS
        busy = dict(self._busy)
        for share in (0.5, 0.0):
            for thread in busy:
                thread.join(max(0.0, end - share - time.monotonic()))
            for connection, _ in busy.values():
                _cut_off(connection)

    def service_actions(self) -> None:
        """Cut off connections that are over their time; `serve_forever` calls this about ten times a second."""
        now = time.monotonic()
        for connection, end in list(self._busy.values()):
            if now > end:
                _cut_off(connection)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._busy) >= MOST_REQUESTS:
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self._answer, args=(request, client_address), name="starrocks-metrics-request", daemon=True
        )
        self._busy[thread] = request, time.monotonic() + _REQUEST_SECONDS
        thread.start()

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            self._busy.pop(threading.current_thread(), None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignored: a client may disconnect at any time."""


def _cut_off(connection: Any) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: HttpListener
    timeout = _IDLE_SECONDS
    server_version = "starrocks-txn-sink"
    sys_version = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        route = self.server.routes.get(url.path)
        if self.server.local and not _names_loopback(self.headers.get("Host", "")):
            # DNS rebinding: a foreign page in a local browser can give its own host name the loopback address.
            reply = HttpReply(b"This endpoint serves this machine only.\n", status=403)
        elif route is None:
            reply = HttpReply(b"Not found. Try /\n", status=404)
        else:
            reply = self._call_route(route, HttpQuery(parse_qs(url.query), self.headers.get("Accept", "")))
        self._send(reply)

    do_HEAD = do_GET  # noqa: N815 - the name is http.server's

    def _call_route(self, route: Route, query: HttpQuery) -> HttpReply:
        try:
            return route(query)
        except Exception as error:  # report a bug here to the client; the sink must not notice
            return HttpReply(f"{type(error).__name__} while answering.\n".encode(), status=500)

    def _send(self, reply: HttpReply) -> None:
        self.send_response(reply.status)
        for name, value in {**_HEADERS, "Content-Type": reply.content_type}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Ignored: a line for each scrape would fill the log."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


PORT = 9464
HOST = "127.0.0.1"
READY_SECONDS = 60.0


@suggests_arguments
class MetricsServer:
    """Count the sink's events, and serve them over HTTP.

    The endpoint counts from its creation on, and serves from `start` to `close`: the page at `/`, `/metrics` for
    Prometheus, `/healthz` and `/readyz`. It is a context manager, and may serve several sinks. An unpickled copy is
    empty and stopped.

    Args:
        port: The port; 0 takes a free one.
        host: The address to listen on.
        ready_seconds: `/readyz` answers 503 when a job's last progress is older than this.
        clock: The clock of the counts, for tests.

    Raises:
        OptionError: prometheus-client is not installed.

    Example::

        from starrocks_txn_sink import MetricsServer, StarRocksSink

        metrics = MetricsServer(port=9464).start()
        sink = StarRocksSink(options, metrics=metrics)
        print(metrics.url)
    """

    def __init__(
        self, port: int = PORT, host: str = HOST, *, ready_seconds: float = READY_SECONDS, clock: Clock | None = None
    ) -> None:
        self.port, self.host, self.ready_seconds = port, host, ready_seconds
        self._clock = clock or SystemClock()
        self.model = Model(self._clock)
        self._collector = _collector(self.model)
        self._guard = threading.Lock()
        self._listener: HttpListener | None = None
        self._watched: Any = None
        self._watches: list[ProgressWatch | LagWatch] = []  # of the session `_watched`

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MetricsServer, ready_seconds=self.ready_seconds), (self.port, self.host)

    def __repr__(self) -> str:
        return f"MetricsServer({self.url or f'{self.host}:{self.port}, not started'})"

    def __call__(self, event: Event) -> None:
        """Add one event of the sink; thread-safe.

        Args:
            event: The event.
        """
        self.model.record(event)

    def start(self) -> Self:
        """Start to serve; no effect if it serves already.

        Returns:
            The endpoint itself.

        Raises:
            OptionError: The port is taken.
        """
        with self._guard:
            if self._listener is None:
                try:
                    self._listener = HttpListener(self.host, self.port, self._routes())
                except OSError as error:
                    raise OptionError(
                        f"The metrics endpoint cannot listen on {self.host}:{self.port} ({error.strerror}).",
                        hint="Choose another port, or 0 for a free one; one endpoint may serve several sinks.",
                        option="metrics_port",
                    ) from error
                self._listener.start()
        return self

    @property
    def url(self) -> str:
        """URL of the page, '' before `start`."""
        listener = self._listener
        if listener is None:
            return ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{listener.port}/"

    def watch(self, session: Any) -> None:
        """Add Spark's progress of the queries in `session` that use the sink; no second session until this one has
        ended, or until `close`.

        The sink calls it with the process's session. For queries of another session call it earlier with that one.

        Args:
            session: The SparkSession.
        """
        with self._guard:
            if self._watches and not has_ended(self._watched):
                return
            self._watched, self._watches = session, [ProgressWatch(session, self.model.record)]
            if hasattr(session, "_jsparkSession"):  # Spark Connect hides the query
                self._watches.append(LagWatch(session, self.model.record, self._clock, self.model.has_query))

    def close(self) -> None:
        """Stop serving and listening to Spark. Counts stay, and `start` works again."""
        with self._guard:
            listener, self._listener = self._listener, None
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()
        if listener is not None:
            listener.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- routes ---

    def _routes(self) -> dict[str, Route]:
        pages = {f"/{name}": self._asset(name) for name in ASSETS}
        return {
            **pages,
            "/": self._asset("index.html"),
            "/metrics": self._metrics,
            "/healthz": lambda _: HttpReply(b"alive\n"),
            "/readyz": self._readyz,
            "/api/state": self._state,
            f"/{RUNBOOK}": self._asset("operations.html"),
        }

    def _metrics(self, query: HttpQuery) -> HttpReply:
        return HttpReply(*self._collector.exposition(query.accept))

    def _readyz(self, _: HttpQuery) -> HttpReply:
        with self.model.lock:
            ready = readiness(self.model, self._clock.wall(), self.ready_seconds)
        return HttpReply(f"{ready.reason}\n".encode(), status=200 if ready.ready else 503)

    def _state(self, query: HttpQuery) -> HttpReply:
        seconds: int | None = None
        with contextlib.suppress(ValueError):
            seconds = int(query.parameters.get("seconds", ["0"])[0])
        document = dashboard_state(self.model, self._clock.wall(), self.ready_seconds, seconds)
        return HttpReply(orjson.dumps(document), "application/json")

    def _asset(self, name: str) -> Route:
        return lambda _: HttpReply(read_asset(name), ASSETS[name])


def _collector(model: Model) -> Any:
    try:
        from starrocks_txn_sink.metrics.exposition import ModelCollector
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "prometheus_client":
            raise
        raise OptionError(
            "The metrics endpoint needs prometheus-client, which is not installed.",
            hint="Run: pip install 'starrocks-txn-sink[metrics]'",
            option="metrics_port",
        ) from error
    return ModelCollector(model)


_shared: dict[tuple[str, int], MetricsServer] = {}
_shared_guard = threading.Lock()


def shared_server(port: int, host: str = HOST) -> MetricsServer:
    """The process's server at this address, created at the first call; with port 0 a new one at each call."""
    with _shared_guard:
        if port == 0:
            return MetricsServer(port, host)
        if (host, port) not in _shared:
            _shared[(host, port)] = MetricsServer(port, host)
        return _shared[(host, port)]
