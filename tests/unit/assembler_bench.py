"""One source partition driven by the rules, with the state kept the way a state store keeps it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.policy import Policy
from starrocks_txn_sink.assembler.rules import Assembler, Step
from starrocks_txn_sink.assembler.state import AssemblerState, from_blob, to_blob
from starrocks_txn_sink.events import Event


class Bench:
    """Applies steps in the documented order; state and blobs pass through their stored form every time."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.assembler = Assembler(policy or Policy(), "p0")
        self.header = AssemblerState().to_json()
        self.blobs: dict[int, bytes] = {}
        self.out: list[dict[str, Any]] = []
        self.total = Counters()
        self.notices: list[Event] = []
        self.written = 0

    @property
    def state(self) -> AssemblerState:
        return AssemblerState.from_json(self.header)

    def feed(self, events: pa.Table, now: float = 0.0) -> Step:
        return self._apply(self.assembler.feed(self.state, events, now, lambda n: from_blob(self.blobs[n])))

    def expire(self, now: float) -> Step:
        return self._apply(self.assembler.expire(self.state, now))

    def _apply(self, step: Step) -> Step:
        for released in step.released:
            assert released.num_rows > 0
            self.out += released.to_pylist()
        for number in step.removed:
            del self.blobs[number]
        for number, rows in step.added.items():
            assert number not in self.blobs
            self.blobs[number] = to_blob(rows)
            self.written += rows.num_rows
        self.header = step.state.to_json()
        self.total = self.total.then(step.counters)
        self.notices += step.notices
        kept = [number for each in step.state.open for number in each.blobs]
        assert sorted(kept) == sorted(self.blobs)
        return step
