"""The lane as a Spark task: Arrow batches in, messages out. Puts the stages of the lane together, and runs them.

A lane loads its share of a micro-batch under the label of the driver (`coordinator.coordinator`). A try that is not its
lane's first must not load, because rows of the first one may be under the label already. PySpark tells a task the
number of its own attempt, which is enough where tasks read the source. It does not tell the attempt of the stage, which
Spark runs again if a shuffle's files are lost, nor that a task is a speculative copy. So a lane that asks the driver
who begins the label also *enters* it there with its first input, which no second try can, however late it comes
(`protocol.openings`). Where the driver begins the label it may be that no lane reaches it, so there a lane *claims* at
the server: it begins a label that is named after the shared one and the lane. The server begins a label once, so a
second try loads nothing. Claims stay open until the shared label is settled: they have the same `timeout` and begin
later, and a leader that forgets the claims forgets the shared label, too.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

import starrocks_txn_sink.arrow_start  # noqa: F401 - first: other modules make arrays
from starrocks_txn_sink import telemetry
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.coordinator.coordinator import claim_of
from starrocks_txn_sink.coordinator.lane import Lane
from starrocks_txn_sink.coordinator.model import LaneLimits, LaneShare, PositionSpan, Receipt, Segment
from starrocks_txn_sink.coordinator.quarantine import Part
from starrocks_txn_sink.coordinator.table_room import Crowded
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.errors import (
    BeginFailed,
    DeadlineExceeded,
    LoadFailed,
    StarRocksSinkError,
    TaskRepeated,
    TooManyTransactions,
)
from starrocks_txn_sink.options import Compression, SinkOptions
from starrocks_txn_sink.protocol.label import Backoff, Label, RetryPolicy, Steps, begin, run
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.protocol.openings import Answer, LaneQuestion, Topic, Word
from starrocks_txn_sink.rows.admission import TableAdmission
from starrocks_txn_sink.rows.body import UniqueRows
from starrocks_txn_sink.rows.keys import TableKey
from starrocks_txn_sink.rows.segments import Replay, Segmenter, rows_of_part
from starrocks_txn_sink.rows.target import TargetColumn
from starrocks_txn_sink.rows.unchanged import UnchangedValues
from starrocks_txn_sink.writer import messages, worker
from starrocks_txn_sink.writer.dead_letters import BadRowsFound, DeadLetters
from starrocks_txn_sink.writer.metrics import LaneMetrics, RowCounts
from starrocks_txn_sink.writer.pipe import InputStage, LaneInput, PipeStage, ReadyRows, Stop
from starrocks_txn_sink.writer.runner import LaneRunner, Performer, log_steps
from starrocks_txn_sink.writer.table_checks import TableChecks, TablesLackColumns
from starrocks_txn_sink.writer.task import LaneTask, now_text
from starrocks_txn_sink.writer.turns import lane_turns


@dataclass(frozen=True, slots=True)
class SparkLane:
    """A lane as the function of `mapInArrow`: it takes its rows as `rows` says, and writes them as `task` says."""

    task: LaneTask
    rows: LaneInput = ReadyRows()  # noqa: RUF009 - frozen

    def __call__(self, batches: Iterator[pa.RecordBatch], clock: Clock | None = None) -> Iterator[pa.RecordBatch]:
        """Load the rows of `batches`; yields rows of `messages.MESSAGES`: the lane's share, then its report."""
        yield messages.message_batch(self.run(batches, worker.Attempt.current(), clock))

    def run(
        self, batches: Iterable[pa.RecordBatch], attempt: worker.Attempt, clock: Clock | None = None
    ) -> list[messages.Message]:
        """The messages of an attempt; an error of the sink becomes a message, another one leaves the task.

        Spark would run a failed task again, and the new try must not load under the same label.
        """
        task, clock = self.task, clock or SystemClock()
        repeated = self.repeated(batches, attempt, clock)
        if repeated is not None:
            return [repeated]
        try:
            stop = Stop.of(task, clock)
            return LaneTry(task, attempt, clock, source=self.rows.open(attempt, stop), stop=stop).run(batches)
        except StarRocksSinkError as error:
            report = messages.attached_report(error) or self._nothing(attempt)
            return [report.fail(error, clock.wall())]
        except BaseException as error:
            messages.write_envelope(error)
            raise

    def repeated(
        self, batches: Iterable[pa.RecordBatch], attempt: worker.Attempt, clock: Clock
    ) -> messages.LaneReport | None:
        """The only message of an attempt that Spark runs again all the same: it must not load. None for others.

        TaskRepeated has the place of the rows, as far as it is known.
        """
        if not attempt.retry or self.task.claims:
            return None
        message, place = "Spark runs the task of a lane again.", self.rows.place(batches, attempt)
        error = TaskRepeated(message, hint=_REPEATED, lane=attempt.lane, stage=attempt.stage, reads=place)
        return self._nothing(attempt).fail(error, clock.wall())

    def _nothing(self, attempt: worker.Attempt) -> messages.LaneReport:
        return messages.LaneReport(self.task.job, attempt.lane, self.task.batch_id)


