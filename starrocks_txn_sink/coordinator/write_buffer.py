"""WriteBuffer: rows go into regions, frozen chunks into transaction batches; a batch closes at a clean boundary.

The rules are step 2 of docs/architecture.md, "The life of a StarRocks transaction".

Pure: knows no labels and no server. The coordinator takes chunks from the first batch while the last one fills.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from starrocks_txn_sink.coordinator.actions import PositionSpan, RegionCount
from starrocks_txn_sink.coordinator.region import (
    Chunk,
    CoordinatorLimits,
    OpenRegions,
    Region,
    RowIndex,
    TransactionEnds,
)
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.ledger import NAME_BYTES


@dataclass(slots=True)
class GrowingSpan:
    """First and last position of one source partition, growing as source transactions end."""

    first: int
    last: int
    source_transactions: int
    digest: str = ""


@dataclass(slots=True)
class TransactionBatch:
    """Chunks of one StarRocks transaction: `pending` per table, `sent` under the current label.

    `letters` are rows of the dead-letter table among them; `buried` are the spans of the source transactions that they
    hold, which come before those of `spans`, and `buried_counts` their rows.
    """

    retry_limit: int
    pending: dict[str, deque[Chunk]] = field(default_factory=dict)
    closed: bool = False
    recycled: bool = False
    sent: list[Chunk] | None = field(default_factory=list)
    sent_bytes: int = 0
    counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    spans: dict[str, GrowingSpan] = field(default_factory=dict)
    loads: int = 0
    dead_letters: list[Chunk] = field(default_factory=list)
    dead_letter_spans: dict[str, GrowingSpan] = field(default_factory=dict)
    dead_letter_counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Take a frozen chunk; never called once sealed."""
        self.pending.setdefault(chunk.table, deque()).append(chunk)
        count = self.counts.setdefault((chunk.partition, chunk.table), [0, 0])
        count[0] += chunk.rows
        count[1] += chunk.bytes

    def end_transactions(self, ended: TransactionEnds) -> None:
        """Source transactions of a partition ended, or a unit of plain rows, which counts in the ledger only.

        Raises InputError for a source partition whose name is too long for the ledger.
        """
        if not ended.count and not ended.digest:
            return
        span = self.spans.get(ended.partition)
        if span is None:
            _refuse_long(ended.partition)
            span = self.spans[ended.partition] = GrowingSpan(ended.first, ended.last, 0)
        span.last, span.digest = ended.last, ended.digest
        span.source_transactions += ended.count

    def pending_bytes(self, table: str) -> int:
        return sum(chunk.bytes for chunk in self.pending.get(table, ()))

    def tables(self) -> list[str]:
        """Tables with chunks to send, those with the most bytes first."""
        waiting = [table for table, chunks in self.pending.items() if chunks]
        return sorted(waiting, key=self.pending_bytes, reverse=True)

    def take(self, table: str, limit: int) -> list[Chunk]:
        """Remove and return the next chunks of `table`, in order, up to `limit` bytes but at least one."""
        chunks = self.pending[table]
        taken: list[Chunk] = []
        size = 0
        while chunks and (not taken or size + chunks[0].bytes <= limit):
            chunk = chunks.popleft()
            taken.append(chunk)
            size += chunk.bytes
        self._keep(taken, size)
        self.loads += 1
        return taken

    def _keep(self, chunks: list[Chunk], size: int) -> None:
        if self.sent is None:
            return
        self.sent_bytes += size
        if self.sent_bytes > self.retry_limit:
            self.sent = None
        else:
            self.sent.extend(chunks)

    @property
    def repeatable(self) -> bool:
        """Whether every chunk sent so far is still here for another attempt."""
        return self.sent is not None

    def rewind(self) -> int:
        """Put what was sent back in front, for an attempt under a new label; returns the bytes put back."""
        if self.sent is None:
            raise RuntimeError("A work whose sent chunks were let go cannot be rewound.")
        put_back = self.sent_bytes
        for chunk in reversed(self.sent):
            self.pending[chunk.table].appendleft(chunk)
        self.sent, self.sent_bytes, self.loads = [], 0, 0
        return put_back

    @property
    def empty(self) -> bool:
        return not self.counts and not self.dead_letters

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.counts.values())

    @property
    def source_transactions(self) -> int:
        """Those whose rows are here, not the buried ones."""
        return sum(span.source_transactions for span in self.spans.values())

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of rows that wait to be sent, each table's in order; without letters."""
        dead_letters = {letter.table for letter in self.dead_letters}
        for table, chunks in self.pending.items():
            if table not in dead_letters:
                yield from chunks

    # --- dead letters ---

    def add_dead_letters(
        self, dead_letters: Chunk, spans: dict[str, GrowingSpan], counts: dict[tuple[str, str], list[int]]
    ) -> None:
        """Take rows of the dead-letter table for source transactions that come before all others of this work."""
        self.dead_letters.append(dead_letters)
        self.pending.setdefault(dead_letters.table, deque()).append(dead_letters)
        for name, span in spans.items():
            self.dead_letter_spans[name] = _joined(self.dead_letter_spans.get(name), span)
        for place, (rows, size) in counts.items():
            count = self.dead_letter_counts.setdefault(place, [0, 0])
            count[0] += rows
            count[1] += size

    def inherit_dead_letters(self, other: TransactionBatch) -> None:
        """Take over what `other` has buried; nothing of it may have been sent since its last rewind."""
        spans, counts = other.dead_letter_spans, other.dead_letter_counts
        for dead_letters in other.dead_letters:
            self.add_dead_letters(dead_letters, spans, counts)
            spans, counts = {}, {}

    def rows_by_partition(self) -> Counter[str]:
        """The rows of each source partition, over all tables."""
        counted: Counter[str] = Counter()
        for (partition, _), (rows, _) in self.counts.items():
            counted[partition] += rows
        return counted

    def region_counts(self) -> tuple[RegionCount, ...]:
        return tuple(RegionCount(p, t, rows, size) for (p, t), (rows, size) in sorted(self.counts.items()))

    def dead_lettered(self) -> tuple[RegionCount, ...]:
        return tuple(RegionCount(p, t, rows, size) for (p, t), (rows, size) in sorted(self.dead_letter_counts.items()))

    def position_spans(self) -> tuple[PositionSpan, ...]:
        spans = {
            **self.dead_letter_spans,
            **{name: _joined(self.dead_letter_spans.get(name), span) for name, span in self.spans.items()},
        }
        return tuple(
            PositionSpan(partition, span.first, span.last, span.source_transactions, span.digest)
            for partition, span in sorted(spans.items())
        )


