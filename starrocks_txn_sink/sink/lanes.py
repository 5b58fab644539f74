"""The driver's part of a micro-batch: the coordinator's orders carried out with Spark.

`RoundRunner` opens labels, has Spark run the lanes, and commits, as `coordinator.coordinator` orders. After a failure
of the server, or after Spark has run a task twice, the lanes read their source again, because no lane keeps rows that
it has sent.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator import coordinator as orders
from starrocks_txn_sink.coordinator.coordinator import (
    LaneFailure,
    LanesResult,
    RoundLimits,
    SharedTransactionCoordinator,
    claim_of,
)
from starrocks_txn_sink.coordinator.model import CommitAction, LaneShare, MissingColumns, PositionSpan, Receipt
from starrocks_txn_sink.coordinator.ownership import EntriesBuilder, Ownership, log_entries
from starrocks_txn_sink.coordinator.quarantine import Quarantine
from starrocks_txn_sink.coordinator.table_room import GUESS, TableRooms
from starrocks_txn_sink.errors import (
    KeyRepeated,
    LaneDied,
    LoadsCollided,
    RowsRejected,
    StarRocksSinkError,
    TaskRepeated,
    advise,
)
from starrocks_txn_sink.options import Compression
from starrocks_txn_sink.protocol.label import Label, RetryPolicy, Unknown, labels, roll_back, run
from starrocks_txn_sink.protocol.ledger import Owner, fresh_tokens
from starrocks_txn_sink.protocol.openings import Closed
from starrocks_txn_sink.sink.failures import reason_of_task
from starrocks_txn_sink.sink.open_loads import OPEN_LOADS, server_of
from starrocks_txn_sink.sql.scan_threads import are_held, tables_of
from starrocks_txn_sink.telemetry import DRIVER_STEPS, EventLogger, Span, fan_out, get_logger, ignore_event
from starrocks_txn_sink.writer.messages import (
    BadRows,
    CarryOver,
    DriverUnreached,
    LaneReport,
    Message,
    OrderViolation,
    RowsWait,
    TablesLack,
    attach_report,
    attached_report,
    of_kind,
)
from starrocks_txn_sink.writer.metrics import LaneMetrics
from starrocks_txn_sink.writer.rejections import Explainer
from starrocks_txn_sink.writer.runner import Performer, log_steps
from starrocks_txn_sink.writer.task import LaneTask, now_text
from starrocks_txn_sink.writer.turns import service_at
from starrocks_txn_sink.writer.worker import RESOURCES, WorkerResources

RunLanes = Callable[[LaneTask], list[Message]]
"""Runs the lanes of a micro-batch as one Spark job and returns their messages."""
NextRound = Callable[[Sequence[CarryOver]], None]
"""Hears what lanes that have stopped hand on to the next round."""
AlterTables = Callable[[MissingColumns, Deadline], None]
"""Gives the tables the columns that rows need; raises the error that stands against it."""
FurtherRows = Callable[[Callable[[], str]], Sequence[memoryview]]
"""Further rows of the ledger for the label that is about to be committed; the argument tells the time."""
Collect = Callable[[Sequence[Receipt], Sequence[LaneReport]], None]
"""Takes a receipt with the reports of its lanes as soon as their rows are visible, and at the end all other reports."""

_CLAIM_SECONDS: Final = 10.0  # for the rollback of all claims; the server ends the rest at `timeout`
_SHOWN: Final = 5  # statements in an error
_NUMBERS: Final = itertools.count()  # in the labels of this process: a repeated micro-batch needs new labels
_log = get_logger("sink")


@dataclass(slots=True)
class Written:
    """What came of a write: `carried` is what the lanes of the last round hand on to the next micro-batch.

    `unreached`: a lane could not ask the driver who begins the label.
    """

    receipts: list[Receipt] = field(default_factory=list)
    reports: list[LaneReport] = field(default_factory=list)
    carried: list[CarryOver] = field(default_factory=list)
    unsorted: str = ""
    unreached: bool = False


def refuse_change(missing: MissingColumns, _: Deadline) -> None:
    """Raise the error about `missing` columns, for rows whose tables the sink never alters."""
    raise orders.unknown_columns(missing)


def write_shared(
    task: LaneTask,
    run_lanes: RunLanes,
    collect: Collect,
    clock: Clock,
    next_round: NextRound = lambda _: None,
    alter_tables: AlterTables = refuse_change,
    further_rows: FurtherRows | None = None,
) -> Written:
    """Write the rows that `run_lanes` reads. `collect` must make the lanes that run next leave out a receipt's rows.

    Each receipt renews the deadline. `next_round` hears what lanes that have stopped hand on. If the rows must be
    sorted first, the label is rolled back and the result says why. If they need columns that tables lack, the label is
    rolled back, and the lanes run again after `alter_tables`. `further_rows` of the ledger become visible with a label.
    Raises the error of the last attempt.
    """
    deadline = Deadline.after(task.time_limit, clock)
    with RESOURCES.lease(task.options) as resources:
        return RoundRunner(
            task, resources, deadline, random.Random(), run_lanes, collect, next_round, alter_tables, further_rows
        ).write()


class RoundRunner:
    """Carries out the orders of a coordinator for the lanes of `task`, with Spark and the server."""

    def __init__(
        self,
        task: LaneTask,
        resources: WorkerResources,
        deadline: Deadline,
        rng: random.Random,
        run_lanes: RunLanes = lambda _: [],
        collect: Collect = lambda *_: None,
        next_round: NextRound = lambda _: None,
        alter_tables: AlterTables = refuse_change,
        further_rows: FurtherRows | None = None,
    ) -> None:
        self.written = Written()
        self._task, self._resources, self._deadline = task, resources, deadline
        self._run_lanes, self._collect, self._next_round = run_lanes, collect, next_round
        self._alter_tables = alter_tables
        self._reports: dict[str, list[LaneReport]] = {}  # by label
        self._claims: list[str] = []
        options, clock = task.options, deadline.clock
        self._metrics = LaneMetrics(task.job, 0, task.batch_id, Compression(options.compression).value, clock)
        ownership = ownership_of(task, rng, clock, further_rows)
        self._ownership = ownership
        self.coordinator = coordinator_of(
            task, ownership, deadline, rng, committed=self._commit, name_death=partial(name_death, clock=clock)
        )
        follower = DRIVER_STEPS.get()
        followed = () if follower is ignore_event else (follower,)
        self._steps = fan_out(followed)
        ask = resources.connection.rows if resources.connection is not None else None
        self._performer = Performer(
            options,
            resources.transport,
            clock,
            deadline,
            rng,
            listener=fan_out(
                (self._metrics, log_steps(EventLogger("sink", job=task.job, batch=task.batch_id)), *followed)
            ),
            ownership=ownership,
            ledger=resources.ledger,
            explainer=Explainer(
                options.database,
                ask,
                lambda url, limit: resources.transport.error_log(url, limit),
                options.show_rejected_values,
            ),
        )

    def write(self) -> Written:
        """Write all rows of the lanes; returns and raises as `write_shared`."""
        try:
            with self._counted_tables() as rooms:
                self.perform(self.coordinator.write(rooms))
        except StarRocksSinkError as error:
            if isinstance(error, RowsRejected):
                advise(error, error.advice + self._wider_types())
            self._report_failure(error)
            raise
        finally:
            self._roll_back_claims()
        return self._result()

    @contextmanager
    def _counted_tables(self) -> Iterator[TableRooms]:
        """The rooms of the write: its labels have no more tables than have room (`coordinator.table_room`)."""
        options, clock, job = self._task.options, self._deadline.clock, self._task.job
        limit = self._resources.scan_threads
        threads = limit.now(clock) if limit is not None else GUESS
        own = sum((self._task.ownership is not None, options.receipts_log, options.quarantines))
        server = server_of(options)
        names = OPEN_LOADS.tables(server, job)
        if names is None:  # a new job may write all tables
            names = tables_of(options, clock) if limit is not None else frozenset()
        first = max(own + len(names), (threads.room + 1) // 2) if names else threads.room
        with OPEN_LOADS.part(server, job, threads.room, own + 1, first, self._deadline) as part:

            def grow(tables: int) -> int:
                return part.grow(tables + own, self._deadline) - own

            halvings = OPEN_LOADS.halvings(server, job)
            rooms = TableRooms(part.size - own, threads, own, self._task.lanes, names, grow, halvings=halvings)
            try:
                yield rooms
                halvings = max(0, rooms.halvings - 1)  # others may have ended
            except BaseException:
                halvings = rooms.halvings
                raise
            finally:
                OPEN_LOADS.halve(server, job, halvings)
                if rooms.needed:
                    OPEN_LOADS.learn(server, job, rooms.names, rooms.needed)

    def _wider_types(self) -> str:
        """Advice for rejected rows, if columns of the source are wider than those of their tables."""
        reports = itertools.chain(self.written.reports, *self._reports.values())
        statements = list(dict.fromkeys(statement for report in reports for statement in report.work.wider))
        return f" The source has wider columns: {'; '.join(statements[:_SHOWN])}." if statements else ""

    def finish(self, label: str, messages: Sequence[Message]) -> Written:
        """Commit what the lanes with `messages` have loaded under `label`; raises as `write_shared`."""
        receipt, _ = self.perform(self.coordinator.finish(label, self.take(label, messages)))
        if receipt is not None:
            self._commit(receipt)
        return self._result()

    def _report_failure(self, error: StarRocksSinkError) -> None:
        """Send the driver's counts, with `error` unless a lane has sent its own counts with it."""
        if attached_report(error) is None:
            attach_report(error, self._report(error))
        else:
            self._collect((), [self._report()])

    def _report(self, error: StarRocksSinkError | None = None) -> LaneReport:
        """The driver's own counts."""
        report = self._metrics.report(error)
        if self._ownership is not None and error is None:
            report = replace(report, trouble=replace(report.trouble, listed=self._ownership.listed))
        return report

    def _result(self) -> Written:
        self.written.unsorted = self.coordinator.unsorted
        reports = [report for reports in self._reports.values() for report in reports]
        reports.append(self._report())
        self._collect((), reports)
        self.written.reports += reports
        return self.written

    def perform(self, steps: orders.Orders[orders.Result]) -> orders.Result:
        """Carry out orders and return their result; raises their errors."""
        return orders.perform_all(steps, self._carry_out)

    def take(self, label: str, messages: Sequence[Message]) -> LanesResult:
        """What the lanes have sent for `label`."""
        self._reports[label] = of_kind(messages, LaneReport)
        self.written.carried = of_kind(messages, CarryOver)
        result = result_of(messages)
        if result.unreached:
            self.written.unreached = True
            _log.warning("begins.unreached", job=self._task.job, batch=self._task.batch_id, host=result.unreached[0])
        if any(isinstance(failure.error, LoadsCollided) for failure in result.failures):
            self._metrics.count_collision()
        for failure in result.failures:
            if isinstance(failure.error, KeyRepeated):
                self._metrics.expect_hold()
            elif isinstance(failure.error, TaskRepeated):
                place = {"job": self._task.job, "batch": self._task.batch_id}
                _log.warning("lanes.repeated", **place, lane=failure.error.context.get("lane"))
        return result

    def _carry_out(self, order: orders.Order) -> object:
        match order:
            case orders.RunLanes(label, part, hold, seconds, room, lane_begins):
                self._roll_back_claims()
                ends = self._deadline.clock.wall() + seconds
                task = replace(self._task, label=label, part=part, hold=hold, room=room, lane_begins=lane_begins)
                task = replace(task, round_ends=ends, round_seconds=seconds)
                self._metrics.run_lanes()
                clock = self._deadline.clock
                with Span(self._steps, clock.monotonic, "step", {"step": "lanes", "label": label}) as span:
                    messages, closed = self._run_opened(task)
                    if task.claims and not lane_begins:
                        self._claims = [claim_of(label, report.lane) for report in of_kind(messages, LaneReport)]
                    result = self.take(label, messages)
                    if closed is not None:
                        result = replace(result, begun=closed.told)
                        if closed.age is not None:
                            loaded = (receipt for share in result.shares for receipt in share.loaded)
                            self._metrics.learn_begin(label, loaded, closed.age)
                    span.end(next(iter(result.failures), None))
                return result
            case orders.NextRound():
                # A round that has left out everything has no receipt, and its reports are not written yet.
                waiting = itertools.chain.from_iterable(self._reports.values())
                self._task = _after_round(self._task, [*self.written.reports, *waiting])
                self._next_round(self.written.carried)
                return None
            case orders.ChangeTables(missing):
                self._alter_tables(missing, self._deadline)
                return None
            case orders.Pause(seconds):
                self._deadline.clock.sleep(self._deadline.limit(seconds, "another attempt"))
                return None
            case CommitAction():
                return self._with_held_threads(self._performer(order))
            case _:
                return self._performer(order)

    def _run_opened(self, task: LaneTask) -> tuple[list[Message], Closed | None]:
        """Run the lanes of `task`, which meanwhile ask who begins the label unless the driver has begun it."""
        if not task.lane_begins or task.turns is None:
            return self._run_lanes(task), None
        service = service_at(task.turns)
        service.open_label(task.label)
        try:
            messages = self._run_lanes(task)
        finally:
            closed = service.close_label(task.label)
        return messages, closed

    def _with_held_threads(self, outcome: object) -> object:
        """The outcome of a commit; if it had no answer because no thread was free, with that as the refusal."""
        limit, rooms = self._resources.scan_threads, self.coordinator.rooms
        if not isinstance(outcome, Unknown) or outcome.refusal is not None or limit is None or rooms is None:
            return outcome
        if not are_held(self._task.options, self._deadline.clock):
            return outcome
        held = rooms.held(self.coordinator.shares)
        _log.warning("commit.waited", job=self._task.job, label=outcome.label, why=held.message)
        return replace(outcome, refusal=held)

    def _commit(self, receipt: Receipt) -> None:
        (receipt,) = self._metrics.add_details([receipt])
        self.written.receipts.append(receipt)
        reports = [report.commit(receipt.committed_at) for report in self._reports.pop(receipt.label, [])]
        self.written.reports += reports
        self._collect([receipt], reports)
        self._renew_deadline()
        if receipt.recycled:
            _log.info("round.ended", job=receipt.job, batch=receipt.batch_id, label=receipt.label, rows=receipt.rows)

    def _renew_deadline(self) -> None:
        """After progress the rest of the micro-batch has the whole time again."""
        self._task = replace(self._task, seconds=None)
        self._deadline = Deadline.after(self._task.time_limit, self._deadline.clock)
        self.coordinator.renew(self._deadline)
        self._performer = replace(self._performer, deadline=self._deadline)

    def _roll_back_claims(self) -> None:
        """Roll back the claims under a label that is settled. Gives up if the server does not answer."""
        claims, self._claims = self._claims, []
        roll_back_claims(self._task, self._resources, self._deadline.clock, claims)


