"""How far a long `write` is: a bar on a terminal, a log line now and then elsewhere. By Spark's count of tasks done."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

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

LOOK_EVERY = 0.5
TELL_EVERY = 10.0
"""Seconds between two lines; what takes less than this says nothing."""


@dataclass(frozen=True, slots=True)
class Done:
    """Spark tasks that ended, of those that are known so far: later stages are added when they are planned."""

    tasks: int
    of: int


Ask = Callable[[], Done | None]


class Show(Protocol):
    """Where progress goes."""

    def show(self, done: Done, seconds: float) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Tells `write.progressed` every so many seconds."""

    def __init__(self, listener: Listener, every: float = TELL_EVERY) -> None:
        self._listener, self._every, self._told = listener, every, 0.0

    def show(self, done: Done, seconds: float) -> None:
        if seconds - self._told >= self._every:
            self._told = seconds
            self._listener(Event("write.progressed", {"tasks": done.tasks, "of": done.of, "seconds": seconds}))

    def close(self) -> None:
        """Nothing is left open."""


class Bar:
    """A bar that is gone when the work is done. Needs rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=Console(file=stream), transient=True, redirect_stdout=False)
        self._task = self._progress.add_task("StarRocks write, Spark tasks", total=None)
        self._progress.start()

    def show(self, done: Done, seconds: float) -> None:
        del seconds
        self._progress.update(self._task, completed=done.tasks, total=done.of)

    def close(self) -> None:
        self._progress.stop()


@contextlib.contextmanager
def followed(ask: Ask, show: Show, every: float = LOOK_EVERY) -> Iterator[None]:
    """Inside, a thread asks and shows; what it meets never touches the work."""
    stop, started = threading.Event(), time.monotonic()

    def follow() -> None:
        while not stop.wait(every):
            with contextlib.suppress(Exception):
                done = ask()
                if done is not None:
                    show.show(done, time.monotonic() - started)

    thread = threading.Thread(target=follow, name="starrocks-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5.0)
        with contextlib.suppress(Exception):
            show.close()


def display(context: Any, listener: Listener, stream: TextIO | None = None) -> Show:
    """A bar on a terminal where rich is installed and Spark draws none of its own; lines otherwise."""
    target = sys.stderr if stream is None else stream
    drawn = str(context.getConf().get("spark.ui.showConsoleProgress", "false")).lower() == "true"
    if target.isatty() and not drawn:
        with contextlib.suppress(ImportError):
            return Bar(target)
    return Lines(listener)


def tasks_done(context: Any, tag: str) -> Done | None:
    """What Spark says of the jobs that have `tag`; None before the first one."""
    jobs = list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))
    tracker = context.statusTracker()
    stages = {stage for job in jobs if (info := tracker.getJobInfo(job)) is not None for stage in info.stageIds}
    seen = [info for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
    if not seen:
        return None
    return Done(sum(info.numCompletedTasks for info in seen), sum(info.numTasks for info in seen))


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
