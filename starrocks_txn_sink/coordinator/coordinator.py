"""SharedTransactionCoordinator: a lane begins the driver's label, all lanes load under it, and the driver commits it.

A StarRocks transaction belongs to no connection and to no host, so parallel work needs no parallel transactions: a
micro-batch over any number of lanes is atomic, and tables get one version each. The steps of one label:

    1. begin → 2. the lanes load → 3. ledger and receipts load → 4. owner check → 5. commit, confirm, settle

- Only the driver commits, once, after all lanes have returned; it reads the owner of the job before. A task of an
  earlier try, or of an older driver, can only load, and its label is never committed.
- The first lane that has rows to load begins the label: the server counts the label's `timeout` from its begin, and a
  shuffle, or a source that is silent, may take longer. The driver tells exactly one lane to (`protocol.openings`).
  Where a lane cannot ask the driver, the driver begins the next label before the lanes run.
- Nothing is committed before the driver has heard from every lane: only then it is known that no source partition was
  in two lanes, and that no lane was cut off.
- Any failure ends the label for all: the driver rolls it back and runs the lanes again under a new one. A label whose
  outcome is unknown is settled by the ledger; without a ledger the unknown outcome is final.

If rows need columns that tables lack, and `schema_changes` is `apply`, the driver rolls the label back, alters the
tables while nothing of the job is open, and runs the lanes again.

A micro-batch is one *round*, and so one StarRocks transaction, with three exceptions. Lanes that can go on later stop
at a clean boundary when their label gets old (`LaneShare.stopped`): the driver commits, and the lanes go on under the
next label. If rows have more tables than a label has room for, lanes leave some out (`LaneShare.left`), and read
everything again after the commit (`coordinator.table_room`). And if the server rejects rows, a quarantine commits parts
(`coordinator.quarantine`).

Pure: actions come out, and their results go in. `perform_all` runs them on the driver, and the simulator on its clock.
"""

import contextlib
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.coordinator.ownership import EntriesBuilder, LabelContents
from starrocks_txn_sink.coordinator.quarantine import EVERYTHING, Cut, DeadLetter, Part, Quarantine
from starrocks_txn_sink.coordinator.table_room import Crowded, TableRoom, TableRooms
from starrocks_txn_sink.errors import (
    DeadlineExceeded,
    InputError,
    JobHeld,
    KeyRepeated,
    LoadFailed,
    LoadsCollided,
    RowsRejected,
    SourceChanged,
    StarRocksSinkError,
    TaskRepeated,
    ThreadsHeld,
    TooManyTables,
    UnknownColumn,
)
from starrocks_txn_sink.protocol.label import Aborted, Backoff, Committed, Unknown

Result = TypeVar("Result")

MOST_COLLISIONS = 10
"""Labels in a row that first loads may cost by meeting; each met in 3 of 60 micro-batches without turns."""
LANE = "all"
"""Stands in a label for the number of a lane."""
MOST_REPEATS = 3
"""Labels in a row that a task which ended early may cost. One or two are an executor that was lost, or taken away; more
are a row or a limit of memory that the next label meets again."""


@dataclass(frozen=True, slots=True)
class LaneFailure:
    """The error that ended a lane, `at` seconds since the Unix epoch on the lane's host."""

    error: StarRocksSinkError
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class LanesResult:
    """What the lanes of one label have sent; `unsorted` says why rows are out of order, one text for each such lane.

    `missing` are the columns that rows need and tables lack, for each lane that could not load because of them. `waits`
    has positions behind which rows have to wait for another label (`coordinator.table_room`). `bad` are the source
    transactions with bad rows, for each lane that had loaded rows of them before it met the bad ones. `begun`: the
    label may be one at the server. `unreached` has the driver's name for each lane that could not ask who begins it.
    """

    shares: Sequence[LaneShare] = ()
    failures: Sequence[LaneFailure] = ()
    unsorted: Sequence[str] = ()
    missing: Sequence[model.MissingColumns] = ()
    waits: Mapping[str, int] = field(default_factory=dict)
    bad: Sequence[Mapping[Cut, DeadLetter]] = ()
    begun: bool = True
    unreached: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunLanes:
    """Order to run the lanes: load `part` of the rows under `label`; the result is a LanesResult.

    Lanes that can go on later stop `seconds` after the label's begin, which is before now, or theirs with
    `lane_begins`. With `hold` they load when all of their rows are there. They leave out rows whose tables are not in
    `room`.
    """

    label: str
    part: Part = EVERYTHING
    hold: bool = False
    seconds: float = 0.0
    room: TableRoom | None = None
    lane_begins: bool = False


