"""Names and shapes at the assembler's two ends: events go in, rows of whole source transactions come out."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

SOURCE_PARTITION: Final = "source_partition"
POSITION: Final = "position"
TYPE: Final = "type"
TXN_ID: Final = "txn_id"
DATABASE: Final = "database"
TABLE: Final = "table"
OP: Final = "op"
ROW: Final = "row"
SEQ: Final = "seq"
TRANSACTION_END: Final = "transaction_end"

# What an event must have beside its source partition; DATABASE and OP are NULL when the source does not say them.
REQUIRED: Final = (POSITION, TYPE, TXN_ID, TABLE, ROW)

# The columns that a DATA event hands on as they are; `passthrough` columns follow them.
PAYLOAD: Final = (DATABASE, TABLE, OP, ROW)

EVENT_FIELDS: Final = (
    (POSITION, pa.int64()),
    (TYPE, pa.string()),
    (TXN_ID, pa.string()),
    (DATABASE, pa.string()),
    (TABLE, pa.string()),
    (OP, pa.string()),
    (ROW, pa.string()),
)

OUTPUT: Final = (SOURCE_PARTITION, POSITION, SEQ, DATABASE, TABLE, OP, ROW, TRANSACTION_END, TXN_ID)


def payload_names(events: pa.Schema) -> list[str]:
    """The columns that rows of an open transaction keep: the payload, and whatever is not one of ours."""
    ours = {name for name, _ in EVENT_FIELDS}
    return [*PAYLOAD, *(name for name in events.names if name not in ours)]


def released_names(payload: list[str]) -> list[str]:
    """The order of columns in released tables: the output's without the source partition, then `passthrough`."""
    ours = [name for name in OUTPUT if name != SOURCE_PARTITION]
    return [*ours, *(name for name in payload if name not in PAYLOAD)]