@dataclass(slots=True)
class OpenLane(PipeStage):
    """A lane that may load: the state machine, the performer of its loads, and the rows to feed it with."""

    core: Lane
    performer: Performer
    segments: Iterator[Segment] = field(default_factory=lambda: iter(()))

    def count(self, report: messages.LaneReport, receipts: Sequence[Receipt]) -> None:
        """Deletes that a later row has replaced are not sent."""
        unique, labels = self.performer.unique, {receipt.label for receipt in receipts}
        for (label, table), replaced in unique.replaced_deletes.items():
            if label in labels:
                report.work.deletes[table] = report.work.deletes.get(table, 0) - replaced
        report.work.keys_repeated = unique.repeated
        report.cost.buffer_peak = self.core.buffer.buffered_peak


def rows_to_cut(
    batches: Iterable[pa.RecordBatch], stop: Stop, part: Part, checks: TableChecks
) -> Iterator[pa.RecordBatch]:
    """The rows of `part` with positions, with the bare values of a connector as its columns take them."""
    for batch in batches:
        stop.start()
        rows = rows_of_part(batch, part.after, part.upto)
        yield rows if checks.bare_values is None else checks.bare_values(rows)


class Cut(PipeStage):
    """Cuts rows with positions into segments: those that `checks` let pass, without those that are visible.

    In a quarantine source transactions with bad rows are set aside by `dead_letters`. If the rows come in order, the
    lane stops at a boundary of source transactions, or once it knows the next label's tables.
    """

    def __init__(self, task: LaneTask, checks: TableChecks, stop: Stop, dead_letters: DeadLetters | None) -> None:
        options, ownership = task.options, task.ownership
        positions: Mapping[str, Position] = ownership.positions if ownership is not None else {}
        skips = dict(ownership.skips) if ownership is not None else {}
        epoch = task.epoch if task.streaming else ""
        self._replay = Replay(positions, options.check_replays, epoch, task.batch_id, skips)
        self._admission = TableAdmission(task.room, positions) if task.room is not None else None
        self._dead_letters = dead_letters
        self._segmenter = Segmenter(
            self._replay,
            with_row_index=options.quarantines or bool(task.keys),
            check=checks.of_rows(judged=options.quarantines),
            admission=self._admission,
            set_aside=dead_letters,
            suspected=task.part.tables,
            fit=checks.fit(),
        )
        self._stop = stop if task.ordered else None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Segment]:
        """The segments of the rows. Raises the errors of Segmenter, BadRowsFound and Crowded."""
        for batch in batches:
            yield from self._segmenter.split(batch)
            if self._stop is not None and self._segmenter.knows_enough:
                return self._stop.end()
        return None

    def count(self, report: messages.LaneReport, receipts: Sequence[Receipt]) -> None:  # noqa: ARG002
        replay, work = self._replay, report.work
        work.replayed_rows, work.replayed_transactions = replay.skipped_rows, replay.skipped_transactions
        work.skips = {name: replay.skips[name] for name in replay.changed}

    def share(self, share: LaneShare) -> LaneShare:
        partitions = tuple(sorted(self._replay.partitions.union(share.partitions)))
        share = replace(share, partitions=partitions)
        if self._admission is not None:
            share = replace(share, left=self._admission.left)
        if self._dead_letters is None:
            return share
        receipts = tuple(map(self._dead_letters.receipt, share.loaded))
        reached = {span.partition: span.last for receipt in receipts for span in receipt.positions}
        cuts = self._segmenter.cuts(_MOST_CUTS, reached)
        return replace(share, loaded=receipts, cuts=cuts, set_aside=self._dead_letters.first_found)


