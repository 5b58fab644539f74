"""Rows that a command writes by itself, in one StarRocks transaction: what replays and repairs share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.coordinator import (
    ChangeTables,
    LanesResult,
    NextRound,
    Order,
    Pause,
    RoundLimits,
    RunLanes,
    SharedTransactionCoordinator,
)
from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.coordinator.ownership import ReplayOwnership
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.load_properties import why_not_compacted
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.dead_letters import DeadLetterRow
from starrocks_txn_sink.protocol.label import Steps
from starrocks_txn_sink.protocol.wire import Body
from starrocks_txn_sink.rows.body import load_body, with_unchanged_values, without_replaced
from starrocks_txn_sink.rows.keys import KeyColumn, TableKey
from starrocks_txn_sink.rows.unchanged import UnchangedValues
from starrocks_txn_sink.sink.typed.tables import Tables
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.writer.runner import Performer


def coordinator_of(
    options: SinkOptions, names: Iterator[str], ownership: ReplayOwnership, deadline: Deadline, rng: random.Random
) -> SharedTransactionCoordinator:
    """The coordinator of rows that are one lane; `names` are its labels."""
    limits = RoundLimits(deadline.remaining(), options.max_attempts)
    return SharedTransactionCoordinator(names, limits, deadline, rng, [ownership.ledger_entries])


def carry_out(performer: Performer, load: Callable[[str, random.Random], Steps[LanesResult]], order: Order) -> object:
    """Carry an order of the coordinator out: `load` loads the rows under a label. Raises the errors of the step."""
    match order:
        case RunLanes(label):
            steps = load(label, performer.rng)
            return protocol.run(steps, performer.transport, performer.clock, performer.deadline)
        case Pause(seconds):
            performer.clock.sleep(performer.deadline.limit(seconds, "another attempt"))
            return None
        case ChangeTables() | NextRound():
            raise TypeError("A command alters no table, and writes its rows in one round.")
        case _:
            return performer(order)


def primary_keys(connection: LeaderConnection, options: SinkOptions, deadline: Deadline) -> dict[str, TableKey]:
    """The primary keys by table, with the names that JSON rows use; none if `compact` is off."""
    if not options.compact:
        return {}
    required = Tables.read(connection, options, (), deadline).required
    keys = {table: [column for column in columns if column.key] for table, columns in required.items()}
    return {
        table: [KeyColumn.of(column.name, column.type.name, column.type.scale) for column in key]
        for table, key in keys.items()
        if key
    }


def table_loads(
    options: SinkOptions, rows: list[DeadLetterRow], keys: Mapping[str, TableKey], unchanged: UnchangedValues | None
) -> list[tuple[str, Body, Mapping[str, str]]]:
    """The loads of rows into their tables.

    Of the rows of one key only the last is sent (`rows.body`): the server promises no order between them.
    """
    loads = []
    for table in dict.fromkeys(row.table for row in rows):
        table_rows = [row for row in rows if row.table == table]
        pieces: Sequence[memoryview] = [memoryview((SEPARATOR + row.content).encode()) for row in table_rows]
        recorded = {"columns": table_rows[0].columns} if table_rows[0].columns else {}
        headers, key = recorded | options.load_headers(table), keys.get(table, ())  # the options win
        if unchanged is not None:
            pieces = with_unchanged_values(pieces, table, key, unchanged)
        if key and not why_not_compacted(headers, [column.name for column in key]):
            pieces = without_replaced(pieces, key)
        if pieces:
            loads.append((table, pieces, headers))
    return [
        (table, load_body(pieces, options.compression_of(table).value), headers) for table, pieces, headers in loads
    ]
