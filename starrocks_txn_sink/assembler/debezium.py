"""`assemble_debezium`: verified transactions as a stage of a Spark query, beside `assemble_transactions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import orjson
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
    GroupKeyState,
    KeyState,
    Packet,
    pack,
    processing_time,
    unpack,
)
from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.model import seconds
from starrocks_txn_sink.assembler.rules.state import from_blob, pieces, to_blob
from starrocks_txn_sink.assembler.spark import PROVIDER, ROCKSDB, log_notices, packet_frame
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.intake import EVENTS, VerifiedCounters, VerifiedState
from starrocks_txn_sink.assembler.verified.rules import OnOpenTimeout, VerifiedAssembler, VerifiedPolicy, VerifiedStep
from starrocks_txn_sink.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame


# ruff: noqa: N802, N803, ARG002 - some names of methods and arguments are Spark's


_SOURCE: Final = model.SOURCE_PARTITION
_TYPES: Final = {
    v.TOTAL_ORDER: "bigint",
    v.EVENT_COUNT: "bigint",
    v.DATA_COLLECTIONS: "array<struct<data_collection:string,event_count:bigint>>",
    v.SEQUENCE: "bigint",
    model.POSITION: "bigint",
}
_PACKED: Final = f"{_SOURCE} string, {BLOB} binary"
_DONE: Final = f"{_PACKED}, {COUNTS} string"
_OUTPUT: Final = (
    "source_partition string, position bigint, seq bigint, database string, table string, op string, row string, "
    "transaction_end boolean, txn_id string"
)

DEAD_LETTER_SUFFIX = "#quarantine"
"""Suffix of the source partition of dead letters. They need their own partition, because they number positions."""


def assemble_debezium(
    rows: DataFrame,
    transactions: DataFrame,
    *,
    open_timeout: float | timedelta | str | None = None,
    on_open_timeout: OnOpenTimeout = "quarantine",
    dead_letter_table: str | None = None,
    name: str = "assemble_debezium",
) -> DataFrame:
    """Release each source transaction whole, in commit order, once its rows match every count of its END.

    `rows` come from `parse_debezium`, `transactions` from `parse_debezium_transactions`; they may be read from any
    number of topics and partitions, the transaction topic has one partition. The result has the columns of
    `assemble_transactions`: source_partition is the source's name, position that of the commit (PostgreSQL: LSN; MySQL:
    binlog position), seq counts from 0, database is NULL unless a table rule gives one.

    A transaction is released when it has `event_count` rows, `total_order` is 1 … n, each table has as many rows as
    `data_collections` says, and all earlier commits are released. Repeated rows and ENDs are dropped. `open_timeout`
    limits the wait for the counts to match, from the first event on (seconds, a timedelta or text like `10 min`, in
    processing time; None: no limit, and later commits wait too). Afterwards, by `on_open_timeout`, the transaction is
    quarantined, with its id and counts in the log, or the query stops. All rows of a quarantined transaction go to
    `dead_letter_table` under the source partition `<source>#quarantine`; without such a table they are dropped and
    counted.

    Snapshot rows have no transaction. Before the first transaction, those of each micro-batch form their own unit;
    afterwards they precede the rows of the next transaction.

    Counts (assembler.verified.intake.VerifiedCounters) are in each progress of the query under
    `observedMetrics[name]`. A batch DataFrame gives what a stream gives after all of its input, without `open_timeout`.

    Raises InputError at once for missing columns. In the running query InputError names an event without a valid
    transaction or position, SourceTransactionError an overdue transaction under `fail`.
    """
    policy = VerifiedPolicy(seconds(open_timeout), on_open_timeout, dead_letter_table)
    events = _event_columns(rows, v.ROW_COLUMNS, "rows").unionByName(
        _event_columns(transactions, v.MARKER_COLUMNS, "transactions")
    )
    if events.isStreaming:
        assembled = _stateful(events.mapInArrow(pack, _PACKED), policy)
    else:
        ordered = events.repartition(_SOURCE).sortWithinPartitions(_SOURCE)
        assembled = ordered.mapInArrow(_assemble_in_task(policy), _DONE)
    counts = [_count(each).alias(each) for each in VerifiedCounters.names()]
    return assembled.observe(name, *counts).mapInArrow(unpack, _OUTPUT)


def _event_columns(frame: DataFrame, columns: tuple[str, ...], which: str) -> DataFrame:
    """`frame` in the schema intake.EVENTS; columns that rows or markers lack are NULL."""
    missing = [each for each in (_SOURCE, *columns) if each not in frame.columns]
    if missing:
        origin = "parse_debezium" if which == "rows" else "parse_debezium_transactions"
        raise InputError(f"The {which} lack the column {', '.join(missing)}.", hint=f"Take them from {origin}.")
    chosen = [F.col(_SOURCE).cast("string").alias(_SOURCE)]
    for each in v.EVENTS.names:
        value = F.col(each) if each in columns else F.lit(None)
        chosen.append(value.cast(_TYPES.get(each, "string")).alias(each))
    return frame.select(*chosen)


def _count(field: str) -> Column:
    counted = F.get_json_object(F.col(COUNTS), f"$.{field}").cast("bigint")
    return F.coalesce(F.sum(counted), F.lit(0).cast("bigint"))


def _stateful(packed: DataFrame, policy: VerifiedPolicy) -> DataFrame:
    grouped = packed.groupBy(_SOURCE)
    done = T._parse_datatype_string(_DONE)
    assert isinstance(done, T.StructType)
    timed = policy.open_timeout is not None
    if packed.sparkSession.conf.get(PROVIDER, "") == ROCKSDB:
        mode = "ProcessingTime" if timed else "None"
        return grouped.transformWithStateInPandas(VerifiedProcessor(policy), done, "Append", mode)
    timeout = "ProcessingTimeTimeout" if timed else "NoTimeout"
    return grouped.applyInPandasWithState(group_function(policy), done, GROUP_STATE_TYPE, "append", timeout)


def _assemble_in_task(policy: VerifiedPolicy) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Assemble a batch frame: one step for all events of a source, which arrive sorted by source."""

    def assemble(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packed = (pair for batch in pack(batches) for pair in zip(*(each.to_pylist() for each in batch), strict=True))
        for source, pairs in groupby(packed, key=lambda pair: pair[0]):
            events = concat_events(blob for _, blob in pairs)
            step = VerifiedAssembler(policy, source).feed(VerifiedState(), events, 0.0, _no_blob)
            for partition, blob, counts in step_packets(source, step):
                columns = [pa.array([partition]), pa.array([blob], pa.binary()), pa.array([counts], pa.string())]
                yield pa.record_batch(columns, [_SOURCE, BLOB, COUNTS])

    return assemble


def _no_blob(number: int) -> pa.Table:
    raise LookupError(f"blob {number} was never written")


def concat_events(blobs: Iterable[bytes]) -> pa.Table:
    """The packed events of one source in the schema intake.EVENTS."""
    tables = [from_blob(blob).select(EVENTS.names).cast(EVENTS) for blob in blobs]
    return pa.concat_tables(tables) if tables else EVENTS.empty_table()


def step_packets(source: str, step: VerifiedStep) -> Iterator[Packet]:
    """Log the step's notices; yield its rows as packed rows of bounded size, then a row with its counts."""
    log_notices(step.notices)
    for partition, tables in ((source, step.released), (source + DEAD_LETTER_SUFFIX, step.dead_letters)):
        for table in tables:
            for piece in pieces(table):
                yield partition, to_blob(piece), None
    yield source, None, orjson.dumps(step.counters.as_dict()).decode()


def _read_state(header: str | None) -> VerifiedState:
    return VerifiedState() if header is None else VerifiedState.from_json(header)


class VerifiedProcessor(StatefulProcessor):
    """The verified assembler for transformWithState."""

    def __init__(self, policy: VerifiedPolicy) -> None:
        self._policy = policy

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = KeyState(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        return self._step(key[0], concat_events(blob for frame in rows for blob in frame[BLOB]), timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        return self._step(key[0], EVENTS.empty_table(), timerValues)

    def close(self) -> None:
        """Nothing to close: all state is in the state store."""

    def _step(self, source: str, events: pa.Table, timer_values: TimerValues) -> Iterator[pd.DataFrame]:
        now = processing_time(timer_values.getCurrentProcessingTimeInMs())
        assembler = VerifiedAssembler(self._policy, source)
        step = assembler.feed(_read_state(self._kept.header), events, now, self._kept.read)
        yield from map(packet_frame, step_packets(source, step))
        self._kept.write(step.state.to_json(), step.removed, step.added)
        if self._policy.open_timeout is not None:
            self._kept.wake_at(step.state.expires_at(self._policy.open_timeout))


def group_function(
    policy: VerifiedPolicy,
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The verified assembler for applyInPandasWithState."""

    def assemble(key: Any, frames: Iterator[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        source, now = key[0], processing_time(group.getCurrentProcessingTimeMs())
        kept = GroupKeyState(group)
        events = (
            EVENTS.empty_table() if group.hasTimedOut else concat_events(b for frame in frames for b in frame[BLOB])
        )
        step = VerifiedAssembler(policy, source).feed(_read_state(kept.header), events, now, kept.read)
        yield from map(packet_frame, step_packets(source, step))
        kept.write(step.state.to_json(), step.removed, step.added)
        kept.wake_at(step.state.expires_at(policy.open_timeout), now)

    return assemble
