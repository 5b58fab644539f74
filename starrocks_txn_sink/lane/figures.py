"""Figures: everything a lane's task counts while it works, made into receipts' details and one report at its end.

The core knows nothing of it: the transport, the performer and the batches are watched from outside.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.lane.actions import (
    Action,
    BeginAction,
    CheckAction,
    CommitAction,
    LoadAction,
    RecoverAction,
    RollbackAction,
)
from starrocks_txn_sink.lane.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.lane.deletes import Deletes
from starrocks_txn_sink.lane.durations import Durations
from starrocks_txn_sink.lane.event_times import EventTimes
from starrocks_txn_sink.lane.receipt import Receipt
from starrocks_txn_sink.lane.replay import Replay
from starrocks_txn_sink.lane.report import LaneReport, TableLoads
from starrocks_txn_sink.transaction.label import Aborted, Committed, Loaded, Unknown
from starrocks_txn_sink.wire import Operation, Reply, Request, Status, Transport

Perform = Callable[[Action], object]

_OPERATION = {
    BeginAction: "begin",
    LoadAction: "load",
    CheckAction: "check",
    CommitAction: "commit",
    RecoverAction: "recover",
    RollbackAction: "rollback",
}


@dataclass(slots=True)
class _Sent:
    """Accepted loads of one table."""

    bytes: int = 0
    durations: Durations = field(default_factory=Durations)


@dataclass(slots=True)
class _Label:
    """When a label was begun (monotonic), how old it was when visible, how long its commit's request took."""

    begun: float = 0.0
    open_seconds: float = 0.0
    commit_request: float = 0.0