@dataclass(frozen=True, slots=True)
class ChangeTables:
    """Order to alter tables, between two labels, so that they have the `missing` columns.

    The result is None; an error says why a table cannot have one.
    """

    missing: model.MissingColumns


@dataclass(frozen=True, slots=True)
class Pause:
    """Order to wait before the next attempt."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NextRound:
    """Notice: the lanes that have stopped go on from there, because all rows before are visible."""


Order = model.Action | RunLanes | ChangeTables | Pause | NextRound
Orders = Generator[Order, Any, Result]
"""Orders to carry out one by one: each result is sent back, each error thrown."""


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Limits of one write. `seconds` is the age of a label at which lanes stop that can go on under the next one.

    With `may_sort` the caller can have the rows sorted: then an error about the input may only be their wrong order.
    With `lane_begins` the first lane that has rows to load begins the label: it may read for long before.
    """

    seconds: float
    max_attempts: int
    may_sort: bool = False
    lane_begins: bool = False
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.2, longest=10.0))


@dataclass(slots=True)
class _Failures:
    """What has gone wrong with one round; `repeats` counts the tasks that ended early since another failure."""

    failures: int = 0
    repeats: int = 0
    collisions: int = 0


@dataclass(slots=True)
class SharedTransactionCoordinator:
    """Writes the rows that the lanes read, label by label; the module's docstring says how.

    `labels` are all different. `entries` build the rows for the ledger and the receipts' log; `fenced`: there is a
    ledger. `unpositioned` makes the span of rows without positions of the lanes'
    shares; None for rows with positions. After `write`, `unsorted` says why Spark has to sort the rows first, "" if it
    has not.
    """

    labels: Iterator[str]
    limits: RoundLimits
    deadline: Deadline
    rng: random.Random
    entries: Sequence[EntriesBuilder] = ()
    fenced: bool = True
    hold: bool = False
    quarantine: Quarantine | None = None
    unpositioned: Callable[[Sequence[LaneShare]], model.PositionSpan | None] = lambda _: None
    committed: Callable[[model.Receipt], None] = lambda _: None
    name_death: Callable[[TaskRepeated, int], StarRocksSinkError] = lambda error, _: error
    unsorted: str = ""
    shares: Sequence[LaneShare] = ()  # of the last label
    rooms: TableRooms | None = field(default=None, init=False)

    @property
    def clock(self) -> Clock:
        """The clock of the deadline."""
        return self.deadline.clock

    def renew(self, deadline: Deadline) -> None:
        """After progress the rest of the write has until `deadline`."""
        self.deadline = deadline

    def write(self, rooms: TableRooms | None = None) -> Orders[list[model.Receipt]]:
        """Write all rows of the lanes, in rounds and parts if needed; raises the error that ends the write.

        `committed` hears of each receipt before the lanes run again, which then leave its rows out. `rooms` bound the
        tables of a label; None bounds none.
        """
        self.rooms = rooms
        receipts: list[model.Receipt] = []
        visible: dict[str, int] = {}
        while True:
            part = self.quarantine.part if self.quarantine is not None else EVERYTHING
            try:
                receipt, stopped = yield from self._write_part(replace(part, after=visible) if visible else part)
            except RowsRejected as error:
                if self.quarantine is None:
                    raise
                self.quarantine.reject(error)
                continue
            if receipt is not None:
                receipts.append(receipt)
                self.committed(receipt)
                if not self.fenced:  # the ledger would leave them out
                    visible |= {span.partition: span.last for span in receipt.positions}
            if self.unsorted:
                return receipts
            waits = self.rooms is not None and self.rooms.go_on(self.shares)
            is_end = not stopped and not waits  # else the lanes read everything again, and leave out what is visible
            if self.quarantine is not None:
                is_end = self.quarantine.commit(stopped=stopped or waits)
            if stopped and part.upto is None and not waits:
                yield NextRound()
            elif is_end:
                return receipts

    def _write_part(self, part: Part) -> Orders[tuple[model.Receipt | None, bool]]:
        """One round; after a failure that passes, again under another label. Returns its receipt, and if lanes stopped.

        Raises the error of the last attempt.
        """
        counts, attempts = _Failures(), 1
        missing: model.MissingColumns = {}
        while True:
            # A shorter round has fewer rows to load before its label is too old.
            seconds = self.limits.seconds / 2**counts.failures
            try:
                return (yield from self._attempt(part, seconds, attempts, missing))
            except (_TablesDiffer, _BadRowsFound, _DriverUnreached, KeyRepeated) as lesson:  # nothing has failed
                part, missing = self._learn(lesson, part, missing)
            except LoadsCollided:  # by chance: the next label need not wait, and is no further attempt
                counts.collisions += 1
                if counts.collisions == MOST_COLLISIONS or self.deadline.expired():
                    raise
            except StarRocksSinkError as error:
                if isinstance(error, ThreadsHeld) and self.rooms is not None:
                    self.rooms.halve()
                yield self._pause_after(error, counts)
            attempts += 1

    def _pause_after(self, error: StarRocksSinkError, counts: _Failures) -> Pause:
        """The wait before the next label; raises `error`, or the one that explains it, if there is to be none."""
        counts.failures += 1
        counts.repeats = counts.repeats + 1 if isinstance(error, TaskRepeated) else 0
        over = self.deadline.expired()
        if isinstance(error, TaskRepeated):
            if counts.repeats == MOST_REPEATS or over:
                raise self.name_death(error, counts.repeats) from None
        else:
            held = isinstance(error, JobHeld)  # no label helps before another take-over
            if held or not error.retryable or counts.failures >= self.limits.max_attempts or over:
                raise error
        return Pause(self.limits.backoff.seconds(counts.failures - 1, self.rng))

    def _learn(self, lesson: Exception, part: Part, missing: model.MissingColumns) -> tuple[Part, model.MissingColumns]:
        """The part, and the columns to add first, for the next label; raises the error of a lesson that came before."""
        if isinstance(lesson, _TablesDiffer):
            if missing == lesson.missing or self.deadline.expired():
                raise unknown_columns(lesson.missing) from None
            return part, lesson.missing
        if isinstance(lesson, _BadRowsFound) and self.quarantine is not None:
            return replace(self.quarantine.add(lesson.places), after=part.after), missing
        if isinstance(lesson, _DriverUnreached):
            self.limits = replace(self.limits, lane_begins=False)
            return part, missing
        if self.hold:
            raise lesson
        self.hold = True
        return part, missing

    def _attempt(
        self, part: Part, seconds: float, attempts: int, missing: model.MissingColumns
    ) -> Orders[tuple[model.Receipt | None, bool]]:
        """One try, under further labels as long as the lanes take tables that have no room."""
        if missing:
            yield ChangeTables(missing)
        while True:
            room = self.rooms.room if self.rooms is not None else None
            order = RunLanes(next(self.labels), part, self.hold, seconds, room, self.limits.lane_begins)
            if not order.lane_begins:
                yield from self.begin(order.label)
            lanes = yield from _or_roll_back(order.label, _carry_out(order))
            try:
                return (yield from self.finish(order.label, lanes, attempts))
            except Crowded as crowded:  # nothing has failed
                self._let_wait(crowded.waits)

    def _let_wait(self, waits: Mapping[str, int]) -> None:
        if self.deadline.expired():
            raise DeadlineExceeded("The batch's deadline passed before the tables of its rows had room.")
        if self.rooms is not None:
            self.rooms.make_wait(waits)

    def begin(self, label: str) -> Orders[None]:
        """Step 1, where no lane takes it.

        An error rolls the label back: the server may have begun it although its answer was lost.
        """
        yield from _or_roll_back(label, _carry_out(model.BeginAction(label)))

    def finish(self, label: str, lanes: LanesResult, attempts: int = 1) -> Orders[tuple[model.Receipt | None, bool]]:
        """Steps 3 to 5, if every lane has loaded; returns the receipt, and whether a lane has stopped.

        The receipt is None if the label was rolled back without an error: there was nothing to load, or rows are
        `unsorted`. Raises the failure of a lane, or of a step, after the rollback.
        """
        try:
            contents = self._contents(lanes)
        except Exception:
            if lanes.begun:
                yield from roll_back(label)
            raise
        stopped = any(share.stopped for share in lanes.shares)
        self.shares = lanes.shares
        if self.unsorted or not contents.loaded:
            if lanes.begun:
                yield from roll_back(label)
            return None, stopped
        if self.rooms is not None:
            try:
                self.rooms.check(lanes.shares)
            except TooManyTables:
                yield from roll_back(label)
                raise
        outcome = yield from commit_shared(label, contents, self.entries, attempts, fenced=self.fenced)
        recycled = stopped or any(share.left for share in lanes.shares)
        return contents.receipt(outcome, attempts, self.clock.wall(), recycled=recycled), stopped

    def _contents(self, lanes: LanesResult) -> LabelContents:
        self.unsorted = judge(lanes, may_sort=self.limits.may_sort)
        if lanes.unreached and not self.unsorted:
            raise _DriverUnreached
        if lanes.waits and not self.unsorted:
            raise Crowded(lanes.waits)
        if lanes.missing and not self.unsorted:
            raise _TablesDiffer(join_missing(lanes.missing))
        if lanes.bad and not self.unsorted:
            raise _BadRowsFound({place: letter for places in lanes.bad for place, letter in places.items()})
        if self.quarantine is not None:
            self.quarantine.note(lanes.shares)
        loaded = [receipt for share in lanes.shares for receipt in share.loaded]
        return LabelContents(loaded, None if self.unsorted else self.unpositioned(lanes.shares))


