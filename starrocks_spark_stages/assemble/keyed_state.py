"""The state operator of both assemblers, and Arrow blobs of events and rows for their input and output.

The operator moves few binary values instead of every row: a packed frame has the source partition, a blob (an Arrow
IPC stream of many events or rows) and, in the assembler's output, the counts of a step. Values do not pass through
pandas, which would change NULLs and some strings.

The state of a key is a header and numbered blobs; `Processor` writes each blob once, into a MapState in RocksDB.
"""

# ruff: noqa: N802, N803 - some names of methods and arguments are Spark's
from __future__ import annotations  # Spark 3.5 lacks the types of transformWithState

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import pyarrow as pa
from pyspark.sql import functions as F, types as T

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import group_by_partition
from starrocks_txn_sink.assembler.rules.model import Counters, Partition, from_blob, pieces, to_blob
from starrocks_txn_sink.assembler.verified.intake import placed
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.sources.query_stages import PLANNED, TIMED, TaskTime
from starrocks_txn_sink.spark_version import require_rocksdb, stateful_processor as spark
from starrocks_txn_sink.telemetry import Event, get_logger

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame

BLOB: Final = "blob"
COUNTS: Final = "counts"
_TICK: Final = "tick"

KEY_TYPES: Final = {T.StringType: pa.string(), T.IntegerType: pa.int32(), T.LongType: pa.int64()}
"""Types of a source partition, and the same in Arrow."""

Packet = tuple[Partition | None, bytes | None, str | None]
Frames = Iterator["pd.DataFrame"]

_log = get_logger("assembler")


class KeyChange(NamedTuple):
    """The effect of a step on a source partition. Read all `packets`; delete `removed`; write `added` and `header`.

    `wake_at` is the time (seconds since the epoch) at which a step is due even without events; None: never.
    """

    packets: Iterator[Packet]
    header: str
    removed: Iterable[int]
    added: Mapping[int, pa.Table]
    wake_at: float | None


TakeStep = Callable[[Partition, str | None, Sequence[bytes] | None, float, Callable[[int], pa.Table]], KeyChange]
"""A step of one source partition: its name, its header (None: it is new), its packed events (None: the timer expired,
and what is overdue is given up), the time (seconds since the epoch), and the reader of its blobs."""


InTask = Callable[[Iterable[pa.RecordBatch]], Iterator[Packet]]
"""Assembles the events of a task of a batch frame."""


def assemble_frame(
    events: DataFrame, take_step: TakeStep, in_task: InTask, open_timeout: float | None, *order: str
) -> DataFrame:
    """Packed rows and counts from `events`; a stream runs in the state operator, for which the session needs RocksDB.

    With `open_timeout` a timer starts a step without events, which alone gives source transactions up. Its time is
    Spark's watermark, which the events take to the time of their micro-batch (`ticking`). In a task of a batch frame
    the events are sorted by source partition and `order`.
    """
    timed, key = open_timeout is not None, events.schema[model.SOURCE_PARTITION].dataType
    packed = f"{model.SOURCE_PARTITION} {key.simpleString()}, {BLOB} binary"
    schema_text = f"{packed}, {COUNTS} string"
    if not events.isStreaming:
        ordered = events.repartition(model.SOURCE_PARTITION).sortWithinPartitions(model.SOURCE_PARTITION, *order)
        return ordered.mapInArrow(lambda batches: _packet_batches(in_task(batches), KEY_TYPES[type(key)]), schema_text)
    require_rocksdb(events)
    PLANNED.set()
    _log.info("assembler.planned", state="transformWithState")
    if timed:
        TIMED.set()
        packets = ticking(events.mapInArrow(pack_with_tick, f"{packed}, {_TICK} bigint"))
    else:
        packets = events.mapInArrow(pack, packed)
    grouped, mode = packets.groupBy(model.SOURCE_PARTITION), "EventTime" if timed else "None"
    return grouped.transformWithStateInPandas(Processor(take_step, timed), schema_text, "Append", mode)


def ticking(packets: DataFrame) -> DataFrame:
    """`packets`, with which Spark's watermark goes to the time of each micro-batch that has events.

    Timers stand on this watermark, because those on processing time make Spark plan one empty micro-batch after the
    other for as long as the query runs: `availableNow` would never end. A watermark that moved makes it plan one. Spark
    keeps it in the checkpoint, so that a micro-batch that runs again gives up the same source transactions, while the
    ticks are told by the run (`TaskTime`). The column is gone before the state operator, which would drop rows as late
    after the clock was set back.
    """
    tick = F.coalesce(F.timestamp_millis(_TICK), F.current_timestamp())
    return packets.withColumn(_TICK, tick).withWatermark(_TICK, "0 seconds").drop(_TICK)