def _refuse_long(partition: str) -> None:
    size = len(partition.encode())
    if size > NAME_BYTES:
        raise InputError(
            f"The name of source partition {partition[:60]}… has {size} bytes.",
            hint=f"At most {NAME_BYTES} fit into the ledger: give source partitions shorter names, such as digests.",
        )


def _joined(before: GrowingSpan | None, after: GrowingSpan) -> GrowingSpan:
    """Two spans of a source partition, one after the other, as one."""
    if before is None:
        return after
    count = before.source_transactions + after.source_transactions
    return GrowingSpan(before.first, after.last, count, after.digest)


EntriesBuilder = Callable[[str, TransactionBatch], Chunk]
"""Makes the rows of a work under a label in a table of the sink's own, the ledger or the receipts' log."""


class WriteBuffer:
    """The rows of one lane that are not committed yet.

    `works` has at least one; the last one takes frozen chunks, those before it are sealed. `open_partition` is inside a
    source transaction. `buffered_bytes` counts what waits here and what loads under way have, `buffered_peak` the most.
    """

    def __init__(self, limits: CoordinatorLimits) -> None:
        self._limits = limits
        self._regions: dict[tuple[str, str], Region] = {}
        self._open_regions = OpenRegions()
        self._first_row_at: float | None = None
        self._ended = False
        self.batches: deque[TransactionBatch] = deque([TransactionBatch(limits.retry_buffer_bytes)])
        self.open_partition: str | None = None
        self.buffered_bytes = 0
        self.buffered_peak = 0

    @property
    def saturated(self) -> bool:
        return self.buffered_bytes >= self._limits.buffer_bytes

    @property
    def finished(self) -> bool:
        """No more rows will come, and all that came are committed."""
        return self._ended and all(work.empty for work in self.batches)

    @property
    def has_rows(self) -> bool:
        """Whether there is anything for a StarRocks transaction to begin with."""
        work = self.batches[0]
        return not work.empty or (work is self._filling and bool(self._open_regions))

    # --- rows in; `recycle` tells that the StarRocks transaction now open should end soon ---

    def write(
        self, partition: str, table: str, piece: memoryview, rows: int, now: float, row_index: RowIndex | None
    ) -> None:
        """Take rows of the partition's open source transaction."""
        if self._first_row_at is None:
            self._first_row_at = now
        self.open_partition = partition
        region = self._region(partition, table)
        region.write(piece, rows, row_index)
        self._open_regions.add(region)
        self.buffered_bytes += piece.nbytes
        self.buffered_peak = max(self.buffered_peak, self.buffered_bytes)
        if region.active.bytes >= self._limits.chunk_bytes:
            self._freeze(region, now)
        if self.saturated:
            self._relieve(now)

    def end_transactions(self, ended: TransactionEnds, now: float, *, recycle: bool) -> None:
        """The rows written last for the partition of `ended` end its source transactions."""
        self.open_partition = None
        for region in self._open_regions.of(ended.partition):
            region.end_transaction()
            if region.freeze_due(now, self._limits.mini_interval):
                self._freeze(region, now)
            else:
                self._open_regions.wait(region, self._limits.mini_interval)
        self._filling.end_transactions(ended)
        self._close_if_due(now, recycle)

    def pass_time(self, now: float, *, recycle: bool) -> None:
        """Freeze and seal what is due. Rows at a clean boundary do not wait for their partition's next ones."""
        for region in self._open_regions.due(now, self._limits.mini_interval):
            self._freeze(region, now)
        self._close_if_due(now, recycle)

    def finish(self, now: float) -> None:
        """No more rows will come. Raises InputError when a source transaction is still open."""
        if self.open_partition is not None:
            raise InputError(
                f"The rows of source partition {self.open_partition} end inside a source transaction.",
                hint="Give the sink whole source transactions: the output of assemble_transactions, unfiltered.",
                source_partition=self.open_partition,
            )
        self._ended = True
        self._close(now)

    def remove_committed(self) -> TransactionBatch:
        """Let go of the first work."""
        work = self.batches.popleft()
        if not self.batches:
            self._start_batch()
        return work

    # --- inside ---

    @property
    def _filling(self) -> TransactionBatch:
        """The work that takes frozen chunks now."""
        return self.batches[-1]

    def _start_batch(self) -> None:
        self.batches.append(TransactionBatch(self._limits.retry_buffer_bytes))

    def _region(self, partition: str, table: str) -> Region:
        region = self._regions.get((partition, table))
        if region is None:
            region = self._regions[(partition, table)] = Region(partition, table)
        return region

    def _freeze(self, region: Region, now: float) -> None:
        self._open_regions.remove(region)
        chunk = region.freeze(now)
        if chunk is not None:
            self._filling.add(chunk)

    def _relieve(self, now: float) -> None:
        """The buffers are full: freeze the largest regions by size, until half of the limit can be sent away."""
        frozen = 0
        for region in sorted(self._open_regions.all(), key=lambda region: region.active.bytes, reverse=True):
            if frozen * 2 >= self._limits.buffer_bytes:
                return
            frozen += region.active.bytes
            self._freeze(region, now)

    def _close_if_due(self, now: float, recycle: bool) -> None:
        """End the work at this clean boundary when the commit interval has passed, or the recycle point (80 %)."""
        if self.open_partition is not None or self._first_row_at is None:
            return
        interval = self._limits.commit_interval
        recycle = recycle and self._filling is self.batches[0]
        if recycle or self._large_enough() or (interval is not None and now - self._first_row_at >= interval):
            self._filling.recycled = recycle
            self._close(now)

    def _large_enough(self) -> bool:
        """Whether more rows would make a work that cannot be taken apart any more."""
        limit = self._limits.close_bytes
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
