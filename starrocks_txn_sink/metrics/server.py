"""The metrics endpoint: `MetricsServer` counts the sink's events and serves them, with the page's files."""

from __future__ import annotations

import contextlib
import threading
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any

import orjson

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.metrics.http_listener import HttpListener, HttpQuery, HttpReply, Route
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
        """Add Spark's progress of the queries in `session` that use the sink.

        It watches one session at a time, until the session ends or until `close`; calls with another one have no effect
        meanwhile. The sink calls it with the process's session. For queries of another session call it earlier,
        with that session.

        Args:
            session: The SparkSession.
        """
        with self._guard:
            if self._watches and not has_ended(self._watched):
                return
            self._watched, self._watches = session, [ProgressWatch(session, self.model.record)]
            if hasattr(session, "_jsparkSession"):  # Spark Connect hides the query
                of_queries = self.model.has_query, self.model.is_paused
                self._watches.append(LagWatch(session, self.model.record, self._clock, *of_queries))

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

    def __exit__(self, *_: object) -> None:
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
