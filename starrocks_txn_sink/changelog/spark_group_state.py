"""Rules of one key over applyInPandasWithState, for sessions whose state store is not RocksDB.

Each key is a group of its own, so a micro-batch writes only the state of its own keys. Expired state counts as absent
at once; a processing-time timeout wakes its key to remove it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd
from pyspark.sql.streaming.state import GroupState

from starrocks_txn_sink.changelog.keyed import KeyRule
from starrocks_txn_sink.changelog.retention import Retention
from starrocks_txn_sink.changelog.spark_state import OUTPUT_COLUMNS, column_lists, entries, output_rows
from starrocks_txn_sink.changelog.state_text import state_from_text, state_to_text
from starrocks_txn_sink.clock import Clock

STATE: Final = "state string"

Frames = Iterator[pd.DataFrame]


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Runs a rule for one key; a call without rows is the timeout."""

    rule: KeyRule
    orders: int
    retention: Retention
    clock: Clock

    def __call__(self, _: Any, frames: Frames, group: GroupState) -> Frames:
        now, stored = self.clock.wall(), group.get[0] if group.exists else None
        before = state_from_text(stored, self.retention, now)
        arrived = sorted(
            (entry for frame in frames for entry in entries(column_lists(frame), self.orders)),
            key=lambda entry: entry[:2],
        )
        if arrived:
            step = self.rule.step(before, [change for _, _, change in arrived])
            if step.touched and step.state is not None:
                group.update((state_to_text(step.state, now),))
            elif stored is not None and step.state is None:
                group.remove()
            yield pd.DataFrame(output_rows(step), columns=OUTPUT_COLUMNS, dtype=object)
        elif before is None and stored is not None:
            group.remove()
        if self.retention.seconds > 0 and group.exists:  # a timeout holds until the next call only, so set it each time
            group.setTimeoutDuration(max(1, math.ceil(self.retention.seconds * 1000)))
