"""StarRocksSink: give it to `foreachBatch`, or call `write` with a batch frame.

On the driver it checks the input, has the JVM project and spread it over the lanes, waits until every lane has
confirmed its StarRocks transactions, and only then returns: Spark's checkpoint never runs ahead of StarRocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from starrocks_txn_sink.clock import microseconds
from starrocks_txn_sink.coordinator.actions import Receipt
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.combinations import Feature
from starrocks_txn_sink.options.declarations import SchemaChanges
from starrocks_txn_sink.sink.events_writer import FusedWriter, TransactionAssembly
from starrocks_txn_sink.sink.lifecycle import Jobs, Turns, begun, context_of, in_time, roll_back_at_exit
from starrocks_txn_sink.sink.rows_writer import RowsWriter
from starrocks_txn_sink.sink.session import Session, clean_up, open_session, sweep_for
from starrocks_txn_sink.sink.typed.evolution import evolve, planned
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sink.watch import Endpoint, Watch
from starrocks_txn_sink.sql.audit import Audit, AuditWatch
from starrocks_txn_sink.telemetry.events import Event, Listener, ignore_event
from starrocks_txn_sink.writer.messages import LaneReport
from starrocks_txn_sink.writer.task import LaneTask

_Writer = TypeVar("_Writer", FusedWriter, RowsWriter)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows come from: a micro-batch of a query's run (`key`), or a call of `write`."""

    batch_id: int
    job: str
    checkpoint: str
    key: str
    streaming: bool


