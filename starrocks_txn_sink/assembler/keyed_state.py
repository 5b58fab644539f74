"""The assembler's state in Spark's state operators, and Arrow blobs of events and rows for their input and output.

A state operator moves few binary values instead of every row: a packed frame has the source partition, a blob (an Arrow
IPC stream of many events or rows) and, in the assembler's output, the counts of a step. Values do not pass through
pandas, which would change NULLs and some strings.

The state of a key is a header and numbered blobs. transformWithState (RocksDB) has a ValueState and a MapState: it
writes each blob once, under its own key. applyInPandasWithState (any provider) has a single value, so all blobs are
joined in it. Spark cannot pass arrays in that state to Python; therefore `layout`, JSON pairs of blob number and
length, says where to split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import group_by_partition
from starrocks_txn_sink.assembler.rules.model import Counters, Partition
from starrocks_txn_sink.assembler.rules.state import AssemblerState, from_blob, pieces, to_blob
from starrocks_txn_sink.clock import SystemClock

BLOB: Final = "blob"
COUNTS: Final = "counts"
OLDEST: Final = "oldest_open"  # among the counts
GROUP_STATE_TYPE: Final = "header string, layout string, blobs binary"

Packet = tuple[Partition, bytes | None, str | None]


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack record batches: one row per batch and source partition. Raises InputError for a NULL source partition."""
    for batch in batches:
        parts = group_by_partition(pa.Table.from_batches([batch])).by_partition()
        packed = [(part.names[0], to_blob(part.table)) for part in parts]
        if packed:
            partitions, blobs = zip(*packed, strict=True)
            kind = batch.schema.field(model.SOURCE_PARTITION).type
            yield pa.record_batch(
                [pa.array(partitions, kind), pa.array(blobs, pa.binary())], [model.SOURCE_PARTITION, BLOB]
            )


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unpack blobs into rows, with the source partition as first column; skips rows that only hold counts."""
    for batch in batches:
        partitions = batch.column(model.SOURCE_PARTITION)
        for partition, blob in zip(partitions, batch.column(BLOB), strict=True):
            if blob.is_valid:
                rows = from_blob(blob.as_buffer())
                rows = rows.add_column(0, model.SOURCE_PARTITION, pa.repeat(partition, rows.num_rows))
                yield from rows.combine_chunks().to_batches()


def row_packets(partition: Partition, released: Iterable[pa.Table]) -> Iterator[Packet]:
    """Released rows as packed rows of bounded size."""
    for table in released:
        for piece in pieces(table):
            yield partition, to_blob(piece), None


def counts_packet(partition: Partition, counters: Counters, state: AssemblerState | None = None) -> Packet:
    """The packed row with the counts of a step and the opening time of the oldest open transaction of `state`."""
    opened = [each.opened_at for each in state.live()] if state is not None else []
    counts = {**counters.as_dict(), **({OLDEST: min(opened)} if opened else {})}
    return partition, None, orjson.dumps(counts).decode()


class KeyState:
    """The state of the current key of a StatefulProcessor."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._header = handle.getValueState("header", "header string")
        self._blobs = handle.getMapState("blobs", "number bigint", "blob binary")

    @property
    def header(self) -> str | None:
        stored: Any = self._header.get()
        return stored[0] if stored else None

    def read(self, number: int) -> pa.Table:
        """The rows of a blob; LookupError if the state store does not have it."""
        stored = self._blobs.getValue((number,))
        if stored is None:
            raise LookupError(f"blob {number} is missing from the state store")
        return from_blob(stored[0])

    def write(self, header: str, removed: Iterable[int], added: Mapping[int, pa.Table]) -> None:
        """Delete old blobs, then write new blobs and the header."""
        for number in removed:
            self._blobs.removeKey((number,))
        for number, rows in added.items():
            self._blobs.updateValue((number,), (to_blob(rows),))
        self._header.update((header,))

    def wake_at(self, seconds: float | None) -> None:
        """Keep exactly one timer, at `seconds` since the epoch; none for None."""
        due = None if seconds is None else math.ceil(seconds * 1000)
        timers = list(self._handle.listTimers())
        for timer in timers:
            if timer != due:
                self._handle.deleteTimer(timer)
        if due is not None and due not in timers:
            self._handle.registerTimer(due)


class GroupKeyState:
    """The state of the current key in the single value of a GroupState."""

    def __init__(self, group: GroupState) -> None:
        self._group = group
        header, layout, joined = group.get if group.exists else (None, "[]", b"")
        self.header: str | None = header
        self._blobs = _split(layout, joined)

    def read(self, number: int) -> pa.Table:
        return from_blob(self._blobs[number])

    def write(self, header: str, removed: Iterable[int], added: Mapping[int, pa.Table]) -> None:
        gone = set(removed)
        kept = {number: blob for number, blob in self._blobs.items() if number not in gone}
        kept |= {number: to_blob(rows) for number, rows in added.items()}
        layout = orjson.dumps([(number, len(blob)) for number, blob in kept.items()]).decode()
        self._group.update((header, layout, b"".join(kept.values())))

    def wake_at(self, seconds: float | None, now: float) -> None:
        if seconds is not None:
            self._group.setTimeoutDuration(max(1, math.ceil((seconds - now) * 1000)))


def processing_time(milliseconds: int) -> float:
    """Spark's processing time in seconds; the local clock if Spark has none (stages without open_timeout)."""
    return milliseconds / 1000 if milliseconds > 0 else SystemClock().wall()


def _split(layout: str, joined: bytes) -> dict[int, bytes]:
    blobs, start = {}, 0
    for number, length in orjson.loads(layout):
        blobs[number] = bytes(joined[start : start + length])
        start += length
    return blobs
