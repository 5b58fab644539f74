"""What a worker process keeps from task to task: connections, and the threads they belong to."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.lane.runner import Crew
from starrocks_txn_sink.ledger.access import LeaderConnection, SqlLedger
from starrocks_txn_sink.options import SinkOptions


@dataclass(frozen=True, slots=True)
class Equipment:
    """Connections and threads for lanes with the same options."""

    transport: HttpTransport
    crew: Crew
    ledger: SqlLedger | None
    connection: LeaderConnection | None = None

    def close(self) -> None:
        self.transport.close()  # while the threads are there, and their connections with them
        self.crew.close()
        if self.connection is not None:
            self.connection.close()


_kept: dict[bytes, Equipment] = {}


def equip(options: SinkOptions) -> Equipment:
    """What was kept for `options`, or new."""
    key = pickle.dumps(options)
    if key not in _kept:
        connection = LeaderConnection(options) if options.query_addresses else None
        ledger = SqlLedger(connection, options.database) if connection and options.exactly_once else None
        crew = Crew(options.load_parallelism + 1, "starrocks-lane")
        _kept[key] = Equipment(HttpTransport(options), crew, ledger, connection)
    return _kept[key]


def discard(options: SinkOptions) -> None:
    """Close what is kept for `options`; nothing happens when nothing is."""
    equipment = _kept.pop(pickle.dumps(options), None)
    if equipment is not None:
        equipment.close()
