"""`assemble_transactions`: TransactionAssembler as a stage of a Spark query.

Three steps: pack events into Arrow blobs per source partition (assembler.keyed_state), run the assembler in a state
operator, unpack released blobs into rows.

Both state operators give the same result; they differ in the cost of a transaction that stays open for long.
`Processor` (transformWithState, RocksDB) writes each blob once. `group_function` (applyInPandasWithState, any provider)
has one state value, and Spark rewrites it, blobs included, whenever the source partition has events.
"""

# ruff: noqa: N802, N803, ARG002 - some names of methods and arguments are Spark's
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from starrocks_txn_sink.assembler.keyed_state import (
    BLOB,
    COUNTS,
    GROUP_STATE_TYPE,
    OLDEST,
    GroupKeyState,
    KeyState,
    Packet,
    counts_packet,
    pack,
    processing_time,
    row_packets,
    unpack,
)
from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.assembler import PartitionChange, TransactionAssembler
from starrocks_txn_sink.assembler.rules.incremental import assemble_sorted
from starrocks_txn_sink.assembler.rules.intake import one_partition
from starrocks_txn_sink.assembler.rules.model import Counters, MissingBegin, OnOpenTimeout, Partition, Policy, seconds
from starrocks_txn_sink.assembler.rules.state import AssemblerState, from_blob
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.telemetry.events import Event
from starrocks_txn_sink.telemetry.logs import get_logger

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_INTEGERS: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_STRINGS: Final = (T.StringType,)
_ARROW: Final = {T.StringType: pa.string(), T.IntegerType: pa.int32(), T.LongType: pa.int64()}
_KEYS: Final = tuple(_ARROW)

_log = get_logger("assembler")


def assemble_transactions(
    events: DataFrame,
    by: str = "source_partition",
    *,
    interleaved: bool = False,
    open_timeout: float | timedelta | str | None = None,
    on_open_timeout: OnOpenTimeout = "fail",
    missing_begin: MissingBegin = "fail",
    passthrough: Sequence[str] = (),
    name: str = "assemble_transactions",
) -> DataFrame:
    """Hold each source transaction until its END has arrived, then release its rows, whole and in order.

    `events` has the columns `by` (string, int or bigint), position (an integer), type (BEGIN, DATA, END; TXN_BEGIN and
    TXN_END too; any case), txn_id, table, row (strings) and, if there are any, database and op (strings). Positions
    ascend within a source partition and belong to one event each. `passthrough` names further columns to keep.

    The result has source_partition, position (of the END), seq (0, 1, … within the transaction), database, table, op,
    row, transaction_end (true on the last row only), txn_id and the `passthrough` columns. The rows of a source
    partition are contiguous and in order inside a task.

    The rules: one transaction is open per source partition, or, with `interleaved`, one per txn_id. A BEGIN abandons
    what was open and unfinished. Events at or below the last position seen are repeats and dropped. `missing_begin`
    says what to do with events whose BEGIN was never seen (`fail`, `drop`, `accept`), `on_open_timeout` what with
    transactions open for longer than `open_timeout` (seconds, a timedelta or text like `10 min`, in processing time;
    `fail`, `drop`). A batch DataFrame gives what a stream gives after all of its input, without `open_timeout`.

    Each progress of the query has counts (assembler.rules.model.Counters) under `observedMetrics[name]`: flows of the
    micro-batch; the levels open, open_rows and state_bytes of the source partitions with events in it; and oldest_open,
    the time (seconds since the epoch) since which their oldest transaction is open, 0 if none is. Two stages in one
    query need two names. Under foreachBatch the counts appear after an action has read the rows; a second read of a
    micro-batch, or a retried task, does not count again.

    With `open_timeout` Spark runs a micro-batch at every trigger, even without events: set a trigger interval.
    The stage uses transformWithState if the session's state store provider is RocksDB, else applyInPandasWithState; a
    checkpoint works with one of them only. A NULL `row` stays NULL.

    Raises InputError at once for missing columns or wrong types, OptionError for options. In the running query,
    InputError and SourceTransactionError name partition and position.
    """
    policy = Policy(interleaved, seconds(open_timeout), on_open_timeout, missing_begin)
    prepared = prepared_events(events, by, tuple(passthrough))
    key = prepared.schema[model.SOURCE_PARTITION].dataType
    packed = T.StructType([T.StructField(model.SOURCE_PARTITION, key), T.StructField(BLOB, T.BinaryType())])
    done = T.StructType([*packed.fields, T.StructField(COUNTS, T.StringType())])
    if events.isStreaming:
        assembled = _stateful(prepared.mapInArrow(pack, packed), done, policy)
    else:
        ordered = prepared.repartition(model.SOURCE_PARTITION)
        ordered = ordered.sortWithinPartitions(model.SOURCE_PARTITION, model.POSITION)
        assembled = ordered.mapInArrow(_assemble_in_task(policy, _ARROW[type(key)]), done)
    counts = [_count(each).alias(each) for each in Counters.names()]
    oldest = F.min(F.get_json_object(F.col(COUNTS), f"$.{OLDEST}").cast("double"))
    counts.append(F.coalesce(oldest, F.lit(0.0)).alias(OLDEST))
    return assembled.observe(name, *counts).mapInArrow(unpack, _output(prepared.schema))