def name_death(repeated: TaskRepeated, times: int, clock: Clock) -> LaneDied:
    """The error that ends a micro-batch after a lane's task ended early `times` times in a row."""
    place = dict(repeated.context)
    lane, stage = place.pop("lane", None), place.pop("stage", None)
    reason = "The executors' logs have the reason."
    if lane is not None and stage is not None and (cause_text := reason_of_task(int(stage), int(lane), clock)):
        reason = f"Spark's reason: {cause_text}"
    died = LaneDied(f"The task of lane {lane} ended early, {times} times in a row. {reason}", lane=lane, **place)
    report = attached_report(repeated)
    if report is not None:
        attach_report(died, report.fail(died, report.failed_at))
    return died


def _after_round(task: LaneTask, reports: Sequence[LaneReport]) -> LaneTask:
    """The task of the next round, which knows what the lanes with `reports` have left out."""
    if task.ownership is None:
        return task
    skips = {name: skip for report in reports for name, skip in report.work.skips.items()}
    return replace(task, ownership=replace(task.ownership, skips={**task.ownership.skips, **skips}))


def roll_back_claims(task: LaneTask, resources: WorkerResources, clock: Clock, claims: Iterable[str]) -> None:
    """Roll back labels under which nothing is committed. Gives up if the server does not answer."""
    deadline = Deadline.after(_CLAIM_SECONDS, clock)
    for claim in claims:
        if deadline.expired():
            return
        steps = roll_back(Label(task.options.database, claim), RetryPolicy(), random.Random())
        try:
            run(steps, resources.transport, clock, deadline)
        except StarRocksSinkError:
            return