def judge(lanes: LanesResult, *, may_sort: bool) -> str:
    """Why Spark has to sort the rows first; "" if the label can be committed. Raises the failure of a lane.

    A source transaction that is split over two tasks looks torn in both. So a lane's error about the input is a reason
    to sort, if the rows may be sorted. Of several failures this raises the one that explains the most: first a
    KeyRepeated, then one that a retry cannot repair, then any but TaskRepeated, and LoadFailed last: a load may fail
    only because the label has ended, unless loads have collided. Among equals the earliest counts, as far as the
    clocks of the hosts agree.
    """
    reasons = list(lanes.unsorted)
    shared = find_shared_partition(lanes.shares)
    if shared is not None:
        reasons.append(f"Source partition {shared} came in two tasks.")
    if may_sort:
        errors = (failure.error for failure in lanes.failures)
        reasons += [error.message for error in errors if isinstance(error, (InputError, SourceChanged))]
    if lanes.failures and not reasons:
        raise min(lanes.failures, key=_rank).error
    return reasons[0] if reasons else ""


class _TablesDiffer(Exception):
    """Rows need `missing` columns; the label was rolled back."""

    def __init__(self, missing: model.MissingColumns) -> None:
        super().__init__()
        self.missing = missing


class _BadRowsFound(Exception):
    """Lanes know source transactions with bad rows that they have loaded rows of; the label was rolled back."""

    def __init__(self, places: Mapping[Cut, DeadLetter]) -> None:
        super().__init__()
        self.places = places


