"""Micro-batches through IncrementalAssembler and the manifest log, with everything stored and read again in between."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.incremental import MEMORY_BYTES, IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Counters, Partition, Policy
from starrocks_txn_sink.assembler.rules.spill import Manifest, SpillStorage
from starrocks_txn_sink.telemetry import Event
from tests.support.assembler_bench import followed_by
from tests.support.memory_directory import MemoryDirectory


class IncrementalBench:
    """Feeds chunks of events of any source partitions; `out` are the released rows by source partition."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        arrival_order: bool = True,
        in_order: bool = True,
        held_rows: int = MEMORY_BYTES,
    ) -> None:
        self.policy = policy or Policy()
        self.arrival_order, self.in_order, self.held = arrival_order, in_order, held_rows
        self.directory = MemoryDirectory()
        self.stored = Manifest().to_json()
        self.out: dict[Partition, list[dict[str, Any]]] = {}
        self.total = Counters()
        self.notices: list[Event] = []
        self.peak = 0
        self.batch = 0

    @property
    def manifest(self) -> Manifest:
        return Manifest.from_json(self.stored)

    def feed(self, *chunks: pa.Table, now: float = 0.0, any_order: bool = False) -> None:
        """One micro-batch."""
        before = self.manifest
        storage = SpillStorage(self.directory, f"000001-e-{self.batch}-0-0", before.inline)
        assembler = IncrementalAssembler(
            self.policy, before.partitions, now, storage, self.arrival_order, self.held, in_order=self.in_order
        )
        for chunk in chunks:
            for released in assembler.feed(chunk, any_order=any_order):
                assert released.rows.num_rows == released.counts.sum() > 0
                rows = iter(released.rows.to_pylist())
                for partition, count in zip(released.names, released.counts, strict=True):
                    self.out.setdefault(partition, []).extend(itertools.islice(rows, int(count)))
            self.peak = max(self.peak, assembler._held_bytes)
        after = before.with_batch(self.batch, "q", assembler.carry_over(), storage.new_inline.items())
        self.notices += [*assembler.notices, *assembler.repeat_notices()]
        storage.close()
        late, flows, _ = IncrementalAssembler.expire(self.policy, after.partitions, now)
        after = after.with_batch(self.batch, "q", late, ())
        self.total = followed_by(self.total, sum((assembler.flows, flows), after.levels()))
        for state in after.partitions.values():
            assert isinstance(state.state, model.AssemblerState)
            assert set(state.places) == {number for opened in state.state.open for number in opened.blobs}
        self.stored = after.to_json()
        self.batch += 1


def named(events: pa.Table, partition: str) -> pa.Table:
    """Events with their source partition in front."""
    return events.add_column(0, model.SOURCE_PARTITION, pa.array([partition] * events.num_rows, pa.string()))
