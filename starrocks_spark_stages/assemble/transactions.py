"""`assemble_transactions`: TransactionAssembler as a stage of a Spark query.

Three steps: pack events into Arrow blobs per source partition, run the assembler in a state operator
(`keyed_state`), unpack released blobs into rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F, types as T

from starrocks_spark_stages.assemble import keyed_state
from starrocks_spark_stages.assemble.keyed_state import COUNTS, KeyChange, Packet
from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.assembler import AssemblerStep, PartitionChange, TransactionAssembler
from starrocks_txn_sink.assembler.rules.directory import FileDirectory
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.intake import one_partition
from starrocks_txn_sink.assembler.rules.model import Counters, MissingBegin, OnOpenTimeout, Partition, Policy
from starrocks_txn_sink.assembler.rules.spill import SpillStorage
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sources.events import event_columns
from starrocks_txn_sink.sources.messages import place_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OLDEST: Final = "oldest_open"  # among the counts


@suggests_arguments
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

    One transaction is open per source partition, or, with `interleaved`, one per txn_id. A BEGIN abandons the
    unfinished transaction before it. The stage drops events at or below the last position seen: they are repeats, and
    must have their first content as far as the stage remembers it (`assembler.rules.repeats`). A NULL `row` stays NULL.
    A batch DataFrame gives the same rows as a stream after all of its input, without `open_timeout`.

    In Flink you would write a `KeyedProcessFunction` for this, in Scala a `mapGroupsWithState`.

    Each progress of the query has counts (`assembler.rules.model.Counters`) under `observedMetrics[name]`: flows of the
    micro-batch; the levels open, open_rows and state_bytes of the source partitions with events in it; and oldest_open,
    the time (seconds since the epoch) since which their oldest transaction is open, 0 if none is. Under foreachBatch
    the counts appear after an action has read the rows. A second read of a micro-batch, or a retried task, does not
    count again.

    The stage uses transformWithState, for which the session's state store must be RocksDB (`recommended_conf`).

    Args:
        events: Events with the columns `by`, position (an integer), type (BEGIN, DATA, END; TXN_BEGIN and TXN_END too;
            any case), txn_id, table, row (strings) and, if there are any, database and op (strings). Positions ascend
            within a source partition and belong to one event each.
        by: The column with the source partition (string, int or bigint).
        interleaved: Whether a source partition has several open transactions, one per txn_id, or one.
        open_timeout: The longest time that a transaction may be open, in processing time: seconds, a timedelta or text
            like `10 min`; None sets no limit. It is checked for all source partitions when a micro-batch with events of
            any runs, and Spark plans one empty micro-batch after it; an idle query plans none, and `availableNow` ends.
        on_open_timeout: `fail` the query at a transaction that is open for longer, or `drop` the transaction.
        missing_begin: `fail` the query at events whose BEGIN was never seen, or `drop` or `accept` them.
        passthrough: Further columns to keep.
        name: The key of the counts. Two stages in one query need two names.

    Returns:
        The rows of the released transactions. The rows of a source partition are contiguous and in order inside a task.
        Their columns:

        - source_partition, and position (of the END);
        - seq (0, 1, … within the transaction);
        - database, table, op, row;
        - transaction_end (true on the last row only);
        - txn_id, and the `passthrough` columns;
        - kafka_offset and kafka_partition, which errors and dead letters name, if the parser of the events had them.

    Raises:
        InputError: A column is missing or has the wrong type (at once), or an event is invalid (in the running query,
            with partition and position).
        OptionError: An option is invalid.
        SourceTransactionError: In the running query, a transaction cannot be released whole; with partition and
            position.
        SourceChanged: In the running query, the source repeats events with other content.

    Example::

        from starrocks_txn_sink import assemble_transactions
        from starrocks_txn_sink.sources import parse_txn_events

        events = parse_txn_events(topic)
        rows = assemble_transactions(events, open_timeout="10 min", on_open_timeout="drop")
    """
    policy = Policy(interleaved, model.seconds(open_timeout), on_open_timeout, missing_begin)
    places = [name for name in place_columns(events) if name not in passthrough]
    prepared = events.select(*event_columns(events, by, (*passthrough, *places)))
    assembled = keyed_state.assemble_frame(
        prepared, partial(_take_step, policy), partial(_assemble_in_task, policy), policy.open_timeout, model.POSITION
    )
    oldest = F.min(F.get_json_object(F.col(COUNTS), f"$.{OLDEST}").cast("double"))
    counts = [*keyed_state.summed_counts(Counters.names()), F.coalesce(oldest, F.lit(0.0)).alias(OLDEST)]
    output = _output(prepared.schema)
    return assembled.observe(name, *counts).mapInArrow(partial(keyed_state.unpack, output.names), output)


