"""Work: what one StarRocks transaction is to contain, and what it has contained so far.

A lane fills one work after the other. A work takes frozen chunks until it is *sealed* at a clean boundary; then it is
loaded to the end and committed. Chunks that were sent are kept for another attempt while they fit the retry buffer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from starrocks_txn_sink.coordinator.actions import PositionSpan, RegionCount
from starrocks_txn_sink.coordinator.input import Ended
from starrocks_txn_sink.coordinator.region import Chunk
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.ledger import NAME_BYTES


@dataclass(slots=True)
class Span:
    """First and last position of one source partition, growing as source transactions end."""

    first: int
    last: int
    source_transactions: int
    digest: str = ""


@dataclass(slots=True)
class Work:
    """Chunks of one StarRocks transaction: `pending` per table, `sent` under the current label.

    `letters` are rows of the dead-letter table among them; `buried` are the spans of the source transactions that they
    hold, which come before those of `spans`, and `buried_counts` their rows.
    """

    retry_limit: int
    pending: dict[str, deque[Chunk]] = field(default_factory=dict)
    sealed: bool = False
    recycled: bool = False
    sent: list[Chunk] | None = field(default_factory=list)
    sent_bytes: int = 0
    counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    loads: int = 0
    letters: list[Chunk] = field(default_factory=list)
    buried: dict[str, Span] = field(default_factory=dict)
    buried_counts: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Take a frozen chunk; never called once sealed."""
        self.pending.setdefault(chunk.table, deque()).append(chunk)
        count = self.counts.setdefault((chunk.partition, chunk.table), [0, 0])
        count[0] += chunk.rows
        count[1] += chunk.bytes

    def end_transactions(self, ended: Ended) -> None:
        """Source transactions of a partition ended, or a unit of plain rows, which counts in the ledger only.

        Raises InputError for a source partition whose name is too long for the ledger.
        """
        if not ended.count and not ended.digest:
            return
        span = self.spans.get(ended.partition)
        if span is None:
            _refuse_long(ended.partition)
            span = self.spans[ended.partition] = Span(ended.first, ended.last, 0)
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
        return not self.counts and not self.letters

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.counts.values())

    @property
    def source_transactions(self) -> int:
        """Those whose rows are here, not the buried ones."""
        return sum(span.source_transactions for span in self.spans.values())

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of rows that wait to be sent, each table's in order; without letters."""
        letters = {letter.table for letter in self.letters}
        for table, chunks in self.pending.items():
            if table not in letters:
                yield from chunks

    # --- dead letters ---

    def bury(self, letters: Chunk, spans: dict[str, Span], counts: dict[tuple[str, str], list[int]]) -> None:
        """Take rows of the dead-letter table for source transactions that come before all others of this work."""
        self.letters.append(letters)
        self.pending.setdefault(letters.table, deque()).append(letters)
        for name, span in spans.items():
            self.buried[name] = _joined(self.buried.get(name), span)
        for place, (rows, size) in counts.items():
            count = self.buried_counts.setdefault(place, [0, 0])
            count[0] += rows
            count[1] += size

    def inherit_letters(self, other: Work) -> None:
        """Take over what `other` has buried; nothing of it may have been sent since its last rewind."""
        spans, counts = other.buried, other.buried_counts
        for letters in other.letters:
            self.bury(letters, spans, counts)
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
        return tuple(RegionCount(p, t, rows, size) for (p, t), (rows, size) in sorted(self.buried_counts.items()))

    def position_spans(self) -> tuple[PositionSpan, ...]:
        spans = {**self.buried, **{name: _joined(self.buried.get(name), span) for name, span in self.spans.items()}}
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


def _joined(before: Span | None, after: Span) -> Span:
    """Two spans of a source partition, one after the other, as one."""
    if before is None:
        return after
    count = before.source_transactions + after.source_transactions
    return Span(before.first, after.last, count, after.digest)


LedgerEntries = Callable[[str, Work], Chunk]
"""Makes the rows of a work under a label in a table of the sink's own, the ledger or the receipts' log."""
