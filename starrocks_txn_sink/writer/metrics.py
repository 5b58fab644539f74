"""LaneMetrics: counts the work of one lane's task, or of the driver in one micro-batch, for one report at its end.

Executors are short-lived and nothing scrapes them, so a lane observes its own work and sends the report to the driver.
Lane and coordinator take no part: performer and transport emit events (`telemetry`), and LaneMetrics listens. The stage
RowCounts reads the batches of rows, for the number of deletes and for the age of source transactions when they are
loaded.
"""

import copy
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.coordinator.model import Ints, Receipt
from starrocks_txn_sink.errors import KeyRepeated, LoadsCollided, StarRocksSinkError
from starrocks_txn_sink.protocol.label import Aborted, Committed, Loaded, Unknown
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.protocol.wire import Operation, Status
from starrocks_txn_sink.rows.columns import DELETED, EVENT_TIME, PARTITION, POSITION, TABLE, TRANSACTION_END
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import Floats, LaneCost, LaneReport, LaneTrouble, LaneWork, TableLoads
from starrocks_txn_sink.writer.pipe import PipeStage

REMEMBERED = 1_000_000
"""At most so many source transactions of a lane and micro-batch are timed: this bounds the memory."""


@dataclass(slots=True)
class _LabelTimes:
    """When a label was begun (monotonic), its age when it became visible, and the seconds of its commit requests.

    `phases` has the seconds of each step since the previous commit, failed attempts included.
    """

    begun_at: float = 0.0
    open_seconds: float = 0.0
    commit_request: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


