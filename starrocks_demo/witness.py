"""What only whole source transactions keep, asked in one SQL statement over all tables, and how to judge the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starrocks_demo.tables import DATABASE

# One statement is one snapshot. Every branch gives (name, source partition or -1, whole number); money is in cents.
WITNESS = f"""
WITH txn AS (
  SELECT source_partition, txn_no, COUNT(*) AS found, MIN(txn_rows) AS expected
  FROM {DATABASE}.order_events GROUP BY source_partition, txn_no
), totals AS (
  SELECT order_id, SUM(quantity * price) AS amount FROM {DATABASE}.order_items GROUP BY order_id
), changes AS (
  SELECT
    COUNT(*) AS events,
    COALESCE(SUM(CASE WHEN changed_table <> 'orders' THEN 0 WHEN `change` = 'insert' THEN 1
                      WHEN `change` = 'delete' THEN -1 ELSE 0 END), 0) AS orders,
    COALESCE(SUM(CASE WHEN changed_table <> 'order_items' THEN 0 WHEN `change` = 'insert' THEN 1
                      WHEN `change` = 'delete' THEN -1 ELSE 0 END), 0) AS items,
    COALESCE(SUM(amount_delta), 0) AS amount,
    COALESCE(SUM(status_delta), 0) AS states
  FROM {DATABASE}.order_events
)
SELECT 'newest' AS name, source_partition AS place, CAST(MAX(txn_no) AS BIGINT) AS number
  FROM txn GROUP BY source_partition
UNION ALL SELECT 'missing', source_partition, CAST(MAX(txn_no) - COUNT(*) AS BIGINT) FROM txn GROUP BY source_partition
UNION ALL SELECT 'unfinished', source_partition, CAST(COUNT(*) AS BIGINT)
  FROM txn WHERE txn_no < 1 GROUP BY source_partition
UNION ALL SELECT 'partial', source_partition, CAST(COUNT(*) AS BIGINT)
  FROM txn WHERE found < expected GROUP BY source_partition
UNION ALL SELECT 'repeated', source_partition, CAST(COUNT(*) AS BIGINT)
  FROM txn WHERE found > expected GROUP BY source_partition
UNION ALL SELECT 'order_totals', -1, CAST(COUNT(*) AS BIGINT)
  FROM {DATABASE}.orders AS o FULL OUTER JOIN totals AS t ON o.order_id = t.order_id
  WHERE o.order_id IS NULL OR o.total_amount <> COALESCE(t.amount, 0)
UNION ALL SELECT 'orders', -1, CAST(COUNT(*) AS BIGINT) FROM {DATABASE}.orders
UNION ALL SELECT 'order_items', -1, CAST(COUNT(*) AS BIGINT) FROM {DATABASE}.order_items
UNION ALL SELECT 'order_events', -1, CAST(events AS BIGINT) FROM changes
UNION ALL SELECT 'orders_by_events', -1, CAST(orders AS BIGINT) FROM changes
UNION ALL SELECT 'order_items_by_events', -1, CAST(items AS BIGINT) FROM changes
UNION ALL SELECT 'amount_by_events', -1, CAST(amount * 100 AS BIGINT) FROM changes
UNION ALL SELECT 'amount', -1, CAST(COALESCE(SUM(amount), 0) * 100 AS BIGINT) FROM totals
UNION ALL SELECT 'states_by_events', -1, CAST(states AS BIGINT) FROM changes
UNION ALL SELECT 'states', -1, CAST(COALESCE(SUM(LENGTH(order_status)), 0) AS BIGINT) FROM {DATABASE}.orders
"""

NEWEST = f"SELECT source_partition, MAX(txn_no) FROM {DATABASE}.order_events GROUP BY source_partition"
"""The newest visible source transaction of each source partition: what a sample has in `newest`, alone."""

_NEVER = ("missing", "unfinished", "partial", "repeated", "order_totals")
_EQUAL = (
    ("orders", "orders_by_events"),
    ("order_items", "order_items_by_events"),
    ("amount", "amount_by_events"),
    ("states", "states_by_events"),
)
_TABLES = ("orders", "order_items", "order_events")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the tables: what was broken (nothing, if the snapshot was whole) and how far each partition is."""

    torn: tuple[str, ...] = ()
    newest: Mapping[int, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)


def judge(answer: Sequence[Sequence[Any]]) -> Sample:
    """The sample that an answer to WITNESS amounts to."""
    numbers: dict[str, dict[int, int]] = {}
    for name, place, number in answer:
        numbers.setdefault(str(name), {})[int(place)] = int(number)
    broken = [
        f"{name} = {number}" + (f" in partition {place}" if place >= 0 else "")
        for name in _NEVER
        for place, number in sorted(numbers.get(name, {}).items())
        if number
    ]
    for left, right in _EQUAL:
        if numbers[left] != numbers[right]:
            broken.append(f"{left} = {numbers[left][-1]}, {right} = {numbers[right][-1]}")
    return Sample(tuple(broken), numbers.get("newest", {}), {table: numbers[table][-1] for table in _TABLES})


def glance(answer: Sequence[Sequence[Any]]) -> Sample:
    """The sample that an answer to NEWEST amounts to: it can tell of freshness, and of nothing broken."""
    return Sample(newest={int(place): int(number) for place, number in answer})
