"""`assemble_transactions`: the assembler's rules as a stage of a Spark query.

Three steps: events are packed into Arrow blobs per source partition, the rules run where the state is, released blobs
are unpacked into rows. So a state operator moves few, large values, and no value ever passes through pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.in_memory import assemble_sorted
from starrocks_txn_sink.assembler.packing import BLOB, COUNTS, OLDEST, pack, unpack
from starrocks_txn_sink.assembler.policy import MissingBegin, OnOpenTimeout, Policy, seconds
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.logs import get_logger

if TYPE_CHECKING:
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
    """Hold each source transaction until its END has arrived, then give out its rows, whole and in order.

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

    Counts of all this (assembler.counters.Counters) are in each progress of the query, under `observedMetrics[name]`:
    flows of the micro-batch, and the levels open, open_rows, state_bytes of the source partitions that had events in
    it, and oldest_open, since when (seconds since the epoch) the oldest of those is open, 0 when none is. Two
    stages in one query need two names. Under foreachBatch they are there once an action has read the rows; reading
    a micro-batch twice, or a task that is retried, counts once.

    With `open_timeout` Spark runs a micro-batch at every trigger, events or not: set a trigger interval.
    transformWithState is used where the session's state store provider is RocksDB, applyInPandasWithState elsewhere:
    a checkpoint belongs to one of them. A NULL `row` is passed on as it is.

    Raises InputError at once for missing columns or wrong types, OptionError for options. In the running query,
    InputError and SourceTransactionError name partition and position.
    """
    policy = Policy(interleaved, seconds(open_timeout), on_open_timeout, missing_begin)
    prepared = prepared_events(events, by, tuple(passthrough))
    key = prepared.schema[schema.SOURCE_PARTITION].dataType
    packed = T.StructType([T.StructField(schema.SOURCE_PARTITION, key), T.StructField(BLOB, T.BinaryType())])
    done = T.StructType([*packed.fields, T.StructField(COUNTS, T.StringType())])
    if events.isStreaming:
        assembled = _stateful(prepared.mapInArrow(pack, packed), done, policy)
    else:
        ordered = prepared.repartition(schema.SOURCE_PARTITION)
        ordered = ordered.sortWithinPartitions(schema.SOURCE_PARTITION, schema.POSITION)
        assembled = ordered.mapInArrow(_in_task(policy, _ARROW[type(key)]), done)
    counts = [_count(each).alias(each) for each in Counters.names()]
    oldest = F.min(F.get_json_object(F.col(COUNTS), f"$.{OLDEST}").cast("double"))
    counts.append(F.coalesce(oldest, F.lit(0.0)).alias(OLDEST))
    return assembled.observe(name, *counts).mapInArrow(unpack, _output(prepared.schema))


def _count(field: str) -> Column:
    counted = F.get_json_object(F.col(COUNTS), f"$.{field}").cast("bigint")
    return F.coalesce(F.sum(counted), F.lit(0).cast("bigint"))


def _stateful(packed: DataFrame, done: T.StructType, policy: Policy) -> DataFrame:
    """The state operator that the session's state store provider allows."""
    from starrocks_txn_sink.assembler.key_state import GROUP_STATE_TYPE
    from starrocks_txn_sink.assembler.spark_state import Processor, group_function

    grouped = packed.groupBy(schema.SOURCE_PARTITION)
    timed = policy.open_timeout is not None
    if packed.sparkSession.conf.get(PROVIDER, "") == ROCKSDB:
        _log.info("assembler.planned", state="transformWithState")
        mode = "ProcessingTime" if timed else "None"
        return grouped.transformWithStateInPandas(Processor(policy), done, "Append", mode)
    _log.info("assembler.planned", state="applyInPandasWithState", hint=f"for transformWithState set {PROVIDER}")
    timeout = "ProcessingTimeTimeout" if timed else "NoTimeout"
    return grouped.applyInPandasWithState(group_function(policy), done, GROUP_STATE_TYPE, "append", timeout)


def _in_task(policy: Policy, kind: pa.DataType) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def assemble(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from starrocks_txn_sink.assembler.spark_state import log_notices

        for partition, blob, counts in assemble_sorted(batches, policy, log_notices):
            columns = [pa.array([partition], kind), pa.array([blob], pa.binary()), pa.array([counts], pa.string())]
            yield pa.record_batch(columns, [schema.SOURCE_PARTITION, BLOB, COUNTS])

    return assemble


def prepared_events(events: DataFrame, by: str, passthrough: tuple[str, ...] = ()) -> DataFrame:
    """The columns the rules read, under their names and types; InputError for what is missing or of another type."""
    return events.select(*event_columns(events, by, passthrough))


def event_columns(events: DataFrame, by: str, passthrough: tuple[str, ...] = ()) -> list[Column]:
    """What `prepared_events` selects, the source partition first."""
    missing = [each for each in (by, *schema.REQUIRED, *passthrough) if each not in events.columns]
    if missing:
        raise InputError(
            f"The events lack the column {', '.join(missing)}.",
            hint=f"They have {', '.join(events.columns)}; rename or add columns, or name the partition's with by=….",
        )
    clash = [each for each in passthrough if each in {*schema.OUTPUT, schema.TYPE}]
    if clash or len(set(passthrough)) < len(passthrough):
        raise OptionError(
            f"passthrough names {', '.join(clash) or 'a column twice'}.", hint="Name only further columns, once each."
        )
    kinds = {each.name: each.dataType for each in events.schema.fields}
    _check_type(by, kinds[by], _KEYS, "string, int or bigint")
    _check_type(schema.POSITION, kinds[schema.POSITION], _INTEGERS, "an integer type")
    _check_type(schema.TXN_ID, kinds[schema.TXN_ID], (*_STRINGS, *_INTEGERS), "string")
    texts = [each for each in (schema.TYPE, *schema.PAYLOAD) if each in kinds]
    for text in texts:
        _check_type(text, kinds[text], _STRINGS, "string")
    columns = [
        _column(by).alias(schema.SOURCE_PARTITION),
        _column(schema.POSITION).cast("bigint").alias(schema.POSITION),
    ]
    for name in (schema.TYPE, schema.TXN_ID, *schema.PAYLOAD):
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
    kinds |= {schema.SEQ: T.LongType(), schema.TRANSACTION_END: T.BooleanType()}
    further = [each for each in prepared.names if each not in {*schema.OUTPUT, schema.TYPE}]
    return T.StructType([T.StructField(each, kinds[each]) for each in (*schema.OUTPUT, *further)])
