"""The driver's part of a micro-batch whose lanes load under one label (`coordinator.shared_label`).

The driver begins the label, has Spark run the lanes, and commits when all lanes have returned. After a failure of the
server, or after Spark has run a task twice, the driver begins a new label and runs the lanes again. The lanes then read
their source again, because no lane keeps rows that it has sent.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.coordinator import shared_label
from starrocks_txn_sink.coordinator.model import BeginAction, PositionSpan, Receipt
from starrocks_txn_sink.coordinator.ownership import log_entries
from starrocks_txn_sink.coordinator.write_buffer import EntriesBuilder
from starrocks_txn_sink.errors import (
    InputError,
    KeyRepeated,
    LaneDied,
    LoadFailed,
    OptionError,
    SourceChanged,
    StarRocksSinkError,
    TaskRepeated,
    TransactionTimedOut,
)
from starrocks_txn_sink.options import Compression, SinkOptions, Transactions
from starrocks_txn_sink.options.combinations import Feature, find_conflict
from starrocks_txn_sink.options.without_effect import Circumstance, warn_of
from starrocks_txn_sink.protocol.label import RetryPolicy, labels
from starrocks_txn_sink.sink.failures import reason_of_task
from starrocks_txn_sink.sink.lifecycle import context_of
from starrocks_txn_sink.sources.kafka.options import SPARK_READS
from starrocks_txn_sink.sources.kafka.spark_reader import has_whole_partitions
from starrocks_txn_sink.telemetry import EventLogger, fan_out, get_logger
from starrocks_txn_sink.writer.messages import (
    CarryOver,
    LaneReport,
    Message,
    OrderViolation,
    attach_report,
    attached_report,
    of_kind,
)
from starrocks_txn_sink.writer.metrics import LaneMetrics
from starrocks_txn_sink.writer.runner import Performer
from starrocks_txn_sink.writer.task import LaneTask, limits, log_steps, now_text
from starrocks_txn_sink.writer.worker import RESOURCES, WorkerResources

RunLanes = Callable[[LaneTask], list[Message]]
"""Runs the lanes of a micro-batch as one Spark job and returns their messages."""

_log = get_logger("sink")
_MOST_REPEATS: Final = 3
"""Labels in a row that a task which ended early may cost. One or two are an executor that was lost, or taken away; more
are a row or a limit of memory that the next label meets again."""
_NUMBERS: Final = itertools.count()  # in the labels of this process: a repeated micro-batch needs new labels


@dataclass(frozen=True, slots=True)
class LanePlan:
    """How many lanes a query has, and whether they load under one label, as the source's own tasks."""

    lanes: int
    shared: bool = False

    @classmethod
    def of(cls, frame: DataFrame, options: SinkOptions, *, positioned: bool, direct: bool = False) -> LanePlan:
        """The plan for frames like `frame`; `positioned` rows belong to source partitions.

        Unless the user sets `lanes`, there is a lane for each core, or one lane if a source partition may be spread
        over several tasks. Partitions of Kafka never are, and rows without positions have no source partition. Lanes
        that read the source themselves (`direct`) share a label even if there is only one lane.

        Raises OptionError if the options require a shared label and the frame does not allow it.
        """
        if options.lanes == 1 and not direct:
            return cls(1)
        why = _why_not_shared(frame, options)
        if direct:
            if why is not None:
                raise OptionError(
                    f'With reader="librdkafka" the lanes load under one label, which is not possible: {why}.',
                    hint=SPARK_READS,
                    option="reader",
                )
            return cls(options.lanes or _cores(frame), True)
        if options.lanes is None:
            cores = _cores(frame) if why is None and (not positioned or has_whole_partitions(frame)) else 1
            return cls(cores, cores > 1)
        if why is not None:
            refuse_own_labels(options, why)
            _log.info("label.not_shared", why=why)
        return cls(options.lanes, why is None)

    def warn_of_options(self, run: str, options: SinkOptions, *more: Circumstance) -> None:
        """Log a warning for each option that the user has set and that changes nothing, once a `run` of a query."""
        lanes = Circumstance.SHARED_LABEL if self.shared else Circumstance.ONE_LANE
        warn_of(options.without_effect(*more, *([lanes] if self.shared or self.lanes == 1 else [])), run)


def refuse_own_labels(options: SinkOptions, why: str) -> None:
    """Raise OptionError if the options require a shared label, which the frame does not allow: `why`."""
    if Feature.SHARED_LABEL in options.features:
        option = "shuffle" if options.transactions is Transactions.AUTO else "transactions"
        raise OptionError(
            f"The {options.lanes} lanes cannot load under one label, as {option} demands: {why}.",
            hint='Leave it at "auto": each lane then has its own transactions of sorted rows. Or set lanes=1.',
            option=option,
        )