class CutUnpositioned(PipeStage):
    """Cuts rows without positions, which are one unpositioned batch; the driver compares the sum of all lanes."""

    def __init__(self, task: LaneTask, checks: TableChecks) -> None:
        positions = task.ownership.positions if task.ownership is not None else {}
        self._segmenter = task.unpositioned(positions, compare=False, check=checks.of_rows(), fit=checks.fit())

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Segment]:
        """The segments of the rows, and at the end that of their batch."""
        for batch in batches:
            yield from self._segmenter.split(batch)
        yield from self._segmenter.end()

    def share(self, share: LaneShare) -> LaneShare:
        return replace(share, rows=self._segmenter.rows, sum=self._segmenter.sum)


def is_boundary(segment: Segment) -> bool:
    """Whether a source transaction ends with the segment."""
    return isinstance(segment, PositionSpan)


class LaneTry:
    """One try at the lane of `task`: its time, its stages. `source` has those that read, by default ready rows."""

    def __init__(
        self,
        task: LaneTask,
        attempt: worker.Attempt,
        clock: Clock,
        rng: random.Random | None = None,
        source: InputStage | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.task, self.attempt, self.clock, self.rng = task, attempt, clock, rng or random.Random()
        self.deadline = Deadline.after(task.time_limit, clock)
        encoding = Compression(task.options.compression).value
        self.metrics = LaneMetrics(task.job, attempt.lane, task.batch_id, encoding, clock)
        self.source, self.stop = source or InputStage(), stop or Stop.of(task, clock)
        self._stages: list[PipeStage] = [self.source, self.stop]

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[messages.Message]:
        """Run the lane to its end; returns its share of the label, or what its tables lack, its report, and the rest.

        Raises the lane's first error, which carries the report (`messages`), unless the driver is to sort the input.
        """
        worker.settle_memory()
        telemetry.apply_log_settings(self.task.logging)
        try:
            return [*self._ended(iter(batches)), *self.source.messages()]
        except StarRocksSinkError as error:
            if self.source.sorted_first(error):
                return [messages.OrderViolation(error.message)]
            raise
        finally:
            self.source.close()

    def _ended(self, batches: Iterator[pa.RecordBatch]) -> list[messages.Message]:
        try:
            with worker.RESOURCES.lease(self.task.options) as resources:
                receipt = self._write(batches, resources)
        except TablesLackColumns as lack:
            return [messages.TablesLack(lack.columns), self.report(())]
        except Crowded as crowded:
            return [messages.RowsWait(crowded.waits), self.report(())]
        except BadRowsFound as bad_rows:
            return [messages.BadRows.of_places(bad_rows.places), self.report(())]
        except NotReached as unreached:
            return [messages.DriverUnreached(unreached.host), self.report(())]
        except BaseException as error:
            with contextlib.suppress(Exception):  # a failing report must not hide the error
                messages.attach_report(error, self.report((), error))
            if type(error) is not StarRocksSinkError and isinstance(error, StarRocksSinkError):
                # Spark prints the traceback for each try of the task; the message and its place say it all.
                raise error.with_traceback(None) from None
            raise
        loaded = [self.metrics.with_begin(receipt)] if receipt is not None else []
        return [self.share(loaded), self.report(loaded)]

    def share(self, loaded: Iterable[Receipt]) -> LaneShare:
        """The lane's share of the label, of what it has loaded: each stage adds what the driver needs to know of it."""
        share = LaneShare(tuple(loaded))
        for stage in self._stages:
            share = stage.share(share)
        return share

    def report(self, receipts: Sequence[Receipt], error: BaseException | None = None) -> messages.LaneReport:
        """The counts of all stages until now; `error` is the error that the lane fails with."""
        report = self.metrics.report(error)
        for stage in self._stages:
            stage.count(report, receipts)
        return report

    def _write(self, batches: Iterator[pa.RecordBatch], resources: worker.WorkerResources) -> Receipt | None:
        task = self.task
        log = telemetry.EventLogger("lane", job=task.job, batch=task.batch_id, lane=self.attempt.lane)
        listener = telemetry.fan_out((self.metrics, log_steps(log)))
        if self.attempt.retry:
            self.metrics.mark_task_retry()
        batches = self.source.read(batches, self.deadline)
        if task.claims or task.lane_begins:
            batches = self._entered(batches, resources, listener)
        lane = self.open(in_time(batches, self.deadline), resources, listener)
        runner = LaneRunner(lane.core, lane.performer, resources.threads, self.clock, self.deadline)
        return runner.run(lane.segments)

    def _entered(
        self, batches: Iterable[pa.RecordBatch], resources: worker.WorkerResources, listener: telemetry.Listener
    ) -> Iterator[pa.RecordBatch]:
        """The batches, once this try has its lane; without rows nobody asks for one.

        A second try still reads its rows, so that the first one can win if the second is a speculative copy. Raises the
        errors of `have_lane`, at the end of the rows.
        """
        entered = False
        for batch in batches:
            if not entered and batch.num_rows:
                steps, turns = self.have_lane(), lane_turns(self.task.turns)
                try:
                    run(steps, resources.transport, self.clock, self.deadline, listener=listener, turns=turns)
                except TaskRepeated:
                    for _ in batches:
                        pass
                    raise
                entered = True
            yield batch

    def have_lane(self) -> Steps[None]:
        """Enter the label, or claim the lane, as the task has to; raises the errors of `enter` and `claim`."""
        if self.task.lane_begins:
            age = yield from enter(self.task, self.attempt)
            if age is not None:
                self.stop.start(age)
        elif self.task.claims:
            yield from claim(self.task, self.attempt)

    def open(
        self,
        batches: Iterable[pa.RecordBatch],
        resources: worker.WorkerResources,
        listener: telemetry.Listener = telemetry.ignore_event,
        lane_limits: LaneLimits | None = None,
    ) -> OpenLane:
        """Put the stages of the lane together: from here on all readings are one.

        `_write` runs the lane; the simulation steps through it, with `lane_limits` in place of the options' limits.
        """
        task, options = self.task, self.task.options
        keys = task.keys if task.marked else {}  # rows without positions have no order
        unchanged = self._unchanged_values(keys, resources)
        checks = TableChecks(
            options,
            self.source.schema,
            resources.columns,
            self.deadline,
            task.compared,
            unchanged,
            task.modes,
            resources.partitions,
        )
        counts = RowCounts(task.ownership.positions if task.ownership is not None else {}, timed=task.marked)
        rows = self.source(batches)
        cut: Cut | CutUnpositioned
        if task.marked:
            dead_letters = None
            if options.quarantines:
                dead_letters = DeadLetters(task, checks.judge_all, partial(now_text, self.clock), checks.explain)
            rows = rows_to_cut(rows, self.stop, task.part, checks)
            cut = Cut(task, checks, self.stop, dead_letters)
        else:
            cut = CutUnpositioned(task, checks)
        segments = checks(cut(counts(rows)))
        if task.ordered:
            segments = self.stop(segments, is_boundary)
        lane = self._loads(keys, UniqueRows(keys, unchanged), resources, listener, lane_limits)
        lane.segments = segments
        self._stages += [counts, cut, checks, lane]
        return lane

    def _loads(
        self,
        keys: Mapping[str, TableKey],
        unique: UniqueRows,
        resources: worker.WorkerResources,
        listener: telemetry.Listener,
        lane_limits: LaneLimits | None,
    ) -> OpenLane:
        """The last stages: the write buffer, and the loads."""
        task, options = self.task, self.task.options
        spill = worker.SpillFile() if keys else None
        buffer = WriteBuffer(
            lane_limits or limits(options), spill.take if spill is not None else None, keys.keys(), hold=task.hold
        )
        core = Lane(task.job, task.batch_id, task.label, buffer, self.clock.wall, task.lane_begins)
        performer = Performer(
            options,
            resources.transport,
            self.clock,
            self.deadline,
            self.rng,
            _IN_TURN,
            listener,
            unique=unique,
            release=spill.release if spill is not None else None,
            turns=lane_turns(task.turns),
        )
        return OpenLane(core, performer)

    def _unchanged_values(
        self, keys: Mapping[str, TableKey], resources: worker.WorkerResources
    ) -> UnchangedValues | None:
        if not self.source.schema.completes:
            return None
        options, deadline = self.task.options, self.deadline  # not this try, which has them among its stages: no circle

        def query(sql: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
            assert resources.connection is not None, "without a query port no key is known"
            return resources.connection.query(sql, parameters, deadline)

        def columns_now(table: str) -> Sequence[TargetColumn]:
            return resources.columns.columns(table, True, deadline) if resources.columns is not None else ()

        return UnchangedValues(options.database, query, keys.keys(), columns_now=columns_now, decoded=options.decoded)


def claim(task: LaneTask, attempt: worker.Attempt) -> Steps[None]:
    """Begin the label that is the lane's claim; raises TaskRepeated if another try has it, and TooManyTransactions."""
    label = Label(task.options.database, claim_of(task.label, attempt.lane))
    try:
        yield from begin(label, task.options.begin_headers())
    except TooManyTransactions:
        raise
    except BeginFailed as failed:  # the label exists, or no answer came
        message = f"Another try of Spark at lane {attempt.lane} may have loaded rows: {failed.message}"
        raise TaskRepeated(message, hint=_REPEATED, lane=attempt.lane, stage=attempt.stage) from None


class NotReached(Exception):
    """The lane cannot ask the driver, on `host`, who begins the label."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host


def enter(task: LaneTask, attempt: worker.Attempt) -> Steps[float | None]:
    """Enter the label, and return its age, None if it is not begun.

    Raises TaskRepeated if another try at the lane has entered, NotReached, and LoadFailed if the label is given up.
    """
    question = LaneQuestion(Topic.ENTER, task.label, attempt.lane, attempt.number)
    answer: Answer | None = yield question
    if answer is None:
        answer = yield question  # the connection of an earlier question may have died
    if answer is None:
        raise NotReached(task.turns.host if task.turns is not None else "")
    if answer.word is Word.TAKEN:
        message = f"Another try of Spark at lane {attempt.lane} may load rows under the label."
        raise TaskRepeated(message, hint=_REPEATED, lane=attempt.lane, stage=attempt.stage)
    if answer.word is Word.GONE:
        raise LoadFailed("The label is given up: another lane was to begin it.", label=task.label)
    return answer.age if answer.word is Word.BEGUN else None


def in_time(batches: Iterable[pa.RecordBatch], deadline: Deadline) -> Iterator[pa.RecordBatch]:
    """The batches; raises DeadlineExceeded if the deadline has passed when one arrives.

    A source that delivers slowly would otherwise hold the label until the first request that meets the deadline.
    """
    for batch in batches:
        if deadline.expired():
            raise DeadlineExceeded(
                "The batch's deadline passed while the lane read its rows.",
                hint="Find out why the query delivers rows slowly, raise batch_deadline, or make micro-batches smaller "
                "(maxOffsetsPerTrigger, maxFilesPerTrigger).",
            )
        yield batch


def limits(options: SinkOptions) -> LaneLimits:
    """The limits of a lane."""
    return LaneLimits(
        mini_interval=options.mini_interval,
        timeout=options.timeout,
        buffer_bytes=options.buffer_bytes,
        chunk_bytes=options.chunk_bytes,
        load_bytes=options.load_bytes,
        load_parallelism=options.load_parallelism,
    )


_MOST_CUTS: Final = 100
"""Positions of each source partition that a lane reports to a quarantine; more of them make its search shorter."""
_REPEATED: Final = "The log of the executors has the error of the first try."
_IN_TURN: Final = RetryPolicy(busy_tries=1_000_000, backoff=Backoff(first=0.02, longest=0.5))
"""Where lanes cannot ask for their turn, the server refuses all loads of a table but one (wire contract 4.5). The
deadline ends the tries."""
