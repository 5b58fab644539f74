"""What the sink on the driver tells those who watch it: a listener of the application's, and a metrics endpoint.

`sink` knows an endpoint only by the protocol `Endpoint`; `metrics` is imported when one is asked for. Watching never
breaks a commit: whoever raises while being told is left out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Protocol

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from starrocks_txn_sink import __version__
from starrocks_txn_sink.coordinator.actions import Receipt
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.lifecycle import context_of
from starrocks_txn_sink.telemetry.events import Event, Listener, fan_out
from starrocks_txn_sink.telemetry.logs import EventLogger, get_logger
from starrocks_txn_sink.writer.messages import report_in

_log = get_logger("metrics")
_LINES = EventLogger("sink")


class Endpoint(Protocol):
    """A metrics endpoint, as `metrics.MetricsServer` is one."""

    def __call__(self, event: Event) -> None: ...

    def start(self) -> object: ...

    def watch(self, session: Any) -> None: ...


class Watch:
    """Tells of sessions, micro-batches and receipts; one a sink. `tell` takes what others have to tell."""

    def __init__(self, options: SinkOptions, listener: Listener, endpoint: Endpoint | None) -> None:
        self.endpoint = endpoint if endpoint is not None else _shared_endpoint(options)
        self.tell = fan_out((_LINES, listener) if self.endpoint is None else (_LINES, listener, self.endpoint))
        self._made = Event(
            "sink.made",
            {
                "buffer_bytes": options.buffer_bytes,
                "timeout": options.timeout,
                "version": __version__,
                "spark": pyspark.__version__,
            },
        )
        if self.endpoint is not None and not is_remote():  # with Spark Connect the sink works in another process
            self.endpoint.start()
        self.tell(self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.tell, self.endpoint, self._made)

    def opened(self, job: str, exactly_once: bool) -> None:
        """The job was taken over."""
        self.tell(Event("session.opened", {"job": job, "exactly_once": exactly_once}))

    @contextlib.contextmanager
    def batch(self, frame: DataFrame, job: str, batch_id: int, lanes: int, query: str) -> Iterator[list[Receipt]]:
        """A micro-batch that is written inside; what is put into the list is told at its end, before its success."""
        started, receipts = time.monotonic(), list[Receipt]()
        self._begin(frame, query)
        place = {"job": job, "batch_id": batch_id}
        self.tell(Event("batch.started", {**place, "lanes": lanes, "query": query}))
        try:
            yield receipts
        except BaseException as error:
            seconds, report = time.monotonic() - started, report_in(_text(error))
            code = error.code if isinstance(error, StarRocksSinkError) else (report.error if report else "") or "spark"
            self.tell(Event("batch.failed", {**place, "seconds": seconds, "code": code, "report": report}))
            raise
        for receipt in receipts:
            self.tell(Event("receipt.collected", {"receipt": receipt}))
        seconds = time.monotonic() - started
        self.tell(Event("batch.completed", {**place, "seconds": seconds, "receipts": len(receipts)}))

    def _begin(self, frame: DataFrame, query: str) -> None:
        if self.endpoint is None:
            return
        try:
            self.endpoint.start()
            if query and context_of(frame) is not None:
                # The frame's own session is a copy for the query; Spark tells progress to the one it was started in.
                self.endpoint.watch(SparkSession.builder.getOrCreate())
        except Exception as error:  # metrics are no reason to stop a job
            _log.warning("metrics.broken", why=str(error))


def _again(tell: Listener, endpoint: Endpoint | None, made: Event) -> Watch:
    watch = Watch.__new__(Watch)
    watch.tell, watch.endpoint, watch._made = tell, endpoint, made
    tell(made)
    return watch


def _shared_endpoint(options: SinkOptions) -> Endpoint | None:
    if options.metrics_port is None:
        return None
    from starrocks_txn_sink.metrics.server import shared_server

    return shared_server(options.metrics_port, options.metrics_host)


def _text(error: BaseException) -> str:
    with contextlib.suppress(Exception):  # the text of an error from the JVM is asked of the JVM
        return "\n".join([str(error), *getattr(error, "__notes__", ())])
    return ""
