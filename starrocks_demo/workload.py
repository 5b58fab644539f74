"""Source transactions of a seeded shop, and a growing folder of JSON-lines files that brings them.

The same `(options, seed)` gives the same transactions, whatever the pace at which they are taken. Every key belongs to
one source partition, so the order within the partition decides and the final tables are well defined.

What every committed state keeps (and a torn one breaks): `orders.total_amount` is the sum of `quantity * price` over
the order's items; `order_events` has one row per change, carries the number of such rows of its transaction, and its
deltas add up to the sum of all totals and to the summed lengths of all orders' states.

In addition to finished transactions the stream has what a real one has: transactions given up half way (a BEGIN follows
without an END), finished ones without rows, and, at the very end, one per partition that never ends. None of their
rows may ever be seen; they carry a negative `txn_no`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import orjson

from starrocks_demo.shop import CHANGES, Draft, EventLog, EventRows, Shop, Truth, money, txn_name
from starrocks_txn_sink.clock import Clock

_RUN = 64  # lines of one partition before the next partition's turn within a file
_CATCH_UP = 1.0  # seconds of rows that a feed which fell behind may write at once


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """What the shop does. Sizes are DATA rows per source transaction; shares are fractions of all transactions."""

    partitions: int = 4
    seed: int = 1
    database: str = "test"
    smallest: int = 1
    largest: int = 50
    bulk_every: int = 500  # every so many transactions of a partition, one of `bulk_rows`; 0: never
    bulk_rows: tuple[int, int] = (1000, 3000)
    abandoned_share: float = 0.01
    empty_share: float = 0.005

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise ValueError("partitions must be at least 1.")
        if not 1 <= self.smallest <= self.largest or not 1 <= self.bulk_rows[0] <= self.bulk_rows[1]:
            raise ValueError("A transaction has at least one row, and the smallest size is not above the largest.")


@dataclass(frozen=True, slots=True)
class SourceTransaction:
    """Encoded TxnEvent lines (each with its line end): BEGIN, DATA …, END.

    `txn_no` is 0 for a transaction without rows and negative for one without an END.
    """

    partition: int
    txn_no: int
    lines: tuple[bytes, ...]
    rows: int

    @property
    def ended(self) -> bool:
        """Whether its last line is an END."""
        return self.txn_no >= 0


class PartitionWorkload:
    """One partition's endless sequence of source transactions and the truth about the finished ones."""

    def __init__(self, options: WorkloadOptions, partition: int) -> None:
        self.partition = partition
        self._options = options
        self._random = Random(f"{options.seed}/{partition}")
        self.shop = Shop(partition, options.partitions, self._random)
        self.log = EventLog(partition, options.partitions)
        self._position = 0
        self._made = 0
        self.given_up = 0

    def next(self) -> SourceTransaction:
        """The next transaction: mostly a finished one with rows, at times an empty or an abandoned one."""
        self._made += 1
        fate = self._random.random()
        if fate < self._options.abandoned_share:
            return self.make_unfinished()
        if fate < self._options.abandoned_share + self._options.empty_share:
            return self._encode(f"p{self.partition}-empty-{self._made}", 0, Draft(), ended=True)
        return self._finished(self.shop.draft(self._size()))

    def make_unfinished(self) -> SourceTransaction:
        """A transaction that has no END; the next BEGIN, if one follows, gives it up."""
        self.given_up += 1
        draft = self.shop.phantom(1 + int(self._random.random() * 12))
        name = f"p{self.partition}-unfinished-{self.given_up}"
        return self._encode(name, -self.given_up, draft, ended=False)

    def _size(self) -> int:
        every = self._options.bulk_every
        # The partitions take turns, and the first bulk comes early, so that a short run has one too.
        if every and (self._made + self.partition * every // self._options.partitions) % every == min(40, every - 1):
            return self._between(*self._options.bulk_rows)
        return self._between(self._options.smallest, self._options.largest)

    def _between(self, low: int, high: int) -> int:
        return low + int(self._random.random() * (high - low + 1))

    def _finished(self, draft: Draft) -> SourceTransaction:
        txn_no = self.log.transactions + 1
        transaction = self._encode(txn_name(self.partition, txn_no), txn_no, draft, ended=True)
        for change in draft.changes:
            self.log.append(change.kind, change.order_id, change.item_id, change.amount_delta, change.status_delta)
        self.log.end_transaction()
        return transaction

    def _encode(self, txn_id: str, txn_no: int, draft: Draft, *, ended: bool) -> SourceTransaction:
        rows = self._data_rows(txn_id, txn_no, draft)
        events: list[dict[str, object]] = [{"type": "BEGIN"}]
        events += [
            {"type": "DATA", "database": self._options.database, "table": table, "op": op, "row": row}
            for table, op, row in rows
        ]
        if ended:
            events.append({"type": "END"})
        first = self._position
        self._position += len(events)
        lines = tuple(
            orjson.dumps(
                {"source_partition": str(self.partition), "position": position, "txn_id": txn_id, **event},
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for position, event in enumerate(events, first)
        )
        return SourceTransaction(self.partition, txn_no, lines, len(rows))

    def _data_rows(self, txn_id: str, txn_no: int, draft: Draft) -> list[tuple[str, str, str]]:
        event_id, step = self.log.next_event_id(), self._options.partitions
        if txn_no < 0:
            event_id, step = -1 - self._position * step - self.partition, -step
        head = (
            f'"source_partition":{self.partition},"txn_id":"{txn_id}","txn_no":{txn_no},"txn_rows":{len(draft.changes)}'
        )
        rows = []
        for change in draft.changes:
            table, kind = CHANGES[change.kind]
            if change.row is not None:
                rows.append((table, kind, change.row))
            rows.append(
                (
                    "order_events",
                    "insert",
                    f'{{"event_id":{event_id},{head},"changed_table":"{table}","change":"{kind}",'
                    f'"order_id":{change.order_id},"item_id":{change.item_id or "null"},'
                    f'"amount_delta":"{money(change.amount_delta)}","status_delta":{change.status_delta}}}',
                )
            )
            event_id += step
        return rows


class Workload:
    """All partitions' workloads, and the truth about everything taken from them so far."""

    def __init__(self, options: WorkloadOptions) -> None:
        self.options = options
        self.partitions = tuple(PartitionWorkload(options, partition) for partition in range(options.partitions))

    @property
    def given_up(self) -> int:
        """Transactions begun so far that never end."""
        return sum(partition.given_up for partition in self.partitions)

    def truth(self) -> Truth:
        """What the tables must hold once all transactions that were taken are visible."""
        shops = [partition.shop for partition in self.partitions]
        logs = tuple(partition.log for partition in self.partitions)
        return Truth(
            orders={key: order for shop in shops for key, order in shop.orders.items()},
            order_items={key: item for shop in shops for items in shop.items.values() for key, item in items.items()},
            order_events=EventRows(logs),
            source_transactions=sum(log.transactions for log in logs),
        )


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
        piece.lines.extend(self._workload.make_unfinished().lines)

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
        backlog = 0.0
        while not stop.is_set() and last - start < seconds:
            self._clock.sleep(self._interval)
            now = self._clock.monotonic()
            backlog = min(backlog + self._rate * (now - last), self._rate * max(_CATCH_UP, self._interval))
            last = now
            if backlog >= 1:
                backlog -= self.write(int(backlog))
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
        unpublished = self._folder / f".{name}.part"
        unpublished.write_bytes(b"".join(piece.lines))
        unpublished.rename(self._folder / name)
        at = self._clock.monotonic()
        self.files += 1
        self.rows += piece.rows
        self.transactions += len(piece.ended)
        if self._on_visible is not None:
            self._on_visible(piece, at)
