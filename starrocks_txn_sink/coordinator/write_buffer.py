"""WriteBuffer: all rows of a lane that are not committed yet, and the transaction batches made of them.

Rows go into regions; inactive chunks go into the last transaction batch, until it is *closed* at a clean boundary.
Meanwhile the coordinator loads and commits the first batch. Sent chunks stay for another attempt while they fit the
retry buffer. Beyond that a failure ends the task, and Spark computes the rows again: memory and repetition are bounded.

A micro-batch is one batch, and so one StarRocks transaction, unless the commit interval passes, the recycle point is
reached, or a quarantine limits the size. See docs/inside/architecture.md, "The life of a StarRocks transaction",
step 2.

Pure: knows no labels and no server.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.coordinator.model import PositionSpan, RegionCount
from starrocks_txn_sink.errors import BufferFull, InputError
from starrocks_txn_sink.protocol.label import ReplacedRows
from starrocks_txn_sink.protocol.ledger import NAME_BYTES

Spill = Callable[[Sequence[model.Chunk]], bool]
"""Moves the rows of chunks from memory into a file; False if that is not possible."""


@dataclass(slots=True)
class TransactionBatch:
    """Contents of one StarRocks transaction: chunks `pending` per table, and `sent` under the current label.

    `sent` is None once the chunks outgrew the retry buffer and could not be spilled: the batch cannot be repeated then.
    `counts` has rows and bytes by (source partition, table), `replaced` the rows and bytes that loads left out.

    A `held` batch is loaded only when it is closed, and tables in `keyed` are loaded newest chunks first: so a load can
    leave a row out that a later row of another load replaces (`rows.body`).

    `dead_letters` are the chunks with rows for the dead-letter table. `dead_letter_spans` are the spans of the
    dead-lettered source transactions, which come before all in `spans`; `dead_letter_counts` are their rows and bytes.
    """

    retry_limit: int
    spill: Spill | None = None
    keyed: Collection[str] = ()
    held: bool = False
    pending: dict[str, deque[model.Chunk]] = field(default_factory=dict)
    closed: bool = False
    recycled: bool = False
    sent: list[model.Chunk] | None = field(default_factory=list)
    sent_bytes: int = 0
    counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    replaced: dict[tuple[str, str], ReplacedRows] = field(default_factory=dict)
    spans: dict[str, PositionSpan] = field(default_factory=dict)
    loads: int = 0
    dead_letters: list[model.Chunk] = field(default_factory=list)
    dead_letter_spans: dict[str, PositionSpan] = field(default_factory=dict)
    dead_letter_counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    _order: list[str] | None = None  # of the tables with pending chunks

    def successor(self) -> TransactionBatch:
        """A closed batch without rows, to take a part of this batch's rows."""
        return TransactionBatch(
            self.retry_limit, self.spill, self.keyed, self.held, closed=True, recycled=self.recycled
        )

    def add(self, chunk: model.Chunk) -> None:
        """Take an inactive chunk; not allowed once the batch is closed."""
        self._order = None
        self.pending.setdefault(chunk.table, deque()).append(chunk)
        count = self.counts.setdefault((chunk.partition, chunk.table), [0, 0])
        count[0] += chunk.rows
        count[1] += chunk.bytes

    def extend_span(self, ends: model.PositionSpan) -> None:
        """Extend the span of a source partition; raises InputError if its name is too long for the ledger.

        The end of an unpositioned batch has a digest and no count: it moves the ledger, and no source transaction ends.
        """
        if not ends.source_transactions and not ends.digest:
            return
        before = self.spans.get(ends.partition)
        if before is None:
            _refuse_long(ends.partition)
        self.spans[ends.partition] = _join_spans(before, ends)

    def pending_bytes(self, table: str) -> int:
        return sum(chunk.bytes for chunk in self.pending.get(table, ()))

    def tables(self) -> Iterator[str]:
        """Tables with pending chunks, largest first: the longest load starts first.

        Each segment that comes in and each load that ends asks for them, so the order is kept as long as it holds. That
        of a closed batch may be older: its tables only become smaller.
        """
        if self._order is None:
            self._order = sorted(self.pending, key=self.pending_bytes, reverse=True)[::-1]  # the next one is last
        while self._order and not self.pending.get(self._order[-1]):
            self._order.pop()
        return (table for table in reversed(self._order) if self.pending.get(table))

    def take(self, table: str, limit: int) -> list[model.Chunk]:
        """Remove and return the next chunks of `table`, in order: at least one, more up to `limit` bytes."""
        chunks = self.pending[table]
        taken: list[model.Chunk] = []
        newest_first = self.newest_first(table)
        size, end = 0, -1 if newest_first else 0
        while chunks and (not taken or size + chunks[end].bytes <= limit):
            size += chunks[end].bytes
            taken.append(chunks.pop() if newest_first else chunks.popleft())
        if newest_first:
            taken.reverse()
        self._keep(taken, newest_first)
        self.loads += 1
        if not self.closed:
            self._order = None
        return taken

    def newest_first(self, table: str) -> bool:
        """Whether the newest chunks of `table` are loaded first."""
        return self.held and table in self.keyed

    def _keep(self, chunks: list[model.Chunk], newest_first: bool) -> None:
        if self.sent is None:
            return
        size = sum(chunk.memory for chunk in chunks)
        if self.sent_bytes + size > self.retry_limit:
            if self.spill is None or not self.spill(chunks):
                self.sent = None
                return
            size = 0
        self.sent_bytes += size
        self.sent = [*chunks, *self.sent] if newest_first else [*self.sent, *chunks]

    def add_replaced(self, table: str, replaced: Mapping[str, ReplacedRows]) -> None:
        """Count rows that a load left out, by source partition."""
        for partition, more in replaced.items():
            known = self.replaced.get((partition, table), ReplacedRows())
            self.replaced[(partition, table)] = ReplacedRows(known.rows + more.rows, known.bytes + more.bytes)

    @property
    def repeatable(self) -> bool:
        """Whether every sent chunk is still here for another attempt."""
        return self.sent is not None

    def rewind(self) -> int:
        """Put the sent chunks back, in order, for an attempt under a new label; return their bytes in memory."""
        if self.sent is None:
            raise RuntimeError("A transaction batch that has released its sent chunks cannot be rewound.")
        put_back, self._order = self.sent_bytes, None
        for chunk in self.sent:
            if self.newest_first(chunk.table):
                self.pending[chunk.table].append(chunk)
        for chunk in reversed(self.sent):
            if not self.newest_first(chunk.table):
                self.pending[chunk.table].appendleft(chunk)
        self.sent, self.sent_bytes, self.loads, self.replaced = [], 0, 0, {}
        return put_back

    @property
    def empty(self) -> bool:
        """Whether it has no rows; spans alone are not worth a StarRocks transaction."""
        return not self.counts and not self.dead_letters

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.counts.values())

    @property
    def memory(self) -> int:
        """Bytes of its pending rows in memory."""
        return sum(chunk.memory for chunks in self.pending.values() for chunk in chunks)

    @property
    def source_transactions(self) -> int:
        """Number of source transactions, dead-lettered ones not counted."""
        return sum(span.source_transactions for span in self.spans.values())

    def chunks(self) -> Iterator[model.Chunk]:
        """Yield the pending chunks, in order within a table; no dead letters."""
        own_tables = {chunk.table for chunk in self.dead_letters}
        for table, chunks in self.pending.items():
            if table not in own_tables:
                yield from chunks

    # --- dead letters ---

    def add_dead_letters(
        self, chunk: model.Chunk, spans: dict[str, PositionSpan], counts: dict[tuple[str, str], list[int]]
    ) -> None:
        """Take rows of the dead-letter table for source transactions that come before all others of this batch.

        Their spans still move the ledger: a dead-lettered source transaction must not come again as a replay.
        """
        self.dead_letters.append(chunk)
        self._order = None
        self.pending.setdefault(chunk.table, deque()).append(chunk)
        for name, span in spans.items():
            self.dead_letter_spans[name] = _join_spans(self.dead_letter_spans.get(name), span)
        for place, (rows, size) in counts.items():
            count = self.dead_letter_counts.setdefault(place, [0, 0])
            count[0] += rows
            count[1] += size

    def inherit_dead_letters(self, other: TransactionBatch) -> None:
        """Take the dead letters of `other`, which must not have sent any since its last rewind."""
        spans, counts = other.dead_letter_spans, other.dead_letter_counts
        for chunk in other.dead_letters:
            self.add_dead_letters(chunk, spans, counts)
            spans, counts = {}, {}

    def rows_by_partition(self) -> Counter[str]:
        """Rows of each source partition, over all tables."""
        rows_of: Counter[str] = Counter()
        for (partition, _), (rows, _) in self.counts.items():
            rows_of[partition] += rows
        return rows_of

    def region_counts(self) -> tuple[RegionCount, ...]:
        return tuple(
            RegionCount(*place, rows - less.rows, size - less.bytes, less.rows)
            for place, (rows, size) in sorted(self.counts.items())
            for less in (self.replaced.get(place, ReplacedRows()),)
        )

    def dead_lettered(self) -> tuple[RegionCount, ...]:
        return tuple(RegionCount(p, t, rows, size) for (p, t), (rows, size) in sorted(self.dead_letter_counts.items()))

    def dead_lettered_spans(self) -> tuple[PositionSpan, ...]:
        return tuple(span for _, span in sorted(self.dead_letter_spans.items()))

    def position_spans(self) -> tuple[PositionSpan, ...]:
        joined = {name: _join_spans(self.dead_letter_spans.get(name), span) for name, span in self.spans.items()}
        return tuple(span for _, span in sorted({**self.dead_letter_spans, **joined}.items()))


