"""`assemble_debezium`: verified transactions as a stage of a Spark query, like `assemble_transactions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F

from starrocks_spark_stages.assemble import keyed_state
from starrocks_spark_stages.assemble.keyed_state import KeyChange, Packet
from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.assembler.verified.intake import IN_KAFKA, placed
from starrocks_txn_sink.assembler.verified.rules import OnOpenTimeout, VerifiedAssembler, VerifiedPolicy, VerifiedStep
from starrocks_txn_sink.assembler.verified.units import DEAD_LETTER_SUFFIX
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sources.messages import place_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SOURCE: Final = model.SOURCE_PARTITION
_TYPES: Final = {
    pa.string(): "string",
    pa.int64(): "bigint",
    v.COLLECTION_COUNTS: "array<struct<data_collection:string,event_count:bigint>>",
}
_EVENTS: Final = pa.schema([*v.EVENTS, *IN_KAFKA])
_OUTPUT: Final = (
    "source_partition string, position bigint, seq bigint, database string, table string, op string, row string, "
    "transaction_end boolean, txn_id string"
)


@suggests_arguments
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

    A transaction is released when it has `event_count` rows, `total_order` is 1 … n, each table has as many rows as
    `data_collections` says, and all earlier commits are released. Repeated rows and ENDs are dropped. A
    transaction that a restart of the connector cut is joined from its deliveries, with the help of `timestamp`
    (`assembler.verified.deliveries`).

    A quarantined transaction has its id and counts in the log. All of its rows go to `dead_letter_table` under the
    source partition `<source>#quarantine`; without such a table they are dropped and counted.

    Snapshot rows have no transaction. Before the first transaction, those of each micro-batch form a unit of their own;
    afterwards they precede the rows of the next transaction.

    Counts (`assembler.rules.model.Counters`) are in each progress of the query under
    `observedMetrics[name]`. A batch DataFrame gives the same rows as a stream after all of its input, without
    `open_timeout`.

    Args:
        rows: The rows of `parse_debezium`, from any number of topics and partitions.
        transactions: The markers of `parse_debezium_transactions`. The transaction topic has one partition.
        open_timeout: The longest wait for the counts of a transaction to match, from its first event on, in processing
            time: seconds, a timedelta or text like `10 min`. None sets no limit, and later commits wait too. It is
            checked when a micro-batch with events runs, as in `assemble_transactions`.
        on_open_timeout: `quarantine` a transaction after this time, or `fail` the query.
        dead_letter_table: The table for the rows of quarantined transactions.
        name: The key of the counts.

    Returns:
        Rows with the columns of `assemble_transactions`, of which

        - source_partition is the source's name;
        - position is the commit's (PostgreSQL: LSN; MySQL: binlog position);
        - seq counts from 0;
        - database is NULL unless a table rule gives one;
        - kafka_offset and kafka_partition, which errors and dead letters name, are there if parse_debezium had them.

    Raises:
        InputError: A column is missing (at once), or an event has no valid transaction or position (in the running
            query).
        OptionError: An option is invalid.
        SourceTransactionError: In the running query, a transaction is overdue under `fail`.
        SourceChanged: In the running query, another transaction is at the position of one that was released.

    Example::

        from starrocks_txn_sink import assemble_debezium
        from starrocks_txn_sink.sources import parse_debezium, parse_debezium_transactions

        changed = parse_debezium(changes, tables={"public.orders": "orders"})
        rows = assemble_debezium(changed, parse_debezium_transactions(markers), open_timeout="10 min")
    """
    policy = VerifiedPolicy(model.seconds(open_timeout), on_open_timeout, dead_letter_table, new_sources=None)
    events = _event_columns(rows, (*v.ROW_COLUMNS, *place_columns(rows)), "rows").unionByName(
        _event_columns(transactions, v.MARKER_COLUMNS, "transactions")
    )
    assembled = keyed_state.assemble_frame(
        events, partial(_take_step, policy), partial(_assemble_in_task, policy), policy.open_timeout
    )
    counts = keyed_state.summed_counts(model.Counters.names())
    output = ", ".join([_OUTPUT, *(f"{place} {_TYPES[IN_KAFKA.field(place).type]}" for place in place_columns(rows))])
    names = [column.split()[0] for column in output.split(", ")]
    released = assembled.observe(name, *counts).mapInArrow(partial(keyed_state.unpack, names), output)
    return released.withMetadata(model.OP, rows.schema[model.OP].metadata)


def _event_columns(frame: DataFrame, columns: tuple[str, ...], kind: str) -> DataFrame:
    """`frame` in the schema intake.EVENTS; columns that rows or markers lack are NULL."""
    missing = [column for column in (_SOURCE, *columns) if column not in frame.columns]
    if missing:
        origin = "parse_debezium" if kind == "rows" else "parse_debezium_transactions"
        raise InputError(f"The {kind} lack the column {', '.join(missing)}.", hint=f"Take them from {origin}.")
    selected = [F.col(_SOURCE).cast("string").alias(_SOURCE)]
    for field in (*v.EVENTS, *IN_KAFKA):
        value = F.col(field.name) if field.name in columns else F.lit(None)
        selected.append(value.cast(_TYPES[field.type]).alias(field.name))
    return frame.select(*selected)


def _take_step(
    policy: VerifiedPolicy,
    source: model.Partition,
    header: str | None,
    blobs: Iterable[bytes] | None,
    now: float,
    read: Callable[[int], pa.Table],
) -> KeyChange:
    """One step of a source (keyed_state.TakeStep)."""
    state = v.VerifiedState() if header is None else v.VerifiedState.from_json(header)
    tables = [placed(model.from_blob(blob)).select(_EVENTS.names).cast(_EVENTS) for blob in blobs or ()]
    events = pa.concat_tables([_EVENTS.empty_table(), *tables])
    judging = policy if blobs is None else replace(policy, open_timeout=None)
    step = VerifiedAssembler(judging, str(source)).feed(state, events, now, lambda number: placed(read(number)))
    wake_at = step.state.expires_at(policy.open_timeout)
    return KeyChange(_packets(str(source), step), step.state.to_json(), step.removed, step.added, wake_at)


def _packets(source: str, step: VerifiedStep) -> Iterator[Packet]:
    """Log the step's notices; yield its rows and dead letters, then its counts."""
    keyed_state.log_notices(step.notices)
    yield from keyed_state.row_packets(source, step.released)
    yield from keyed_state.row_packets(source + DEAD_LETTER_SUFFIX, step.dead_letters)
    yield keyed_state.counts_packet(source, step.counters)


def _assemble_in_task(policy: VerifiedPolicy, batches: Iterable[pa.RecordBatch]) -> Iterator[Packet]:
    """Assemble a batch frame: one step for all events of a source, which arrive sorted by source."""
    packed = (
        pair
        for batch in keyed_state.pack(batches)
        for pair in zip(*(field.to_pylist() for field in batch), strict=True)
    )
    for source, pairs in groupby(packed, key=lambda pair: pair[0]):
        yield from _take_step(policy, source, None, (blob for _, blob in pairs), 0.0, _no_blob).packets


def _no_blob(number: int) -> pa.Table:
    raise LookupError(f"blob {number} was never written")
