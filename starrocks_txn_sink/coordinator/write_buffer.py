"""WriteBuffer: the rows of a lane that are not loaded yet, and the counts of all of its rows.

Rows go into regions; inactive chunks wait per table until a load takes them. What was sent is gone from here: after a
failure Spark computes the rows again, so memory is bounded whatever the size of the micro-batch. See
docs/inside/architecture.md, "The life of a StarRocks transaction", step 2.

Pure: knows no labels and no server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.coordinator.model import PositionSpan, RegionCount
from starrocks_txn_sink.errors import BufferFull, InputError
from starrocks_txn_sink.protocol.label import ReplacedRows
from starrocks_txn_sink.protocol.ledger import NAME_BYTES

Spill = Callable[[Sequence[model.Chunk]], bool]
"""Moves the rows of chunks from memory into a file; False if that is not possible."""


@dataclass(slots=True)
class WriteBuffer:
    """The rows of one lane under one label.

    `open_partition` is the source partition with an open source transaction. `buffered_bytes` counts waiting rows and
    those of running loads; `buffered_peak` is its maximum. `spill` takes rows that do not fit. With `hold`, and only
    with `spill`, rows are loaded when all of them are here, and the tables `keyed` newest chunks first: so a load can
    leave a row out that a later row of another load replaces (`rows.body`).

    By (source partition, table), `counts` has rows and bytes, and `replaced` the rows and bytes that loads left out.
    """

    limits: model.LaneLimits
    spill: Spill | None = None
    keyed: Collection[str] = ()
    hold: bool = False
    ended: bool = False
    open_partition: str | None = None
    buffered_bytes: int = 0
    buffered_peak: int = 0
    loads: int = 0
    pending: dict[str, deque[model.Chunk]] = field(default_factory=dict)  # inactive chunks by table
    counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    replaced: dict[tuple[str, str], ReplacedRows] = field(default_factory=dict)
    spans: dict[str, PositionSpan] = field(default_factory=dict)
    _regions: dict[tuple[str, str], model.Region] = field(default_factory=dict)
    _open_regions: model.OpenRegions = field(default_factory=model.OpenRegions)
    _order: list[str] | None = None  # of the tables with pending chunks

    def __post_init__(self) -> None:
        self.hold = self.hold and self.spill is not None

    @property
    def saturated(self) -> bool:
        """Whether `buffered_bytes` has reached its limit: rows wait for the end of a load, or for `spill`."""
        return self.buffered_bytes >= self.limits.buffer_bytes

    @property
    def has_rows(self) -> bool:
        """Whether there has been a row to load; held rows are not loaded before the end."""
        if self.hold and not self.ended:
            return False
        return bool(self.counts) or bool(self._open_regions)

    @property
    def all_sent(self) -> bool:
        """Whether the input has ended, and all of its chunks have been taken."""
        return self.ended and not any(self.pending.values())

    # --- rows in ---

    def take(self, segment: model.Segment, now: float) -> None:
        """Take rows, or the ends of source transactions with the rows that were written last for their partition."""
        if isinstance(segment, model.RegionRows):
            self.write(segment, now)
        else:
            self.end_transactions(segment, now)

    def write(self, rows: model.RegionRows, now: float) -> None:
        """Take rows of the partition's open source transaction."""
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

    def end_transactions(self, ends: PositionSpan, now: float) -> None:
        """End source transactions with the rows that were written last for their partition.

        Raises InputError if the partition's name is too long for the ledger.
        """
        self.open_partition = None
        for region in self._open_regions.in_partition(ends.partition):
            region.end_transaction()
            if region.freeze_due(now, self.limits.mini_interval):
                self._freeze(region, now)
            else:
                self._open_regions.schedule(region, self.limits.mini_interval)
        self._extend_span(ends)

    def pass_time(self, now: float) -> None:
        """Freeze regions when due, also while no rows come."""
        for region in self._open_regions.due(now, self.limits.mini_interval):
            self._freeze(region, now)

    def finish(self, now: float) -> None:
        """End the input; raises InputError if a source transaction is still open."""
        if self.open_partition is not None:
            raise InputError(
                f"The rows of source partition {self.open_partition} end inside a source transaction.",
                hint="Give the sink whole source transactions: the output of assemble_transactions, unfiltered.",
                source_partition=self.open_partition,
            )
        for region in self._open_regions.all():
            self._freeze(region, now)
        self.ended = True

    # --- rows out ---

    def take_loads(self, loading: Collection[str]) -> Iterator[tuple[tuple[model.Chunk, ...], bool]]:
        """Yield the chunks of each load that is due, and whether the table is loaded newest chunks first.

        `loading` are the tables with a running load; the caller adds each load before it asks for the next one. Chunks
        wait until a load is worth its request; after the end, or with a full buffer, all are sent.
        """
        limits, full = self.limits, self.saturated
        if len(loading) >= limits.load_parallelism:  # before all tables are sorted
            return
        for table in self._tables():
            if len(loading) >= limits.load_parallelism:
                return
            if not (self.ended or full or self._pending_bytes(table) >= limits.load_bytes):
                return  # nor are smaller ones large enough
            if table not in loading:
                yield tuple(self._take(table)), self.newest_first(table)

    def newest_first(self, table: str) -> bool:
        """Whether the newest chunks of `table` are loaded first."""
        return self.hold and table in self.keyed

    def release(self, size: int) -> None:
        """Count `size` bytes less: their load has ended."""
        self.buffered_bytes -= size

    def add_replaced(self, table: str, replaced: Mapping[str, ReplacedRows]) -> None:
        """Count rows that a load left out, by source partition."""
        for partition, counts in replaced.items():
            replaced_before = self.replaced.get((partition, table), ReplacedRows())
            self.replaced[(partition, table)] = ReplacedRows(
                replaced_before.rows + counts.rows, replaced_before.bytes + counts.bytes
            )

    # --- counts ---

    def region_counts(self) -> tuple[RegionCount, ...]:
        """Rows and bytes that loads send, by source partition and table, sorted; those left out are `compacted`."""
        return tuple(
            RegionCount(*place, rows - less.rows, size - less.bytes, less.rows)
            for place, (rows, size) in sorted(self.counts.items())
            for less in (self.replaced.get(place, ReplacedRows()),)
        )

    def position_spans(self) -> tuple[PositionSpan, ...]:
        """First and last position of each source partition whose source transactions have ended, sorted."""
        return tuple(span for _, span in sorted(self.spans.items()))

    # --- inside ---

    def _tables(self) -> Iterator[str]:
        """Tables with pending chunks, largest first: the longest load starts first.

        Lanes that write the same tables meet at the largest one. To begin at different ones was no faster over four
        lanes and twenty tables (emulator, loads of 0.2 s, four at a time: 0.95 of the speed with equal loads, 0.97 with
        loads of all sizes): the largest table, which is one stream over all lanes, ends last then.

        Each segment that comes in and each load that ends asks for them, so the order is kept as long as it holds.
        After the end of the rows it may be older: tables only become smaller.
        """
        if self._order is None:
            self._order = sorted(self.pending, key=self._pending_bytes, reverse=True)[::-1]  # the next one is last
        while self._order and not self.pending.get(self._order[-1]):
            self._order.pop()
        return (table for table in reversed(self._order) if self.pending.get(table))

    def _pending_bytes(self, table: str) -> int:
        return sum(chunk.bytes for chunk in self.pending.get(table, ()))

    def _take(self, table: str) -> list[model.Chunk]:
        """Remove and return the next chunks of `table`, in order: at least one, more up to `body_bytes`."""
        chunks = self.pending[table]
        chunks_taken: list[model.Chunk] = []
        newest_first = self.newest_first(table)
        size, end = 0, -1 if newest_first else 0
        while chunks and (not chunks_taken or size + chunks[end].bytes <= self.limits.body_bytes):
            size += chunks[end].bytes
            chunks_taken.append(chunks.pop() if newest_first else chunks.popleft())
        if newest_first:
            chunks_taken.reverse()
        self.loads += 1
        if not self.ended:
            self._order = None
        return chunks_taken

    def _extend_span(self, ends: PositionSpan) -> None:
        """Extend the span of a source partition.

        The end of an unpositioned batch has a digest and no count: it moves the ledger, and no source transaction ends.
        """
        if not ends.source_transactions and not ends.digest:
            return
        span = self.spans.get(ends.partition)
        if span is None:
            _refuse_long(ends.partition)
        self.spans[ends.partition] = join_spans(span, ends)

    def _spill_held(self) -> None:
        """Spill held rows when the buffer is full: before the end no load makes room.

        Raises BufferFull if the rows cannot be spilled.
        """
        if not (self.saturated and self.hold) or self._spill_chunks():
            return
        raise BufferFull(
            "The rows of a StarRocks transaction do not fit into memory, and no temporary file takes them.",
            hint="Free space in the executor's directory for temporary files (SPARK_LOCAL_DIRS, TMPDIR), raise "
            "buffer_bytes, or make micro-batches smaller.",
        )

    def _spill_chunks(self) -> bool:
        in_memory = [chunk for chunks in self.pending.values() for chunk in chunks if not chunk.spilled]
        if in_memory and (self.spill is None or not self.spill(in_memory)):
            return False
        self.buffered_bytes -= sum(chunk.bytes for chunk in in_memory)
        for chunk in in_memory:
            chunk.spilled = True
        return True

    def _freeze(self, region: model.Region, now: float) -> None:
        self._open_regions.remove(region)
        chunk = region.freeze(now)
        if chunk is None:
            return
        self._order = None
        self.pending.setdefault(chunk.table, deque()).append(chunk)
        count = self.counts.setdefault((chunk.partition, chunk.table), [0, 0])
        count[0] += chunk.rows
        count[1] += chunk.bytes

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


def _refuse_long(partition: str) -> None:
    size = len(partition.encode())
    if size > NAME_BYTES:
        raise InputError(
            f"The name of source partition {partition[:60]}… has {size} bytes.",
            hint=f"At most {NAME_BYTES} fit into the ledger: give source partitions shorter names, such as digests.",
        )


def join_spans(span: PositionSpan | None, successor: PositionSpan) -> PositionSpan:
    """Join two spans of a source partition, in this order."""
    if span is None:
        return successor
    count = span.source_transactions + successor.source_transactions
    return PositionSpan(successor.partition, span.first, successor.last, count, successor.digest)
