"""A workload as a growing folder of JSON-lines files, at a steady pace, the way a change capture would write it.

A file appears whole (hidden name, then rename) and is cut by rows, not by transactions, so transactions are open from
one file to the next. Pure but for the folder: clock and workload come in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from starrocks_demo.generator import PartitionWorkload, SourceTransaction, Workload
from starrocks_txn_sink.clock import Clock

_RUN = 64  # lines of one partition before the next partition's turn within a file
_CATCH_UP = 1.0  # seconds of rows that a feed which fell behind may write at once


@dataclass(slots=True)
class Piece:
    """What one file carries: its lines, DATA rows, and the (partition, txn_no) of the transactions that end in it."""

    lines: list[bytes] = field(default_factory=list)
    rows: int = 0
    ended: list[tuple[int, int]] = field(default_factory=list)


class _Cursor:
    """A place in one partition's stream of lines."""

    def __init__(self, workload: PartitionWorkload) -> None:
        self._workload = workload
        self._transaction: SourceTransaction | None = None
        self._line = 0

    def take(self, rows: int, piece: Piece) -> None:
        """Add lines with about `rows` DATA rows; may stop in the middle of a transaction."""
        goal = piece.rows + rows
        while piece.rows < goal:
            if self._transaction is None:
                self._transaction, self._line = self._workload.next(), 0
            self._cut(min(goal - piece.rows, _RUN), piece)

    def finish(self, piece: Piece) -> None:
        """Add the rest of the open transaction, and one more that never ends."""
        if self._transaction is not None:
            self._cut(len(self._transaction.lines), piece)
        piece.lines.extend(self._workload.unfinished().lines)

    def _cut(self, lines: int, piece: Piece) -> None:
        transaction = self._transaction
        if transaction is None:
            return
        end = min(self._line + lines, len(transaction.lines))
        piece.lines.extend(transaction.lines[self._line : end])
        piece.rows += end - self._line - (self._line == 0)
        self._line = end
        if end == len(transaction.lines):
            self._transaction = None
            piece.rows -= transaction.ended
            if transaction.txn_no > 0:
                piece.ended.append((transaction.partition, transaction.txn_no))


class Feed:
    """Writes `rate` DATA rows a second into `folder`, one file per `interval` seconds, until told to stop.

    `on_visible(piece, at)` is called after each file's rename with the clock's monotonic time of it. The counters may
    be read from other threads.
    """

    def __init__(
        self,
        workload: Workload,
        folder: Path,
        *,
        rate: float,
        clock: Clock,
        interval: float = 0.2,
        on_visible: Callable[[Piece, float], None] | None = None,
    ) -> None:
        if rate <= 0 or interval <= 0:
            raise ValueError("rate and interval must be above 0.")
        self._cursors = [_Cursor(partition) for partition in workload.partitions]
        self._folder, self._rate, self._clock, self._interval = folder, rate, clock, interval
        self._on_visible = on_visible
        self._turn = 0
        self.files = 0
        self.rows = 0
        self.transactions = 0  # ended, with rows

    def run(self, seconds: float, stop: threading.Event) -> None:
        """Write for `seconds` or until `stop` is set; then end what is open and begin what will never end."""
        start = last = self._clock.monotonic()
        owed = 0.0
        while not stop.is_set() and last - start < seconds:
            self._clock.sleep(self._interval)
            now = self._clock.monotonic()
            owed = min(owed + self._rate * (now - last), self._rate * max(_CATCH_UP, self._interval))
            last = now
            if owed >= 1:
                owed -= self.write(int(owed))
        self.finish()

    def write(self, rows: int) -> int:
        """Write one file of about `rows` DATA rows, the partitions taking turns; returns how many it has."""
        piece = Piece()
        share = max(1, min(_RUN, rows // len(self._cursors)))
        while piece.rows < rows:
            # The partition that comes first changes from file to file.
            cursor = self._cursors[self._turn % len(self._cursors)]
            self._turn += 1
            cursor.take(min(share, rows - piece.rows), piece)
        self._publish(piece)
        return piece.rows

    def finish(self) -> None:
        """Write the last file: ends of the open transactions, then one per partition that never ends."""
        piece = Piece()
        for cursor in self._cursors:
            cursor.finish(piece)
        self._publish(piece)

    def _publish(self, piece: Piece) -> None:
        name = f"{self.files:08d}.jsonl"
        hidden = self._folder / f".{name}.part"
        hidden.write_bytes(b"".join(piece.lines))
        hidden.rename(self._folder / name)
        at = self._clock.monotonic()
        self.files += 1
        self.rows += piece.rows
        self.transactions += len(piece.ended)
        if self._on_visible is not None:
            self._on_visible(piece, at)