def _why_not_shared(frame: DataFrame, options: SinkOptions) -> str | None:
    """Why the lanes of `frame` cannot load under one label without a shuffle; None if they can."""
    if options.transactions is Transactions.LANE:
        return "transactions is lane"
    conflict = find_conflict({**options.features, Feature.SHARED_LABEL: ""})
    if conflict is not None:
        return f"{conflict.other.phrase}, and {conflict.why}"
    context = context_of(frame)
    if context is None:
        return "the plan is hidden (Spark Connect)"
    if context.getConf().get("spark.speculation", "false").lower() == "true":
        return "with spark.speculation a lane may have two tasks at a time"
    if follows_a_shuffle(frame):
        return "the rows come from a shuffle, whose stages Spark may run again"
    return None


def _cores(frame: DataFrame) -> int:
    """The cores that the application has now."""
    return int(context_of(frame).defaultParallelism)


def follows_a_shuffle(frame: DataFrame) -> bool:
    """Whether the frame's tasks read a shuffle, as those of a stateful stage do; True where the plan is hidden."""
    plan = getattr(frame, "_jdf", None)
    return plan is None or "Shuffled" in plan.queryExecution().toRdd().toDebugString()


def run_shared(task: LaneTask, run_lanes: RunLanes) -> list[Message]:
    """Run the lanes of a micro-batch and commit their loads under one label; each attempt takes a new label.

    Returns the receipt, and the reports and CarryOvers of the lanes. If the rows must be sorted first, rolls the label
    back and returns OrderViolations. Raises the error of the last attempt.
    """
    options, clock, rng = task.options, SystemClock(), random.Random()
    deadline, backoff = Deadline.after(task.time_limit, clock), limits(options).backoff
    reports, failures, repeats = list[Message](), 0, 0
    names = labels(task.job, task.epoch, shared_label.LANE, task.batch_id, next(_NUMBERS))
    with RESOURCES.lease(options) as resources:
        for tries in itertools.count(1):
            round_ends = clock.wall() + task.round_seconds / 2**failures
            named = replace(task, label=next(names), round_ends=round_ends)
            attempt = LabelAttempt(named, resources, rng, deadline, tries)
            try:
                return [*reports, *attempt.run(run_lanes)]
            except KeyRepeated:
                if task.hold:
                    raise
                task = replace(task, hold=True)
            except TaskRepeated as error:
                failures, repeats = failures + 1, repeats + 1
                if repeats == _MOST_REPEATS or deadline.expired():
                    raise name_death(error, repeats, clock) from None
                _log.warning("lanes.repeated", job=task.job, batch=task.batch_id, lane=error.context.get("lane"))
                clock.sleep(deadline.limit(backoff.seconds(failures - 1, rng), "another attempt"))
            except StarRocksSinkError as error:
                failures, repeats = failures + 1, 0
                # A shorter round has fewer rows to load before its label is too old.
                again = error.retryable or (task.whole and isinstance(error, TransactionTimedOut))
                if not again or failures >= options.max_attempts or deadline.expired():
                    raise
                clock.sleep(deadline.limit(backoff.seconds(failures - 1, rng), "another attempt"))
            reports += attempt.reports
    raise AssertionError("A count does not end.")


def name_death(repeated: TaskRepeated, times: int, clock: Clock) -> LaneDied:
    """The error that ends a micro-batch after a lane's task ended early `times` times in a row."""
    place = dict(repeated.context)
    lane, stage = place.pop("lane", None), place.pop("stage", None)
    reason = "The executors' logs have the reason."
    if lane is not None and stage is not None and (said := reason_of_task(int(stage), int(lane), clock)):
        reason = f"Spark's reason: {said}"
    died = LaneDied(f"The task of lane {lane} ended early, {times} times in a row. {reason}", lane=lane, **place)
    report = attached_report(repeated)
    if report is not None:
        attach_report(died, report.fail(died, report.failed_at))
    return died