def ownership_of(
    task: LaneTask, rng: random.Random, clock: Clock, further_rows: FurtherRows | None = None
) -> Ownership | None:
    """The driver's ownership of the job of `task`; None without a ledger."""
    if task.ownership is None:
        return None
    mine = task.ownership
    owner = Owner(mine.driver_token, task.epoch, task.checkpoint, task.batch_id, written=mine.written)
    tokens = fresh_tokens(task.epoch, 0, rng)
    now = partial(now_text, clock)
    extra_rows = tuple if further_rows is None else partial(further_rows, now)
    return Ownership(
        task.job, task.options.database, owner, tokens, now, task.ownership.canary, further_rows=extra_rows
    )


def coordinator_of(
    task: LaneTask,
    ownership: Ownership | None,
    deadline: Deadline,
    rng: random.Random,
    *,
    committed: Callable[[Receipt], None] = lambda _: None,
    name_death: Callable[[TaskRepeated, int], StarRocksSinkError] = lambda error, _: error,
) -> SharedTransactionCoordinator:
    """The coordinator of a micro-batch with lanes like `task`."""
    options = task.options
    entries: list[EntriesBuilder] = [] if ownership is None else [ownership.ledger_entries]
    if options.receipts_log:
        entries.append(log_entries(task.job, task.batch_id, partial(now_text, deadline.clock)))
    return SharedTransactionCoordinator(
        labels(task.job, task.epoch, orders.LANE, task.batch_id, next(_NUMBERS)),
        RoundLimits(
            task.longest_round,
            options.max_attempts,
            may_sort=task.marked and not task.whole and not task.ordered and options.shuffle is not False,
            lane_begins=task.lane_begins,
        ),
        deadline,
        rng,
        entries,
        fenced=ownership is not None,
        hold=task.hold,
        quarantine=Quarantine(options.max_quarantined) if options.quarantines and task.marked else None,
        unpositioned=partial(_unpositioned, task),
        committed=committed,
        name_death=name_death,
    )


