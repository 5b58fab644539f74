"""A model of the metrics, and the events of a sink told to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.metrics.catalogue import BY_NAME
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.verdict import Light, health_status, readiness
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import LaneReport
from tests.support.manual_clock import ManualClock

LIMIT = 60.0


class MetricsFeed:
    """A model, and the events of a sink told to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.model = Model(self.clock)
        self.tell("sink.made", buffer_bytes=1000, timeout=100, version="1", spark="4")

    def tell(self, event: str, /, **fields: Any) -> None:
        self.model.record(Event(event, fields))

    def batch(self, batch_id: int, *receipts: Receipt, report: LaneReport | None = None, query: str = "q") -> None:
        self.tell("batch.started", job="shop", batch_id=batch_id, lanes=2, query=query)
        if report is not None:
            self.tell("lane.reported", report=report)
        for receipt in receipts:
            self.tell("receipt.collected", receipt=receipt)
        self.tell("batch.completed", job="shop", batch_id=batch_id, seconds=0.5, receipts=len(receipts))

    def fail(self, batch_id: int, code: str = "commit_failed", report: LaneReport | None = None) -> None:
        self.tell("batch.started", job="shop", batch_id=batch_id, lanes=2, query="q")
        self.tell("batch.failed", job="shop", batch_id=batch_id, seconds=0.5, code=code, report=report)

    def value(self, name: str, *labels: str) -> float:
        """A metric of the job `shop`, or with other `labels`."""
        labels = labels or (("shop",) if "sink_job" in BY_NAME[name].labels else ())
        return self.model.metrics.value(name, *labels)

    @property
    def sentence(self) -> str:
        return health_status(self.model, self.clock.wall(), LIMIT).text

    @property
    def light(self) -> Light:
        return self.lit()

    def lit(self) -> Light:
        return health_status(self.model, self.clock.wall(), LIMIT).light

    @property
    def ready(self) -> bool:
        return readiness(self.model, self.clock.wall(), LIMIT).ready


def receipt(feed: MetricsFeed, batch_id: int = 0, rows: int = 10, **changes: Any) -> Receipt:
    base_receipt = Receipt(
        label=f"shop-e-0-{batch_id}-1_0",
        txn_id=7,
        job="shop",
        batch_id=batch_id,
        regions=(RegionCount("0", "orders", rows, rows * 100), RegionCount("0", "items", 1, 50)),
        positions=(PositionSpan("0", 1, 9, 3),),
        loads=2,
        attempts=1,
        retries=0,
        recycled=False,
        phase_seconds={"begin": 0.01, "load": 0.2, "commit": 0.03, "publish": 0.07},
        committed_at=feed.clock.wall(),
        open_seconds=50.0,
    )
    return replace(base_receipt, **changes)
