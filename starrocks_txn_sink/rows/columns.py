"""The rows of a lane: column names, values of `op`, and reasons to reject a row.

Two projections make the same rows from this module: in the JVM (`sink.projection`) and over Arrow
(`assembler.rules.payload`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Columns of rows with positions, in this order; a lane reads no other columns of the input.
PARTITION: Final = "source_partition"
POSITION: Final = "position"
TABLE: Final = "table"
TRANSACTION_END: Final = "transaction_end"
PAYLOAD: Final = "payload"
COLUMNS: Final = (PARTITION, POSITION, TABLE, TRANSACTION_END, PAYLOAD)

HASH: Final = "hash"
"""A row's checksum; unpositioned rows have TABLE, PAYLOAD and this (`rows.unpositioned`)."""
FINGERPRINT: Final = "fingerprint"
"""Checksum of the row as it came; only present if compaction may have emptied its payload (`sink.compaction`)."""
EVENT_TIME: Final = "event_time"
"""The source's commit time in microseconds since the Unix epoch; NULL if unknown. For metrics."""
DELETED: Final = "deleted"
"""Whether a row is a delete, in any format; absent if no row can be one. For metrics."""
TASK: Final = "task"
"""Name of the task's thread, in the lane's first row: the only trace of a repeated stage (`writer.worker`)."""
ROW_NUMBER: Final = "place"
"""Row number in the data source's layout (`rows.segments.check_row_numbers`)."""

# Columns of the input alone; TRANSACTION_COLUMNS make source transactions of rows.
SEQ: Final = "seq"
DATABASE: Final = "database"
ROW: Final = "row"
OP: Final = "op"
TRANSACTION_COLUMNS: Final = (PARTITION, POSITION, SEQ, TRANSACTION_END)

SENTINEL_POSITION: Final = -(2**63)
"""Position of the sentinel, the last row of a lane; its other columns are NULL, or name the task (`writer.worker`)."""
ROW_NUMBER_BITS: Final = 33
"""Bits in which Spark's `monotonically_increasing_id` counts the rows of a Spark partition."""

UPSERTS: Final = ("upsert", "insert", "update", "+i", "+u", "c", "r", "u", "i", "0")
"""Values of `op` that write a row, in lower case; a row without `op` is written, too."""
DELETES: Final = ("delete", "-d", "d", "1")
DELETING: Final = '{"__op":1'
"""Beginning of a deleted row, in place of its opening brace; `__op` is StarRocks' name."""

# Reasons to reject a row: text before and after the value at fault.
UNKNOWN_OP: Final = ("unknown op '", "'")
NO_PRIMARY_KEY: Final = ("delete for the table ", ", which has no primary key")


def other_database(database: str) -> tuple[str, str]:
    """Reason to reject a row for a database other than `database`, the sink's."""
    return (
        "a row for database '",
        f"', but a StarRocks transaction lives in one database and this sink writes '{database}'",
    )


PRIMARY_KEYS: Final = "PRIMARY_KEYS"
"""Table model that supports deletes, as information_schema.tables_config names it."""


def keyless(models: Mapping[str, str]) -> tuple[str, ...]:
    """Tables without deletes; `models` maps tables to their models."""
    return tuple(sorted(name for name, model in models.items() if model != PRIMARY_KEYS))
