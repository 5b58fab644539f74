"""The demo's tables: their DDL, how to make them, and how to read them back page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from starrocks_demo.truth import EventRow, ItemRow, OrderRow

DATABASE = "test"

ORDERS = f"""
CREATE TABLE `{DATABASE}`.`orders` (
  `order_id` BIGINT NOT NULL,
  `customer_id` BIGINT NOT NULL,
  `total_amount` DECIMAL(10,2) DEFAULT "0",
  `order_status` VARCHAR(32) DEFAULT ""
) ENGINE=OLAP PRIMARY KEY(`order_id`)
DISTRIBUTED BY HASH(`order_id`)
PROPERTIES("replication_num" = "1")
"""

ORDER_ITEMS = f"""
CREATE TABLE `{DATABASE}`.`order_items` (
  `item_id` BIGINT NOT NULL,
  `order_id` BIGINT NOT NULL,
  `product_name` VARCHAR(128) DEFAULT "",
  `quantity` INT DEFAULT "0",
  `price` DECIMAL(10,2) DEFAULT "0"
) ENGINE=OLAP PRIMARY KEY(`item_id`)
DISTRIBUTED BY HASH(`item_id`)
PROPERTIES("replication_num" = "1")
"""

# Its key is not unique to the server: a second copy of a change stays, and shows.
ORDER_EVENTS = f"""
CREATE TABLE `{DATABASE}`.`order_events` (
  `event_id` BIGINT NOT NULL,
  `source_partition` INT NOT NULL,
  `txn_id` VARCHAR(64) NOT NULL,
  `txn_no` BIGINT NOT NULL,
  `txn_rows` INT NOT NULL,
  `changed_table` VARCHAR(32) NOT NULL,
  `change` VARCHAR(16) NOT NULL,
  `order_id` BIGINT NOT NULL,
  `item_id` BIGINT,
  `amount_delta` DECIMAL(12,2) NOT NULL,
  `status_delta` INT NOT NULL
) ENGINE=OLAP DUPLICATE KEY(`event_id`)
DISTRIBUTED BY HASH(`event_id`)
PROPERTIES("replication_num" = "1")
"""

Query = Callable[[str], Sequence[Sequence[Any]]]
"""Runs one SQL statement, returns its rows."""


def cents(value: Decimal | str | float | int | None) -> int | None:
    """A DECIMAL(…, 2) as it comes from a MySQL client, in whole cents."""
    return None if value is None else int((Decimal(str(value)) * 100).to_integral_value())


def whole(value: Any) -> int | None:
    return None if value is None else int(value)


def text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the demo: its first column is the key; `read` turns one value per column into the truth's form."""

    name: str
    ddl: str
    columns: tuple[str, ...]
    read: tuple[Callable[[Any], Any], ...]

    @property
    def key(self) -> str:
        return self.columns[0]

    def row(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(read(value) for read, value in zip(self.read, values, strict=True))


TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        Table("orders", ORDERS, OrderRow._fields, (whole, whole, cents, text)),
        Table("order_items", ORDER_ITEMS, ItemRow._fields, (whole, whole, text, whole, cents)),
        Table(
            "order_events",
            ORDER_EVENTS,
            EventRow._fields,
            (whole, whole, text, whole, whole, text, text, whole, whole, cents, whole),
        ),
    )
}


def create(query: Query) -> None:
    """Make the database and its tables; fails if one is there already."""
    query(f"CREATE DATABASE IF NOT EXISTS `{DATABASE}`")
    for table in TABLES.values():
        query(table.ddl)


def read_all(table: Table, query: Query, page: int = 20_000) -> Iterator[tuple[Any, ...]]:
    """Every row of `table`, in pages of about `page` keys, so that neither side holds a big result."""
    columns = ", ".join(f"`{column}`" for column in table.columns)
    place = f"FROM `{DATABASE}`.`{table.name}`"
    ((low, high),) = query(f"SELECT MIN(`{table.key}`), MAX(`{table.key}`) {place}")
    if low is None:
        return
    for start in range(int(low), int(high) + 1, page):
        rows = query(f"SELECT {columns} {place} WHERE `{table.key}` >= {start} AND `{table.key}` < {start + page}")
        yield from (table.row(values) for values in rows)
