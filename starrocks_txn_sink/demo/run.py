"""One run of the demo: start everything, watch while the source writes, wait for the rest, compare, end everything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.demo import pipeline, tables
from starrocks_txn_sink.demo.background import Background
from starrocks_txn_sink.demo.choices import DemoOptions
from starrocks_txn_sink.demo.client import SqlClient
from starrocks_txn_sink.demo.deliveries import Deliveries
from starrocks_txn_sink.demo.display import Display
from starrocks_txn_sink.demo.freshness import Freshness
from starrocks_txn_sink.demo.interruption import Interruption
from starrocks_txn_sink.demo.reader import Reader
from starrocks_txn_sink.demo.spark import local_spark
from starrocks_txn_sink.demo.status import Status
from starrocks_txn_sink.demo.summary import Summary
from starrocks_txn_sink.demo.verdict import judge_tables
from starrocks_txn_sink.demo.witness import WITNESS, judge
from starrocks_txn_sink.demo.workspace import Workspace
from starrocks_txn_sink.testing.emulator_process import EmulatorProcess
from starrocks_txn_sink.testing.feed import Feed
from starrocks_txn_sink.testing.generator import Workload, WorkloadOptions

_LOOK_EVERY = 0.2  # seconds between two statuses


class DemoRun:
    """The parts of a run that is going on, and what is known about it. `play` does everything."""

    def __init__(self, options: DemoOptions, space: Workspace, display: Display, clock: Clock) -> None:
        self._options, self._space, self._display, self._clock = options, space, display, clock
        self._started = clock.monotonic()
        self._writing_since = self._started
        self._problems: list[str] = []
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
            on_visible=lambda piece, at: self._freshness.written(piece.ended, at),
        )
        self.status = Status("starting", 0.0, options.seconds)

    def play(self, interruption: Interruption) -> Summary:
        """Run from start to end. Whatever was started is gone when this returns or raises."""
        with contextlib.ExitStack() as stack:
            self._display.say("Starting the stand-in for StarRocks (an emulator; all figures are measured on it).")
            with interruption.held_back():
                server = stack.enter_context(
                    EmulatorProcess(data_dir=self._space.starrocks, generation=self._options.generation)
                )
            client = stack.enter_context(contextlib.closing(SqlClient(server.query_url)))
            tables.create(client)
            eyes = stack.enter_context(contextlib.closing(SqlClient(server.query_url)))
            reader = Reader(lambda: judge(eyes(WITNESS)), self._freshness, clock=self._clock)
            self._display.say(f"Starting Spark (its log: {self._space.spark_log}).")
            with interruption.held_back():
                spark = stack.enter_context(
                    local_spark(
                        self._space.spark, self._space.spark_log, shuffle_partitions=min(2, self._options.lanes)
                    )
                )
            query = pipeline.start(
                spark,
                self._space.events,
                self._space.checkpoint,
                SinkOptions(
                    load_url=server.load_url,
                    query_url=server.query_url,
                    database=tables.DATABASE,
                    lanes=self._options.lanes,
                ),
                interval=self._options.interval,
                listener=self._deliveries,
            )
            with Background("demo-reader", reader.run) as reading:
                self._watch(query, reader)
                query.stop()
                reading.end()
            reader.look()  # one more, after the last commit
            return self._compare(client, reader)

    def _watch(self, query: StreamingQuery, reader: Reader) -> None:
        """Let the source write, then wait until everything it wrote is visible, or nothing more can be expected."""
        self._writing_since = self._clock.monotonic()
        with Background("demo-source", lambda stop: self._feed.run(self._options.seconds, stop)) as writing:
            self._until(lambda: not writing.running, "writing", query, reader)
        if writing.error is not None:
            raise writing.error
        expected = self._workload.truth().newest()
        deadline = Deadline.after(self._options.patience, self._clock)

        def settled() -> bool:
            seen = reader.latest.newest
            return deadline.expired() or all(seen.get(part, 0) >= newest for part, newest in expected.items())

        self._until(settled, "draining", query, reader)
        if deadline.expired():
            self._problems.append(f"Not everything became visible within {self._options.patience:g} s.")

    def _until(self, over: Callable[[], bool], phase: str, query: StreamingQuery, reader: Reader) -> None:
        while not over() and not self._problems:
            if not query.isActive:
                error = query.exception()
                first = str(error).strip().splitlines()[0] if error else "no reason given"
                self._problems.append(f"The query ended before everything was visible: {first}")
            self._show(phase, reader)
            self._clock.sleep(_LOOK_EVERY)
        self._show(phase, reader)

    def _compare(self, client: SqlClient, reader: Reader) -> Summary:
        self._show("comparing", reader)
        truth = self._workload.truth()
        if reader.errors:
            self._display.say(f"The reader failed {reader.errors} times, at last with: {reader.last_error}")
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
        )

    def _show(self, phase: str, reader: Reader) -> None:
        feed, sink = self._feed, self._deliveries
        p50, p99 = self._freshness.percentiles(0.5, 0.99, last=1000)
        self.status = Status(
            phase=phase,
            elapsed=self._clock.monotonic() - self._writing_since,
            planned=self._options.seconds,
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
        self._display.show(self.status)
