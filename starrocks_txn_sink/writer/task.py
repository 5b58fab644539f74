"""The lane as a Spark task: Arrow batches in, messages out. The adapter between `mapInArrow` and the lane's runner.

A lane makes one StarRocks transaction a micro-batch, or loads its share of one (`coordinator.shared_label`). A
micro-batch that lives past 80 % of `timeout` is committed in pieces, each at a clean boundary (`limits`). Unsorted rows
are committed at the end only: after an earlier commit, a position that comes too late would be taken for a replay.

The first try at a lane does not claim it, every other try does (`writer.worker`).
"""

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from starrocks_txn_sink import compiled, telemetry
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.coordinator.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.model import RECYCLE_AT, CoordinatorLimits, Receipt, Segment
from starrocks_txn_sink.coordinator.ownership import LaneOwnership, first_owner, labels_of, log_entries
from starrocks_txn_sink.coordinator.quarantine import Quarantine
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.errors import (
    DeadlineExceeded,
    RowsAfterEnd,
    StarRocksSinkError,
    TaskRepeated,
    TransactionTimedOut,
    Unordered,
)
from starrocks_txn_sink.options import Compression, SchemaChanges, SinkOptions
from starrocks_txn_sink.options.load_properties import RENAMING
from starrocks_txn_sink.protocol.label import Backoff, RetryPolicy, Steps, labels, run
from starrocks_txn_sink.protocol.ledger import Position, fresh_tokens
from starrocks_txn_sink.rows.arrival import SMALL_ROWS, ArrivalOrder, RowCheck
from starrocks_txn_sink.rows.body import UniqueRows
from starrocks_txn_sink.rows.columns import HASH, PARTITION, POSITION
from starrocks_txn_sink.rows.keys import TableKey
from starrocks_txn_sink.rows.member_names import MemberNames
from starrocks_txn_sink.rows.segments import CheckRows, Replay, Segmenter, Skip, place_of, rows_before_sentinel
from starrocks_txn_sink.rows.unpositioned import UnpositionedSegmenter, unpositioned_segmenter
from starrocks_txn_sink.writer import messages, worker
from starrocks_txn_sink.writer.metrics import LaneMetrics
from starrocks_txn_sink.writer.runner import LaneRunner, Performer

ReadRows = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
RunLane = Callable[[], list[messages.Message]]


@dataclass(frozen=True, slots=True)
class JobOwnership:
    """The driver's right to write the job, as its lanes get it.

    `driver_token` is that of the driver's take-over. By source partition, `positions` come from the ledger and `skips`
    from earlier micro-batches (`rows.segments`). With `canary` no lane of this run has asked yet whether its label is
    listed (`coordinator.ownership`).
    """

    driver_token: str
    positions: Mapping[str, Position] = field(default_factory=dict)
    skips: Mapping[str, Skip] = field(default_factory=dict)
    canary: bool = False


@dataclass(frozen=True, slots=True)
class OpenLane:
    """A lane that may write: the state machine, the performer of its actions, and the rows to feed it with."""

    core: SharedTransactionCoordinator
    performer: Performer
    segments: Iterator[Segment]


