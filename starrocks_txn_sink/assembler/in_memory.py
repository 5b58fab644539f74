"""The rules in one task over events that are sorted already: state lives in memory and ends with the task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import pyarrow as pa

from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.packing import Packet, Partition, by_partition, packets, receipt
from starrocks_txn_sink.assembler.policy import Policy
from starrocks_txn_sink.assembler.rules import Assembler
from starrocks_txn_sink.assembler.state import AssemblerState
from starrocks_txn_sink.events import Event

Notify = Callable[[tuple[Event, ...]], None]


def assemble_sorted(batches: Iterable[pa.RecordBatch], policy: Policy, notify: Notify) -> Iterator[Packet]:
    """Assemble record batches sorted by source partition and position; memory holds one partition's open rows.

    Yields packed rows (packing.packets), and one receipt per source partition. What is open at the end is not released:
    the receipt counts it.
    """
    runs = (run for batch in batches for run in by_partition(pa.Table.from_batches([batch])))
    for partition, group in groupby(runs, key=lambda run: run[0]):
        yield from _one_partition(partition, (events for _, events in group), policy, notify)


def _one_partition(
    partition: Partition, tables: Iterable[pa.Table], policy: Policy, notify: Notify
) -> Iterator[Packet]:
    assembler, state, total = Assembler(policy, partition), AssemblerState(), Counters()
    blobs: dict[int, pa.Table] = {}
    for events in tables:
        step = assembler.feed(state, events, 0.0, blobs.__getitem__)
        yield from packets(partition, step.released)
        for number in step.removed:
            del blobs[number]
        blobs.update(step.added)
        state, total = step.state, total.then(step.counters)
        notify(step.notices)
    yield receipt(partition, total)
