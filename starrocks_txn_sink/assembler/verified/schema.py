"""Names and shapes of verified transactions: rows and transaction markers go in, in one table of both.

A row has its transaction's id and its place in it (`total_order`, from 1); a row without an id is one of a snapshot. A
marker (`status` BEGIN or END) has the transaction's number of rows, in all and per collection, and its place
(`sequence`) among all markers of its source.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from starrocks_txn_sink.assembler import schema

STATUS: Final = "status"
TOTAL_ORDER: Final = "total_order"
COLLECTION: Final = "collection"
EVENT_COUNT: Final = "event_count"
DATA_COLLECTIONS: Final = "data_collections"
SEQUENCE: Final = "sequence"
ARRIVED: Final = "arrived"  # processing time in seconds; only in the state

BEGIN: Final = "BEGIN"
END: Final = "END"
SNAPSHOT: Final = "r"  # the op of a row that was read, not changed

ROW_COLUMNS: Final = (schema.TXN_ID, TOTAL_ORDER, COLLECTION, schema.POSITION, *schema.PAYLOAD)
MARKER_COLUMNS: Final = (schema.TXN_ID, STATUS, EVENT_COUNT, DATA_COLLECTIONS, SEQUENCE, schema.POSITION)

COUNTED: Final = pa.list_(pa.struct([("data_collection", pa.string()), ("event_count", pa.int64())]))

EVENTS: Final = pa.schema(
    [
        (STATUS, pa.string()),
        (schema.TXN_ID, pa.string()),
        (TOTAL_ORDER, pa.int64()),
        (COLLECTION, pa.string()),
        (EVENT_COUNT, pa.int64()),
        (DATA_COLLECTIONS, COUNTED),
        (SEQUENCE, pa.int64()),
        (schema.POSITION, pa.int64()),
        (schema.DATABASE, pa.string()),
        (schema.TABLE, pa.string()),
        (schema.OP, pa.string()),
        (schema.ROW, pa.string()),
    ]
)
"""What a step takes in. `table` NULL: the row counts for its transaction, but is not handed on."""

HELD: Final = EVENTS.append(pa.field(ARRIVED, pa.float64()))

RELEASED: Final = pa.schema(
    [
        (schema.POSITION, pa.int64()),
        (schema.SEQ, pa.int64()),
        (schema.DATABASE, pa.string()),
        (schema.TABLE, pa.string()),
        (schema.OP, pa.string()),
        (schema.ROW, pa.string()),
        (schema.TRANSACTION_END, pa.bool_()),
        (schema.TXN_ID, pa.string()),
    ]
)
"""What a step gives out, without the source partition: the columns of `assemble_transactions`."""