def summed_counts(names: Iterable[str]) -> list[Column]:
    """The counts `names` over all packed rows."""
    sums = {name: F.sum(F.get_json_object(F.col(COUNTS), f"$.{name}").cast("bigint")) for name in names}
    return [F.coalesce(total, F.lit(0).cast("bigint")).alias(name) for name, total in sums.items()]


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack record batches: one row per batch and source partition. Raises InputError for a NULL source partition."""
    for batch in batches:
        parts = list(group_by_partition(pa.Table.from_batches([batch])).by_partition())
        if parts:
            names = pa.array([part.names[0] for part in parts], batch.schema.field(model.SOURCE_PARTITION).type)
            blobs = pa.array([to_blob(part.table) for part in parts], pa.binary())
            yield pa.record_batch([names, blobs], [model.SOURCE_PARTITION, BLOB])


def pack_with_tick(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As `pack`, with the watermark that the micro-batch asks for (NULL: Spark's time)."""
    told = TaskTime.of_task()
    for packed in pack(batches):
        tick = pa.array([None if told is None else told.tick] * packed.num_rows, pa.int64())
        yield packed.append_column(_TICK, tick)


def unpack(names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unpack blobs into rows with the columns `names`; skips rows that only hold counts.

    Rows that an earlier release has held do not have their places in Kafka.
    """
    for batch in batches:
        for partition, blob in zip(batch.column(model.SOURCE_PARTITION), batch.column(BLOB), strict=True):
            if blob.is_valid:
                rows = from_blob(blob.as_buffer())
                rows = placed(rows.add_column(0, model.SOURCE_PARTITION, pa.repeat(partition, rows.num_rows)))
                yield from rows.select(names).combine_chunks().to_batches()


def row_packets(partition: Partition, released: Iterable[pa.Table]) -> Iterator[Packet]:
    """Released rows as packed rows of bounded size."""
    for table in released:
        for piece in pieces(table):
            yield partition, to_blob(piece), None


def counts_packet(partition: Partition | None, counts: Counters, **figures: float) -> Packet:
    """The packed row with the counts of a step, and `figures`."""
    return partition, None, orjson.dumps({**counts.as_dict(), **figures}).decode()


def _packet_batches(packets: Iterable[Packet], kind: pa.DataType) -> Iterator[pa.RecordBatch]:
    for partition, blob, counts in packets:
        columns = [pa.array([partition], kind), pa.array([blob], pa.binary()), pa.array([counts], pa.string())]
        yield pa.record_batch(columns, [model.SOURCE_PARTITION, BLOB, COUNTS])


def _packet_frame(packet: Packet) -> pd.DataFrame:
    """One packed row as a pandas frame, which Spark's state operators require."""
    import pandas as pd  # here, because lanes import this module without pandas

    partition, blob, counts = packet
    return pd.DataFrame({model.SOURCE_PARTITION: [partition], BLOB: [blob], COUNTS: [counts]})


def log_notices(notices: Iterable[Event]) -> None:
    """Write notices to the executor's log, one line each."""
    for notice in notices:
        _log.warning(notice.name, **notice.fields)


def keep_timer(handle: spark.StatefulProcessorHandle, due: int | None) -> None:
    """Keep exactly one timer of the current key, at `due` (milliseconds since the epoch); none for None."""
    known_timers = set(handle.listTimers())
    for timer in known_timers - {due}:
        handle.deleteTimer(timer)
    if due is not None and due not in known_timers:
        handle.registerTimer(due)


@dataclass(eq=False)
class Processor(spark.StatefulProcessor):
    """An assembler for transformWithState."""

    take_step: TakeStep
    timed: bool

    def init(self, handle: spark.StatefulProcessorHandle) -> None:
        """Declare the state of a source partition, whose names and schemas are part of a checkpoint."""
        self._handle = handle
        self._header = handle.getValueState("header", "header string")
        self._blobs = handle.getMapState("blobs", "number bigint", "blob binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: spark.TimerValues) -> Frames:
        """The packed rows and counts of one step over all frames, at the time that the run has told, else Spark's."""
        told = TaskTime.of_task() if self.timed else None
        milliseconds = timerValues.getCurrentProcessingTimeInMs()  # none without timers
        spark_s = milliseconds / 1000 if milliseconds > 0 else SystemClock().wall()
        return self._step(key[0], [blob for frame in rows for blob in frame[BLOB]], told.now if told else spark_s)

    def handleExpiredTimer(
        self, key: Any, timerValues: spark.TimerValues, expiredTimerInfo: spark.ExpiredTimerInfo
    ) -> Frames:
        """The packed rows and counts of a step without events, which gives up what is overdue."""
        due = max(timerValues.getCurrentWatermarkInMs(), expiredTimerInfo.getExpiryTimeInMs())
        return self._step(key[0], None, due / 1000)

    def close(self) -> None:
        """Nothing to close: all state is in the state store."""

    def _step(self, name: Partition, blobs: list[bytes] | None, now: float) -> Frames:
        stored = self._header.get()
        change = self.take_step(name, stored[0] if stored else None, blobs, now, self._read)
        yield from map(_packet_frame, change.packets)
        for number in change.removed:
            self._blobs.removeKey((number,))
        for number, rows in change.added.items():
            self._blobs.updateValue((number,), (to_blob(rows),))
        self._header.update((change.header,))
        if self.timed:
            keep_timer(self._handle, None if change.wake_at is None else math.ceil(change.wake_at * 1000))

    def _read(self, number: int) -> pa.Table:
        """The rows of a blob; LookupError if the state store does not have it."""
        stored = self._blobs.getValue((number,))
        if stored is None:
            raise LookupError(f"blob {number} is missing from the state store")
        return from_blob(stored[0])