class LabelAttempt:
    """One attempt under the label of `task`: begin, run of the lanes, commit. A failure rolls the label back."""

    def __init__(
        self, task: LaneTask, resources: WorkerResources, rng: random.Random, deadline: Deadline, tries: int
    ) -> None:
        options, clock = task.options, deadline.clock
        self.reports: list[LaneReport] = []
        self._label, self._task, self._tries, self._clock = str(task.label), task, tries, clock
        encoding = Compression(options.compression).value
        self._metrics = LaneMetrics(task.job, 0, task.batch_id, encoding, clock)
        self._ownership = task.owned_by(None, 0, rng, clock)
        self._metrics.ownership = self._ownership
        log = EventLogger("sink", job=task.job, batch=task.batch_id)
        self._perform = Performer(
            options,
            resources.transport,
            clock,
            deadline,
            rng,
            RetryPolicy(commit_again=self._ownership is None),
            fan_out((self._metrics, log_steps(log))),
            ownership=self._ownership,
            ledger=resources.ledger,
            query=resources.connection.query if resources.connection is not None else None,
        )

    def run(self, run_lanes: RunLanes) -> list[Message]:
        """Begin, run the lanes and commit; returns as `run_shared`. Raises the first failure, after the rollback."""
        self.begin()
        with self._rolling_back():
            messages = run_lanes(self._task)
        return self.finish(messages)

    def begin(self) -> None:
        with self._rolling_back():  # the server may have begun the label although its answer was lost
            self._perform(BeginAction(self._label))

    def finish(self, messages: Sequence[Message]) -> list[Message]:
        """Judge the messages of the lanes and commit their loads; returns and raises as `run`."""
        with self._rolling_back():
            self.reports += of_kind(messages, LaneReport)
            violations = judge(messages, self._task)
        if violations:
            self.roll_back()
            return [*self.reports, *violations]
        receipts = self._commit_or_roll_back(of_kind(messages, shared_label.LaneShare))
        reports = [each.commit(receipts[0].committed_at) for each in self.reports] if receipts else self.reports
        return [*receipts, *reports, *of_kind(messages, CarryOver), self._metrics.report(receipts)]

    def roll_back(self) -> None:
        shared_label.perform_all(shared_label.roll_back(self._label), self._perform)

    @contextlib.contextmanager
    def _rolling_back(self) -> Iterator[None]:
        """Roll the label back before an error leaves the block."""
        try:
            yield
        except BaseException:
            self.roll_back()
            raise

    def _commit_or_roll_back(self, shares: Sequence[shared_label.LaneShare]) -> list[Receipt]:
        """Commit. Without a load, roll back: all rows were in StarRocks already, or their END has not come."""
        loaded = [one for share in shares for one in share.loaded]
        with self._rolling_back():
            unpositioned = self._unpositioned(shares)
        if loaded:
            return [self._commit(shared_label.SharedContents(loaded, unpositioned))]
        self.roll_back()
        return []

    def _unpositioned(self, shares: Sequence[shared_label.LaneShare]) -> PositionSpan | None:
        """The unpositioned batch of all lanes; None for rows with positions, and without a ledger."""
        if self._task.marked or self._task.ownership is None:
            return None
        segmenter = self._task.shared_segmenter(
            self._task.ownership.positions, compare=self._task.options.check_replays
        )
        for share in shares:
            segmenter.add(share.rows, share.sum)
        segmenter.compare_replay()
        return PositionSpan(segmenter.name, segmenter.number, segmenter.number, 0, segmenter.digest)

    def _commit(self, contents: shared_label.SharedContents) -> Receipt:
        entries: list[EntriesBuilder] = []
        if self._ownership is not None:
            entries.append(self._ownership.ledger_entries)
        if self._task.options.receipts_log:
            text = partial(now_text, self._clock)
            entries.append(log_entries(self._task.job, None, self._task.batch_id, text))
        steps = shared_label.commit_shared(self._label, contents, entries, fenced=self._ownership is not None)
        outcome = shared_label.perform_all(steps, self._perform)
        receipt = contents.receipt(outcome, 0, self._tries, self._clock.wall())
        receipt = replace(receipt, filtered=self._perform.filtered.get(self._label, {}))
        (detailed,) = self._metrics.add_details([receipt])
        return detailed


def judge(messages: Sequence[Message], task: LaneTask) -> list[OrderViolation]:
    """Why Spark has to sort the rows first; empty if the label can be committed. Raises the failure of a lane.

    A source transaction that is split over two tasks looks torn in both. So a lane's error about the input is a reason
    to sort, unless the options forbid a sort. Of several failures this raises the one that explains the most: first a
    KeyRepeated, then one that a retry cannot repair, then any but TaskRepeated, and LoadFailed last. The lane that
    fails first rolls the label back, and the loads of other lanes fail only because of that. Among equals the earliest
    counts, as far as the clocks of the hosts agree.
    """
    failures = [(report, _error_of(report)) for report in of_kind(messages, LaneReport) if report.error]
    violations = of_kind(messages, OrderViolation)
    twice = shared_label.find_shared_partition(of_kind(messages, shared_label.LaneShare))
    if twice is not None:
        violations.append(OrderViolation(f"Source partition {twice} came in two tasks."))
    options = task.options
    may_sort = not task.whole and options.shuffle is not False and options.transactions is not Transactions.BATCH
    if task.marked and may_sort:
        torn = (error for _, error in failures if isinstance(error, (InputError, SourceChanged)))
        violations += [OrderViolation(error.message) for error in torn]
    if failures and not violations:
        report, error = min(failures, key=_rank)
        attach_report(error, report)
        raise error
    return violations


def _rank(failure: tuple[LaneReport, StarRocksSinkError]) -> tuple[bool, bool, int, float]:
    """The order of failures: causes before consequences."""
    report, error = failure
    vague = 2 if isinstance(error, LoadFailed) else int(isinstance(error, TaskRepeated))
    return not isinstance(error, KeyRepeated), error.retryable, vague, report.failed_at


def _error_of(report: LaneReport) -> StarRocksSinkError:
    return report.lane_error() or StarRocksSinkError(f"Lane {report.lane} failed with the code {report.error}.")
