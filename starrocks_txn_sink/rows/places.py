"""Where a row comes from, for the errors about it: its source transaction's place, and its own in Kafka.

A source partition and a position name a source transaction, which has many rows. Rows that lanes have made of Kafka's
messages have the place of their message besides, and every error about a row says it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.coordinator.model import Ints
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.columns import OFFSET, TOPIC_PARTITION

PLACE: Final = (columns.PARTITION, columns.POSITION)
"""The place of a source transaction."""
PLACE_AND_TABLE: Final = (*PLACE, columns.TABLE)
IN_KAFKA: Final = ("topic", "partition", "offset")
"""Kafka's columns in a frame."""


def place_of(batch: pa.RecordBatch, row: int, lead: str = " at ", names: tuple[str, ...] = PLACE) -> str:
    """Text for the end of a message: `lead` and the row's place, in the columns of `names` that the batch has, and in
    Kafka."""
    there = [
        f"{name.replace('_', ' ')} {batch.column(name)[row].as_py()}" for name in names if name in batch.schema.names
    ]
    there += [text] if (text := in_kafka(batch, row)) else []
    return lead + ", ".join(there) if there else ""


def in_kafka(rows: pa.RecordBatch | pa.Table, row: int) -> str:
    """Topic, partition and offset of a row's message, as text; "" where nobody knows them."""
    offset = rows[OFFSET][row].as_py() if OFFSET in rows.schema.names else None
    name = rows[TOPIC_PARTITION][row].as_py() if TOPIC_PARTITION in rows.schema.names else None
    if offset is None or name is None:
        return ""
    topic, _, partition = name.rpartition("-")
    return (f"topic {topic}, " if topic else "") + f"partition {partition}, offset {offset}"


def with_offsets(messages: pa.RecordBatch, *, placed: bool, encoded: bool = False) -> pa.RecordBatch:
    """Kafka's messages with the columns that their rows are to keep.

    Those that are `placed` have their offset as position, and their source partition is Kafka's. Others have Kafka's
    columns, or are not of Kafka. With `encoded` TOPIC_PARTITION has a dictionary.
    """
    if placed:
        return messages.append_column(OFFSET, messages.column(columns.POSITION))
    if not {*IN_KAFKA} <= {*messages.schema.names}:
        return messages
    of_message, partition, offset = (messages.column(name) for name in IN_KAFKA)
    topics, names = of_message.dictionary_encode(), partition.dictionary_encode()
    width = max(len(names.dictionary), 1)
    codes = pc.add(pc.multiply(topics.indices.cast(pa.int64()), width), names.indices).dictionary_encode()
    texts = [
        f"{topics.dictionary[code // width]}-{names.dictionary[code % width]}" for code in codes.dictionary.to_pylist()
    ]
    there = pa.DictionaryArray.from_arrays(codes.indices, pa.array(texts, pa.string()))
    there = there if encoded else there.cast(pa.string())
    return messages.append_column(OFFSET, offset.cast(pa.int64())).append_column(TOPIC_PARTITION, there)


def with_partitions(rows: pa.Table, partitions: Sequence[str], of_row: Ints, topic: str) -> pa.Table:
    """Rows of `placed` messages with the names of Kafka's partitions, of which `of_row` has the numbers.

    They are `partitions`, but for their `topic` ("": unknown) where a query reads one alone.
    """
    if OFFSET not in rows.schema.names or TOPIC_PARTITION in rows.schema.names:
        return rows
    names = [f"{topic}-{name}" if name.isdecimal() and topic else name for name in partitions]
    return rows.append_column(TOPIC_PARTITION, pa.DictionaryArray.from_arrays(pa.array(of_row, pa.int32()), names))