def _count(field: str) -> Column:
    counted = F.get_json_object(F.col(COUNTS), f"$.{field}").cast("bigint")
    return F.coalesce(F.sum(counted), F.lit(0).cast("bigint"))


def _stateful(packed: DataFrame, done: T.StructType, policy: Policy) -> DataFrame:
    """Apply the state operator that the session's state store provider supports."""
    grouped = packed.groupBy(model.SOURCE_PARTITION)
    timed = policy.open_timeout is not None
    if packed.sparkSession.conf.get(PROVIDER, "") == ROCKSDB:
        _log.info("assembler.planned", state="transformWithState")
        mode = "ProcessingTime" if timed else "None"
        return grouped.transformWithStateInPandas(Processor(policy), done, "Append", mode)
    _log.info("assembler.planned", state="applyInPandasWithState", hint=f"for transformWithState set {PROVIDER}")
    timeout = "ProcessingTimeTimeout" if timed else "NoTimeout"
    return grouped.applyInPandasWithState(group_function(policy), done, GROUP_STATE_TYPE, "append", timeout)


def _assemble_in_task(
    policy: Policy, kind: pa.DataType
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def assemble(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name, out in assemble_sorted(batches, policy, log_notices):
            packed = [counts_packet(name, out)] if isinstance(out, Counters) else row_packets(name, [out])
            for partition, blob, counts in packed:
                columns = [pa.array([partition], kind), pa.array([blob], pa.binary()), pa.array([counts], pa.string())]
                yield pa.record_batch(columns, [model.SOURCE_PARTITION, BLOB, COUNTS])

    return assemble


def prepared_events(events: DataFrame, by: str, passthrough: tuple[str, ...] = ()) -> DataFrame:
    """`events` with the names and types that the rules read; InputError for a missing column or a wrong type."""
    return events.select(*event_columns(events, by, passthrough))


def event_columns(events: DataFrame, by: str, passthrough: tuple[str, ...] = ()) -> list[Column]:
    """The columns of `prepared_events`, the source partition first."""
    missing = [each for each in (by, *model.REQUIRED, *passthrough) if each not in events.columns]
    if missing:
        raise InputError(
            f"The events lack the column {', '.join(missing)}.",
            hint=f"They have {', '.join(events.columns)}. Rename or add columns; `by` names the source partition's.",
        )
    clash = [each for each in passthrough if each in {*model.OUTPUT, model.TYPE}]
    if clash or len(set(passthrough)) < len(passthrough):
        raise OptionError(
            f"passthrough names {', '.join(clash) or 'a column twice'}.", hint="Name only further columns, once each."
        )
    kinds = {each.name: each.dataType for each in events.schema.fields}
    _check_type(by, kinds[by], _KEYS, "string, int or bigint")
    _check_type(model.POSITION, kinds[model.POSITION], _INTEGERS, "an integer type")
    _check_type(model.TXN_ID, kinds[model.TXN_ID], (*_STRINGS, *_INTEGERS), "string")
    texts = [each for each in (model.TYPE, *model.PAYLOAD) if each in kinds]
    for text in texts:
        _check_type(text, kinds[text], _STRINGS, "string")
    columns = [
        _column(by).alias(model.SOURCE_PARTITION),
        _column(model.POSITION).cast("bigint").alias(model.POSITION),
    ]
    for name in (model.TYPE, model.TXN_ID, *model.PAYLOAD):
        value = _column(name) if name in kinds else F.lit(None)
        columns.append(value.cast("string").alias(name))
    return [*columns, *map(_column, passthrough)]


def _check_type(name: str, kind: T.DataType, allowed: tuple[type[T.DataType], ...], wanted: str) -> None:
    if not isinstance(kind, allowed):
        hint = "Make JSON of it with to_json." if isinstance(kind, T.StructType) else "Cast it."
        raise InputError(f"The column {name} is {kind.simpleString()}, but must be {wanted}.", hint=hint)


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _output(prepared: T.StructType) -> T.StructType:
    kinds = {each.name: each.dataType for each in prepared.fields}
    kinds |= {model.SEQ: T.LongType(), model.TRANSACTION_END: T.BooleanType()}
    further = [each for each in prepared.names if each not in {*model.OUTPUT, model.TYPE}]
    return T.StructType([T.StructField(each, kinds[each]) for each in (*model.OUTPUT, *further)])


def log_notices(notices: Iterable[Event]) -> None:
    """Write notices to the executor's log, one line each."""
    for notice in notices:
        _log.warning(notice.name, **notice.fields)


def concat_events(frames: Iterable[pd.DataFrame]) -> pa.Table:
    """The events in packed rows of one source partition, the blob with the lowest position first."""
    tables = [from_blob(blob) for frame in frames for blob in frame[BLOB]]
    tables.sort(key=_lowest_position)
    return pa.concat_tables(tables)


def _lowest_position(table: pa.Table) -> int:
    first = table[model.POSITION][0].as_py()
    return 0 if first is None else int(first)  # the intake rejects a NULL position later and names its place


def packet_frame(packet: Packet) -> pd.DataFrame:
    """One packed row as a pandas frame, which Spark's state operators require."""
    import pandas as pd  # here, because lanes import this module without pandas

    partition, blob, counts = packet
    return pd.DataFrame({model.SOURCE_PARTITION: [partition], BLOB: [blob], COUNTS: [counts]})


class _KeyStep:
    """One step of one source partition in a state operator: with its events, or None for an expired timer."""

    def __init__(
        self, policy: Policy, name: Partition, kept: KeyState | GroupKeyState, events: pa.Table | None, now: float
    ) -> None:
        self._name, self._kept, self._timeout = name, kept, policy.open_timeout
        header = kept.header
        before = AssemblerState() if header is None else AssemblerState.from_json(header)
        assembler, states = TransactionAssembler(policy), {name: before}
        if events is None:
            self._step = assembler.expire(states, now)
        else:
            self._step = assembler.feed(one_partition(name, events), states, now, lambda _, number: kept.read(number))
        self._change = self._step.changes.get(name, PartitionChange(before))

    def frames(self) -> Iterator[pd.DataFrame]:
        """Log notices, yield released rows and the counts, then write the state."""
        step, change = self._step, self._change
        log_notices(step.notices)
        yield from map(packet_frame, row_packets(self._name, (released.rows for released in step.released)))
        yield packet_frame(counts_packet(self._name, step.counters.with_levels_of(change.state), change.state))
        self._kept.write(change.state.to_json(), change.removed, change.added)

    def expires_at(self) -> float | None:
        return self._change.state.expires_at(self._timeout)


class Processor(StatefulProcessor):
    """The assembler for transformWithState."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = KeyState(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        now = processing_time(timerValues.getCurrentProcessingTimeInMs())
        return self._frames(_KeyStep(self._policy, key[0], self._kept, concat_events(rows), now))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        now = processing_time(timerValues.getCurrentProcessingTimeInMs())
        return self._frames(_KeyStep(self._policy, key[0], self._kept, None, now))

    def close(self) -> None:
        """Nothing to close: all state is in the state store."""

    def _frames(self, step: _KeyStep) -> Iterator[pd.DataFrame]:
        yield from step.frames()
        if self._policy.open_timeout is not None:
            self._kept.wake_at(step.expires_at())


def group_function(policy: Policy) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The assembler for applyInPandasWithState."""

    def assemble(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        now, kept = processing_time(group.getCurrentProcessingTimeMs()), GroupKeyState(group)
        step = _KeyStep(policy, key[0], kept, None if group.hasTimedOut else concat_events(frames), now)
        yield from step.frames()
        kept.wake_at(step.expires_at(), now)

    return assemble
