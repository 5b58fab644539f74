"""Drives a lane synchronously against the model server, on a manual clock, finishing loads in random order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import orjson

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.lane import Lane, LaneAction
from starrocks_txn_sink.coordinator.model import (
    BeginAction,
    CommitAction,
    LaneLimits,
    LoadAction,
    PositionSpan,
    RegionRows,
    RowIndex,
)
from starrocks_txn_sink.coordinator.write_buffer import Spill, WriteBuffer
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.label import Committed
from starrocks_txn_sink.rows.body import UniqueRows
from starrocks_txn_sink.rows.keys import TableKey
from starrocks_txn_sink.rows.unchanged import UnchangedValues
from starrocks_txn_sink.writer.runner import Performer
from tests.support.manual_clock import ManualClock
from tests.support.model_server import ModelServer

LABEL = "job-e-all-0-1_0"


def small_limits(**changes: Any) -> LaneLimits:
    values: dict[str, Any] = {
        "mini_interval": 0.1,
        "timeout": 600.0,
        "buffer_bytes": 10_000,
        "chunk_bytes": 1_000,
        "load_bytes": 500,
        "load_parallelism": 4,
    }
    return LaneLimits(**{**values, **changes})


class LaneDriver:
    """One lane under LABEL: `write_rows`, `end` and `finish` feed it, `settle` runs what is due until nothing happens.

    Unless `lane_begins`, the label is begun here, and `commit` commits it: both are the work of the driver.
    """

    def __init__(
        self,
        server: ModelServer,
        limits: LaneLimits,
        seed: int = 0,
        keys: Mapping[str, TableKey] | None = None,
        spill: Spill | None = None,
        *,
        hold: bool = False,
        lane_begins: bool = False,
        unchanged: UnchangedValues | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.server = server
        self.rng = random.Random(seed)
        buffer = WriteBuffer(limits, spill, (keys or {}).keys(), hold=hold)
        self.core = Lane("job", 0, LABEL, buffer, self.clock.wall, lane_begins)
        options = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
        self.unique = UniqueRows(keys or {}, unchanged)
        limit = Deadline.after(3600.0, self.clock)
        self.perform = Performer(options, server, self.clock, limit, self.rng, unique=self.unique)
        if not lane_begins:
            self.perform(BeginAction(LABEL))
        self.waiting: list[LaneAction] = []

    def step(self) -> bool:
        """Ask for loads and finish one of those under way; False when there is nothing to do."""
        self.server.now = self.clock.monotonic()
        self.waiting += self.core.tick(self.clock.monotonic())
        if not self.waiting:
            return False
        action = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        try:
            result = self.perform(action)
        except StarRocksSinkError as error:
            result = error
        self.core.complete(action, result)
        return True

    def loads(self, now: float = 0.0) -> list[LoadAction]:
        """The loads that are due at `now`; the caller completes them."""
        return [action for action in self.core.tick(now) if isinstance(action, LoadAction)]

    def settle(self) -> None:
        while self.step():
            pass

    def write_rows(self, partition: str, table: str, rows: list[Any]) -> None:
        while self.core.saturated and self.step():
            pass
        lines = [b"," + orjson.dumps(row) for row in rows]
        index = RowIndex(np.zeros(len(rows), np.int64), np.array([0, *accumulate(map(len, lines))]))
        self.core.take(
            RegionRows(partition, table, memoryview(b"".join(lines)), len(rows), index), self.clock.monotonic()
        )

    def end(self, partition: str, position: int) -> None:
        self.core.take(PositionSpan(partition, position, position, 1), self.clock.monotonic())

    def finish(self) -> None:
        """No more rows: run to the end, letting time pass where the lane waits for it."""
        self.core.finish(self.clock.monotonic())
        for _ in range(10_000):
            if self.core.finished:
                return
            if not self.step():
                self.clock.advance(0.5)
        raise AssertionError(f"the lane does not come to an end: {self.core.waiting_for}")

    def commit(self) -> None:
        """Make visible what was loaded."""
        assert isinstance(self.perform(CommitAction(LABEL)), Committed)
