"""Kafka's messages as a lane reads them, parsed by a format."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from starrocks_txn_sink.sources.formats.raw_format import ParsedMessages, RawFormat


def parse(
    lines: RawFormat | None,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] = (),
    *,
    topic: str = "shop.public.orders",
    source_partition: str = "orders-0",
) -> ParsedMessages:
    """What `lines` makes of one partition's messages, from offset 0 on."""
    assert lines is not None
    count = len(values)
    batch = {
        "source_partition": [source_partition] * count,
        "position": pa.array(range(count), pa.int64()),
        "value": pa.array(values, pa.binary()),
        "topic": [topic] * count,
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([0] * count, pa.int64()),
    }
    if keys:
        batch["key"] = batch["message_key"] = pa.array(keys, pa.binary())
    names = [name for name in lines.columns if name in batch]
    return lines.parse(pa.RecordBatch.from_pydict({name: batch[name] for name in names}))


def rows_of(messages: ParsedMessages) -> list[str]:
    texts: list[str] = messages.events["row"].to_pylist()
    return texts