class LaneFigures:
    """Counts for one try of a lane; `encoding` names the compression of load bodies. Thread-safe."""

    def __init__(self, job: str, lane: int, batch_id: int, encoding: str, clock: Clock) -> None:
        self._report = LaneReport(job, lane, batch_id)
        self._encoding, self._clock = encoding, clock
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._retries: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[str] = Counter()
        self._loads: dict[str, _Sent] = {}
        self._labels: dict[str, _Label] = {}
        self._failed: tuple[str, str] | None = None  # the first failure since the last begin
        self._last_error: StarRocksSinkError | None = None
        self._aborted = self._in_doubt = self._unsettled = self._inflight = self._inflight_peak = 0
        self._event_times = EventTimes()
        self._deletes = Deletes()
        self._replay: Replay | None = None
        self._core: SharedTransactionCoordinator | None = None

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic()

    # --- what is watched ---

    def retried(self) -> None:
        """Spark runs the task again: the report says so."""
        self._report = replace(self._report, task_retry=True)

    def watch(self, core: SharedTransactionCoordinator) -> None:
        """The report tells of `core`'s buffers and receipts."""
        self._core = core

    def transport(self, inner: Transport) -> Transport:
        """`inner`, its requests counted and timed."""
        return _Watched(inner, self)

    def performing(self, perform: Perform) -> Perform:
        """`perform`, its actions' ends noted."""

        def watched(action: Action) -> object:
            self._begin(action)
            try:
                result = perform(action)
            except StarRocksSinkError as error:
                self._end(action, error)
                raise
            self._end(action, result)
            return result

        return watched

    def reading(self, batches: Iterable[pa.RecordBatch], replay: Replay | None) -> Iterator[pa.RecordBatch]:
        """`batches`, their deletes and event times noted; `replay` tells later what was left out."""
        self._replay = replay
        self._deletes = Deletes(replay.committed if replay is not None else {})
        for batch in batches:
            self._deletes.add(batch)
            if replay is not None:
                self._event_times.add(batch)
            yield batch

    def requested(self, request: Request, status: str, size: int, seconds: float) -> None:
        """One request ended, with a reply's status or an error's code."""
        with self._lock:
            self._requests[(request.operation.value, status)] += 1
            if request.operation is Operation.COMMIT:
                self._label(request.label).commit_request += seconds
            if request.operation is Operation.LOAD and request.table and status == Status.OK.value:
                sent = self._loads.setdefault(request.table, _Sent())
                sent.bytes += size
                sent.durations.add(seconds)

    def _begin(self, action: Action) -> None:
        with self._lock:
            match action:
                case BeginAction(name):
                    self._label(name).begun = self.now()
                    if self._failed is not None:
                        self._retries[self._failed] += 1
                        self._failed = None
                case LoadAction():
                    self._inflight += 1
                    self._inflight_peak = max(self._inflight_peak, self._inflight)

    def _end(self, action: Action, result: object) -> None:
        with self._lock:
            self._inflight -= isinstance(action, LoadAction)
            match result:
                case StarRocksSinkError() if not isinstance(action, RollbackAction):
                    self._failure(_OPERATION[type(action)], result)
                case Loaded() if result.retries:
                    self._retries[("load", "busy")] += result.retries
                case Committed(name):
                    label = self._label(name)
                    label.open_seconds = self.now() - label.begun
                    self._unsettled -= isinstance(action, RecoverAction)
                case Aborted(_, error):
                    self._unsettled -= isinstance(action, RecoverAction)
                    self._failure(_OPERATION[type(action)], error)
                case Unknown() if isinstance(action, CommitAction):
                    self._in_doubt += 1
                    self._unsettled += 1
                    self._retries[("commit", "outcome_unknown")] += 1
            self._aborted += isinstance(action, RollbackAction)

    def _failure(self, operation: str, error: StarRocksSinkError) -> None:
        self._failed = self._failed or (operation, error.code)
        self._errors[error.code] += 1
        self._last_error = error

    def _label(self, name: str) -> _Label:
        return self._labels.setdefault(name, _Label())

    # --- what comes out ---

    def detailed(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """The receipts, with their commit's time told apart from the wait for VISIBLE, and their whole age."""
        return [self._detailed(receipt) for receipt in receipts]

    def _detailed(self, receipt: Receipt) -> Receipt:
        known = self._labels.get(receipt.label, _Label())
        phases = dict(receipt.phase_seconds)
        whole = phases.pop("commit", 0.0)
        phases["commit"] = min(whole, known.commit_request)
        phases["publish"] = max(0.0, whole - known.commit_request)
        return replace(receipt, phase_seconds=phases, open_seconds=known.open_seconds)

    def report(self, receipts: Sequence[Receipt], error: BaseException | None = None) -> LaneReport:
        """What was counted until now; `error` is what the lane fails with.

        Receipts that a failing lane cannot deliver are counted from its coordinator.
        """
        core = self._core
        latency, event_times = self._event_times.settle(receipts)
        with self._lock:
            code = error.code if isinstance(error, StarRocksSinkError) else "" if error is None else "sink_error"
            errors = Counter(self._errors)
            if code and error is not self._last_error:
                errors[code] += 1
            return replace(
                self._report,
                committed=len(core.receipts if core is not None else receipts),
                aborted=self._aborted,
                in_doubt=self._in_doubt,
                unsettled=self._unsettled,
                requests=_triples(self._requests),
                retries=_triples(self._retries),
                errors=tuple(sorted(errors.items())),
                error=code,
                loads=tuple(self._loads_of(table, sent) for table, sent in sorted(self._loads.items())),
                deletes=dict(self._deletes.by_table),
                replayed_rows=self._replay.skipped_rows if self._replay else 0,
                replayed_transactions=self._replay.skipped_transactions if self._replay else 0,
                buffer_peak=core.buffered_peak if core is not None else 0,
                inflight_peak=self._inflight_peak,
                latency=tuple(latency.counts) if latency.count else (),
                latency_seconds=latency.total,
                event_times=event_times,
            )

    def _loads_of(self, table: str, sent: _Sent) -> TableLoads:
        spent = sent.durations
        return TableLoads(table, self._encoding, spent.count, sent.bytes, spent.total, tuple(spent.counts))


class _Watched:
    """A transport whose requests are told to figures."""

    def __init__(self, inner: Transport, figures: LaneFigures) -> None:
        self._inner, self._figures = inner, figures

    def send(self, request: Request, deadline: Deadline) -> Reply:
        started = self._figures.now()
        status = "sink_error"
        try:
            reply = self._inner.send(request, deadline)
            status = reply.status.value
            return reply
        except StarRocksSinkError as error:
            status = error.code
            raise
        finally:
            size = len(request.body) if request.body is not None else 0
            self._figures.requested(request, status, size, self._figures.now() - started)

    def close(self) -> None:
        self._inner.close()


def _triples(counts: Mapping[tuple[str, str], int]) -> tuple[tuple[str, str, int], ...]:
    return tuple((first, second, count) for (first, second), count in sorted(counts.items()))
