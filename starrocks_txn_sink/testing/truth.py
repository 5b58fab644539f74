"""What the tables must hold once every finished source transaction of a workload is visible.

Money is whole cents here and everywhere in the workload; tables and events show it as a decimal with two places.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class OrderRow(NamedTuple):
    """A row of `orders`."""

    order_id: int
    customer_id: int
    total_amount: int
    order_status: str


class ItemRow(NamedTuple):
    """A row of `order_items`."""

    item_id: int
    order_id: int
    product_name: str | None
    quantity: int
    price: int


class EventRow(NamedTuple):
    """A row of `order_events`: one change of one row, and the transaction it belongs to.

    `txn_no` counts the finished transactions with rows of its partition from 1; `txn_rows` is the number of rows of
    `order_events` that the transaction has; `amount_delta` is what the change adds to the sum of all items, and
    `status_delta` what it adds to the summed lengths of all orders' states.
    """

    event_id: int
    source_partition: int
    txn_id: str
    txn_no: int
    txn_rows: int
    changed_table: str
    change: str
    order_id: int
    item_id: int | None
    amount_delta: int
    status_delta: int


# What one row of order_events can tell of; a log keeps the index only.
CHANGES: tuple[tuple[str, str], ...] = (
    ("orders", "insert"),
    ("orders", "update"),
    ("orders", "delete"),
    ("order_items", "insert"),
    ("order_items", "update"),
    ("order_items", "delete"),
    ("orders", "note"),
)


def txn_name(partition: int, txn_no: int) -> str:
    """The upstream's id of the `txn_no`-th finished transaction of `partition`."""
    return f"p{partition}-{txn_no:07d}"


class EventLog:
    """The changes of one partition in order, about 25 bytes each, so that a long run's truth stays small."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.partition = partition
        self._partitions = partitions
        self._changes = bytearray()
        self._order_ids = array("q")
        self._item_ids = array("q")  # 0: the change is not about an item
        self._amount_deltas = array("q")
        self._status_deltas = array("b")
        self._ends = array("q")  # number of changes up to and with transaction n + 1

    def __len__(self) -> int:
        return len(self._changes)

    @property
    def transactions(self) -> int:
        return len(self._ends)

    def next_event_id(self) -> int:
        return self.event_id(len(self))

    def event_id(self, index: int) -> int:
        return index * self._partitions + self.partition

    def append(self, change: int, order_id: int, item_id: int, amount_delta: int, status_delta: int) -> None:
        self._changes.append(change)
        self._order_ids.append(order_id)
        self._item_ids.append(item_id)
        self._amount_deltas.append(amount_delta)
        self._status_deltas.append(status_delta)

    def end_transaction(self) -> None:
        """Everything appended since the last call is one finished transaction."""
        self._ends.append(len(self))

    def rows_of(self, txn_no: int) -> int:
        """How many events the transaction has; IndexError if it was never finished."""
        if not 1 <= txn_no <= len(self._ends):
            raise IndexError(txn_no)
        return self._ends[txn_no - 1] - (self._ends[txn_no - 2] if txn_no > 1 else 0)

    def row(self, index: int) -> EventRow:
        txn_no = bisect_right(self._ends, index) + 1
        table, change = CHANGES[self._changes[index]]
        return EventRow(
            event_id=self.event_id(index),
            source_partition=self.partition,
            txn_id=txn_name(self.partition, txn_no),
            txn_no=txn_no,
            txn_rows=self.rows_of(txn_no),
            changed_table=table,
            change=change,
            order_id=self._order_ids[index],
            item_id=self._item_ids[index] or None,
            amount_delta=self._amount_deltas[index],
            status_delta=self._status_deltas[index],
        )


class EventRows(Mapping[int, EventRow]):
    """All partitions' logs as one table, keyed by event_id; rows are made when they are asked for."""

    def __init__(self, logs: tuple[EventLog, ...]) -> None:
        self._logs = logs

    def __len__(self) -> int:
        return sum(len(log) for log in self._logs)

    def __iter__(self) -> Iterator[int]:
        for log in self._logs:
            yield from (log.event_id(index) for index in range(len(log)))

    def __contains__(self, event_id: object) -> bool:
        if not isinstance(event_id, int) or event_id < 0:
            return False
        return event_id // len(self._logs) < len(self._logs[event_id % len(self._logs)])

    def __getitem__(self, event_id: int) -> EventRow:
        if event_id not in self:
            raise KeyError(event_id)
        return self._logs[event_id % len(self._logs)].row(event_id // len(self._logs))


@dataclass(frozen=True, slots=True)
class Truth:
    """The expected tables by primary key (event_id for the events), and what every partition finished."""

    orders: Mapping[int, OrderRow]
    order_items: Mapping[int, ItemRow]
    order_events: Mapping[int, EventRow]
    logs: tuple[EventLog, ...]
    end_positions: Mapping[int, int]

    @property
    def source_transactions(self) -> int:
        return sum(log.transactions for log in self.logs)

    def newest(self) -> dict[int, int]:
        """The txn_no of the last finished transaction with rows by partition; 0 for none."""
        return {log.partition: log.transactions for log in self.logs}

    def rows_of(self, partition: int, txn_no: int) -> int:
        """How many rows of order_events a transaction has; 0 if there is no such finished transaction."""
        if not 0 <= partition < len(self.logs) or not 1 <= txn_no <= self.logs[partition].transactions:
            return 0
        return self.logs[partition].rows_of(txn_no)
