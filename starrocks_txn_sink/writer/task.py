"""The lane as a Spark task: Arrow batches in, messages out. The adapter between `mapInArrow` and the lane's runner.

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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

import starrocks_txn_sink.arrow_start  # noqa: F401 - first: other modules make arrays
from starrocks_txn_sink import telemetry
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.coordinator.coordinator import LaneShare, claim_of
from starrocks_txn_sink.coordinator.lane import Lane
from starrocks_txn_sink.coordinator.model import RECYCLE_AT, LaneLimits, PositionSpan, Receipt, Segment
from starrocks_txn_sink.coordinator.quarantine import EVERYTHING, Part
from starrocks_txn_sink.coordinator.table_room import Crowded, TableRoom
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.errors import (
    BeginFailed,
    DeadlineExceeded,
    LoadFailed,
    StarRocksSinkError,
    TaskRepeated,
    TooManyTransactions,
    TransactionTimedOut,
    Unordered,
)
from starrocks_txn_sink.options import Compression, SinkOptions
from starrocks_txn_sink.protocol.label import Backoff, Label, RetryPolicy, Steps, begin, run
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.protocol.openings import Answer, LaneQuestion, Topic, Word
from starrocks_txn_sink.rows.admission import TableAdmission
from starrocks_txn_sink.rows.arrival import SMALL_ROWS, ArrivalOrder
from starrocks_txn_sink.rows.body import UniqueRows
from starrocks_txn_sink.rows.columns import POSITION
from starrocks_txn_sink.rows.keys import TableKey
from starrocks_txn_sink.rows.places import place_of
from starrocks_txn_sink.rows.segments import CheckRows, FitRows, Replay, Segmenter, Skip, as_they_are, rows_of_part
from starrocks_txn_sink.rows.target import TargetColumn
from starrocks_txn_sink.rows.unchanged import UnchangedValues
from starrocks_txn_sink.rows.unpositioned import UnpositionedSegmenter
from starrocks_txn_sink.sources.formats.bare_values import ConnectorModes
from starrocks_txn_sink.writer import messages, worker
from starrocks_txn_sink.writer.dead_letters import BadRowsFound, DeadLetters
from starrocks_txn_sink.writer.metrics import LaneMetrics
from starrocks_txn_sink.writer.runner import LaneRunner, Performer
from starrocks_txn_sink.writer.table_checks import SourceSchema, TableChecks, TablesLackColumns
from starrocks_txn_sink.writer.turns import TurnsAddress, lane_turns

ReadRows = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
RunLane = Callable[[], list[messages.Message]]


@dataclass(frozen=True, slots=True)
class JobOwnership:
    """The driver's right to write the job, as its lanes get it.

    `driver_token` is that of the driver's take-over, `written` has those of all its claims. By source partition,
    `positions` come from the ledger and `skips` from earlier micro-batches (`rows.segments`). With `canary` no lane of
    this run has asked yet whether its label is listed (`coordinator.ownership`).
    """

    driver_token: str
    positions: Mapping[str, Position] = field(default_factory=dict)
    skips: Mapping[str, Skip] = field(default_factory=dict)
    canary: bool = False
    written: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OpenLane:
    """A lane that may load: the state machine, the performer of its loads, and the rows to feed it with."""

    core: Lane
    performer: Performer
    segments: Iterator[Segment]


@dataclass(frozen=True, slots=True)
class LaneTask:
    """A lane of one micro-batch under `label`; pickled to an executor, where Spark runs it once a task.

    Rows: with `marked` they carry positions and transaction ends; otherwise all lanes' rows are one unpositioned batch.
    With `ordered` they come sorted, so the lane can stop between two source transactions and go on in the next round.
    There are at most `lanes` lanes. With `whole` the driver knows that no source partition is in two of them, and that
    each is in order. In a `streaming` query positions may not go back from one micro-batch to the next. The lane loads
    the rows of `part` whose tables are in `room`.

    Commits: without `ownership` there is no ledger, and delivery is at-least-once. With `claims` the lane begins a
    label of its own before it loads, unless it enters the shared one (`lane_begins`). `seconds` replaces
    `batch_deadline` if another try has used a part of it; an option would cost new connections. At `round_ends` (Unix
    seconds on the driver's clock), `round_seconds` after the round's begin, a lane that can go on in the next round
    stops. With `lane_begins` the first lane that has rows begins the label, as the driver says at `turns`, and a round
    counts from then, or from the lane's first rows (`RoundEnd`).

    Loads: `keys` has the primary keys of the tables whose rows replace each other (`rows.body`). With `hold` rows are
    loaded when all of them are there: the last micro-batch's keys came again and again. At `turns` the lanes take turns
    at their tables, and ask; None where there is nobody to ask. `compared` has the names in rows that the driver knows
    already, by table; None if it does not want to know any. `modes` are those of the connector
    whose rows these are; None: they are not Debezium's.
    """

    options: SinkOptions
    job: str
    epoch: str
    checkpoint: str
    batch_id: int
    marked: bool = True
    streaming: bool = True
    ownership: JobOwnership | None = None
    compared: Mapping[str, frozenset[str]] | None = None
    keys: Mapping[str, TableKey] = field(default_factory=dict)
    hold: bool = False
    label: str = ""
    part: Part = EVERYTHING
    room: TableRoom | None = None
    lanes: int = 1
    claims: bool = False
    ordered: bool = False
    whole: bool = False
    lane_begins: bool = False
    seconds: float | None = None
    round_ends: float | None = None
    round_seconds: float = 0.0
    modes: ConnectorModes | None = None
    turns: TurnsAddress | None = None
    logging: telemetry.LogSettings | None = field(default_factory=telemetry.executor_log_settings)

    @property
    def time_limit(self) -> float:
        """Seconds that the micro-batch may take."""
        return self.options.batch_deadline if self.seconds is None else self.seconds

    @property
    def longest_round(self) -> float:
        """Seconds after its begin at which a label takes no more rows, if the lanes can go on under another one.

        The rest of its life is for the loads that are left and for the commit.
        """
        oldest = RECYCLE_AT * min(self.options.timeout, _INNER_TIMEOUT, self.time_limit)
        return oldest if self.options.commit_interval is None else min(oldest, self.options.commit_interval)

    def end_of_round(self, clock: Clock) -> RoundEnd | None:
        """When this lane stops reading; None without a round.

        The driver's clock and this host's may differ, so a round is never longer here than it is there.
        """
        if self.round_ends is None:
            return None
        end = RoundEnd(self.round_seconds, clock)
        if not self.lane_begins:
            end.start(self.round_seconds - min(max(0.0, self.round_ends - clock.wall()), self.round_seconds))
        return end

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Load the rows of `batches`; yields rows of `messages.MESSAGES`: the lane's share, then its report."""
        attempt, clock = worker.Attempt.current(), SystemClock()
        run = partial(LaneTry(self, attempt, clock).run, batches)
        yield messages.message_batch(self.answer(attempt, clock, run, partial(place_of_first, batches)))

    def answer(
        self, attempt: worker.Attempt, clock: Clock, run: RunLane, place: Callable[[], str | None] = lambda: None
    ) -> list[messages.Message]:
        """The messages of `run`; an error of the sink becomes a message, another one leaves the task.

        Spark would run a failed task again, and the new try must not load under the same label. If Spark runs one again
        all the same, its only message is TaskRepeated, with the `place` of the rows, as far as it is known.
        """
        nothing = messages.LaneReport(self.job, attempt.lane, self.batch_id)
        if attempt.retry and not self.claims:
            again = "Spark runs the task of a lane again."
            error = TaskRepeated(again, hint=_REPEATED, lane=attempt.lane, stage=attempt.stage, reads=place())
            return [nothing.fail(error, clock.wall())]
        try:
            return run()
        except StarRocksSinkError as error:
            return [(messages.attached_report(error) or nothing).fail(error, clock.wall())]
        except BaseException as error:
            messages.write_envelope(error)
            raise

    def unpositioned(
        self,
        positions: Mapping[str, Position],
        *,
        compare: bool,
        check: CheckRows | None = None,
        fit: FitRows = as_they_are,
    ) -> UnpositionedSegmenter:
        """The segmenter for a lane's part of an unpositioned batch, or for all of it."""
        return UnpositionedSegmenter.of(self.checkpoint, self.batch_id, positions, compare, check, fit)


@dataclass(slots=True)
class RoundEnd:
    """The end of a lane's round: `seconds` after its start, which is the label's begin if that is known.

    Else it is when the lane has rows, in which it may begin the label itself: not when a lane that has to read all
    input before it has rows begins to read.
    """

    seconds: float
    clock: Clock
    _deadline: Deadline | None = None

    def start(self, age: float = 0.0) -> None:
        """The lane has rows now, or the label is `age` seconds old; only the first call counts."""
        if self._deadline is None:
            self._deadline = Deadline.after(self.seconds - age, self.clock)

    def expired(self) -> bool:
        """Whether the round is over, which it is not before its start."""
        return self._deadline is not None and self._deadline.expired()


class LaneTry:
    """One try at the lane of `task`: its time, its counts. `source` says what the rows' source knows of columns.

    `round_end` is that of the reader before this lane, if there is one.
    """

    _checks: TableChecks  # once the lane is open

    def __init__(
        self,
        task: LaneTask,
        attempt: worker.Attempt,
        clock: Clock,
        rng: random.Random | None = None,
        source: SourceSchema = SourceSchema(),  # noqa: B008 - frozen
        round_end: RoundEnd | None = None,
    ) -> None:
        self.task, self.attempt, self.clock, self.rng = task, attempt, clock, rng or random.Random()
        self.deadline = Deadline.after(task.time_limit, clock)
        encoding = Compression(task.options.compression).value
        self.metrics = LaneMetrics(task.job, attempt.lane, task.batch_id, encoding, clock)
        self.stopped = False  # at the end of the round, with more rows to come
        self.round_end = round_end or task.end_of_round(clock)
        self._source = source
        self._segmenter: Segmenter | None = None
        self._admission: TableAdmission | None = None
        self._dead_letters: DeadLetters | None = None  # in a quarantine, once the lane reads rows

    def run(self, batches: Iterable[pa.RecordBatch], rows: ReadRows | None = None) -> list[messages.Message]:
        """Run the lane to its end; returns its share of the label, or what its tables lack, then its report.

        Raises the lane's first error; the error carries the report (`messages`). `rows` turns `batches` into marked
        rows; without `rows` the batches are ready.
        """
        worker.settle_memory()
        telemetry.apply_log_settings(self.task.logging)
        try:
            with worker.RESOURCES.lease(self.task.options) as resources:
                receipt = self._write(batches, resources, rows)
        except TablesLackColumns as lack:
            return [messages.TablesLack(lack.columns), self.metrics.report(())]
        except Crowded as crowded:
            return [messages.RowsWait(crowded.waits), self.metrics.report(())]
        except BadRowsFound as found:
            return [messages.BadRows.of_places(found.places), self.metrics.report(())]
        except NotReached as unreached:
            return [messages.DriverUnreached(unreached.host), self.metrics.report(())]
        except BaseException as error:
            with contextlib.suppress(Exception):  # a failing report must not hide the error
                messages.attach_report(error, self.metrics.report((), error))
            if type(error) is not StarRocksSinkError and isinstance(error, StarRocksSinkError):
                # Spark prints the traceback for each try of the task; the message and its place say it all.
                raise error.with_traceback(None) from None
            raise
        loaded = [self.metrics.with_begin(receipt)] if receipt is not None else []
        return [self.share(loaded), self.metrics.report(loaded)]

    def share(self, loaded: Iterable[Receipt]) -> LaneShare:
        """The lane's share of the label, of what it has loaded."""
        receipts = [self._with_dead_letters(receipt) for receipt in loaded]
        share, cuts = self.metrics.share(receipts), dict[str, list[int]]()
        if self._segmenter is not None and self.task.options.quarantines:
            reached = {span.partition: span.last for receipt in receipts for span in receipt.positions}
            cuts = self._segmenter.cuts(_MOST_CUTS, reached)
        if self._admission is not None:
            share = replace(share, left=self._admission.left)
        found = self._dead_letters.first_found if self._dead_letters is not None else ""
        return replace(share, stopped=self.stopped, cuts=cuts, set_aside=found)

    def _with_dead_letters(self, receipt: Receipt) -> Receipt:
        return receipt if self._dead_letters is None else self._dead_letters.receipt(receipt)

    def _write(
        self, batches: Iterable[pa.RecordBatch], resources: worker.WorkerResources, rows: ReadRows | None
    ) -> Receipt | None:
        task = self.task
        log = telemetry.EventLogger("lane", job=task.job, batch=task.batch_id, lane=self.attempt.lane)
        listener = telemetry.fan_out((self.metrics, log_steps(log)))
        if self.attempt.retry:
            self.metrics.mark_task_retry()
        if task.claims or task.lane_begins:
            batches = self._entered(batches, resources, listener)
        lane = self.open(in_time(batches, self.deadline), resources, rows, listener)
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
            if self.round_end is not None and age is not None:
                self.round_end.start(age)
        elif self.task.claims:
            yield from claim(self.task, self.attempt)

    def open(
        self,
        batches: Iterable[pa.RecordBatch],
        resources: worker.WorkerResources,
        rows: ReadRows | None = None,
        listener: telemetry.Listener = telemetry.ignore_event,
        lane_limits: LaneLimits | None = None,
    ) -> OpenLane:
        """Put the parts of the lane together.

        `_write` runs the lane; the simulation steps through it, with `lane_limits` in place of the options' limits.
        """
        task, options = self.task, self.task.options
        keys = task.keys if task.marked else {}  # rows without positions have no order
        spill = worker.SpillFile() if keys else None
        buffer = WriteBuffer(
            lane_limits or limits(options), spill.take if spill is not None else None, keys.keys(), hold=task.hold
        )
        core = Lane(task.job, task.batch_id, task.label, buffer, self.clock.wall, task.lane_begins)
        unchanged = self._unchanged_values(keys, resources)
        unique = UniqueRows(keys, unchanged)
        self.metrics.core, self.metrics.unique = core, unique
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
        checks = TableChecks(
            options,
            self._source,
            resources.columns,
            self.deadline,
            task.compared,
            unchanged,
            task.modes,
            resources.partitions,
        )
        self._checks = self.metrics.checks = checks
        return OpenLane(core, performer, self._segments(batches, rows))

    def _unchanged_values(
        self, keys: Mapping[str, TableKey], resources: worker.WorkerResources
    ) -> UnchangedValues | None:
        if not self._source.completes:
            return None

        def query(sql: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
            assert resources.connection is not None, "without a query port no key is known"
            return resources.connection.query(sql, parameters, self.deadline)

        def columns_now(table: str) -> Sequence[TargetColumn]:
            return resources.columns.columns(table, True, self.deadline) if resources.columns is not None else ()

        options = self.task.options
        return UnchangedValues(options.database, query, keys.keys(), columns_now=columns_now, decoded=options.decoded)

    def _segments(self, batches: Iterable[pa.RecordBatch], rows: ReadRows | None) -> Iterator[Segment]:
        positions = self.task.ownership.positions if self.task.ownership is not None else {}
        if not self.task.marked:
            yield from self._checks.until_columns_lack(self._unpositioned_segments(batches, positions))
            return
        segments = self._checks.until_columns_lack(self._positioned_segments(batches, positions, rows))
        end, over = self.round_end if self.task.ordered else None, False
        for segment in segments:
            if over:
                self.stopped = True
                return
            yield segment
            over = end is not None and isinstance(segment, PositionSpan) and end.expired()

    def _positioned_segments(
        self, batches: Iterable[pa.RecordBatch], positions: Mapping[str, Position], rows: ReadRows | None
    ) -> Iterator[Segment]:
        task, quarantines = self.task, self.task.options.quarantines
        epoch = task.epoch if task.streaming else ""
        skips = dict(task.ownership.skips) if task.ownership is not None else {}
        replay = Replay(positions, task.options.check_replays, epoch, task.batch_id, skips)
        self.metrics.attach_replay(replay)
        if task.room is not None:
            self._admission = TableAdmission(task.room, positions)
        if quarantines:
            now = partial(now_text, self.clock)
            self._dead_letters = DeadLetters(task, self._checks.judge_all, now, self._checks.explain)
        self._segmenter = Segmenter(
            replay,
            with_row_index=quarantines or bool(task.keys),
            check=self._checks.of_rows(judged=quarantines),
            admission=self._admission,
            set_aside=self._dead_letters,
            suspected=task.part.tables,
            fit=self._checks.fit(),
        )
        for batch in rows(batches) if rows is not None else filter(len, batches):
            if self.round_end is not None:
                self.round_end.start()
            part = rows_of_part(batch, task.part.after, task.part.upto)
            if self._checks.bare_values is not None:
                part = self._checks.bare_values(part)
            self.metrics.read_batch(part)
            yield from self._segmenter.split(part)
            if task.ordered and self._segmenter.knows_enough:
                self.stopped = True  # what comes behind would wait, too
                return

    def _unpositioned_segments(
        self, batches: Iterable[pa.RecordBatch], positions: Mapping[str, Position]
    ) -> Iterator[Segment]:
        # the driver compares the sum of all lanes
        unpositioned = self.task.unpositioned(
            positions, compare=False, check=self._checks.of_rows(), fit=self._checks.fit()
        )
        self.metrics.unpositioned = unpositioned
        for batch in batches:
            self.metrics.read_batch(batch)
            yield from unpositioned.split(batch)
        yield from unpositioned.end()


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


@dataclass(frozen=True, slots=True)
class UnsortedLaneTask:
    """`lane`'s task over marked rows with `rows.columns.SEQ` in arrival order; yields the messages of a LaneTask.

    Nothing is committed before the last row was read. So if the rows are out of order, the task succeeds with an
    OrderViolation in place of its messages. `small_only` as in ArrivalOrder.
    """

    lane: LaneTask
    small_only: bool = False
    small_rows: int = SMALL_ROWS

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lane, attempt, clock = self.lane, worker.Attempt.current(), SystemClock()
        order = ArrivalOrder(self.small_rows, self.small_only)

        def run() -> list[messages.Message]:
            try:
                return LaneTry(lane, attempt, clock).run(batches, order.rows)
            except (Unordered, TransactionTimedOut) as refused:
                if isinstance(refused, TransactionTimedOut) and lane.options.shuffle is False:
                    raise  # otherwise the driver may sort the rows: lanes of sorted ones can stop before the end
                return [messages.OrderViolation(refused.message)]

        yield messages.message_batch(lane.answer(attempt, clock, run, partial(place_of_first, batches)))


def place_of_first(batches: Iterable[pa.RecordBatch]) -> str | None:
    """The source partition and position of the first row; None without rows, and for rows without positions."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None or POSITION not in first.schema.names or not first.column(POSITION)[0].is_valid:
        return None  # raw values may have their positions in the JSON
    return place_of(first, 0, "from ")


def now_text(clock: Clock) -> str:
    """The time as a DATETIME literal in UTC, for the sink's own tables."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(clock.wall()))


_INNER_TIMEOUT = 300.0
"""Seconds after begin at which released servers end a transaction, whatever its `timeout` says (wire contract 4.12)."""
_REPEATED = "The log of the executors has the error of the first try."
_MOST_CUTS: Final = 100
"""Positions of each source partition that a lane reports to a quarantine; more of them make its search shorter."""
_IN_TURN = RetryPolicy(busy_tries=1_000_000, backoff=Backoff(first=0.02, longest=0.5))
"""Where lanes cannot ask for their turn, the server refuses all loads of a table but one (wire contract 4.5). The
deadline ends the tries."""

_STEP_LINES = {"step.completed": "step.ended", "step.failed": "step.failed"}


def log_steps(log: telemetry.Listener) -> telemetry.Listener:
    """A listener that has `log` write a line for the end of each step; requests get no line."""

    def write(event: telemetry.Event) -> None:
        if event.name in _STEP_LINES:
            log(telemetry.Event(_STEP_LINES[event.name], event.fields))

    return write


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
