"""Rules of one key where the session's state store is not RocksDB: over applyInPandasWithState.

A key is a group of its own here, so that a micro-batch writes the state of the keys it has and no other. State that has
outlived `state_ttl` counts as absent at once; Spark's processing time wakes its key to remove it.
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
from starrocks_txn_sink.changelog.spark_state import LEFT_COLUMNS, entries, lists, outgoing
from starrocks_txn_sink.changelog.state_text import read, written
from starrocks_txn_sink.clock import Clock

STATE: Final = "state string"

Frames = Iterator[pd.DataFrame]


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Runs a rule for one key."""

    rule: KeyRule
    orders: int
    retention: Retention
    clock: Clock

    def __call__(self, _: Any, frames: Frames, group: GroupState) -> Frames:
        now, stored = self.clock.wall(), group.get[0] if group.exists else None
        before = read(stored, self.retention, now)
        arrived = sorted(
            (entry for frame in frames for entry in entries(lists(frame), self.orders)), key=lambda entry: entry[:2]
        )
        if arrived:
            step = self.rule.step(before, [change for _, _, change in arrived])
            if step.touched and step.state is not None:
                group.update((written(step.state, now),))
            elif stored is not None and step.state is None:
                group.remove()
            yield pd.DataFrame(outgoing(step), columns=LEFT_COLUMNS, dtype=object)
        elif before is None and stored is not None:
            group.remove()
        if self.retention.seconds > 0 and group.exists:
            group.setTimeoutDuration(max(1, math.ceil(self.retention.seconds * 1000)))
