"""One run of the demo: start everything, watch while the source writes, wait for the rest, compare, end everything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from starrocks_demo import pipeline, tables
from starrocks_demo.background import Background
from starrocks_demo.choices import DemoOptions
from starrocks_demo.client import SqlClient
from starrocks_demo.deliveries import Deliveries
from starrocks_demo.display import Display
from starrocks_demo.feed import Feed
from starrocks_demo.freshness import Freshness
from starrocks_demo.generator import Workload, WorkloadOptions
from starrocks_demo.interruption import Interruption
from starrocks_demo.phases import median_seconds
from starrocks_demo.reader import Reader
from starrocks_demo.spark import local_spark
from starrocks_demo.status import Status
from starrocks_demo.summary import Summary
from starrocks_demo.verdict import judge_tables
from starrocks_demo.witness import NEWEST, WITNESS, glance, judge
from starrocks_demo.workspace import Workspace
from starrocks_emulator.process import EmulatorProcess
from starrocks_emulator.settings import EmulatorError, Generation, Settings
from starrocks_txn_sink import SinkOptions
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
        """A sentence if the stand-in or the query has ended."""
        if not self.server.running:
            return "The stand-in ended."
        if self.query.isActive:
            return None
        error = self.query.exception()
        return f"The query ended before everything was visible: {pipeline.reason(error)}"


class DemoRun:
    """The parts of a run that is going on, and what is known about it. `play` does everything."""

    def __init__(self, options: DemoOptions, space: Workspace, display: Display, clock: Clock) -> None:
        self._options, self._space, self._display, self._clock = options, space, display, clock
        self._started = clock.monotonic()
        self._phase, self._phase_since = "starting", self._started
        self._warm = False
        self._problems: list[str] = []
        self._phases: dict[str, float] = {}
        self._freshness = Freshness()
        self._deliveries = Deliveries()
        self._workload = Workload(
            WorkloadOptions(partitions=options.partitions, seed=options.seed, database=tables.DATABASE)
        )
        self._feed = Feed(
            self._workload,
            space.events,
            rate=options.rate,
            clock=clock,
            on_visible=lambda piece, at: self._freshness.written(piece.ended, at if self._warm else None),
        )
        self.status = self.last_writing = Status(self._phase, 0.0, 0.0)

    def play(self, interruption: Interruption) -> Summary:
        """Run from start to end. Whatever was started is gone when this returns or raises."""
        with contextlib.ExitStack() as stack:
            self._display.say("Starting the stand-in for StarRocks (an emulator; all figures are measured on it).")
            with interruption.held_back():
                server = self._stand_in(stack)
            client = stack.enter_context(contextlib.closing(SqlClient(server.query_url)))
            tables.create(client)
            eyes = stack.enter_context(contextlib.closing(SqlClient(server.query_url)))
            reader = Reader(lambda: judge(eyes(WITNESS)), self._freshness, clock=self._clock)
            glances = stack.enter_context(contextlib.closing(SqlClient(server.query_url)))
            probe = Reader(
                lambda: glance(glances(NEWEST)),
                self._freshness,
                clock=self._clock,
                pause=_GLANCE_EVERY,
                rest=_GLANCE_REST,
            )
            self._display.say(f"Starting Spark (its log: {self._space.spark_log}).")
            with interruption.held_back():
                spark = stack.enter_context(
                    local_spark(
                        self._space.spark, self._space.spark_log, shuffle_partitions=min(2, self._options.lanes)
                    )
                )
            metrics = self._metrics(stack)
            query = pipeline.start(
                spark,
                self._space.events,
                self._space.checkpoint,
                SinkOptions(
                    load_url=server.load_url,
                    query_url=server.query_url,
                    database=tables.DATABASE,
                    lanes=self._options.lanes,
                    batch_deadline=self._options.patience,
                ),
                interval=self._options.interval,
                fused=self._options.assemble == "fused",
                listener=self._deliveries,
                metrics=metrics,
            )
            with Background("demo-reader", reader.run), Background("demo-probe", probe.run):
                self._watch(_Watched(server, query, reader))
                self._phases = median_seconds(query.recentProgress, self._deliveries.laps)
                query.stop()
            reader.look()  # one more, after the last commit
            self._tell_failures(reader, "reader")
            self._tell_failures(probe, "probe")
            return self._compare(client, reader, server)

    def _stand_in(self, stack: contextlib.ExitStack) -> EmulatorProcess:
        """The stand-in, started. Raises DemoFailed."""
        settings = Settings(generation=Generation(self._options.generation))
        try:
            return stack.enter_context(EmulatorProcess(self._space.starrocks, settings))
        except EmulatorError as error:
            raise DemoFailed(str(error)) from error

    def _metrics(self, stack: contextlib.ExitStack) -> MetricsServer | None:
        """The endpoint, if one was asked for; it ends before Spark does."""
        if self._options.metrics_port is None:
            return None
        metrics = stack.enter_context(MetricsServer(self._options.metrics_port))
        self._display.say(f"Metrics and a live page: {metrics.url}")
        return metrics

    def _watch(self, watched: _Watched) -> None:
        """Warm up, let the source write, then wait until everything is visible or nothing more can be expected."""
        for _ in range(self._options.warm_up):
            self._feed.write(_WARM_UP_ROWS)
            self._wait_for_visible("warming up", watched)
        self._warm = True
        with Background("demo-source", lambda stop: self._feed.run(self._options.seconds, stop)) as writing:
            self._until(lambda: not writing.running, "writing", watched)
        if writing.error is not None:
            raise writing.error
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

    def _tell_failures(self, reader: Reader, name: str) -> None:
        if reader.errors:
            self._display.say(f"The {name} failed {reader.errors} times, at last with: {reader.last_error}")

    def _compare(self, client: SqlClient, reader: Reader, server: EmulatorProcess) -> Summary:
        if not server.running:
            raise DemoFailed("The stand-in for StarRocks ended in the middle of the run.")
        self._show("comparing", reader)
        truth = self._workload.truth()
        verdict = judge_tables(
            truth,
            {name: tables.read_all(table, client) for name, table in tables.TABLES.items()},
            samples=reader.samples,
            torn=reader.torn,
            evidence=reader.evidence,
            problems=self._problems,
        )
        p50, p99 = self._freshness.percentiles(0.5, 0.99)
        return Summary(
            verdict=verdict,
            committed=self._deliveries.committed,
            aborted=self._deliveries.aborted,
            loads=self._deliveries.loads,
            freshness_p50=p50,
            freshness_p99=p99,
            wall_seconds=self._clock.monotonic() - self._started,
            phases=self._phases,
        )

    def _show(self, phase: str, reader: Reader) -> None:
        feed, sink = self._feed, self._deliveries
        p50, p99 = self._freshness.percentiles(0.5, 0.99, last=1000)
        if phase != self._phase:
            self._phase, self._phase_since = phase, self._clock.monotonic()
        self.status = Status(
            phase=phase,
            elapsed=self._clock.monotonic() - self._phase_since,
            planned=self._options.seconds if phase == "writing" else 0.0,
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
            self.last_writing = self.status
        self._display.show(self.status)
