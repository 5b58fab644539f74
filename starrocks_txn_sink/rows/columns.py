"""The rows of a lane: the names of their columns, the words of `op`, and when a row is refused.

The projection in the JVM (`sink.projection`) and the one over Arrow (`rows.payload`) make the same rows, and both read
this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Columns of marked rows, in this order; a lane reads no other of what the user gives.
PARTITION: Final = "source_partition"
POSITION: Final = "position"
TABLE: Final = "table"
TRANSACTION_END: Final = "transaction_end"
PAYLOAD: Final = "payload"
COLUMNS: Final = (PARTITION, POSITION, TABLE, TRANSACTION_END, PAYLOAD)

HASH: Final = "hash"
"""A row's checksum, of rows without positions (`rows.replay`), which have TABLE and PAYLOAD beside it."""
FINGERPRINT: Final = "fingerprint"
"""A row's checksum as it came, only there when payloads may have been left out since (`sink.compaction`)."""
EVENT_TIME: Final = "event_time"
"""Microseconds since the Unix epoch: when the source committed; NULL where it is not known. For metrics."""
DELETED: Final = "deleted"
"""Whether a row is a delete, whatever its format says it with; not there where no row can be one. For metrics."""
TASK: Final = "task"
"""The name of the task's thread, in a lane's first row (`lane.attempt`)."""
ROW_NUMBER: Final = "place"
"""The number of a row as it was laid out for the data source (`rows.segments`)."""

# Columns that only the input has, and those without which rows have no source transactions.
SEQ: Final = "seq"
DATABASE: Final = "database"
ROW: Final = "row"
OP: Final = "op"
TRANSACTION_COLUMNS: Final = (PARTITION, POSITION, SEQ, TRANSACTION_END)

SENTINEL_POSITION: Final = -(2**63)
"""Position of the last row of a lane, whose other columns are NULL, or name its task (`lane.attempt`)."""
ROW_NUMBER_BITS: Final = 33
"""Spark's `monotonically_increasing_id` counts the rows of a Spark partition in so many bits."""

UPSERTS: Final = ("upsert", "insert", "update", "+i", "+u", "c", "r", "u", "i", "0")
"""Values of `op`, in small letters, with which a row is written; so it is without one."""
DELETES: Final = ("delete", "-d", "d", "1")
DELETING: Final = '{"__op":1'
"""How a row that is deleted begins, in place of its opening brace; `__op` is StarRocks' name."""

# Why a row is refused: the text in front of the value at fault, and the text behind it.
UNKNOWN_OP: Final = ("unknown op '", "'")
NO_PRIMARY_KEY: Final = ("delete for the table ", ", which has no primary key")


def other_database(database: str) -> tuple[str, str]:
    """For a row of another database than `database`, the sink's."""
    return (
        "a row for database '",
        f"', but a StarRocks transaction lives in one database and this sink writes '{database}'",
    )


PRIMARY_KEYS: Final = "PRIMARY_KEYS"
"""The model of a table that can delete, as information_schema.tables_config names it."""


def keyless(models: Mapping[str, str]) -> tuple[str, ...]:
    """The tables that cannot delete; `models` maps tables to their models."""
    return tuple(sorted(name for name, model in models.items() if model != PRIMARY_KEYS))
