"""A pipeline as the sink tells of it, without one: events on a clock that can be turned, for the tests of the page."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.metrics import MetricsServer
from starrocks_txn_sink.metrics.spark_progress import QueryProgress
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import (
    Durations,
    LaneCost,
    LaneReport,
    LaneTrouble,
    LaneWork,
    SentError,
    TableLoads,
)
from tests.support.manual_clock import ManualClock

JOB, QUERY = "shop-orders", "7d9c"
TABLES = {"order_events": 60, "order_items": 30, "orders": 10}  # name -> share of the rows
BUFFER, TIMEOUT = 128 << 20, 600


class Pipeline:
    """Tells `metrics` of one micro-batch after the other, a second each."""

    def __init__(self, metrics: MetricsServer, clock: ManualClock, seed: int = 1) -> None:
        self.metrics, self.clock = metrics, clock
        self._random = random.Random(seed)
        self.batch = 0
        self._positions = dict.fromkeys("0123", 0)
        self._tell("sink.made", buffer_bytes=BUFFER, timeout=TIMEOUT, version="0.1.0", spark="4.3.0")
        self._tell("session.opened", job=JOB, exactly_once=True)

    def _tell(self, event: str, /, **fields: Any) -> None:
        self.metrics(Event(event, fields))

    def run(self, batches: int) -> None:
        for _ in range(batches):
            self.commit()

    def commit(self) -> None:
        """One good micro-batch."""
        self._start()
        now, wave = self.clock.wall(), 1 + 0.4 * math.sin(self.batch / 25) + self._random.random() * 0.2
        transactions = int(180 * wave)
        receipt = self._receipt(transactions, now)
        self._tell("lane.reported", report=self._report(receipt, now))
        self._tell("receipt.collected", receipt=receipt)
        self._tell("batch.completed", job=JOB, batch_id=self.batch, seconds=0.45 * wave, receipts=1)
        self._progress(transactions * 26, wave)
        self.batch += 1

    def fail(self, code: str = "commit_failed", unsettled: int = 0) -> None:
        """One micro-batch that fails after two attempts."""
        self._start()
        cost = LaneCost(retries={"commit": Counter({code: 1})})
        trouble = LaneTrouble(Counter({code: 2}), 2, unsettled, failure=SentError(code))
        report = LaneReport(JOB, 0, self.batch, cost=cost, trouble=trouble)
        self._tell("batch.failed", job=JOB, batch_id=self.batch, seconds=1.4, code=code, report=report)

    def hold(self) -> None:
        """A command holds the job, whose micro-batch waits."""
        self._start()
        self._tell("outage.met", job=JOB, batch_id=self.batch, code="job_held", seconds=0.0, report=None)

    def violate(self) -> None:
        self._tell("integrity.violated", kind="torn")

    def _start(self) -> None:
        self.clock.advance(1.0)
        self._tell("batch.started", job=JOB, batch_id=self.batch, lanes=1, query=QUERY)

    def _receipt(self, transactions: int, now: float) -> Receipt:
        regions, spans = [], []
        for partition in self._positions:
            first = self._positions[partition] + 7
            self._positions[partition] += 7 * transactions
            spans.append(PositionSpan(partition, first, self._positions[partition], transactions // 4))
            for table, share in TABLES.items():
                rows = transactions * 24 * share // 400
                regions.append(RegionCount(partition, table, rows, rows * 140))
        phases = {"begin": 0.004, "load": 0.16, "check": 0.006, "commit": 0.05 + self._random.random() * 0.03}
        return Receipt(
            label=f"{JOB}-6b01b8a8-0-{self.batch}-{self.batch + 3}_0",
            txn_id=1000 + self.batch,
            job=JOB,
            batch_id=self.batch,
            regions=tuple(regions),
            positions=tuple(spans),
            loads=3,
            attempts=1,
            retries=0,
            recycled=False,
            phase_seconds={**phases, "publish": 0.03 + self._random.random() * 0.02},
            committed_at=now,
            open_seconds=0.31,
        )

    def _report(self, receipt: Receipt, now: float) -> LaneReport:
        latency = Durations()
        for _ in range(receipt.source_transactions):
            latency.add(self._random.lognormvariate(-0.4, 0.4))
        loads = {}
        for table, rows in receipt.tables.items():
            durations = Durations()
            durations.add(0.02 + self._random.random() * 0.1)
            loads[table] = TableLoads("none", rows * 140, durations)
        loaded = {"begin": 1, "commit": 1, "get_load_state": 1, "load": 3}
        requests = {operation: Counter(OK=count) for operation, count in loaded.items()}
        work = LaneWork(
            loads=loads,
            deletes={"orders": receipt.tables["orders"] // 10},
            latency=latency,
            event_times={partition: now - 0.6 - int(partition) * 0.35 for partition in self._positions},
        )
        peak = int(BUFFER * (0.2 + 0.1 * self._random.random()))
        return LaneReport(JOB, 0, self.batch, work, LaneCost(requests, buffer_peak=peak, inflight_peak=3))

    def _progress(self, rows: int, wave: float) -> None:
        phases = {"latestOffset": 0.01, "walCommit": 0.03, "addBatch": 0.5 * wave, "commitOffsets": 0.03}
        lags = {partition: int(120 * wave) + int(partition) for partition in self._positions}
        progress = QueryProgress(rows, phases, state_rows=9, state_bytes=3 << 20, lags=lags)
        self._tell("query.progressed", query=QUERY, progress=progress)
        counts: dict[str, float] = {
            "events": rows,
            "open": 4,
            "open_rows": 90,
            "state_bytes": int(40_000 * wave),
            "abandoned": 2,
        }
        counts["oldest_open"] = self.clock.wall() - 1.7
        first = {"partition": "1", "position": 4711, "since": counts["oldest_open"], "rows": 40, "bytes": 20_000}
        self._tell("assembler.counted", query=QUERY, name=f"{QUERY}/lanes", counts=counts, oldest=[first])
