"""WriteBuffer: rows go into regions, frozen chunks into transaction batches; a batch closes at a clean boundary.

The rules are step 2 of docs/architecture.md, "The life of a StarRocks transaction".

Pure: knows no labels and no server. The coordinator takes chunks from the first batch while the last one fills.
"""

from __future__ import annotations

from collections import deque

from starrocks_txn_sink.coordinator.batch import Work
from starrocks_txn_sink.coordinator.input import Ended, Marks
from starrocks_txn_sink.coordinator.region import Limits, Region, Unfrozen
from starrocks_txn_sink.errors import InputError


class Gathering:
    """The rows of one lane that are not committed yet.

    `works` has at least one; the last one takes frozen chunks, those before it are sealed. `open_partition` is inside a
    source transaction. `buffered_bytes` counts what waits here and what loads under way have, `buffered_peak` the most.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._regions: dict[tuple[str, str], Region] = {}
        self._unfrozen = Unfrozen()
        self._first_row_at: float | None = None
        self._ended = False
        self.works: deque[Work] = deque([Work(limits.retry_buffer_bytes)])
        self.open_partition: str | None = None
        self.buffered_bytes = 0
        self.buffered_peak = 0

    @property
    def saturated(self) -> bool:
        return self.buffered_bytes >= self._limits.buffer_bytes

    @property
    def finished(self) -> bool:
        """No more rows will come, and all that came are committed."""
        return self._ended and all(work.empty for work in self.works)

    @property
    def has_rows(self) -> bool:
        """Whether there is anything for a StarRocks transaction to begin with."""
        work = self.works[0]
        return not work.empty or (work is self._filling and bool(self._unfrozen))

    # --- rows in; `recycle` tells that the StarRocks transaction now open should end soon ---

    def write(self, partition: str, table: str, piece: memoryview, rows: int, now: float, marks: Marks | None) -> None:
        """Take rows of the partition's open source transaction."""
        if self._first_row_at is None:
            self._first_row_at = now
        self.open_partition = partition
        region = self._region(partition, table)
        region.write(piece, rows, marks)
        self._unfrozen.add(region)
        self.buffered_bytes += piece.nbytes
        self.buffered_peak = max(self.buffered_peak, self.buffered_bytes)
        if region.active.bytes >= self._limits.chunk_bytes:
            self._freeze(region, now)
        if self.saturated:
            self._relieve(now)

    def end_transactions(self, ended: Ended, now: float, *, recycle: bool) -> None:
        """The rows written last for the partition of `ended` end its source transactions."""
        self.open_partition = None
        for region in self._unfrozen.of(ended.partition):
            region.end_transaction()
            if region.switch_due(now, self._limits.mini_interval):
                self._freeze(region, now)
            else:
                self._unfrozen.wait(region, self._limits.mini_interval)
        self._filling.end_transactions(ended)
        self._seal_if_due(now, recycle)

    def pass_time(self, now: float, *, recycle: bool) -> None:
        """Freeze and seal what is due. Rows at a clean boundary do not wait for their partition's next ones."""
        for region in self._unfrozen.due(now, self._limits.mini_interval):
            self._freeze(region, now)
        self._seal_if_due(now, recycle)

    def finish(self, now: float) -> None:
        """No more rows will come. Raises InputError when a source transaction is still open."""
        if self.open_partition is not None:
            raise InputError(
                f"The rows of source partition {self.open_partition} end inside a source transaction.",
                hint="Give the sink whole source transactions: the output of assemble_transactions, unfiltered.",
                source_partition=self.open_partition,
            )
        self._ended = True
        self._seal(now)

    def committed(self) -> Work:
        """Let go of the first work."""
        work = self.works.popleft()
        if not self.works:
            self._start_work()
        return work

    # --- inside ---

    @property
    def _filling(self) -> Work:
        """The work that takes frozen chunks now."""
        return self.works[-1]

    def _start_work(self) -> None:
        self.works.append(Work(self._limits.retry_buffer_bytes))

    def _region(self, partition: str, table: str) -> Region:
        region = self._regions.get((partition, table))
        if region is None:
            region = self._regions[(partition, table)] = Region(partition, table)
        return region

    def _freeze(self, region: Region, now: float) -> None:
        self._unfrozen.remove(region)
        chunk = region.freeze(now)
        if chunk is not None:
            self._filling.add(chunk)

    def _relieve(self, now: float) -> None:
        """The buffers are full: freeze the largest regions by size, until half of the limit can be sent away."""
        frozen = 0
        for region in sorted(self._unfrozen.all(), key=lambda region: region.active.bytes, reverse=True):
            if frozen * 2 >= self._limits.buffer_bytes:
                return
            frozen += region.active.bytes
            self._freeze(region, now)

    def _seal_if_due(self, now: float, recycle: bool) -> None:
        """End the work at this clean boundary when the commit interval has passed, or the recycle point (80 %)."""
        if self.open_partition is not None or self._first_row_at is None:
            return
        interval = self._limits.commit_interval
        recycle = recycle and self._filling is self.works[0]
        if recycle or self._large_enough() or (interval is not None and now - self._first_row_at >= interval):
            self._filling.recycled = recycle
            self._seal(now)

    def _large_enough(self) -> bool:
        """Whether more rows would make a work that cannot be taken apart any more."""
        limit = self._limits.seal_bytes
        if limit is None:
            return False
        return self._filling.bytes + sum(region.active.bytes for region in self._unfrozen.all()) >= limit

    def _seal(self, now: float) -> None:
        for region in self._unfrozen.all():
            self._freeze(region, now)
        self._first_row_at = None
        if not self._filling.empty:
            self._filling.sealed = True
            self._start_work()