@dataclass(frozen=True, slots=True)
class LaneTask:
    """A lane of one micro-batch; pickled to an executor, where Spark runs it once a task.

    Rows: with `marked` they carry positions and transaction ends; otherwise a lane's rows are one unpositioned batch.
    With `whole` the driver knows that no source partition is in two lanes, and that each is in order. In a `streaming`
    query positions may not go back from one micro-batch to the next.

    Commits: without `ownership` there is no ledger, and delivery is at-least-once. With `at_end_only` nothing is
    committed before the lane's last row (`limits`). `label` is a shared label, under which the lane only loads.
    `seconds` replaces `batch_deadline` if another try has used a part of it; an option would cost new connections.
    At `round_ends` (Unix seconds on the driver's clock) a lane that can go on in the next round stops reading.

    Loads: `keys` has the primary keys of the tables whose rows replace each other (`rows.body`). With `hold` a
    StarRocks transaction is loaded when all of its rows are there: the last micro-batch's keys came again and again.
    `compared` has the names in rows that the driver knows already, by table; None if it does not want to know any.
    """

    options: SinkOptions
    job: str
    epoch: str
    checkpoint: str
    batch_id: int
    marked: bool = True
    streaming: bool = True
    ownership: JobOwnership | None = None
    at_end_only: bool = False
    compared: Mapping[str, frozenset[str]] | None = None
    keys: Mapping[str, TableKey] = field(default_factory=dict)
    hold: bool = False
    label: str | None = None
    whole: bool = False
    seconds: float | None = None
    round_ends: float | None = None
    logging: telemetry.LogSettings | None = field(default_factory=telemetry.executor_log_settings)

    @property
    def time_limit(self) -> float:
        """Seconds that the micro-batch may take."""
        return self.options.batch_deadline if self.seconds is None else self.seconds

    @property
    def round_seconds(self) -> float:
        """Seconds after its begin at which a shared label takes no more rows.

        The rest of its life is for the loads that are left and for the commit.
        """
        return RECYCLE_AT * min(self.options.timeout, _INNER_TIMEOUT, self.time_limit)

    def end_of_round(self, clock: Clock) -> Deadline | None:
        """The time at which this lane stops reading; None without a round.

        The driver's clock and this host's may differ, so a round is never longer here than it is there.
        """
        if self.round_ends is None:
            return None
        left = min(max(0.0, self.round_ends - clock.wall()), self.round_seconds)
        return Deadline.after(left, clock)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of `batches`; yields rows of `messages.MESSAGES`: each receipt, then the lane's report."""
        attempt, clock = worker.Attempt.current(), SystemClock()
        run = partial(LaneTry(self, attempt, clock).run, batches)
        yield messages.message_batch(self.answer(attempt, clock, run, partial(place_of_first, batches)))

    def answer(
        self, attempt: worker.Attempt, clock: Clock, run: RunLane, place: Callable[[], str | None] = lambda: None
    ) -> list[messages.Message]:
        """The messages of `run`; an error leaves the task with the lane's report in its text.

        Under a shared label an error of the sink becomes a message: Spark would run a failed task again, and the new
        try must not load under the same label. If Spark runs one again all the same, its only message is TaskRepeated,
        with the `place` of the rows, as far as it is known.
        """
        nothing = messages.LaneReport(self.job, attempt.lane, self.batch_id)
        if self.label is not None and attempt.retry:
            told = "Spark runs the task of a lane again."
            again = TaskRepeated(told, hint=_REPEATED, lane=attempt.lane, stage=attempt.stage, reads=place())
            return [nothing.fail(again, clock.wall())]
        try:
            return run()
        except BaseException as error:
            if self.label is not None and isinstance(error, StarRocksSinkError):
                return [(messages.attached_report(error) or nothing).fail(error, clock.wall())]
            messages.write_envelope(error)
            raise

    def shared_segmenter(
        self, positions: Mapping[str, Position], *, compare: bool, check: CheckRows | None = None
    ) -> UnpositionedSegmenter:
        """The segmenter for a lane's part of an unpositioned batch under a shared label, or for all of it."""
        return unpositioned_segmenter(self.checkpoint, 0, 1, self.batch_id, positions, compare, check)

    def owned_by(self, lane: int | None, number: int, rng: random.Random, clock: Clock) -> LaneOwnership | None:
        """The ownership of try `number` at `lane`, or the driver's for a shared label; None without a ledger."""
        if self.ownership is None:
            return None
        return LaneOwnership(
            self.job,
            self.options.database,
            self.ownership.driver_token,
            first_owner(self.epoch, self.checkpoint, self.batch_id, lane),
            fresh_tokens(self.epoch, number, rng),
            partial(now_text, clock),
            labels_of(self.ownership.positions),
            self.ownership.canary,
        )

    def names_columns(self, table: str) -> bool:
        """Whether names in the JSON rows of `table` are columns: no load property gives them another meaning."""
        return not RENAMING & self.options.load_headers(table).keys()


