"""The demo's tables, and their comparison with the truth, row by row: what is lost, duplicated or wrong, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from starrocks_demo.shop import EventRow, ItemRow, OrderRow, Truth

DATABASE = "test"
_SHOWN = 5  # differences per table described in full
_MONEY = frozenset({"total_amount", "price", "amount_delta"})
Row = tuple[Any, ...]

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


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the demo; its first column is the key."""

    name: str
    ddl: str
    columns: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name of the key column."""
        return self.columns[0]

    def row(self, values: Sequence[Any]) -> Row:
        """A row of the table in the truth's form."""
        return tuple(
            cents(value) if column in _MONEY else value for column, value in zip(self.columns, values, strict=True)
        )


TABLES: Mapping[str, Table] = {
    "orders": Table("orders", ORDERS, OrderRow._fields),
    "order_items": Table("order_items", ORDER_ITEMS, ItemRow._fields),
    "order_events": Table("order_events", ORDER_EVENTS, EventRow._fields),
}


def create_tables(query: Query) -> None:
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


@dataclass(slots=True)
class TableVerdict:
    """How one table differs from what it should hold. `examples` name the first differences by key."""

    table: str
    rows: int = 0
    unexpected: int = 0
    wrong: int = 0
    missing_keys: list[int] = field(default_factory=list)
    repeated_keys: list[int] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many keys have no row."""
        return len(self.missing_keys)

    @property
    def duplicated(self) -> int:
        """How many rows are there in addition to the first of their key."""
        return len(self.repeated_keys)

    @property
    def right(self) -> bool:
        """Whether every row is there once, as it should be, and no other."""
        return not (self.missing or self.unexpected or self.duplicated or self.wrong)

    def note(self, difference: str) -> None:
        """Keep a difference as an example, unless there are enough."""
        if len(self.examples) < _SHOWN:
            self.examples.append(f"{self.table}: {difference}")


def compare(table: str, expected: Mapping[int, Row], table_rows: Iterable[Row]) -> TableVerdict:
    """Compare rows (key first) with `expected` by key."""
    verdict = TableVerdict(table)
    keys: set[int] = set()
    for row in table_rows:
        key = row[0]
        verdict.rows += 1
        if key not in expected:
            verdict.unexpected += 1
            verdict.note(f"unexpected row {row}")
            continue
        if key in keys:
            verdict.repeated_keys.append(key)
            verdict.note(f"key {key} is there more than once")
        keys.add(key)
        if row != (right := tuple(expected[key])):
            verdict.wrong += 1
            verdict.note(f"key {key} is {row}, should be {right}")
    for key in expected:
        if key not in keys:
            verdict.missing_keys.append(key)
            verdict.note(f"key {key} is missing, should be {tuple(expected[key])}")
    return verdict


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the run was right, and every reason why it was not."""

    written: int
    visible: int
    lost: int
    duplicated: int
    tables: tuple[TableVerdict, ...]
    samples: int
    torn: int
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # what else went wrong in the run, as sentences

    @property
    def differences(self) -> list[str]:
        """One sentence per kind of failure, then the first examples; empty when everything is right."""
        differences = list(self.problems)
        if self.torn:
            differences.append(f"{self.torn} of {self.samples} samples saw a torn state.")
        if not self.samples:
            differences.append("The reader never got an answer, so nothing was watched.")
        if not self.written:
            differences.append("No source transaction was written, so nothing was shown.")
        if self.lost:
            differences.append(f"{self.lost} source transactions are lost.")
        if self.duplicated:
            differences.append(f"{self.duplicated} source transactions are duplicated.")
        differences.extend(
            f"{table.table} differs: {table.missing} rows missing, {table.unexpected} unexpected, "
            f"{table.duplicated} duplicated, {table.wrong} wrong."
            for table in self.tables
            if not table.right
        )
        return [*differences, *self.evidence, *(example for table in self.tables for example in table.examples)]

    @property
    def right(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def judge_tables(
    truth: Truth,
    contents: Mapping[str, Iterable[Row]],
    *,
    samples: int,
    torn_samples: int,
    evidence: Iterable[str] = (),
    problems: Iterable[str] = (),
) -> Verdict:
    """Compare every table with `truth`; `contents` gives the rows of each by the table's name."""
    tables = tuple(compare(name, getattr(truth, name), contents[name]) for name in TABLES)
    events = tables[-1]

    def transactions(keys: Iterable[int]) -> int:
        """How many source transactions these events belong to."""
        return len({(event.source_partition, event.txn_no) for event in map(truth.order_events.__getitem__, keys)})

    lost_count = transactions(events.missing_keys)
    return Verdict(
        written=truth.source_transactions,
        visible=truth.source_transactions - lost_count,
        lost=lost_count,
        duplicated=transactions(events.repeated_keys),
        tables=tables,
        samples=samples,
        torn=torn_samples,
        evidence=tuple(evidence),
        problems=tuple(problems),
    )
