"""A seeded shop: its tables' rows, the changes of one source transaction, and what the tables must hold in the end.

Money is whole cents here and everywhere in the workload; tables and events show it as a decimal with two places. An
order's `total_amount` is set before or after its items change, by chance, so a transaction that is cut anywhere shows
totals that do not fit.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import orjson

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
_KIND = {name: index for index, name in enumerate(CHANGES)}
_STATUSES = ("new", "paid", "packed", "shipped", "delivered")  # no two of one length, see Change.status_delta
# Among them: quotes, a backslash, other scripts, an empty and a missing name.
_PRODUCTS: tuple[str | None, ...] = (
    *(f"product {number:03d}" for number in range(40)),
    'a "quoted" name',
    "back\\slash\tand tab",
    "Käsespätzle, groß",
    "ほうじ茶",
    "🚲 bell",
    "",
    None,
)
_PRODUCT_JSON = {name: orjson.dumps(name).decode() for name in _PRODUCTS}
_MOST_ITEMS = 12  # per order, so that a whole order can go in a transaction of 50 rows
_REMEMBERED = 50  # cancelled orders whose id may come back


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
        """How many transactions have ended."""
        return len(self._ends)

    def next_event_id(self) -> int:
        """The id of the change that `append` takes next."""
        return self.event_id(len(self))

    def event_id(self, index: int) -> int:
        """The id of the change at `index`, which no other partition has."""
        return index * self._partitions + self.partition

    def append(self, change: int, order_id: int, item_id: int, amount_delta: int, status_delta: int) -> None:
        """Add a change: `change` is its place in CHANGES, `item_id` 0 without an item, `amount_delta` in cents."""
        self._changes.append(change)
        self._order_ids.append(order_id)
        self._item_ids.append(item_id)
        self._amount_deltas.append(amount_delta)
        self._status_deltas.append(status_delta)

    def end_transaction(self) -> None:
        """Everything appended since the last call is one finished transaction."""
        self._ends.append(len(self))

    def row(self, index: int) -> EventRow:
        """The row of `order_events` for the change at `index`, whose transaction must have ended."""
        txn_no = bisect_right(self._ends, index) + 1
        first = self._ends[txn_no - 2] if txn_no > 1 else 0
        table, change = CHANGES[self._changes[index]]
        return EventRow(
            event_id=self.event_id(index),
            source_partition=self.partition,
            txn_id=txn_name(self.partition, txn_no),
            txn_no=txn_no,
            txn_rows=self._ends[txn_no - 1] - first,
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
    """The expected tables by primary key (event_id for the events), and how many source transactions lead to them."""

    orders: Mapping[int, OrderRow]
    order_items: Mapping[int, ItemRow]
    order_events: Mapping[int, EventRow]
    source_transactions: int


def money(cents: int) -> str:
    """`-1234` → `-12.34`."""
    whole, part = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}{whole}.{part:02d}"


@dataclass(frozen=True, slots=True)
class Change:
    """One changed row: its kind (index into CHANGES), its JSON (None: a note, which changes no row), and its keys.

    The deltas are what the change adds to the sum of all items, and to the summed lengths of all orders' states.
    """

    kind: int
    row: str | None
    order_id: int
    item_id: int
    amount_delta: int
    status_delta: int


@dataclass(slots=True)
class Draft:
    """The changes of one source transaction, in order. A change is two DATA rows (row and event), a note is one."""

    changes: list[Change] = field(default_factory=list)
    rows: int = 0

    def order(self, change: str, order: OrderRow, status_delta: int) -> None:
        """Add a change of an order with its row; `status_delta` are the characters by which its state gets longer."""
        row = (
            f'{{"order_id":{order.order_id},"customer_id":{order.customer_id},'
            f'"total_amount":"{money(order.total_amount)}","order_status":"{order.order_status}"}}'
        )
        self._add(Change(_KIND["orders", change], row, order.order_id, 0, 0, status_delta))

    def item(self, change: str, item: ItemRow, amount_delta: int) -> None:
        """Add a change of an item with its row; `amount_delta` are the cents that it adds to the total of its order."""
        row = (
            f'{{"item_id":{item.item_id},"order_id":{item.order_id},"product_name":{_PRODUCT_JSON[item.product_name]},'
            f'"quantity":{item.quantity},"price":"{money(item.price)}"}}'
        )
        self._add(Change(_KIND["order_items", change], row, item.order_id, item.item_id, amount_delta, 0))

    def note(self, order_id: int) -> None:
        """Add an event about an order that changes no row."""
        self._add(Change(_KIND["orders", "note"], None, order_id, 0, 0, 0))

    def _add(self, change: Change) -> None:
        self.changes.append(change)
        self.rows += 1 if change.row is None else 2


class Shop:
    """Orders and items of one partition; ids are `counter * partitions + partition`, so no other shop has them."""

    def __init__(self, partition: int, partitions: int, random: Random) -> None:
        self.orders: dict[int, OrderRow] = {}
        self.items: dict[int, dict[int, ItemRow]] = {}
        self._partition, self._partitions, self._random = partition, partitions, random
        self._ids: list[int] = []  # of `orders`, in no order, for picking one at random
        self._cancelled: deque[int] = deque(maxlen=_REMEMBERED)
        self._counter = 0

    def draft(self, rows: int) -> Draft:
        """Change the shop by exactly `rows` DATA rows."""
        draft = Draft()
        while (room := rows - draft.rows) > 0:
            dice = self._random.random()
            if room == 1 or dice < 0.02:
                draft.note(self._ids[self._below(len(self._ids))] if self._ids else 0)
            elif not self._ids or dice < 0.45:
                self._open_order(draft, room)
            elif dice < 0.75 and room >= 4:
                self._amend_order(draft, room)
            elif dice < 0.87:
                self._cancel_order(draft, room)
            else:
                self._set_status(draft)
        return draft

    def phantom(self, orders: int) -> Draft:
        """Changes that would do harm if they were ever seen, and leave this shop as it is."""
        draft = Draft()
        if self._ids:
            victim = self.orders[self._ids[self._below(len(self._ids))]]
            draft.order("update", victim._replace(total_amount=victim.total_amount + 100, order_status="phantom"), 0)
        for _ in range(orders):
            order = OrderRow(self._new_id(), 1, 100, "phantom")
            draft.order("insert", order, 0)
            draft.item("insert", ItemRow(self._new_id(), order.order_id, "", 1, 50), 50)
        return draft

    def _open_order(self, draft: Draft, room: int) -> None:
        returning = self._cancelled and self._random.random() < 0.2
        order_id = self._cancelled.popleft() if returning else self._new_id()
        items = {}
        for _ in range(min(self._below(9), (room - 2) // 2)):
            item = self._new_item(order_id)
            items[item.item_id] = item
        total = sum(item.quantity * item.price for item in items.values())
        order = OrderRow(order_id, 1 + self._below(10_000), total, _STATUSES[0])
        self.orders[order_id], self.items[order_id] = order, items
        self._ids.append(order_id)
        draft.order("insert", order, len(order.order_status))
        for item in items.values():
            draft.item("insert", item, item.quantity * item.price)

    def _amend_order(self, draft: Draft, room: int) -> None:
        order = self.orders[self._ids[self._below(len(self._ids))]]
        total_first = self._random.random() < 0.5
        place = len(draft.changes)
        total = order.total_amount
        for _ in range(1 + self._below(min(5, (room - 2) // 2))):
            total += self._change_item(draft, order.order_id)
        self.orders[order.order_id] = order = order._replace(total_amount=total)
        draft.order("update", order, 0)
        if total_first:
            draft.changes.insert(place, draft.changes.pop())

    def _change_item(self, draft: Draft, order_id: int) -> int:
        """Add, change or remove one item; returns what that adds to the order's total."""
        items = self.items[order_id]
        dice = self._random.random()
        if not items or (dice < 0.4 and len(items) < _MOST_ITEMS):
            new = self._new_item(order_id)
            items[new.item_id] = new
            draft.item("insert", new, new.quantity * new.price)
            return new.quantity * new.price
        old = list(items.values())[self._below(len(items))]
        amount = old.quantity * old.price
        if dice < 0.8:
            new = old._replace(quantity=1 + self._below(9), price=self._price())
            items[old.item_id] = new
            draft.item("update", new, new.quantity * new.price - amount)
            return new.quantity * new.price - amount
        del items[old.item_id]
        draft.item("delete", old, -amount)
        return -amount

    def _cancel_order(self, draft: Draft, room: int) -> None:
        place = self._below(len(self._ids))
        order = self.orders[self._ids[place]]
        if 2 + 2 * len(self.items[order.order_id]) > room:
            self._set_status(draft)
            return
        self._ids[place] = self._ids[-1]
        self._ids.pop()
        del self.orders[order.order_id]
        for item in self.items.pop(order.order_id).values():
            draft.item("delete", item, -item.quantity * item.price)
        draft.order("delete", order, -len(order.order_status))
        self._cancelled.append(order.order_id)

    def _set_status(self, draft: Draft) -> None:
        old = self.orders[self._ids[self._below(len(self._ids))]]
        place = _STATUSES.index(old.order_status) + 1 + self._below(len(_STATUSES) - 1)
        new = old._replace(order_status=_STATUSES[place % len(_STATUSES)])
        self.orders[new.order_id] = new
        draft.order("update", new, len(new.order_status) - len(old.order_status))

    def _new_item(self, order_id: int) -> ItemRow:
        product = _PRODUCTS[self._below(len(_PRODUCTS))]
        return ItemRow(self._new_id(), order_id, product, 1 + self._below(9), self._price())

    def _price(self) -> int:
        return 1 + self._below(50_000)

    def _new_id(self) -> int:
        self._counter += 1
        return self._counter * self._partitions + self._partition

    def _below(self, limit: int) -> int:
        """A random whole number from 0 to `limit` - 1; faster than randrange."""
        return int(self._random.random() * limit)
