"""A store with the two tables of the source document, and bodies for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from starrocks_emulator.sql.session import QuerySession
from starrocks_emulator.sql.statements import run
from starrocks_emulator.tables.store import Store, TableCounts

DDL = """
CREATE DATABASE `test`;

CREATE TABLE `test`.`orders` (
`order_id` BIGINT NOT NULL,
`customer_id` BIGINT NOT NULL,
`total_amount` DECIMAL(10,2) DEFAULT "0",
`order_status` VARCHAR(32) DEFAULT ""
) ENGINE=OLAP PRIMARY KEY(`order_id`)
DISTRIBUTED BY HASH(`order_id`)
PROPERTIES("replication_num" = "1");

CREATE TABLE `test`.`order_items` (
`item_id` BIGINT NOT NULL,
`order_id` BIGINT NOT NULL,
`product_name` VARCHAR(128) DEFAULT "",
`quantity` INT DEFAULT "0",
`price` DECIMAL(10,2) DEFAULT "0"
) ENGINE=OLAP PRIMARY KEY(`item_id`)
DISTRIBUTED BY HASH(`item_id`)
PROPERTIES("replication_num" = "1");

CREATE TABLE test.order_events (event_id BIGINT NOT NULL, note VARCHAR(32)) DUPLICATE KEY(event_id)
DISTRIBUTED BY HASH(event_id) BUCKETS 3;
"""
JSON_ARRAY = {"format": "json", "strip_outer_array": "true"}
_names = count()


def with_tables(store: Store) -> Store:
    run(store, QuerySession(), DDL)
    return store


def body(store: Store, content: Any) -> Path:
    """A body file: bytes and texts as they are, anything else as JSON."""
    path = store.spool_dir / f"body-{next(_names)}"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def load(
    store: Store,
    table: str,
    *bodies: Any,
    headers: Mapping[str, str] = JSON_ARRAY,
    visible: bool = True,
    label: str = "label",
) -> tuple[int, TableCounts]:
    """Commit one table's bodies; (transaction id, counts)."""
    txn_id = store.next_txn_id()
    plan = store.plan("test", table, headers)
    counts = store.commit(
        "test", txn_id, label, [(plan, [body(store, content) for content in bodies])], visible=visible
    )
    return txn_id, counts[table]


def rows(store: Store, sql: str) -> Sequence[tuple[Any, ...]]:
    return [tuple(row) for row in run(store, QuerySession(database="test"), sql).rows]