def _refuse_long(partition: str) -> None:
    size = len(partition.encode())
    if size > NAME_BYTES:
        raise InputError(
            f"The name of source partition {partition[:60]}… has {size} bytes.",
            hint=f"At most {NAME_BYTES} fit into the ledger: give source partitions shorter names, such as digests.",
        )


def _join_spans(before: PositionSpan | None, after: PositionSpan) -> PositionSpan:
    """Join two spans of a source partition, in this order."""
    if before is None:
        return after
    count = before.source_transactions + after.source_transactions
    return PositionSpan(after.partition, before.first, after.last, count, after.digest)


class Contents(Protocol):
    """The rows of one StarRocks transaction, as the ledger and the receipts' log count them."""

    def rows_by_partition(self) -> Mapping[str, int]: ...
    def region_counts(self) -> tuple[RegionCount, ...]: ...
    def position_spans(self) -> tuple[PositionSpan, ...]: ...


EntriesBuilder = Callable[[str, Contents], model.Chunk]
"""Builds the rows of a batch under a label for a table of the sink's own: the ledger or the receipts' log."""


@dataclass(slots=True)
class WriteBuffer:
    """Rows of one lane that are not committed yet.

    `batches` is never empty: the last batch takes inactive chunks, all others are closed. `open_partition` is the
    source partition with an open source transaction. `buffered_bytes` counts waiting rows and those of running loads;
    `buffered_peak` is its maximum. `spill` takes rows that do not fit. With `hold`, and only with `spill`, all batches
    are held. The rows of the tables `keyed` replace each other. Without `repeatable` chunks are dropped when sent.
    """

    limits: model.CoordinatorLimits
    spill: Spill | None = None
    keyed: Collection[str] = ()
    hold: bool = False
    repeatable: bool = True
    batches: deque[TransactionBatch] = field(default_factory=deque)
    open_partition: str | None = None
    buffered_bytes: int = 0
    buffered_peak: int = 0
    _regions: dict[tuple[str, str], model.Region] = field(default_factory=dict)
    _open_regions: model.OpenRegions = field(default_factory=model.OpenRegions)
    _first_row_at: float | None = None
    _input_ended: bool = False

    def __post_init__(self) -> None:
        self.hold = self.hold and self.spill is not None
        self._start_batch()

    @property
    def saturated(self) -> bool:
        return self.buffered_bytes >= self.limits.buffer_bytes

    @property
    def finished(self) -> bool:
        """Whether the input has ended and all of its rows are committed."""
        return self._input_ended and all(batch.empty for batch in self.batches)

    @property
    def first(self) -> TransactionBatch:
        """The batch of the open StarRocks transaction, or of the next one."""
        return self.batches[0]

    @property
    def has_rows(self) -> bool:
        """Whether the next StarRocks transaction has a row to load; a held batch has none before it is closed."""
        if self.first.held and not self.first.closed:
            return False
        return not self.first.empty or (self.first is self._filling and bool(self._open_regions))

    @property
    def all_sent(self) -> bool:
        """Whether the first batch is closed, and all of its chunks have been taken."""
        return self.first.closed and not any(self.first.pending.values())

    # --- rows in; `recycle` is True when the open StarRocks transaction has passed its recycle point ---

    def take(self, segment: model.Segment, now: float, *, recycle: bool) -> None:
        """Take rows, or the ends of source transactions with the rows that were written last for their partition."""
        if isinstance(segment, model.RegionRows):
            self.write(segment, now)
        else:
            self.end_transactions(segment, now, recycle=recycle)

    def write(self, rows: model.RegionRows, now: float) -> None:
        """Take rows of the partition's open source transaction."""
        if self._first_row_at is None:
            self._first_row_at = now
        self.open_partition = rows.partition
        place = (rows.partition, rows.table)
        region = self._regions.get(place) or self._regions.setdefault(place, model.Region(*place))
        region.write(rows)
        self._open_regions.add(region)
        self.buffered_bytes += rows.piece.nbytes
        self.buffered_peak = max(self.buffered_peak, self.buffered_bytes)
        if region.active.bytes >= self.limits.chunk_bytes:
            self._freeze(region, now)
        if self.saturated:
            self._freeze_largest(now)
            self._spill_held()

    def end_transactions(self, ends: model.PositionSpan, now: float, *, recycle: bool) -> None:
        """End source transactions with the rows that were written last for their partition."""
        self.open_partition = None
        for region in self._open_regions.in_partition(ends.partition):
            region.end_transaction()
            if region.freeze_due(now, self.limits.mini_interval):
                self._freeze(region, now)
            else:
                self._open_regions.schedule(region, self.limits.mini_interval)
        self._filling.extend_span(ends)
        self.close_if_due(now, recycle)

    def pass_time(self, now: float, *, recycle: bool) -> None:
        """Freeze regions and close the batch when due, also while no rows come."""
        for region in self._open_regions.due(now, self.limits.mini_interval):
            self._freeze(region, now)
        self.close_if_due(now, recycle)

    def finish(self, now: float) -> None:
        """End the input; raises InputError if a source transaction is still open."""
        if self.open_partition is not None:
            raise InputError(
                f"The rows of source partition {self.open_partition} end inside a source transaction.",
                hint="Give the sink whole source transactions: the output of assemble_transactions, unfiltered.",
                source_partition=self.open_partition,
            )
        self._input_ended = True
        self._close(now)

    # --- rows out ---

    def take_loads(self, loading: Collection[str]) -> Iterator[tuple[tuple[model.Chunk, ...], bool]]:
        """Yield the chunks of each load of the first batch that is due, and whether they are loaded newest first.

        `loading` are the tables with a running load; the caller adds each load before it asks for the next one. Chunks
        of an open batch wait until a load is worth its request; a closed batch or a full buffer sends them all.
        """
        batch, limits, full = self.first, self.limits, self.saturated
        if len(loading) >= limits.load_parallelism:  # before all tables are sorted
            return
        for table in batch.tables():
            if len(loading) >= limits.load_parallelism:
                return
            if not (batch.closed or full or batch.pending_bytes(table) >= limits.load_bytes):
                return  # nor are smaller ones large enough
            if table not in loading:
                yield tuple(batch.take(table, limits.body_bytes)), batch.newest_first(table)

    def reserve(self, chunk: model.Chunk) -> model.Chunk:
        """Count a chunk of the sink's own among the buffered bytes, until `release`."""
        self.buffered_bytes += chunk.bytes
        return chunk

    def release(self, size: int) -> None:
        """Count `size` bytes less: their load has ended."""
        self.buffered_bytes -= size

    def rewind(self) -> None:
        """Put the sent chunks of the first batch back, for an attempt under a new label."""
        self.buffered_bytes += self.first.rewind()

    def hold_back(self) -> None:
        """Put the sent chunks back, and hold this batch and all later ones until they are closed.

        Raises BufferFull if the rows fit neither into memory nor into a file.
        """
        self.rewind()
        self.hold = True
        for each in self.batches:
            each.held = True
        self._spill_held()

    def replace_first(self, batches: Sequence[TransactionBatch]) -> None:
        """Replace the first batch by `batches`, which have its source transactions; it must have sent nothing."""
        self.buffered_bytes -= self.batches.popleft().memory
        self.buffered_bytes += sum(batch.memory for batch in batches)
        self.batches.extendleft(reversed(batches))

    def remove_committed(self) -> TransactionBatch:
        """Remove the first batch, now committed."""
        batch = self.batches.popleft()
        if not self.batches:
            self._start_batch()
        return batch

    # --- inside ---

    @property
    def _filling(self) -> TransactionBatch:
        """The batch that takes inactive chunks now."""
        return self.batches[-1]

    def _start_batch(self) -> None:
        # Without a spill file a batch does not refer to the buffer, so no cycle delays the release of their memory.
        spill = self._spill_chunks if self.spill is not None else None
        batch = TransactionBatch(self.limits.retry_buffer_bytes, spill, self.keyed, self.hold)
        batch.sent = [] if self.repeatable else None
        self.batches.append(batch)

    def _spill_chunks(self, chunks: Sequence[model.Chunk]) -> bool:
        in_memory = [chunk for chunk in chunks if not chunk.spilled]
        if in_memory and (self.spill is None or not self.spill(in_memory)):
            return False
        self.buffered_bytes -= sum(chunk.bytes for chunk in in_memory)
        for chunk in in_memory:
            chunk.spilled = True
        return True

    def _spill_held(self) -> None:
        """Spill a held batch when the buffer is full: before the batch is closed, no load makes room.

        Raises BufferFull if the rows cannot be spilled.
        """
        if not (self.saturated and self._filling.held) or self._spill_chunks(list(self._filling.chunks())):
            return
        raise BufferFull(
            "The rows of a StarRocks transaction do not fit into memory, and no temporary file takes them.",
            hint="Free space in the executor's directory for temporary files (SPARK_LOCAL_DIRS, TMPDIR), raise "
            "buffer_bytes, or make micro-batches smaller.",
        )

    def _freeze(self, region: model.Region, now: float) -> None:
        self._open_regions.remove(region)
        chunk = region.freeze(now)
        if chunk is not None:
            self._filling.add(chunk)

    def _freeze_largest(self, now: float) -> None:
        """Make a full buffer loadable: freeze the largest regions until loads can take half of the limit.

        Without this a lane of many small regions would stand still: none reaches `chunk_bytes`, so none can be sent.
        """
        frozen = 0
        for region in sorted(self._open_regions.all(), key=lambda region: region.active.bytes, reverse=True):
            if frozen * 2 >= self.limits.buffer_bytes:
                return
            frozen += region.active.bytes
            self._freeze(region, now)

    def close_if_due(self, now: float, recycle: bool) -> None:
        """Close the batch, at a clean boundary, by its age, to recycle its label, or by its size (`CoordinatorLimits`).

        A closed batch never takes more rows, so an open source transaction here would be split by the commit.
        """
        if self.open_partition is not None or self._first_row_at is None:
            return
        interval = self.limits.commit_interval
        recycle = recycle and self._filling is self.batches[0]  # the open label is that of the first batch
        if recycle or self._large_enough() or (interval is not None and now - self._first_row_at >= interval):
            self._filling.recycled = recycle
            self._close(now)

    def _large_enough(self) -> bool:
        """Whether the batch has `close_bytes`: a larger one may not fit the retry buffer, to be bisected."""
        limit = self.limits.close_bytes
        if limit is None:
            return False
        return self._filling.bytes + sum(region.active.bytes for region in self._open_regions.all()) >= limit

    def _close(self, now: float) -> None:
        for region in self._open_regions.all():
            self._freeze(region, now)
        self._first_row_at = None
        if not self._filling.empty:
            self._filling.closed = True
            self._start_batch()