def _unpositioned(task: LaneTask, shares: Sequence[LaneShare]) -> PositionSpan | None:
    """The unpositioned batch of all lanes; None for rows with positions, and without a ledger."""
    if task.marked or task.ownership is None:
        return None
    segmenter = task.unpositioned(task.ownership.positions, compare=task.options.check_replays)
    for share in shares:
        segmenter.add(share.rows, share.sum)
    segmenter.compare_replay()
    return PositionSpan(segmenter.name, segmenter.number, segmenter.number, 0, segmenter.digest)


def result_of(messages: Sequence[Message]) -> LanesResult:
    """What lanes with `messages` have loaded, or why not."""
    failures = [_failure_of(report) for report in of_kind(messages, LaneReport) if report.code]
    return LanesResult(
        of_kind(messages, LaneShare),
        failures,
        [violation.why for violation in of_kind(messages, OrderViolation)],
        [lack.columns for lack in of_kind(messages, TablesLack)],
        {name: position for wait in of_kind(messages, RowsWait) for name, position in wait.positions.items()},
        [bad.places() for bad in of_kind(messages, BadRows)],
        unreached=[unreached.host for unreached in of_kind(messages, DriverUnreached)],
    )


def _failure_of(report: LaneReport) -> LaneFailure:
    unknown = f"Lane {report.lane} failed with the code {report.code}."
    error = report.lane_error() or StarRocksSinkError(unknown)
    attach_report(error, report)
    return LaneFailure(error, report.failed_at)