class LaneMetrics:
    """Counts for one try of a lane, or for the driver; a listener of its performer.

    `encoding` names the compression of load bodies.

    Thread-safe.
    """

    def __init__(self, job: str, lane: int, batch_id: int, encoding: str, clock: Clock) -> None:
        self._place = job, lane, batch_id
        self._work, self._cost, self._trouble = LaneWork(), LaneCost(), LaneTrouble()
        self._encoding, self._clock = encoding, clock
        self._lock = threading.Lock()
        self._labels: dict[str, _LabelTimes] = {}
        self._failed: tuple[str, str] | None = None  # the first failure since the last begin
        self._last_error: StarRocksSinkError | None = None
        self._refused = False  # whether the server has refused the commit that the ledger settles
        self._running: Counter[str] = Counter()  # actions under way, by step
        self._since: dict[str, float] = {}  # since when actions of a step are under way without a pause
        self._phases: dict[str, float] = {}  # seconds since the last commit, by step
        self._held_back = False  # the next rollback is no failure: KeyRepeated has caused it

    # --- work to count ---

    def mark_task_retry(self) -> None:
        """Say in the report that Spark runs the task again."""
        self._cost.retries["task"]["failed"] = 1

    def expect_hold(self) -> None:
        """Say that the next rollback is no failure: the lanes send the same rows again in another order."""
        with self._lock:
            self._held_back = True

    def count_collision(self) -> None:
        """Count a label that the server cancelled because two first loads of a table met."""
        self._cost.retries["load"][LoadsCollided.code] += 1

    def run_lanes(self) -> None:
        """Say that lanes run: after a failure this is another attempt."""
        with self._lock:
            self._count_retry()

    def learn_begin(self, label: str, loaded: Iterable[Receipt], age: float) -> None:
        """A lane has begun `label` `age` seconds ago; the lanes' receipts say how long that took."""
        now = self._clock.monotonic()
        with self._lock:
            self._label(label).begun_at = now - age
            seconds = max((receipt.phase_seconds.get("begin", 0.0) for receipt in loaded), default=0.0)
            self._phases["begin"] = self._phases.get("begin", 0.0) + seconds

    def with_begin(self, receipt: Receipt) -> Receipt:
        """The lane's receipt with the seconds of its begin, if it has begun the label."""
        with self._lock:
            seconds = self._phases.get("begin")
        return receipt if seconds is None else replace(receipt, phase_seconds={"begin": seconds})

    def __call__(self, event: Event) -> None:
        """Listen to the steps and requests of the lane's performer."""
        with self._lock:
            match event.name:
                case "step.started":
                    self._start_step(event.fields["step"], event.fields["label"])
                case "step.completed" | "step.failed":
                    self._end_step(event.fields["step"], event.fields["outcome"])
                case "request.completed" | "request.failed":
                    self._count_request(event.fields)

    def _count_request(self, request: Mapping[str, Any]) -> None:
        operation, outcome = request["operation"], request["outcome"]
        failure_code = outcome.code if isinstance(outcome, StarRocksSinkError) else "sink_error"
        status = request.get("status", failure_code)
        self._cost.requests[operation][status] += 1
        if operation == Operation.COMMIT.value:
            self._label(request["label"]).commit_request += request["seconds"]
        if operation == Operation.LOAD.value and request["table"] and status == Status.OK.value:
            loads = self._work.loads.setdefault(request["table"], TableLoads(self._encoding))
            loads.bytes += request["bytes"]
            loads.times.add(request["seconds"])

    def _start_step(self, step: str, label: str) -> None:
        now = self._clock.monotonic()
        if not self._running[step]:
            self._since[step] = now
        self._running[step] += 1
        self._cost.inflight_peak = max(self._cost.inflight_peak, self._running["load"])
        if step == "begin":
            self._label(label).begun_at = now
            self._count_retry()

    def _count_retry(self) -> None:
        if self._failed is not None:
            failed_step, code = self._failed
            self._cost.retries[failed_step][code] += 1
            self._failed = None

    def _end_step(self, step: str, outcome: object) -> None:
        now = self._clock.monotonic()
        self._running[step] -= 1
        if step == "rollback":
            self._trouble.aborted += not self._held_back
            self._held_back = False
        elif not self._running[step]:
            self._phases[step] = self._phases.get(step, 0.0) + now - self._since[step]
        match outcome:
            case KeyRepeated():  # nothing failed: the lane sends the same rows in another order
                self._held_back = True
                self._cost.retries["load"][outcome.code] += 1
            case StarRocksSinkError() if step != "rollback":
                self._count_failure(step, outcome)
            case Loaded() if outcome.retries:
                self._cost.retries["load"]["busy"] += outcome.retries
            case Committed(name):
                label = self._label(name)
                label.open_seconds = now - label.begun_at
                label.phases, self._phases = self._phases, {}
                self._trouble.unsettled -= step == "recover"
            case Aborted(_, error):  # nobody rolls it back
                self._trouble.aborted += 1
                self._trouble.unsettled -= step == "recover"
                if step != "recover" or not self._refused:
                    self._count_failure(step, error)
            case Unknown(_, _, refusal) if step == "commit":
                self._count_unsettled(refusal)

    def _count_unsettled(self, refusal: StarRocksSinkError | None) -> None:
        """Count a commit that the ledger settles. After a refusal it is no doubt: the server has said no."""
        self._trouble.unsettled += 1
        self._refused = refusal is not None
        if refusal is not None:
            self._count_failure("commit", refusal)
        else:
            self._cost.retries["commit"]["outcome_unknown"] += 1

    def _count_failure(self, step: str, error: StarRocksSinkError) -> None:
        self._failed = self._failed or (step, error.code)
        self._trouble.errors[error.code] += 1
        self._last_error = error

    def _label(self, name: str) -> _LabelTimes:
        return self._labels.setdefault(name, _LabelTimes())

    # --- counts to send ---

    def add_details(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """The receipts with `phase_seconds`, `commit` split into the request and the wait for VISIBLE, and
        `open_seconds`."""
        return [self._with_details(receipt) for receipt in receipts]

    def _with_details(self, receipt: Receipt) -> Receipt:
        times = self._labels.get(receipt.label, _LabelTimes())
        phases = dict(times.phases)
        whole = phases.pop("commit", 0.0)
        phases["commit"] = min(whole, times.commit_request)
        phases["publish"] = max(0.0, whole - times.commit_request)
        return replace(receipt, phase_seconds=phases, open_seconds=times.open_seconds)

    def report(self, error: BaseException | None = None) -> LaneReport:
        """All counts of steps and requests until now; `error` is the error that the lane, or the driver, fails with."""
        with self._lock:
            work, cost, trouble = copy.deepcopy((self._work, self._cost, self._trouble))
        report = LaneReport(*self._place, work, cost, trouble)
        if error is not None:
            report = report.fail(error)
            if error is not self._last_error:
                trouble.errors[report.code] += 1
        return report


class RowCounts(PipeStage):
    """The stage that counts the deletes among a lane's rows, and keeps their event times; rows pass as they are.

    `committed` are the ledger's positions. Only rows with positions can be `timed`.
    """

    def __init__(self, committed: Mapping[str, Position], *, timed: bool) -> None:
        self._deletes = Deletes(committed if timed else {})
        self._event_times = EventTimes() if timed else None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, which come in the lane's order."""
        for batch in batches:
            self.add(batch)
            yield batch

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch."""
        self._deletes.add(batch)
        if self._event_times is not None:
            self._event_times.add(batch)

    def count(self, report: LaneReport, receipts: Sequence[Receipt]) -> None:
        work = report.work
        work.deletes = dict(self._deletes.by_table)
        work.loaded_at = max((receipt.committed_at for receipt in receipts), default=0.0)
        if self._event_times is not None:
            work.event_times, work.ages = self._event_times.latest(receipts), self._event_times.ages(receipts)


@dataclass(slots=True)
class Deletes:
    """Deletes by table among rows that are new to StarRocks; `committed` are the ledger's positions."""

    committed: Mapping[str, Position] = field(default_factory=dict)
    by_table: dict[str, int] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch of rows, with positions or plain; a batch without the column has no deletes."""
        if DELETED not in batch.schema.names:
            return
        deleted = pc.indices_nonzero(batch.column(DELETED))
        if not len(deleted):
            return
        tables = batch.column(TABLE).take(deleted)
        if POSITION in batch.schema.names and self.committed:
            tables = tables.filter(self._new(batch.select([PARTITION, POSITION]).take(deleted)))
        for entry in pc.value_counts(tables.drop_null()).to_pylist():  # a row without a table is refused elsewhere
            table = entry["values"]
            self.by_table[table] = self.by_table.get(table, 0) + entry["counts"]

    def _new(self, rows: pa.RecordBatch) -> pa.Array:
        names = pa.array(list(self.committed), pa.string())
        reached = pa.array([position.position for position in self.committed.values()], pa.int64())
        positions_before = reached.take(pc.index_in(rows.column(PARTITION), names))
        return pc.fill_null(pc.greater(rows.column(POSITION), positions_before), True)


@dataclass(slots=True)
class EventTimes:
    """Position and event time of each ended source transaction, kept until the receipts say when it was committed."""

    _seen: dict[str, list[tuple[Ints, Floats]]] = field(default_factory=dict)
    _count: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep the ends in a batch of rows, in the lane's order; a batch without the column has no event times."""
        if EVENT_TIME not in batch.schema.names or self._count >= REMEMBERED:
            return
        ends = batch.select([PARTITION, POSITION, EVENT_TIME]).take(pc.indices_nonzero(batch.column(TRANSACTION_END)))
        if ends.column(EVENT_TIME).null_count:
            ends = ends.filter(ends.column(EVENT_TIME).is_valid())
        self._count += ends.num_rows
        encoded = pc.dictionary_encode(ends.column(PARTITION))
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        positions = ends.column(POSITION).to_numpy(zero_copy_only=False)
        seconds = ends.column(EVENT_TIME).to_numpy(zero_copy_only=False) / 1e6
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            members = codes == code
            self._seen.setdefault(name, []).append((positions[members], seconds[members]))

    def latest(self, receipts: Iterable[Receipt]) -> dict[str, float]:
        """The latest event time by source partition, of all in `receipts`."""
        return {partition: float(times.max()) for _, partition, times in self._of_receipts(receipts)}

    def ages(self, receipts: Iterable[Receipt]) -> tuple[tuple[float, int], ...]:
        """The ages at their load to three digits, each with its number of source transactions: so they are few."""
        latencies = [receipt.committed_at - times for receipt, _, times in self._of_receipts(receipts)]
        if not latencies:
            return ()
        ages = np.maximum(np.concatenate(latencies), 0.001)
        steps = 10.0 ** (np.floor(np.log10(ages)) - 2)
        values, counts = np.unique(np.round(ages / steps) * steps, return_counts=True)
        return tuple(zip(values.tolist(), counts.tolist(), strict=True))

    def _of_receipts(self, receipts: Iterable[Receipt]) -> Iterator[tuple[Receipt, str, Floats]]:
        """The event times of each span of each receipt, with receipt and partition; a span without any is left out."""
        seen_times = {
            name: (np.concatenate([commits for commits, _ in parts]), np.concatenate([time for _, time in parts]))
            for name, parts in self._seen.items()
        }
        for receipt in receipts:
            for span in receipt.positions:
                if span.partition not in seen_times:
                    continue
                positions, times = seen_times[span.partition]
                low, high = np.searchsorted(positions, [span.first, span.last + 1])
                if high > low:
                    yield receipt, span.partition, times[low:high]
