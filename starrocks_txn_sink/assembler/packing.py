"""Events and rows as Arrow blobs, so that a state operator moves a few binary values and not every single row.

A packed frame has the source partition, a blob (an Arrow IPC stream of many events or rows) and, where the assembler
put it out, the counts of a step. Values never pass through pandas: NULL stays NULL and every string stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.state import AssemblerState, from_blob, pieces, to_blob
from starrocks_txn_sink.errors import InputError

BLOB: Final = "blob"
COUNTS: Final = "counts"
OLDEST: Final = "oldest_open"  # among the counts

Partition = str | int
Packet = tuple[Partition, bytes | None, str | None]


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One packed row per record batch and source partition; InputError for a NULL source partition."""
    for batch in batches:
        packed = [(partition, to_blob(events)) for partition, events in by_partition(pa.Table.from_batches([batch]))]
        if packed:
            partitions, blobs = zip(*packed, strict=True)
            kind = batch.schema.field(schema.SOURCE_PARTITION).type
            yield pa.record_batch(
                [pa.array(partitions, kind), pa.array(blobs, pa.binary())], [schema.SOURCE_PARTITION, BLOB]
            )


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in the blobs of a packed frame, the source partition in front; rows that only hold counts vanish."""
    for batch in batches:
        partitions = batch.column(schema.SOURCE_PARTITION)
        for partition, blob in zip(partitions, batch.column(BLOB), strict=True):
            if blob.is_valid:
                rows = from_blob(blob.as_buffer())
                rows = rows.add_column(0, schema.SOURCE_PARTITION, pa.repeat(partition, rows.num_rows))
                yield from rows.combine_chunks().to_batches()


def packets(partition: Partition, released: Iterable[pa.Table]) -> Iterator[Packet]:
    """Released rows as packed rows of bounded size."""
    for table in released:
        for piece in pieces(table):
            yield partition, to_blob(piece), None


def receipt(partition: Partition, counters: Counters, state: AssemblerState | None = None) -> Packet:
    """The packed row that only holds the counts of a step, and since when the oldest of `state` has been open."""
    opened = [each.opened_at for each in state.live()] if state is not None else []
    counts = {**counters.as_dict(), **({OLDEST: min(opened)} if opened else {})}
    return partition, None, orjson.dumps(counts).decode()


def by_partition(table: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """The events of each source partition, in the order in which they are in `table`."""
    partitions = table[schema.SOURCE_PARTITION].combine_chunks()
    if partitions.null_count:
        at = pc.index(partitions.is_null(), True).as_py()
        raise InputError(
            "An event has no source partition (NULL).",
            hint="Correct the source, or filter such events out before they are assembled.",
            partition="NULL",
            position=table[schema.POSITION][at].as_py(),
            column=schema.SOURCE_PARTITION,
        )
    encoded = partitions.dictionary_encode()
    codes = encoded.indices.to_numpy()
    events = table.drop_columns([schema.SOURCE_PARTITION])
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        codes, events = codes[order], events.take(pa.array(order))
    starts = np.searchsorted(codes, np.arange(len(encoded.dictionary) + 1)).tolist()
    for partition, start, stop in zip(encoded.dictionary.to_pylist(), starts, starts[1:], strict=False):
        yield partition, events.slice(start, stop - start)
