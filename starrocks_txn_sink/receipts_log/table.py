"""The log's table: DDL and retention. A lane makes its rows (`lane.authority`).

One row for each (label, source partition), sorted so that a query for a position reads few rows. A DUPLICATE KEY table:
labels are unique, and rows loaded under a label become visible once.
"""

from __future__ import annotations

LOG_TABLE = "_starrocks_txn_sink_receipts"

COLUMNS = (
    ("job", "VARCHAR(64) NOT NULL"),
    ("source_partition", "VARCHAR(1024) NOT NULL"),
    ("last_position", "BIGINT NOT NULL"),
    ("first_position", "BIGINT NOT NULL"),
    ("source_transactions", "BIGINT"),
    ("row_count", "BIGINT"),
    ("label", "VARCHAR(128)"),
    ("lane", "INT"),
    ("batch", "BIGINT"),
    ("tables", "VARCHAR(65533)"),
    ("loaded_at", "DATETIME"),
)
_KEYS = 3


def create_table(database: str, replication: int | None = None) -> str:
    """The DDL; `replication` None leaves the number of replicas to the server."""
    columns = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS)
    keys = ", ".join(f"`{name}`" for name, _ in COLUMNS[:_KEYS])
    properties = f' PROPERTIES ("replication_num" = "{replication}")' if replication else ""
    return (
        f"CREATE TABLE IF NOT EXISTS `{database}`.`{LOG_TABLE}` ({columns}) DUPLICATE KEY ({keys}) "
        f"DISTRIBUTED BY HASH (`source_partition`) BUCKETS 1{properties}"
    )


def delete_older(database: str, job: str, before: str) -> tuple[str, tuple[object, ...]]:
    """Statement that deletes a job's rows loaded before `before` (a DATETIME literal)."""
    return f"DELETE FROM `{database}`.`{LOG_TABLE}` WHERE job = %s AND loaded_at < %s", (job, before)
