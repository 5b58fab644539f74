"""One source partition driven by TransactionAssembler, with the state kept the way a state store keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from starrocks_txn_sink.assembler.rules.assembler import AssemblerStep, PartitionChange, TransactionAssembler
from starrocks_txn_sink.assembler.rules.intake import one_partition
from starrocks_txn_sink.assembler.rules.model import AssemblerState, Counters, Policy, from_blob, to_blob
from starrocks_txn_sink.telemetry import Event

NAME = "p0"


def followed_by(before: Counters, step: Counters) -> Counters:
    """The flows of both, and the levels of the later one."""
    return replace(before, open=0, open_rows=0, state_bytes=0) + step


class Bench:
    """Applies steps in the documented order; state and blobs pass through their stored form every time."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.assembler = TransactionAssembler(policy or Policy())
        self.header = AssemblerState().to_json()
        self.blobs: dict[int, bytes] = {}
        self.out: list[dict[str, Any]] = []
        self.total = Counters()
        self.notices: list[Event] = []
        self.written = 0

    @property
    def state(self) -> AssemblerState:
        return AssemblerState.from_json(self.header)

    def feed(self, events: pa.Table, now: float = 0.0) -> AssemblerStep:
        partitioned = one_partition(NAME, events)
        return self._apply(
            self.assembler.feed(partitioned, {NAME: self.state}, now, lambda _, n: from_blob(self.blobs[n]))
        )

    def expire(self, now: float) -> AssemblerStep:
        return self._apply(self.assembler.expire({NAME: self.state}, now))

    def _apply(self, step: AssemblerStep) -> AssemblerStep:
        for released in step.released:
            assert released.names == (NAME,)
            assert released.counts.tolist() == [released.rows.num_rows] != [0]
            self.out += released.rows.to_pylist()
        change = step.changes.get(NAME, PartitionChange(self.state))
        for number in change.removed:
            del self.blobs[number]
        for number, rows in change.added.items():
            assert number not in self.blobs
            self.blobs[number] = to_blob(rows)
            self.written += rows.num_rows
        self.header = change.state.to_json()
        self.total = followed_by(self.total, step.counters.with_levels_of(change.state))
        self.notices += step.notices
        blobs = [number for blob in change.state.open for number in blob.blobs]
        assert sorted(blobs) == sorted(self.blobs)
        return step