class LaneTry:
    """One try at the lane of `task`: its part of the job's ownership, its time, its counts."""

    def __init__(self, task: LaneTask, attempt: worker.Attempt, clock: Clock, rng: random.Random | None = None) -> None:
        self.task, self.attempt, self.clock, self.rng = task, attempt, clock, rng or random.Random()
        self.deadline = Deadline.after(task.time_limit, clock)
        encoding = Compression(task.options.compression).value
        self.metrics = LaneMetrics(task.job, attempt.lane, task.batch_id, encoding, clock)
        # None without a ledger, and under a shared label: the driver checks.
        self.ownership = task.owned_by(attempt.lane, attempt.number, self.rng, clock) if task.label is None else None

    def run(self, batches: Iterable[pa.RecordBatch], rows: ReadRows | None = None) -> list[messages.Message]:
        """Run the lane to its end; returns each receipt (or the share of a shared label), then the lane's report.

        Raises the lane's first error after its label was rolled back; the error carries the report (`messages`). `rows`
        turns `batches` into marked rows without the sentinel; without `rows` the batches are ready.
        """
        worker.freeze_loaded_objects()
        telemetry.apply_log_settings(self.task.logging)
        try:
            with worker.RESOURCES.lease(self.task.options) as resources:
                receipts = self.metrics.add_details(self._write(batches, resources, rows))
        except BaseException as error:
            with contextlib.suppress(Exception):  # a failing report must not hide the error
                messages.attach_report(error, self.metrics.report((), error))
            if type(error) is not StarRocksSinkError and isinstance(error, StarRocksSinkError):
                # Spark prints the traceback for each try of the task; the message and its place say it all.
                raise error.with_traceback(None) from None
            raise
        report = self.metrics.report(receipts)
        return [*receipts, report] if self.task.label is None else [self.metrics.share(receipts), report]

    def _write(
        self, batches: Iterable[pa.RecordBatch], resources: worker.WorkerResources, rows: ReadRows | None
    ) -> list[Receipt]:
        task = self.task
        if self.ownership is not None:
            self.attempt, batches = worker.resolve_attempt(self.attempt, batches)
        log = telemetry.EventLogger("lane", job=task.job, batch=task.batch_id, lane=self.attempt.lane)
        listener = telemetry.fan_out((self.metrics, log_steps(log)))
        if self.attempt.retry:
            self.metrics.mark_task_retry()
        steps = self.open(in_time(batches, self.deadline), resources, rows, listener)
        lane = run(steps, resources.transport, self.clock, self.deadline, resources.ledger, listener)
        runner = LaneRunner(lane.core, lane.performer, resources.threads, self.clock, self.deadline)
        receipts = runner.run(lane.segments)
        filtered = lane.performer.filtered
        return [replace(receipt, filtered=filtered.get(receipt.label, {})) for receipt in receipts]

    def open(
        self,
        batches: Iterable[pa.RecordBatch],
        resources: worker.WorkerResources,
        rows: ReadRows | None = None,
        listener: telemetry.Listener = telemetry.ignore_event,
        coordinator_limits: CoordinatorLimits | None = None,
    ) -> Steps[OpenLane]:
        """Put the parts of the lane together, after a take-over unless this is the first try at the lane.

        `_write` runs these steps and the lane; the simulation steps through both, with `coordinator_limits` in place of
        the options' limits. Raises Fenced.
        """
        positions = yield from self._known_positions()
        task, options, ownership = self.task, self.task.options, self.ownership
        place = (task.job, self.attempt.lane, task.batch_id)
        keys = task.keys if task.marked else {}  # rows without positions have no order
        spill = worker.SpillFile() if keys else None
        now = partial(now_text, self.clock)
        buffer = WriteBuffer(
            coordinator_limits or limits(options, at_end_only=task.at_end_only),
            spill.take if spill is not None else None,
            keys.keys(),
            hold=task.hold or self.attempt.retry,
            repeatable=task.label is None,
        )
        names = iter((task.label,)) if task.label else labels(task.job, task.epoch, *place[1:], self.attempt.number)
        entries = ownership.ledger_entries if ownership is not None else None
        log = log_entries(*place, now) if options.receipts_log and task.label is None else None
        quarantine = None
        if options.quarantines:
            quarantine = Quarantine(task.job, task.batch_id, options.max_quarantined, now, self._columns_header)
        core = SharedTransactionCoordinator(
            *place, buffer, names, self.rng, self.clock.wall, entries, log, quarantine, shared=task.label is not None
        )
        unique = UniqueRows(keys)
        self.metrics.core, self.metrics.unique, self.metrics.ownership = core, unique, ownership
        performer = Performer(
            options,
            resources.transport,
            self.clock,
            self.deadline,
            self.rng,
            _IN_TURN if task.label else RetryPolicy(commit_again=ownership is None),
            listener,
            ownership=ownership,
            ledger=resources.ledger,
            unique=unique,
            release=spill.release if spill is not None else None,
            query=resources.connection.query if resources.connection is not None else None,
        )
        self.metrics.members = self._member_names(resources.columns)
        return OpenLane(core, performer, self._segments(batches, positions, rows))

    def _member_names(self, known: worker.KnownColumns | None) -> MemberNames | None:
        """The check of the names in rows; None if nobody would learn from it."""
        task, refuse = self.task, self.task.options.schema_changes is not SchemaChanges.IGNORE
        if known is None or not (refuse or task.compared is not None):
            return None

        def columns_of(table: str, again: bool) -> frozenset[str] | None:
            return known.of(table, again, self.deadline)

        return MemberNames(compiled.Shapes().new_rows, columns_of, task.names_columns, refuse, task.compared)

    def _check(self, allow_torn: bool = False) -> CheckRows:
        """The checks of the rows: their text, then their names."""
        texts, names = RowCheck(allow_torn), self.metrics.members

        def check(batch: pa.RecordBatch) -> None:
            texts(batch)
            if names is not None:
                names(batch)

        return check

    def _columns_header(self, table: str) -> str:
        return self.task.options.load_headers(table).get("columns", "")

    def _known_positions(self) -> Steps[Mapping[str, Position]]:
        """The ledger's positions: a first try has them from the driver, any other try from its take-over."""
        if self.task.ownership is None:
            return {}
        if self.ownership is None or not self.attempt.retry:
            return self.task.ownership.positions
        taken = yield from self.ownership.take_over(self.rng)
        return taken.positions

    def _segments(
        self, batches: Iterable[pa.RecordBatch], positions: Mapping[str, Position], rows: ReadRows | None
    ) -> Iterator[Segment]:
        task, quarantines = self.task, self.task.options.quarantines
        if not task.marked:
            yield from self._unpositioned_segments(batches, positions)
            return
        epoch = task.epoch if task.streaming else ""
        skips = dict(task.ownership.skips) if task.ownership is not None else {}
        replay = Replay(positions, task.options.check_replays, epoch, task.batch_id, skips)
        self.metrics.attach_replay(replay)
        indexed = quarantines or bool(task.keys)
        segmenter = Segmenter(replay, with_row_index=indexed, check=self._check(allow_torn=quarantines))
        for batch in rows(batches) if rows is not None else rows_before_sentinel(batches, POSITION):
            self.metrics.read_batch(batch)
            yield from segmenter.split(batch)

    def _unpositioned_segments(
        self, batches: Iterable[pa.RecordBatch], positions: Mapping[str, Position]
    ) -> Iterator[Segment]:
        task, compare = self.task, self.task.options.check_replays
        if task.label is not None:  # the driver compares the sum of all lanes
            unpositioned = task.shared_segmenter(positions, compare=False, check=self._check())
        else:
            place = (task.checkpoint, self.attempt.lane, task.options.lane_count, task.batch_id)
            unpositioned = unpositioned_segmenter(*place, positions, compare, self._check())
            batches = rows_before_sentinel(batches, HASH)
        self.metrics.unpositioned = unpositioned
        for batch in batches:
            self.metrics.read_batch(batch)
            yield from unpositioned.split(batch)
        yield from unpositioned.end()


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

    Nothing is committed before the last row was read. So if the rows are out of order, the lane rolls back, and the
    task succeeds with an OrderViolation in place of its messages. `small_only` as in ArrivalOrder.
    """

    lane: LaneTask
    small_only: bool
    small_rows: int = SMALL_ROWS

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lane, attempt, clock = replace(self.lane, at_end_only=True), worker.Attempt.current(), SystemClock()
        order = ArrivalOrder(self.small_rows, self.small_only, sentinel=lane.label is None)

        def run() -> list[messages.Message]:
            try:
                return LaneTry(lane, attempt, clock).run(batches, order.rows)
            except (Unordered, RowsAfterEnd, TransactionTimedOut) as refused:
                if isinstance(refused, TransactionTimedOut) and lane.options.shuffle is False:
                    raise  # otherwise the driver may sort the rows: sorted ones are also committed before the end
                return [messages.OrderViolation(refused.message)]

        yield messages.message_batch(lane.answer(attempt, clock, run, partial(place_of_first, batches)))


def place_of_first(batches: Iterable[pa.RecordBatch]) -> str | None:
    """The source partition and position of the first row; None without rows, and for rows without positions."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None or POSITION not in first.schema.names or not first.column(POSITION)[0].is_valid:
        return None  # raw values may have their positions in the JSON
    return place_of(first, 0, "from ", (PARTITION, POSITION))


