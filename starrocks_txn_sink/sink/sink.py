"""StarRocksSink: give it to `foreachBatch`, or call `write` with a batch frame.

On the driver the sink checks the input, has the JVM project the rows, and runs the lanes. It returns only when all rows
are VISIBLE, so Spark's checkpoint never runs ahead of StarRocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, types as T

import starrocks_txn_sink.arrow_start  # noqa: F401 - first: other modules make arrays
from starrocks_txn_sink.clock import microseconds
from starrocks_txn_sink.compiled.library import is_available
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import DeadlineExceeded, Fenced, OptionError
from starrocks_txn_sink.options import SchemaChanges, SinkOptions
from starrocks_txn_sink.options.combinations import Feature, refuse_without_sql
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sink import archive_writer, session as sessions, termination
from starrocks_txn_sink.sink.assembly import Assembly
from starrocks_txn_sink.sink.batch_events import BatchOrigin, BatchTries, Endpoint, SinkEvents
from starrocks_txn_sink.sink.checkpoint import ProofLog
from starrocks_txn_sink.sink.events_input import EventsInput
from starrocks_txn_sink.sink.events_writer import EventsWriter
from starrocks_txn_sink.sink.failures import has_begun, wait_out
from starrocks_txn_sink.sink.input import FrameInput, Input
from starrocks_txn_sink.sink.kafka_input import KafkaInput
from starrocks_txn_sink.sink.open_loads import needed_loads
from starrocks_txn_sink.sink.pacing import Pacing
from starrocks_txn_sink.sink.projection import is_marked
from starrocks_txn_sink.sink.rows_writer import RowsWriter
from starrocks_txn_sink.sink.schema.plan import TableLayout
from starrocks_txn_sink.sink.spark_jobs import SparkJobs, context_of, is_stopped
from starrocks_txn_sink.sink.typed.evolution import apply_schema_changes, read_planned_changes
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sink.typed.tables import compare_columns, named_by_rows
from starrocks_txn_sink.sql.audit import Audit, AuditWatch
from starrocks_txn_sink.sql.server_limits import ServerLimitsWatch
from starrocks_txn_sink.telemetry import DRIVER_STEPS, Event, Listener, Span, ignore_event
from starrocks_txn_sink.writer.messages import LaneReport

_NO_LOOPS: Final = (
    "Rows cost more than twice as much. Install a wheel for this platform, or build with a C compiler; "
    "executors need it, too (starrocks-txn-sink doctor)."
)
_COMPARED_SECONDS: Final = 60.0  # as the lanes (`writer.known_columns`): rare for the server, soon for a dropped column


@dataclass(slots=True)
class JobRun:
    """A job's run in this process: the session that owns the job, the session's writer, and what is left behind.

    `served`: StarRocks has begun a transaction of the job. `ending` has failed sessions whose labels may still be open,
    by epoch. `replaced` says of a query's run that has lost the job which checkpoint's writer has it now. `stands` is
    the token of the bound at which the job stands (`protocol.bound`).
    """

    job: str
    session: sessions.Session | None = None
    writer: EventsWriter | RowsWriter | None = None
    served: bool = False
    stands: str = ""
    ending: dict[str, sessions.Session] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def one_at_a_time(self, seconds: float) -> Iterator[None]:
        """Wait for the job's other writes in this process; raises DeadlineExceeded after `seconds`."""
        if not self._turn.acquire(timeout=seconds):
            message = f"Another write of the job {self.job} in this process did not end within {seconds:g} s."
            raise DeadlineExceeded(message)
        try:
            yield
        finally:
            self._turn.release()

    def session_of(self, origin: BatchOrigin) -> sessions.Session | None:
        """The session of the query's run; None if there is none, or only one of another run."""
        return self.session if self.session is not None and self.session.key == origin.key else None

    def replace(self, origin: BatchOrigin) -> None:
        """The job goes to the writer `origin`; raises Fenced when another writer of this sink has taken it from there.

        Otherwise two queries that share a sink and a job would take the job from each other in turns, without an error.
        """
        if (successor := self.replaced.get(origin.key)) is not None:
            raise Fenced("The job was taken over by another writer, which uses the same sink.", checkpoint=successor)
        if self.session is not None and self.session.key != write_key(self.job):
            self.replaced[self.session.key] = origin.checkpoint

    def open(self, session: sessions.Session) -> None:
        """Go on with a new session, which has taken the job over."""
        self.session, self.writer = session, None

    def fail(self, session: sessions.Session, options: SinkOptions) -> None:
        """End the session, and roll back what it leaves open."""
        self.session = self.writer = None
        self.ending[session.epoch] = session
        sessions.clean_up(options, session, callback=lambda: self.ending.pop(session.epoch, None))


