"""The rows of a lane: column names, values of `op`, and reasons to reject a row.

Two projections make the same rows from this module: in the JVM (`sink.projection`) and over Arrow
(`assembler.rules.payload`).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

# Columns of rows with positions, in this order; a lane reads no other columns of the input.
PARTITION: Final = "source_partition"
POSITION: Final = "position"
TABLE: Final = "table"
TRANSACTION_END: Final = "transaction_end"
PAYLOAD: Final = "payload"
COLUMNS: Final = (PARTITION, POSITION, TABLE, TRANSACTION_END, PAYLOAD)

HASH: Final = "hash"
"""A row's checksum; unpositioned rows have the columns TABLE, PAYLOAD and HASH (`rows.unpositioned`)."""
EVENT_TIME: Final = "event_time"
"""The source's commit time in microseconds since the Unix epoch; NULL if unknown. For metrics."""
OFFSET: Final = "kafka_offset"
TOPIC_PARTITION: Final = "kafka_partition"
"""The place of a row's message in Kafka, its partition as `topic-number`; absent where nobody knows it. For errors."""
DELETED: Final = "deleted"
"""Whether a row is a delete, in any format; absent if no row can be one. For metrics."""

# Columns of the input alone; TRANSACTION_COLUMNS make source transactions of rows.
SEQ: Final = "seq"
DATABASE: Final = "database"
ROW: Final = "row"
OP: Final = "op"
TRANSACTION_COLUMNS: Final = (PARTITION, POSITION, SEQ, TRANSACTION_END)

UPSERTS: Final = ("upsert", "insert", "update", "+i", "+u", "c", "r", "u", "i", "0")
"""Values of `op` that write a row, in lower case; a row without `op` is written, too."""
DELETES: Final = ("delete", "-d", "d", "1")
OWN_OP: Final = "__op"
"""StarRocks' name of the column that says whether a row is deleted (wire contract 5.6)."""
DELETING: Final = f'{{"{OWN_OP}":1'
"""Beginning of a deleted row, in place of its opening brace."""

UNCHANGED: Final = "__starrocks_txn_sink_unchanged"
"""The last member of a JSON row: an array of columns that keep their values (`rows.unchanged`)."""

FORMER: Final = "__starrocks_txn_sink_former"
"""A member of a row that an update has moved to another key: the row before it (`assembler.rules.moved`)."""

KEY_DELETES: Final = "starrocks_txn_sink.key_deletes"
"""In the metadata of a frame's OP: true if its deletes carry only their key, or NULL outside it."""

Placeholders = Mapping[str, Mapping[str, str]]
"""JSON values by table and JSON key, for the NOT NULL columns of a delete besides its key.

The server judges a delete like any row, and then uses its key alone (wire contract 5.6). So a delete that carries only
its key gets these values where a field is missing or null. Other fields of the row stay as they are: a JSON key must
not come twice, because the server takes it for two values.
"""


def missing_fields(placeholders: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs (regular expression, field): put the field behind DELETING in a row without a match of the expression."""
    for name, value in placeholders.items():
        yield f'"{_spelled(name)}"{_COLON}', f",{json.dumps(name, ensure_ascii=False)}:{value}"


def null_fields(placeholders: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs (regular expression, value): the value replaces the `null` behind the expression's group."""
    for value in dict.fromkeys(placeholders.values()):
        names = "|".join(_spelled(name) for name, placeholder in placeholders.items() if placeholder == value)
        yield f'("(?:{names})"{_COLON})null', value


_COLON: Final = r"[ \t\r\n]*:[ \t\r\n]*"


def _spelled(name: str) -> str:
    """A JSON key as it is or with escapes, as a regular expression of Java and of RE2."""
    return "".join(
        re.escape(part) if part.isascii() else f"(?:{part}|(?i:{re.escape(json.dumps(part)[1:-1])}))"
        for part in json.dumps(name, ensure_ascii=False)[1:-1]
    )


REFUSED: Final = "StarRocks sink: "
"""Begins the text of a refusal, also of those that the JVM raises."""
KEYLESS_ADVICE: Final = "Make it a PRIMARY KEY table, or filter deletes out before the sink."

# Reasons to reject a row: text before and after the value at fault.
UNKNOWN_OP: Final = ("unknown op '", "'")
NO_PRIMARY_KEY: Final = ("delete for the table ", ", which has no primary key")


def other_database(database: str) -> tuple[str, str]:
    """Reason to reject a row for a database other than `database`, the sink's."""
    return (
        "a row for database '",
        f"', but a StarRocks transaction lives in one database and this sink writes '{database}'",
    )
