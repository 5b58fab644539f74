"""TransactionAssembler over the events of one task, chunk by chunk: for assembling lanes, and for batch frames.

A stateful stage would move every event to a state operator and back; a lane carries over only the open tail of each
source partition. Pure: carried-over state and the spill storage for rows of open transactions are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler.rules import intake, model
from starrocks_txn_sink.assembler.rules.assembler import AssemblerStep, PartitionChange, TransactionAssembler
from starrocks_txn_sink.assembler.rules.history import Run
from starrocks_txn_sink.assembler.rules.intake import PartitionedEvents
from starrocks_txn_sink.assembler.rules.model import AssemblerState, Counters, OpenTransaction, Partition, Policy
from starrocks_txn_sink.assembler.rules.release import Assembler, ReleasedRows
from starrocks_txn_sink.assembler.rules.repeats import Repeats
from starrocks_txn_sink.assembler.rules.spill import BlobPlace, CarriedState, SpillStorage
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.telemetry import Event

if TYPE_CHECKING:
    from typing_extensions import Self

MEMORY_BYTES: Final = 32 << 20


class _MemoryBlob(NamedTuple):
    """A blob in memory, and its size, because pyarrow recounts `nbytes` column by column."""

    table: pa.Table
    bytes: int

    @classmethod
    def of(cls, rows: pa.Table) -> _MemoryBlob:
        """Copy `rows` if they are a small slice: a slice keeps the whole table in memory."""
        size = rows.nbytes
        if rows.get_total_buffer_size() > 2 * size:
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
        return cls(rows, size)


@dataclass(slots=True)
class PartitionBuffer:
    """One source partition in this task: its state, and its blobs in memory or in the spill storage."""

    state: AssemblerState
    places: dict[int, BlobPlace]
    memory: dict[int, _MemoryBlob] = field(default_factory=dict)
    run_before: Run | None = None  # of repeats, which waits for its proof since before this task
    latest: int | None = None  # the last position that arrived in this task
    repeats: Repeats | None = None  # in this task


@dataclass(slots=True)
class IncrementalAssembler(Assembler):
    """Assembles the events of one task. `now` is the micro-batch's processing time (seconds since the epoch).

    With `arrival_order` the events are unsorted, and a position that does not ascend raises Unordered. Otherwise they
    are sorted by (source partition, position), and an event may be repeated. `in_order`: unsorted events of a source
    partition are in the order in which they came.

    Memory holds rows of open source transactions up to `held_limit` bytes. Beyond the limit all of these rows are
    spilled, and read back blob by blob at the END of their transaction. `compare`: see TransactionAssembler.
    """

    policy: Policy
    carried: Mapping[str, CarriedState]
    now: float
    storage: SpillStorage
    arrival_order: bool
    held_limit: int = MEMORY_BYTES
    compare: bool = True
    in_order: bool = True
    flows: Counters = field(default_factory=Counters)
    notices: list[Event] = field(default_factory=list)
    _buffers: dict[Partition, PartitionBuffer] = field(default_factory=dict)
    _held_bytes: int = 0
    _last: tuple[Partition, pa.Table] | None = None
    _assembler: TransactionAssembler = field(init=False)

    def __post_init__(self) -> None:
        # A transaction may end in a later chunk of the micro-batch, so only `expire` judges open_timeout, afterwards.
        self._assembler = TransactionAssembler(replace(self.policy, open_timeout=None), self.compare)

    @classmethod
    def of(
        cls,
        policy: Policy,
        carried: Mapping[str, CarriedState],
        now: float,
        storage: SpillStorage,
        *,
        arrival_order: bool,
        compare: bool,
        in_order: bool,
    ) -> Self:
        """See Assembler.of."""
        return cls(policy, carried, now, storage, arrival_order, compare=compare, in_order=in_order)

    @classmethod
    def expire(
        cls, policy: Policy, partitions: Mapping[str, CarriedState], now: float
    ) -> tuple[dict[str, CarriedState], Counters, list[Event]]:
        """See Assembler.expire; raises SourceTransactionError under `on_open_timeout="fail"`."""
        if policy.open_timeout is None:
            return {}, Counters(), []
        states: dict[Partition, AssemblerState] = {
            name: partition.state_of(AssemblerState, name) for name, partition in partitions.items()
        }
        step = TransactionAssembler(policy).expire(states, now)
        changed = {}
        for name, change in step.changes.items():
            before = partitions[str(name)].places
            places = {number: place for number, place in before.items() if number not in change.removed}
            changed[str(name)] = CarriedState(change.state, places)
        return changed, step.counters, list(step.notices)

    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:
        """Take in events with their source_partition; yield released rows.

        Yields whole source transactions, per source partition in the order of their ENDs. `any_order` is for a task
        with a single chunk: source partitions are then processed in the order of their names, as after a shuffle.
        Raises Unordered, and the errors of TransactionAssembler.feed, for the first source partition with an error.
        """
        partitioned = intake.group_by_partition(events, sort_names=any_order)
        if not partitioned.names:
            return
        step = self._step_or_first_error(partitioned, any_order=any_order)
        yield from step.released
        for name, change in step.changes.items():
            self._apply(self._buffers[name], change)
        for repeats in step.repeats:
            buffer = self._buffers[repeats.partition]
            buffer.repeats = repeats if buffer.repeats is None else buffer.repeats + repeats
            buffer.run_before = repeats.before
        self.flows += step.counters
        self.notices += step.notices
        if not any_order:
            self._remember_order(intake.messages_of(partitioned))
        if self._held_bytes > self.held_limit:
            self._spill(small=False)

    def _step_or_first_error(self, partitioned: PartitionedEvents, *, any_order: bool) -> AssemblerStep:
        """Step all source partitions at once; after an error one by one, so that the first one with an error raises.

        The error then does not depend on the other source partitions of the chunk.
        """
        try:
            return self._step(partitioned, any_order=any_order)
        except StarRocksSinkError:
            for partition_events in partitioned.by_partition():
                self._step(partition_events, any_order=any_order)
            raise

    def _step(self, partitioned: PartitionedEvents, *, any_order: bool) -> AssemblerStep:
        states = {name: self._buffer(name).state for name in partitioned.names}
        if not any_order:
            self._check_order(intake.messages_of(partitioned))
        knows_order = self.arrival_order and self.in_order
        runs_before = None if knows_order else {name: self._buffers[name].run_before for name in partitioned.names}
        return self._assembler.feed(partitioned, states, self.now, self._read, runs_before)

    @property
    def names(self) -> set[str]:
        """The source partitions with events in this task."""
        return set(map(str, self._buffers))

    def counters(self) -> Counters:
        """The flows, and the levels of the source partitions with events in this task."""
        return sum((Counters().with_levels_of(buffer.state) for buffer in self._buffers.values()), self.flows)

    def repeat_notices(self) -> list[Event]:
        """A notice for each source partition whose repeats in this task show nothing about its source."""
        repeats = [buffer.repeats for buffer in self._buffers.values() if buffer.repeats is not None]
        return [repeat.notice() for repeat in repeats if repeat.unknown]

    def carry_over(self) -> dict[str, CarriedState]:
        """Spill all open rows; return the state of the source partitions with events, for the next micro-batch."""
        self._spill(small=True)
        return {str(name): CarriedState(buffer.state, dict(buffer.places)) for name, buffer in self._buffers.items()}

    def _buffer(self, name: Partition) -> PartitionBuffer:
        buffer = self._buffers.get(name)
        if buffer is None:
            before = self.carried.get(str(name), CarriedState())
            state = before.state_of(AssemblerState, str(name))
            buffer = self._buffers[name] = PartitionBuffer(state, dict(before.places), run_before=state.run)
        return buffer

    def _check_order(self, messages: PartitionedEvents) -> None:
        if messages.table[model.POSITION].null_count:
            return  # the assembler rejects NULL positions and names their place
        positions = messages.positions()
        if self.arrival_order:
            intake.refuse_disorder(messages, positions, [self._buffers[name].latest for name in messages.names])
        elif self._last is not None and self._last[0] in messages.names:
            name, event = self._last
            start = int(messages.starts[messages.names.index(name)])
            if self._buffers[name].latest == positions[start]:
                intake.refuse_other_content(event, _row(messages, start), name)

    def _remember_order(self, messages: PartitionedEvents) -> None:
        last = messages.positions()[messages.ends - 1]
        for name, position in zip(messages.names, last.tolist(), strict=True):
            self._buffers[name].latest = position
        self._last = messages.names[-1], _row(messages, int(messages.ends[-1]) - 1)

    def _apply(self, buffer: PartitionBuffer, change: PartitionChange) -> None:
        for number in change.removed:
            old_blob = buffer.memory.pop(number, None)
            if old_blob is None:
                del buffer.places[number]
            else:
                self._held_bytes -= old_blob.bytes
        for number, rows in change.added.items():
            buffer.memory[number] = new_blob = _MemoryBlob.of(rows)
            self._held_bytes += new_blob.bytes
        buffer.state = change.state

    def _read(self, name: Partition, number: int) -> pa.Table:
        buffer = self._buffers[name]
        rows = buffer.memory.get(number)
        return rows.table if rows is not None else self.storage.read(buffer.places[number])

    def _spill(self, *, small: bool) -> None:
        """Write all open rows in memory to the spill storage; with `small`, a small file may go into the manifest."""
        filled = [buffer for buffer in self._buffers.values() if buffer.memory]
        for buffer in filled:
            opened = [_merge_blobs(transaction, buffer.memory) for transaction in buffer.state.open]
            buffer.state = replace(buffer.state, open=tuple(opened))
        waiting = [(buffer, number) for buffer in filled for number in sorted(buffer.memory)]
        places = self.storage.write([buffer.memory[number].table for buffer, number in waiting], small=small)
        for (buffer, number), place in zip(waiting, places, strict=True):
            buffer.places[number] = place
            del buffer.memory[number]
        self._held_bytes = 0


def _row(events: PartitionedEvents, place: int) -> pa.Table:
    """The event at `place`, as a table of one row."""
    return events.table.slice(place if events.order is None else int(events.order[place]), 1)


def _merge_blobs(transaction: OpenTransaction, memory: dict[int, _MemoryBlob]) -> OpenTransaction:
    """Merge the transaction's blobs in `memory` into few, in place; a merged blob keeps the lowest number."""
    if len(transaction.blobs) < 2:
        return transaction
    groups: list[list[int]] = []
    size = 0
    for number in transaction.blobs:
        more = memory[number].bytes if number in memory else 0
        joins = number in memory and groups and groups[-1][-1] in memory and size + more <= model.BLOB_BYTES
        if joins:
            groups[-1].append(number)
        else:
            groups.append([number])
        size = size + more if joins else more
    for group in groups:
        if len(group) > 1:
            merged = [memory.pop(number) for number in group]
            memory[group[0]] = _MemoryBlob(
                pa.concat_tables([blob.table for blob in merged]), sum(blob.bytes for blob in merged)
            )
    return replace(transaction, blobs=tuple(group[0] for group in groups))
