"""One run of the demo: start everything, watch while the source writes, wait for the rest, compare, end everything."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from starrocks_demo.command import DemoOptions, Interruption
from starrocks_demo.display import Deliveries, Display, Status, Summary, median_seconds
from starrocks_demo.pipeline import Workspace, local_spark, reason, start_query, starting_step
from starrocks_demo.reader import NEWEST, WITNESS, Freshness, Reader, SqlClient, glance, judge
from starrocks_demo.verdict import DATABASE, TABLES, create_tables, judge_tables, read_all
from starrocks_demo.workload import Feed, Workload, WorkloadOptions
from starrocks_emulator import EmulatorError, EmulatorProcess, Generation, Settings
from starrocks_txn_sink import SinkOptions, configure_logging
from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.metrics import MetricsServer

_LOOK_EVERY = 0.2  # seconds between two statuses
_GLANCE_EVERY = 0.05  # seconds between two looks at how far each source partition is
_GLANCE_REST = 4.0  # times as long as the look took
_WARM_UP_ROWS = 500  # of each micro-batch that is written and awaited first, while the JVM's code is still slow


class DemoFailed(StarRocksSinkError):
    """The run could not be judged."""

    code = "demo_failed"
    hint = "Look into the logs in the data folder."


@dataclass(frozen=True, slots=True)
class _Watched:
    """What may end before it should, and the reader."""

    server: EmulatorProcess
    query: StreamingQuery
    reader: Reader

    def problem(self) -> str | None:
        """A sentence if the emulator or the query has ended."""
        if not self.server.running:
            return "The emulator ended."
        if self.query.isActive:
            return None
        return f"The query ended before everything was visible: {reason(self.query.exception())}"


class DemoRun:
    """The parts of a run that is going on, and what is known about it. `play` does everything."""

    def __init__(self, options: DemoOptions, space: Workspace, display: Display, clock: Clock) -> None:
        self._options, self._space, self._display, self._clock = options, space, display, clock
        self._started = clock.monotonic()
        self._phase, self._phase_since = "starting", self._started
        self._warm = False
        self._batch = 0  # of the warm-up
        self._problems: list[str] = []
        self._freshness = Freshness()
        self._deliveries = Deliveries()
        self._workload = Workload(WorkloadOptions(partitions=options.partitions, seed=options.seed, database=DATABASE))
        self._feed = Feed(
            self._workload,
            space.events,
            rate=options.rate,
            clock=clock,
            on_visible=lambda piece, at: self._freshness.record_written(piece.ended, at if self._warm else None),
        )
        self.last_writing = Status(self._phase, 0.0, 0.0)

    def play(self, interruption: Interruption) -> Summary:
        """Run from start to end. Whatever was started is gone when this returns or raises."""
        with contextlib.ExitStack() as stack:
            self._display.say("Starting the emulator of StarRocks (an emulator; all figures are measured on it).")
            with interruption.held_back():
                server = self._emulator(stack)
            client, eyes, glances = (
                stack.enter_context(contextlib.closing(SqlClient(server.query_port))) for _ in range(3)
            )
            create_tables(client)
            freshness, clock = self._freshness, self._clock
            reader = Reader(lambda: judge(eyes(WITNESS)), freshness, clock=clock)
            probe = Reader(
                lambda: glance(glances(NEWEST)), freshness, clock=clock, pause=_GLANCE_EVERY, rest=_GLANCE_REST
            )
            query = self._pipeline(stack, interruption, server)
            with _threads() as (pool, stop):
                for watcher in (reader, probe):
                    pool.submit(watcher.run, stop)
                self._watch(_Watched(server, query, reader), pool, stop)
                phases = median_seconds(query.recentProgress, self._deliveries.laps)
                query.stop()
            reader.look()  # one more, after the last commit
            for name, watcher in (("reader", reader), ("probe", probe)):
                if watcher.errors:
                    self._display.say(f"The {name} failed {watcher.errors} times, at last with: {watcher.last_error}")
            if not server.running:
                raise DemoFailed("The emulator of StarRocks ended in the middle of the run.")
            return self._compare(client, reader, phases)

    def _emulator(self, stack: contextlib.ExitStack) -> EmulatorProcess:
        settings = Settings(generation=Generation(self._options.generation))
        try:
            return stack.enter_context(EmulatorProcess(self._space.starrocks, settings))
        except EmulatorError as error:
            raise DemoFailed(str(error)) from error

    def _pipeline(
        self, stack: contextlib.ExitStack, interruption: Interruption, server: EmulatorProcess
    ) -> StreamingQuery:
        """Spark and its query; the metrics' endpoint, if one was asked for, ends before Spark does."""
        options, space = self._options, self._space
        stack.enter_context(_log_to(space.sink_log))
        starting = f"Starting Spark (logs: {space.spark_log}, {space.sink_log.name})."
        with self._display.waiting(starting, starting_step), interruption.held_back():
            spark = stack.enter_context(local_spark(space, shuffle_partitions=min(2, options.lanes)))
        metrics = None
        if options.metrics_port is not None:
            metrics = stack.enter_context(MetricsServer(options.metrics_port))
            self._display.say(f"Metrics and a live page: {metrics.url}")
        sink = SinkOptions(
            load_url=server.load_url,
            query_url=server.query_url,
            database=DATABASE,
            lanes=options.lanes,
            batch_deadline=options.patience,
        )
        return start_query(spark, space, options, sink, self._deliveries, metrics)

    def _watch(self, watched: _Watched, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        """Warm up, let the source write, then wait until everything is visible or nothing more can be expected."""
        for batch in range(1, self._options.warm_up + 1):
            self._batch = batch
            self._feed.write(_WARM_UP_ROWS)
            self._wait_for_visible("warming up", watched)
        self._warm = True
        writing = pool.submit(self._feed.run, self._options.seconds, stop)
        self._until(writing.done, "writing", watched)
        if self._problems:
            stop.set()
        writing.result()
        self._wait_for_visible("draining", watched)

    def _wait_for_visible(self, phase: str, watched: _Watched) -> None:
        deadline = Deadline.after(self._options.patience, self._clock)

        def over() -> bool:
            return deadline.expired() or self._freshness.visible >= self._feed.transactions

        self._until(over, phase, watched)
        if deadline.expired():
            self._problems.append(f"Not everything became visible within {self._options.patience:g} s.")

    def _until(self, over: Callable[[], bool], phase: str, watched: _Watched) -> None:
        while not over() and not self._problems:
            problem = watched.problem()
            if problem is not None:
                self._problems.append(problem)
            self._show(phase, watched.reader)
            self._clock.sleep(_LOOK_EVERY)
        self._show(phase, watched.reader)

    def _compare(self, client: SqlClient, reader: Reader, phases: dict[str, float]) -> Summary:
        self._show("comparing", reader)
        verdict = judge_tables(
            self._workload.truth(),
            {name: read_all(table, client) for name, table in TABLES.items()},
            samples=reader.samples,
            torn_samples=reader.torn,
            evidence=reader.evidence,
            problems=self._problems,
        )
        sink, wall = self._deliveries, self._clock.monotonic() - self._started
        p50, p99 = self._freshness.percentiles(0.5, 0.99)
        given_up = self._workload.given_up
        return Summary(verdict, sink.committed, sink.aborted, sink.loads, p50, p99, wall, phases, given_up)

    def _show(self, phase: str, reader: Reader) -> None:
        feed, sink = self._feed, self._deliveries
        p50, p99 = self._freshness.percentiles(0.5, 0.99, last=1000)
        if phase != self._phase:
            self._phase, self._phase_since = phase, self._clock.monotonic()
        status = Status(
            phase=phase,
            elapsed=self._clock.monotonic() - self._phase_since,
            planned=self._options.seconds if phase == "writing" else 0.0,
            batch=(self._batch, self._options.warm_up) if phase == "warming up" else None,
            written=feed.transactions,
            visible=self._freshness.visible,
            rows_written=feed.rows,
            files=feed.files,
            rows=reader.latest.rows,
            samples=reader.samples,
            torn=reader.torn,
            batches=sink.batches,
            committed=sink.committed,
            aborted=sink.aborted,
            loads=sink.loads,
            megabytes=sink.bytes / 1e6,
            freshness=(p50, p99),
        )
        if phase == "writing":
            self.last_writing = status
        self._display.show(status)


@contextlib.contextmanager
def _log_to(file: Path) -> Iterator[None]:
    """The sink's own log goes into a file: its warnings of transactions given up by the source look like failures."""
    with file.open("w", encoding="utf-8") as stream:
        configure_logging(stream=stream, form="human", executors=False)
        try:
            yield
        finally:
            configure_logging("ERROR", executors=False)


@contextlib.contextmanager
def _threads() -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
    """Threads for the readers and the source, and the event that stops them; all have ended after the block."""
    stop = threading.Event()
    with ThreadPoolExecutor(3, "demo") as pool:
        try:
            yield pool, stop
        finally:
            stop.set()