def now_text(clock: Clock) -> str:
    """The time as a DATETIME literal in UTC, for the sink's own tables."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(clock.wall()))


_INNER_TIMEOUT = 300.0
"""Seconds after begin at which released servers end a transaction, whatever its `timeout` says (wire contract 4.12)."""
_REPEATED = "The log of the executors has the error of the first try."
_IN_TURN = RetryPolicy(busy_tries=1_000_000, backoff=Backoff(first=0.02, longest=0.5))
"""Lanes of a shared label load a table in turn: the server refuses all loads but one (wire contract 4.5). The deadline
ends the tries."""

_STEP_LINES = {"step.completed": "step.ended", "step.failed": "step.failed"}


def log_steps(log: telemetry.Listener) -> telemetry.Listener:
    """A listener that has `log` write a line for the end of each step; requests get no line."""

    def write(event: telemetry.Event) -> None:
        if event.name in _STEP_LINES:
            log(telemetry.Event(_STEP_LINES[event.name], event.fields))

    return write


def limits(options: SinkOptions, *, at_end_only: bool = False) -> CoordinatorLimits:
    """The coordinator's limits: when a lane may commit before its last row, always at a clean boundary.

    With `at_end_only` never: the rows are not sorted, or the lane has no label of its own. A lane of sorted rows may
    commit at the recycle point, with a quarantine before a transaction batch is too large to be bisected from memory,
    and as one of several lanes after `commit_interval`.
    """
    return CoordinatorLimits(
        commit_interval=options.commit_interval if options.lane_count > 1 and not at_end_only else None,
        mini_interval=options.mini_interval,
        timeout=options.timeout,
        buffer_bytes=options.buffer_bytes,
        chunk_bytes=options.chunk_bytes,
        load_bytes=options.load_bytes,
        retry_buffer_bytes=options.retry_buffer_bytes,
        load_parallelism=options.load_parallelism,
        max_attempts=options.max_attempts,
        recycle_at=math.inf if at_end_only else RECYCLE_AT,
        close_bytes=options.retry_buffer_bytes // 2 if options.quarantines and not at_end_only else None,
    )
