"""Automatic partitions of the database's tables, judged before the first row (wire contract 4.17).

Rows name their tables, so which ones a job writes is only known where routes or options name them. The others of the
database may get rows, too: what those would meet is said, and stops nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Final

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import DeadlineExceeded, PartitionClosed, QueryFailed
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.rows.target import spelled
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event, EventLogger
from starrocks_txn_sink.writer.partitions import KnownPartitions

_SECONDS: Final = 5.0
"""Two statements a table, of milliseconds each. The lanes meet what was not asked in time."""
_MOST: Final = 5
"""Tables that the log names."""


def check_partitions(
    connection: LeaderConnection, database: str, named: Collection[str], job: str, deadline: Deadline
) -> None:
    """Warn of tables whose rows would end the query. Raises PartitionClosed for a `named` one that can take no row."""
    known, deadline = KnownPartitions(connection, database), deadline.earlier(_SECONDS)
    log, told = EventLogger("sink", job=job), 0
    with contextlib.suppress(QueryFailed, DeadlineExceeded):
        tables = [table for table in sorted(known.names(deadline)) if not is_own_table(table)]
        mine = {spelled(table, tables) for table in named}
        limit = known.limit(deadline) if tables else 0
        for table in sorted(tables, key=lambda name: name not in mine):
            met = known.obstacle(table, limit, deadline)
            if met is None:
                continue
            if met.takes_no_row and table in mine:
                raise PartitionClosed(f"Table {table}: {met.what}", hint=met.advice, table=table)
            told += 1
            if told <= _MOST:
                log(Event("partitions.closed", {"table": table, "what": met.what, "advice": met.advice}))
    if told > _MOST:
        log(Event("partitions.closed", {"more": told - _MOST}))