def write_key(job: str) -> str:
    """The session key of calls of `write`, which have no query and no run."""
    return f"write-{job}"


@suggests_arguments
class StarRocksSink:
    """Write micro-batches of whole source transactions into StarRocks.

    Pass a sink to `foreachBatch`; `write` takes batch frames. The rows have these columns:

    - source_partition (string or integer), position and seq (integers), table (string), transaction_end (boolean);
    - `row` (a JSON object as a string), or the columns of `routes`;
    - if present, op (upsert or delete) and database.

    With `assemble` the sink takes raw events, and its lanes make source transactions of them.

    A micro-batch is one StarRocks transaction, so it is atomic. If it outlives 80 % of `timeout`, or `commit_interval`,
    it is several ones, each of whole source transactions.

    Args:
        options: The options of the sink.
        routes: The typed columns of each table's rows. Without routes each row is JSON text in the column `row`.
        assemble: The rules of the assembly, if the sink takes raw events.
        listener: A function that takes the sink's events on the driver: `receipt.collected` (field `receipt`) for every
            committed StarRocks transaction, `batch.completed` and more (`metrics.model`).
        metrics: A MetricsServer that serves the same events. Without one, `SinkOptions.metrics_port` decides.
        audit: An invariant to check while the sink writes micro-batches, over a connection of its own. A violation
            emits `integrity.violated`. `auditing.auditor` has the audit's metrics and the first violation;
            `auditing.stop()` ends the audit at once.

    Raises:
        OptionError: Arguments or options conflict, or two routes name one table.

    Example::

        from starrocks_txn_sink import SinkOptions, StarRocksSink

        options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop")
        sink = StarRocksSink(options)
        query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint").start()
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        routes: Sequence[TableRoute] = (),
        assemble: Assembly | None = None,
        listener: Listener = ignore_event,
        metrics: Endpoint | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.options = options
        self.routes = tuple(routes)
        self.assemble = assemble
        _refuse_double_routes(self.routes)
        rows = Feature.ROUTES if self.routes else Feature.JSON_TEXTS
        options.check_features(rows, *([Feature.ASSEMBLE] if assemble is not None else []))
        self._events = SinkEvents(options, listener, metrics)
        self._listener = self._events.emit
        self._runs: dict[str, JobRun] = {}  # by job: one sink may serve several queries
        self._jobs = SparkJobs()
        self._pacing = Pacing(float(options.freshness), self._listener) if options.freshness is not None else None
        self._limits = self._watch_limits()
        self.auditing = AuditWatch(audit, options, self._listener) if audit is not None else None

    def _watch_limits(self) -> ServerLimitsWatch | None:
        """A watch of the server's limits for those who want to know them: the endpoint and the pace."""
        if self.options.query_url is None or (self._events.endpoint is None and self._pacing is None):
            return None
        listener = self._listener if self._pacing is None else self._pacing.take
        loads = partial(needed_loads, self.options)
        return ServerLimitsWatch(self.options, listener, loads=loads, often=self._pacing is not None)

    def __getstate__(self) -> dict[str, Any]:
        """Spark Connect pickles the sink into a process of the server's, which takes the job over for itself."""
        return {**self.__dict__, "_runs": {}}

    def __repr__(self) -> str:
        return f"StarRocksSink({self.options!r})"

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, and return when all of it is visible, after a pause if `freshness` allows one.

        `foreachBatch` calls this.

        Spark's own errors pass unchanged, above all the stop of a query: if the sink swallowed it, Spark would take the
        micro-batch for written.

        Args:
            batch: The rows or events of the micro-batch.
            batch_id: Spark's number of the micro-batch.

        Raises:
            InputError: The sink cannot write the input.
            OptionError: `job` is not set, and Spark Connect hides the query's id.
        """
        query, run = _local_property(batch.sparkSession, _QUERY), _local_property(batch.sparkSession, _RUN)
        if query is None:
            self._refuse_hidden_query()
        job, begun = self.options.job or f"query-{query}", time.monotonic()
        origin = BatchOrigin(batch_id, job, query or job, run or query or job, streaming=True)
        receipts = self._write(self._input(batch, origin))
        if self._pacing is not None:
            self._pacing.rest(batch.sparkSession, origin, receipts, begun, self._ask_limits)

    def _refuse_hidden_query(self) -> None:
        """Raise OptionError unless the options say what Spark Connect hides: the query's id and its checkpoint."""
        settings = {"job": self.options.job}
        if self.assemble is not None:
            settings["state_dir"] = self.assemble.state_dir
        missing = [name for name, value in settings.items() if not value]
        if missing:
            raise OptionError(
                f"Spark Connect hides the streaming query's id and its checkpoint, and {' and '.join(missing)} "
                f"{'are' if len(missing) > 1 else 'is'} not set.",
                hint="Set `job` to a name that stays the same over restarts and that no other query uses; if the sink "
                "assembles, set its assembly's state_dir to a folder that Python on driver and executors can "
                "write, and keep it with the checkpoint.",
                option=missing[0],
            )

    def write(self, frame: DataFrame, *, batch_id: int | None = None) -> list[Receipt]:
        """Write a batch frame under the same guarantees.

        Rows with positions need a `job`. The sink writes them once per `job`, however often the frame comes.

        A frame without source_partition, position, seq and transaction_end is one unpositioned batch in each lane. With
        a `job` and a `batch_id` that grows from frame to frame, a repeated call writes nothing a second time.

        Args:
            frame: The rows or events, with the columns of a micro-batch.
            batch_id: The number of the frame; by default the time in microseconds.

        Returns:
            The receipts of the committed StarRocks transactions.

        Raises:
            InputError: The sink cannot write the input.
            OptionError: The rows have positions, and `job` is not set.

        Example::

            options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", job="shop")
            receipts = StarRocksSink(options).write(spark.read.parquet("/data/rows"))
            print(sum(receipt.rows for receipt in receipts))
        """
        job = sessions.job_of_frame(self.options, positioned=self.assemble is not None or is_marked(frame.schema))
        number = batch_id if batch_id is not None else microseconds()
        origin = BatchOrigin(number, job, write_key(job), write_key(job), streaming=False)
        return self._write(self._input(frame, origin))

    def give_up(self, seconds: float = 5.0) -> None:
        """Cancel the running write and roll back its labels; for a process that is about to end.

        This never raises, and does nothing while nothing is being written.

        Args:
            seconds: Seconds that this may take at most.
        """
        runs = list(self._runs.values())
        unfinished = [session for run in runs for session in list(run.ending.values())]
        unfinished += [run.session for run in runs if run.session is not None and self._jobs.running]
        if unfinished:
            termination.start_thread(self._jobs.cancel)  # not waited for: the JVM may be gone, or hang
            termination.run_with_timeout(
                [partial(sessions.roll_back_until, self.options, session.labels, seconds) for session in unfinished],
                seconds,
            )

    @property
    def metrics(self) -> Endpoint | None:
        """The endpoint that serves this sink's metrics, which is the given one or the one of `metrics_port`."""
        return self._events.endpoint

    def _input(self, frame: DataFrame, origin: BatchOrigin) -> Input:
        if self.assemble is None:
            return FrameInput(frame, origin)
        kind = KafkaInput if self.assemble.reads_kafka and origin.streaming else EventsInput
        return kind(frame, origin, self.assemble)

    def _write(self, source: Input) -> list[Receipt]:
        origin = source.origin
        termination.roll_back_at_exit(self)
        if self._pacing is None or not origin.streaming:  # else in the pause, when no load holds a thread of the server
            self._ask_limits()
        with (
            self._events.follow_batch(source.spark, origin) as tries,
            self._events.follow_steps(origin.job),
            self._run(origin.job).one_at_a_time(self.options.batch_deadline),
        ):
            self._commit_or_wait(source, tries)
        return tries.receipts

    def _ask_limits(self) -> None:
        if self._limits is not None:
            self._limits.touch()

    def _run(self, job: str) -> JobRun:
        return self._runs.setdefault(job, JobRun(job))

    def _commit_or_wait(self, source: Input, tries: BatchTries) -> None:
        """Commit the micro-batch; wait while StarRocks has an outage.

        Before StarRocks has begun a transaction of the job, raises a failure at once: probably an address is wrong,
        unless a frontend has answered that no backend is alive. Raises Fenced if another writer took the job over
        during the outage.
        """
        origin = source.origin
        run = self._run(origin.job)
        tries.renew()  # the time that other writes of the job have taken does not count
        if (session := run.session_of(origin)) is not None:
            tries.tokens.update(session.written)
        try:
            return self._commit(source, run, tries)
        except Exception as error:
            failed = error
        place = {"job": origin.job, "batch_id": origin.batch_id}
        write, stopped = partial(self._commit, source, run, tries), partial(is_stopped, source.spark)
        return wait_out(failed, write, place, tries.expired, self._listener, stopped, served=lambda: run.served)

    def _commit(self, source: Input, run: JobRun, tries: BatchTries) -> None:
        """Try once to commit the micro-batch, before the deadline of `tries`. A failure ends the session."""
        session = run.session_of(source.origin) or self._open_session(source, run, tries)
        try:
            with self._jobs.tag(source.spark), self.auditing.while_writing() if self.auditing else nullcontext():
                self._run_lanes(source, run, session, tries)
        except BaseException as error:
            if has_begun(error) or session.stands:
                run.served = True
            run.stands = session.stands
            run.fail(session, self.options)
            raise
        if session.proofs is not None:
            session.proofs.record(session.proof(source.origin.batch_id))
        run.served = True

    def _open_session(self, source: Input, run: JobRun, tries: BatchTries) -> sessions.Session:
        """Take the job over for this run of the query."""
        origin = source.origin
        run.replace(origin)
        directory = source.directory() if self.options.exactly_once else None
        proofs = ProofLog(directory) if directory is not None else None
        first = origin.batch_id if origin.streaming else 0
        with Span(DRIVER_STEPS.get(), time.monotonic, "step", {"step": "take_over"}):
            session = sessions.open_session(
                self.options,
                origin.key,
                origin.job,
                origin.checkpoint,
                typed_tables=[route.table for route in self.routes],
                resumption=sessions.Resumption(first, proofs.read() if proofs and first else ()),
                seconds=sessions.seconds_of_try(self.options, tries.deadline),
                tokens=tries.tokens,
                stood=run.stands,
            )
        run.open(session)
        session.prove_in(proofs)
        self._listener(Event("session.opened", {"job": origin.job, "exactly_once": self.options.exactly_once}))
        self._advise(source, run)
        source.check(session)
        return session

    def _advise(self, source: Input, run: JobRun) -> None:
        """Warn at the start of a session: of slow loops, and of what the input knows."""
        job = source.origin.job
        if not is_available() and not any(run.served for run in self._runs.values()):
            self._listener(Event("loops.missing", {"job": job, "advice": _NO_LOOPS}))
        if source.origin.streaming:
            archive_writer.write_later(job, self._listener)
        for event in source.advice(self.options, first=not run.served):
            self._listener(replace(event, fields={"job": job, **event.fields}))

    def _run_lanes(self, source: Input, run: JobRun, session: sessions.Session, tries: BatchTries) -> None:
        origin = source.origin
        if self.assemble is None:
            self._change_schema(source.schema, session)
        writer = run.writer = run.writer or self._open_writer(source, session)
        seconds = sessions.seconds_of_try(self.options, tries.deadline)
        task = session.lane_task(self.options, origin.batch_id, streaming=origin.streaming, seconds=seconds)
        writer.write(source, task, self._listener, partial(self._collect, origin, session, tries))

    def _collect(
        self,
        origin: BatchOrigin,
        session: sessions.Session,
        tries: BatchTries,
        receipts: Sequence[Receipt],
        reports: Sequence[LaneReport],
    ) -> None:
        """Learn from lanes whose rows are visible, and emit their events."""
        session.learn_keys(reports)
        is_due = time.monotonic() - session.compared_at >= _COMPARED_SECONDS
        is_due = is_due and self.options.schema_changes is SchemaChanges.IGNORE
        if session.is_due(reports, again=is_due):
            self._compare_columns(session, reports, again=is_due)
        if session.learn_listed(reports):
            self._listener(Event("label.unlisted", {"job": origin.job, "advice": sessions.UNLISTED}))
        if begun := session.learn_skips(reports, keep=origin.streaming):  # frames of `write` may come in any order
            fields = {"job": origin.job, "source_partitions": len(begun), "upto": sessions.few_positions(begun)}
            self._listener(Event("replay.skipping", fields))
        for report in reports:
            self._listener(Event("lane.reported", {"report": report}))
        session.learn(receipts)
        tries.collect(receipts)

    def _compare_columns(self, session: sessions.Session, reports: Sequence[LaneReport], *, again: bool) -> None:
        """Say, once a session, which names in JSON rows are no columns, and which columns rows do not name any more.

        With `again` also the names that were columns before are compared: one may have been dropped.
        """
        names = named_by_rows(reports, session.compared)
        told = session.unknown_names
        events = compare_columns(self.options, names, session.compared, session.vanished_names, told, again=again)
        if events is None:  # no answer: the lanes of the next micro-batch report the names again
            names, events = {}, []
        session.learn_compared(names, again=again)
        for event in events:
            self._listener(Event(event.name, {"job": session.job, **event.fields}))

    def _open_writer(self, source: Input, session: sessions.Session) -> EventsWriter | RowsWriter:
        if self.assemble is None:
            return RowsWriter(self.options, self.routes, session)
        return EventsWriter.open(
            self.assemble, self.options, session, source, listener=self._listener, layout_of=self._layout_of
        )

    def _layout_of(self, collection: str) -> TableLayout:  # noqa: ARG002
        """What a table that the sink creates for a table of the source gets beside its columns."""
        return TableLayout()

    def schema_changes(self, frame: DataFrame) -> list[str]:
        """Return the statements that `schema_changes="apply"` would run before it writes `frame`; run none of them.

        Args:
            frame: Rows as the sink would write them.

        Returns:
            The SQL statements, in order.

        Raises:
            OptionError: `query_url` is not set.
            QueryFailed: A query of the tables failed.
            QueryRefused: The server refused a query of the tables.
        """
        if self.options.query_url is None:
            refuse_without_sql("schema_changes", "schema_changes() is called")
        return read_planned_changes(self.options, self.routes, frame)

    def _change_schema(self, schema: T.StructType, session: sessions.Session) -> None:
        """Alter the tables for rows of the `schema`. No transaction of the job is open between two micro-batches."""
        if self.options.schema_changes is SchemaChanges.APPLY and session.tables.columns is not None:
            apply_schema_changes(self.options, self.routes, schema, session, self._listener)


_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"  # Spark groups a streaming run's jobs by its run id


def _local_property(spark: SparkSession, name: str) -> str | None:
    """A local property of the thread that runs the micro-batch; None in a batch job and on Spark Connect."""
    context = context_of(spark)
    return context.getLocalProperty(name) if context is not None else None


def _refuse_double_routes(routes: tuple[TableRoute, ...]) -> None:
    tables = [route.table for route in routes]
    double = sorted({table for table in tables if tables.count(table) > 1})
    if double:
        raise OptionError(
            f"There is more than one TableRoute for {', '.join(double)}.", hint="Give each table one route."
        )