class _DriverUnreached(Exception):
    """A lane could not ask who begins the label; it was rolled back if another lane has begun it."""


def join_missing(lanes: Iterable[model.MissingColumns]) -> model.MissingColumns:
    """The columns that all lanes miss, each with the needs of the rows in any lane."""
    joined: dict[str, dict[str, model.ColumnNeeds]] = {}
    for missing in lanes:
        for table, columns in missing.items():
            of_table = joined.setdefault(table, {})
            for name, needs in columns.items():
                of_table[name] = of_table.get(name, model.ColumnNeeds()) | needs
    return dict(sorted(joined.items()))


def unknown_columns(missing: model.MissingColumns) -> UnknownColumn:
    """The error about columns that are missing although the driver has changed the tables."""
    tables = "; ".join(f"{table}: {', '.join(columns)}" for table, columns in missing.items())
    return UnknownColumn(
        f"Rows name columns that their tables still lack after the change of the tables ({tables}).",
        hint="Does another program drop them again? Add them by hand, and start the query again.",
    )


def _rank(failure: LaneFailure) -> tuple[bool, bool, int, float]:
    """The order of failures: causes before consequences."""
    error = failure.error
    is_end = isinstance(error, LoadFailed) and not isinstance(error, LoadsCollided)
    vague = 2 if is_end else int(isinstance(error, TaskRepeated))
    return not isinstance(error, KeyRepeated), error.retryable, vague, failure.at


