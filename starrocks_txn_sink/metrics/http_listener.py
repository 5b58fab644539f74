"""A small HTTP server for the page's files and the metrics, with bounded threads and times."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_CLOSE_SECONDS = 1.5
MOST_REQUESTS = 32
"""Most requests at a time; further connections are closed without an answer."""

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

    A connection is cut off `request_seconds` after it was accepted, however slowly its client sends or reads, and after
    `idle_seconds` of silence, so that nobody holds the MOST_REQUESTS threads.
    """

    request_queue_size = 64

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        *,
        request_seconds: float = 10.0,
        idle_seconds: float = 5.0,
    ) -> None:
        self.routes = routes
        self.idle_seconds, self._request_seconds = idle_seconds, request_seconds
        self.local = _is_loopback(host)
        self._busy: dict[threading.Thread, tuple[Any, float]] = {}  # thread → its connection, and its end
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="starrocks-metrics", daemon=True)

    def start(self) -> None:
        """Serve from now on; returns at once. Called once."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait up to _CLOSE_SECONDS for running requests; they are cut off half a second before the end."""
        self.shutdown()
        self.server_close()
        self._thread.join()
        end = time.monotonic() + _CLOSE_SECONDS
        busy = dict(self._busy)
        for seconds_before in (0.5, 0.0):
            for thread in busy:
                thread.join(max(0.0, end - seconds_before - time.monotonic()))
            for connection, _ in busy.values():
                _cut_off(connection)

    def service_actions(self) -> None:
        """Cut off connections whose time is over; `serve_forever` calls this about ten times a second."""
        now = time.monotonic()
        for connection, end in list(self._busy.values()):
            if now > end:
                _cut_off(connection)

    @property
    def port(self) -> int:
        """The port that is listened at: the system's choice for 0."""
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; above MOST_REQUESTS hang up instead. The server's thread calls this."""
        if len(self._busy) >= MOST_REQUESTS:
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self._answer, args=(request, client_address), name="starrocks-metrics-request", daemon=True
        )
        self._busy[thread] = request, time.monotonic() + self._request_seconds
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
    server_version = "starrocks-txn-sink"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.idle_seconds)

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


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def _names_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return _is_loopback(urlsplit(f"//{host}").hostname or "")
    return False