class StarRocksSink:
    """Writes micro-batches of whole source transactions into StarRocks.

    `rows.writeStream.foreachBatch(StarRocksSink(options))`: input columns are source_partition (string or integer),
    position, seq (integers), table (string), transaction_end (boolean), `row` (a JSON object as a string) or the
    columns of `routes`, and, if present, op (upsert or delete) and database. With `assemble` it takes raw events, and
    the lanes make source transactions of them (TransactionAssembly).

    `listener` is told `receipt.collected` (field `receipt`) for every committed StarRocks transaction,
    `batch.completed` and more (`metrics.model`), on the driver; `metrics`, a MetricsServer, serves what it is told.
    Atomic per micro-batch with `lanes=1`, per source transaction with more.

    `audit` is asked while micro-batches are written, over a connection of its own, and tells `integrity.violated`;
    `auditing.auditor` has its figures and the first violation, `auditing.stop()` ends it at once.
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        routes: Sequence[TableRoute] = (),
        assemble: TransactionAssembly | None = None,
        listener: Listener = ignore_event,
        metrics: Endpoint | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.options = options
        self.routes = tuple(routes)
        self.assemble = assemble
        _refuse_double_routes(self.routes)
        rows = Feature.ROUTES if self.routes else Feature.JSON_TEXTS
        options.check_features(*([Feature.ASSEMBLE] if assemble is not None else []), rows)
        self._fused: dict[str, FusedWriter] = {}  # by the session's epoch
        self._rows: dict[str, RowsWriter] = {}  # the same
        self._watch = Watch(options, listener, metrics)
        self._listener = self._watch.tell
        self._sessions: dict[str, Session] = {}  # by job: one sink may serve several queries
        self._ending: dict[str, Session] = {}  # by epoch: those that leave something open, until it is rolled back
        self._turns = Turns()
        self._jobs = Jobs()
        self.auditing = AuditWatch(audit, options, self._listener) if audit is not None else None

    def __getstate__(self) -> dict[str, Any]:
        """Spark Connect pickles the sink into a process of the server's, which takes the job over for itself."""
        return {**self.__dict__, "_sessions": {}, "_ending": {}, "_fused": {}, "_rows": {}}

    def __repr__(self) -> str:
        return f"StarRocksSink({self.options!r})"

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; returns when all of it is visible. For `foreachBatch`.

        Raises InputError for input that cannot be written, and lets whatever Spark raises through untouched, a stop of
        the query above all: a swallowed one would make Spark believe that the batch was written.
        """
        query, run = _property(batch, _QUERY), _property(batch, _RUN)
        job = self.options.job or (f"query-{query}" if query else None)
        if job is None:
            raise OptionError(
                "The streaming query's id cannot be seen from here (Spark Connect hides it), and `job` is not set.",
                hint="Set `job` to a name that stays the same over restarts and that no other query uses.",
                option="job",
            )
        self._write(batch, Origin(batch_id, job, query or job, run or query or job, streaming=True))

    def write(self, frame: DataFrame, *, batch_id: int | None = None) -> list[Receipt]:
        """Write a batch frame, under the same guarantees, and return the receipts.

        Rows with positions are written once per `job`, however often the frame comes. A frame without
        source_partition, position, seq and transaction_end is one unit in each lane; give it a `batch_id` that grows
        from frame to frame, and set `job`, and a repeated call writes nothing a second time. On a terminal a bar shows
        how far it is; elsewhere `write.progressed` is told, and logged, every ten seconds.
        """
        job = self.options.job or "write"
        number = batch_id if batch_id is not None else microseconds()
        with self._jobs.followed(frame, self._listener):
            return self._write(frame, Origin(number, job, _written(job), _written(job), streaming=False))

    def give_up(self, seconds: float = 5.0) -> None:
        """Cancel what is being written and roll back its labels, within `seconds`; never raises.

        For a process that is about to end. Does nothing when nothing is being written.
        """
        sessions = [*self._ending.values(), *(self._sessions.values() if self._jobs.running else ())]
        if sessions:
            begun(self._jobs.cancel)  # not waited for: the JVM may be gone, or hang
            in_time([partial(sweep_for, self.options, session, seconds) for session in sessions], seconds)

    @property
    def metrics(self) -> Endpoint | None:
        """The endpoint that serves this sink's figures: the one given, or the one of `metrics_port`."""
        return self._watch.endpoint

    def _write(self, frame: DataFrame, origin: Origin) -> list[Receipt]:
        roll_back_at_exit(self, on_sigterm=self.options.roll_back_on_sigterm)
        query = origin.checkpoint if origin.streaming else ""
        with (
            self._watch.batch(frame, origin.job, origin.batch_id, self.options.lanes, query) as receipts,
            self._turns.one_at_a_time(origin.job, self.options.batch_deadline),
        ):
            receipts += self._commit(frame, origin)
        return receipts

    def _commit(self, frame: DataFrame, origin: Origin) -> list[Receipt]:
        session = self._sessions.get(origin.job)
        if session is None or session.key != origin.key:
            self._turns.refuse_replaced(origin.job, origin.key)
            if session is not None and session.key != _written(origin.job):
                self._turns.replaced(origin.job, session.key, origin.checkpoint)
            tables = [route.table for route in self.routes]
            session = open_session(self.options, origin.key, origin.job, origin.checkpoint, typed_tables=tables)
            self._sessions[origin.job] = session
            self._watch.opened(origin.job, self.options.exactly_once)
        try:
            with self._jobs.tagged(frame), self.auditing.while_writing() if self.auditing else contextlib.nullcontext():
                receipts = self._run_lanes(frame, origin, session)
        except BaseException:
            self._ending[session.epoch] = session
            self._fused.pop(session.epoch, None)
            self._rows.pop(session.epoch, None)
            self._sessions.pop(origin.job, None)
            clean_up(self.options, session, done=lambda: self._ended(session))
            raise
        session.learn(receipts)
        return receipts

    def _ended(self, session: Session) -> None:
        self._ending.pop(session.epoch, None)

    def _run_lanes(self, frame: DataFrame, origin: Origin, session: Session) -> list[Receipt]:
        write = self._write_rows if self.assemble is None else self._write_events
        receipts, reports = write(frame, origin, session)
        for report in reports:
            self._listener(Event("lane.reported", {"report": report}))
        return receipts

    def _write_events(
        self, frame: DataFrame, origin: Origin, session: Session
    ) -> tuple[list[Receipt], list[LaneReport]]:
        if self.assemble is None:
            raise TypeError("This sink does not assemble.")
        if session.epoch not in self._fused:
            query = origin.checkpoint if origin.streaming else None
            opened = FusedWriter.open(self.assemble, self.options, session, frame, query)
            self._fused = self._of_sessions(self._fused) | {session.epoch: opened}
        return self._fused[session.epoch].write(frame, self._task(origin, session), self._listener)

    def _write_rows(self, frame: DataFrame, origin: Origin, session: Session) -> tuple[list[Receipt], list[LaneReport]]:
        self._evolve(frame, session)
        if session.epoch not in self._rows:
            opened = RowsWriter(self.options, self.routes, session)
            self._rows = self._of_sessions(self._rows) | {session.epoch: opened}
        return self._rows[session.epoch].write(frame, self._task(origin, session))

    def _of_sessions(self, writers: dict[str, _Writer]) -> dict[str, _Writer]:
        """Those of `writers` whose sessions go on: one sink may serve several queries."""
        epochs = {session.epoch for session in self._sessions.values()}
        return {epoch: writer for epoch, writer in writers.items() if epoch in epochs}

    def _task(self, origin: Origin, session: Session) -> LaneTask:
        return LaneTask(
            self.options,
            session.job,
            session.epoch,
            session.checkpoint,
            origin.batch_id,
            streaming=origin.streaming,
            mandate=session.mandate,
        )

    def schema_changes(self, frame: DataFrame) -> list[str]:
        """The statements that `schema_changes="apply"` would run before rows of `frame` are written; runs none of them.

        Raises OptionError without `query_url`, QueryFailed or QueryRefused when the server cannot be asked.
        """
        return [change.sql for change in planned(self.options, self.routes, frame)]

    def _evolve(self, frame: DataFrame, session: Session) -> None:
        """Between two micro-batches nothing of the job is open, so this is where tables may change."""
        if self.options.schema_changes is SchemaChanges.APPLY and session.columns is not None:
            made = evolve(self.options, self.routes, frame, session)
            if made:
                self._watch.tell(Event("schema.changed", {"statements": made}))


_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"  # Spark groups a streaming run's jobs by its run id


def _property(frame: DataFrame, name: str) -> str | None:
    """A local property of the thread that runs the micro-batch; None in a batch job and on Spark Connect."""
    context = context_of(frame)
    return context.getLocalProperty(name) if context is not None else None


def _written(job: str) -> str:
    """In place of a query's id and its run's, for calls of `write`."""
    return f"write-{job}"


def _refuse_double_routes(routes: tuple[TableRoute, ...]) -> None:
    tables = [route.table for route in routes]
    double = sorted({table for table in tables if tables.count(table) > 1})
    if double:
        raise OptionError(
            f"There is more than one TableRoute for {', '.join(double)}.", hint="Give each table one route."
        )
