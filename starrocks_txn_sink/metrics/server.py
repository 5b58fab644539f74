"""MetricsServer: the driver's endpoint with `/metrics`, `/healthz`, `/readyz`, `/api/state` and a page at `/`.

    metrics = MetricsServer(port=9464)
    sink = StarRocksSink(options, metrics=metrics)

Several sinks and queries may share one server. The default host is loopback; port 0 takes a free port (see `url`).
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any, Self

import orjson

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.events import Event
from starrocks_txn_sink.metrics.assets import ASSETS, read_asset
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.state import RUNBOOK, dashboard_state
from starrocks_txn_sink.metrics.verdict import readiness
from starrocks_txn_sink.metrics.web import HttpListener, HttpQuery, HttpReply, Route

PORT = 9464
HOST = "127.0.0.1"
READY_SECONDS = 60.0


class MetricsServer:
    """Counts the sink's events from its creation on, and serves them from `start` to `close`.

    `/readyz` answers 503 when a job's last progress is older than `ready_seconds`. Raises OptionError if
    prometheus-client is missing, and in `start` if the port is taken. An unpickled copy is empty and stopped.
    """

    def __init__(
        self, port: int = PORT, host: str = HOST, *, ready_seconds: float = READY_SECONDS, clock: Clock | None = None
    ) -> None:
        self.port, self.host, self.ready_seconds = port, host, ready_seconds
        self._clock = clock or SystemClock()
        self.model = Model(self._clock)
        self._registry = _registry(self.model)
        self._guard = threading.Lock()
        self._listener: HttpListener | None = None
        self._progress_watch: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.port, self.host, self.ready_seconds)

    def __repr__(self) -> str:
        return f"MetricsServer({self.url or f'{self.host}:{self.port}, not started'})"

    def __call__(self, event: Event) -> None:
        """Add one event of the sink; thread-safe."""
        self.model.record(event)

    def start(self) -> Self:
        """Start to serve; no effect if it serves already."""
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
        """Add Spark's progress of the queries in `session` that use the sink; no second session until `close`.

        The sink calls it with the process's session. For queries of another session call it earlier with that one.
        """
        with self._guard:
            if self._progress_watch is not None:
                return
            from starrocks_txn_sink.metrics.listener import ProgressWatch

            self._progress_watch = ProgressWatch(session, self.model.record)

    def close(self) -> None:
        """Stop serving and listening to Spark. Counts stay, and `start` works again."""
        with self._guard:
            listener, self._listener = self._listener, None
            progress_watch, self._progress_watch = self._progress_watch, None
        if progress_watch is not None:
            progress_watch.close()
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
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/api/state": self._state,
            f"/{RUNBOOK}": self._asset("operations.html"),
        }

    def _metrics(self, query: HttpQuery) -> HttpReply:
        from starrocks_txn_sink.metrics.exposition import exposition

        return HttpReply(*exposition(self._registry, query.accept))

    def _healthz(self, query: HttpQuery) -> HttpReply:
        del query
        return HttpReply(b"alive\n")

    def _readyz(self, query: HttpQuery) -> HttpReply:
        del query
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


def _restore(port: int, host: str, ready_seconds: float) -> MetricsServer:
    return MetricsServer(port, host, ready_seconds=ready_seconds)


def _registry(model: Model) -> Any:
    try:
        from starrocks_txn_sink.metrics.exposition import registry_of
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "prometheus_client":
            raise
        raise OptionError(
            "The metrics endpoint needs prometheus-client, which is not installed.",
            hint="Run: pip install 'starrocks-txn-sink[metrics]'",
            option="metrics_port",
        ) from error
    return registry_of(model)


_shared: dict[tuple[str, int], MetricsServer] = {}
_shared_guard = threading.Lock()


def shared_server(port: int, host: str = HOST) -> MetricsServer:
    """The process's server at this address, created at the first call; with port 0 a new one at each call."""
    with _shared_guard:
        if port == 0 or (host, port) not in _shared:
            server = MetricsServer(port, host)
            if port == 0:
                return server
            _shared[(host, port)] = server
        return _shared[(host, port)]