def _output(prepared: T.StructType) -> T.StructType:
    kinds = {field.name: field.dataType for field in prepared.fields}
    kinds |= {model.SEQ: T.LongType(), model.TRANSACTION_END: T.BooleanType()}
    extra_names = [name for name in prepared.names if name not in {*model.OUTPUT, model.TYPE}]
    return T.StructType([T.StructField(name, kinds[name]) for name in (*model.OUTPUT, *extra_names)])


def _take_step(
    policy: Policy,
    name: Partition,
    header: str | None,
    blobs: Sequence[bytes] | None,
    now: float,
    read: Callable[[int], pa.Table],
) -> KeyChange:
    """One step of a source partition in a state operator (keyed_state.TakeStep)."""
    previous = model.AssemblerState() if header is None else model.AssemblerState.from_json(header)
    states = {name: previous}
    if blobs is None:
        step = TransactionAssembler(policy).expire(states, now)
    else:
        assembler = TransactionAssembler(replace(policy, open_timeout=None))
        events, runs_before = one_partition(name, _concat(blobs)), {name: previous.run}  # the pieces are in any order
        step = assembler.feed(events, states, now, lambda _, number: read(number), runs_before)
    change = step.changes.get(name, PartitionChange(previous))
    state = change.state
    wake_at = state.expires_at(policy.open_timeout)
    return KeyChange(_packets(name, step, state), state.to_json(), change.removed, change.added, wake_at)


def _packets(name: Partition, step: AssemblerStep, state: model.AssemblerState) -> Iterator[Packet]:
    """Log the step's notices; yield its rows, then its counts and the opening time of the oldest open transaction."""
    keyed_state.log_notices(step.notices)
    # Next to new events a producer may just have sent twice, unless this waits for its proof.
    alone = step.counters.events == step.counters.repeats
    keyed_state.log_notices(repeats.notice() for repeats in step.repeats if repeats.unknown and (alone or repeats.run))
    yield from keyed_state.row_packets(name, (release.rows for release in step.released))
    oldest = {OLDEST: min(transaction.opened_at for transaction in state.live())} if state.live() else {}
    yield keyed_state.counts_packet(name, step.counters.with_levels_of(state), **oldest)


def _assemble_in_task(policy: Policy, batches: Iterable[pa.RecordBatch]) -> Iterator[Packet]:
    """Assemble a task of a batch frame, sorted by source partition and position; open transactions are only counted."""
    with tempfile.TemporaryDirectory() as scratch, closing(SpillStorage(FileDirectory(scratch), "rows")) as storage:
        assembler = IncrementalAssembler(policy, {}, 0.0, storage, arrival_order=False)
        for batch in batches:
            for release in assembler.feed(pa.Table.from_batches([batch])):
                for name, rows in release.by_partition():
                    yield from keyed_state.row_packets(name, [rows])
            keyed_state.log_notices(assembler.notices)
            assembler.notices.clear()
        yield keyed_state.counts_packet(None, assembler.counters())


def _concat(blobs: Iterable[bytes]) -> pa.Table:
    """The packed events of one source partition, the blob with the lowest position first."""
    return pa.concat_tables(sorted(map(model.from_blob, blobs), key=_lowest_position))


def _lowest_position(table: pa.Table) -> int:
    first = table[model.POSITION][0].as_py()
    return 0 if first is None else int(first)  # the intake rejects a NULL position later and names its place