def find_shared_partition(shares: Iterable[LaneShare]) -> str | None:
    """A source partition that two lanes have met; None if there is none.

    Such rows may be under the label in any order, and one lane may have left out rows that the other has written.
    """
    partitions: set[str] = set()
    for share in shares:
        shared = partitions.intersection(share.partitions)
        if shared:
            return min(shared)
        partitions.update(share.partitions)
    return None


def commit_shared(
    label: str, contents: LabelContents, entries: Sequence[EntriesBuilder], attempt: int = 1, *, fenced: bool
) -> Orders[Committed]:
    """Load the sink's own rows under `label`, check the owner (if `fenced`: there is a ledger), commit, and confirm.

    Every lane has returned before. Raises the error of the step that failed; the label is rolled back then, except
    after OutcomeUnknown.
    """
    yield from _or_roll_back(label, _load_and_check(label, contents, entries, fenced))
    outcome = yield model.CommitAction(label, attempt)
    if isinstance(outcome, Unknown) and fenced:
        refusal = outcome.refusal
        outcome = yield model.RecoverAction(label, contents.position_spans())
        if isinstance(outcome, Aborted) and refusal is not None:
            outcome = Aborted(label, refusal)
    match outcome:
        case Committed():
            return outcome
        case Aborted() | Unknown():
            raise model.name_source(outcome.error, contents.position_spans())
        case _:
            raise TypeError(f"A commit cannot end with {type(outcome).__name__}.")


def _load_and_check(
    label: str, contents: LabelContents, entries: Sequence[EntriesBuilder], fenced: bool
) -> Orders[None]:
    for build in entries:
        chunk = build(label, contents)
        yield model.LoadAction(label, chunk.table, (chunk,))
    if fenced:
        yield model.CheckAction(label)


def _carry_out(order: Order) -> Orders[Any]:
    return (yield order)


def _or_roll_back(label: str, orders: Orders[Result]) -> Orders[Result]:
    """The result of `orders`; rolls the label back before an error leaves them."""
    try:
        return (yield from orders)
    except GeneratorExit:  # nobody carries out orders any more
        raise
    except BaseException:
        yield from roll_back(label)
        raise


def roll_back(label: str) -> Orders[None]:
    """Roll `label` back. Ignores errors: nobody commits the label, so the server ends it at its timeout."""
    with contextlib.suppress(StarRocksSinkError):
        yield model.RollbackAction(label)


def perform_all(orders: Orders[Result], perform: Callable[[Any], object]) -> Result:
    """Carry out `orders` with `perform` and return their result; raises their errors."""
    try:
        order = next(orders)
        while True:
            try:
                result = perform(order)
            except BaseException as error:
                order = orders.throw(error)
            else:
                order = orders.send(result)
    except StopIteration as stop:
        value: Result = stop.value
        return value


def claim_of(label: str, lane: int) -> str:
    """The label that lane `lane` begins as its claim, so that no second try at it loads under `label`."""
    job, epoch, _, batch, attempt = label.rsplit("-", 4)
    return "-".join((job, epoch, str(lane), batch, attempt))
