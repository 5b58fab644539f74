"""Tombstones in whose place compaction has left no delete of the key: each is a delete by its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.declared_keys import DELETE
from starrocks_txn_sink.sources.formats.raw_format import (
    KEY,
    MESSAGE_KEY,
    POSITION,
    SOURCE_PARTITION,
    VALUE,
    ParsedMessages,
)
from starrocks_txn_sink.sources.formats.tables import TableMapping

_PARTITION_AND_POSITION: Final = (SOURCE_PARTITION, POSITION)


def with_lone_tombstones(
    parsed: ParsedMessages,
    batch: pa.RecordBatch,
    messages: pa.RecordBatch,
    tables: TableMapping,
    keep: tuple[str, ...],
    rows_of_keys: Callable[[pa.Array], tuple[pa.Array, Bools]],
) -> ParsedMessages:
    """`parsed`, and a delete for each tombstone in whose place compaction has left no delete of the key.

    Such a tombstone has its key alone, and its topic names the table: `…schema.table`. One of another topic, and
    one whose key is no object, is passed over. `batch` has the messages of the events, `messages` also the tombstones;
    `rows_of_keys` makes rows of keys, with a mask of the sound ones.
    """
    name = next((name for name in (KEY, MESSAGE_KEY) if name in messages.schema.names), None)
    if name is None or "topic" not in messages.schema.names:
        return parsed
    messages = messages.filter(pc.and_(messages.column(VALUE).is_null(), messages.column(name).is_valid()))
    if not messages.num_rows:
        return parsed
    topics = messages.column("topic").dictionary_encode()
    collections = [".".join(topic.split(".")[-2:]) for topic in topics.dictionary.to_pylist()]
    targets = [tables.table_of(collection) or None for collection in collections]
    target = pa.array(targets, pa.string()).take(topics.indices)
    deletes = pc.equal(parsed.events[model.OP], DELETE).combine_chunks()
    keyed = [*_PARTITION_AND_POSITION, name]
    rows = batch.select(keyed).append_column(model.OP, deletes)
    lone = pc.and_(target.is_valid(), _lone_tombstones(rows, messages.select(keyed)))
    messages, target = messages.filter(lone), target.filter(lone)
    texts, sound = rows_of_keys(messages.column(name))
    named = pc.fill_null(pc.not_equal(texts, "{}"), False)  # a key of a registry that was not read names nothing
    sound &= named.to_numpy(zero_copy_only=False)
    if not sound.any():
        return parsed
    collection = pa.array(collections, pa.string()).take(topics.indices.filter(lone))
    columns: dict[str, pa.Array] = {
        v.COLLECTION: collection, model.TABLE: target, model.ROW: texts,
        model.OP: pa.array([DELETE] * len(target), pa.string()),
    }  # fmt: skip
    columns |= {column: messages.column(column) for column in (*_PARTITION_AND_POSITION, v.TIMESTAMP, *keep)}
    schema = parsed.events.schema
    values = [columns.get(field.name, pa.nulls(len(target), field.type)).cast(field.type) for field in schema]
    deletes_of_keys = pa.table(values, schema).filter(pa.array(sound))
    events = pa.concat_tables([parsed.events, deletes_of_keys])
    order = pc.sort_indices(events, [(column, "ascending") for column in _PARTITION_AND_POSITION])
    return replace(parsed, events=events.take(order))


def _lone_tombstones(rows: pa.RecordBatch, tombstones: pa.RecordBatch) -> pa.Array:
    """Mask of the tombstones in front of which the messages have no delete of the same key.

    Both have partition, position and key; `rows` have a mask of deletes, too. A connector writes a tombstone behind
    each delete, and the message of its key in front of it in the same partition is this delete.
    """
    count = len(rows)
    partition, position, key = (
        pa.concat_arrays([rows.column(number), tombstones.column(number)])
        for number in range(len(tombstones.schema.names))
    )
    codes = [pc.fill_null(column.dictionary_encode().indices, -1).to_numpy() for column in (partition, key)]
    order = np.lexsort((position.to_numpy(), codes[1], codes[0]))
    same = np.ones(len(order), dtype=bool)
    for code in codes:
        same[1:] &= code[order][1:] == code[order][:-1]
    same[:1] = False
    deletes = np.append(rows.column(model.OP).to_numpy(zero_copy_only=False), np.zeros(len(tombstones), dtype=bool))
    has_delete = np.zeros(len(order), dtype=bool)
    has_delete[order[1:]] = same[1:] & deletes[order[:-1]]
    return pa.array(~has_delete[count:])
