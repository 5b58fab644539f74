"""How far a job has come in a source's own log, as rows of the ledger: an application asks for its commit by them.

A position of the ledger is a number of the sink's, the same for all kinds of sources. A place says of which log of the
source it is: PostgreSQL's LSNs, a binlog's files and offsets, or the GTIDs of one server. All source transactions of
the log up to the number are visible with the row, but for dead letters and for those that were given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from starrocks_txn_sink.protocol.ledger import row_id

PLACE: Final = "place"
"""Kind of the rows. The name has source partition and log, with a space between; the position is the number."""

LSN: Final = "lsn"
BINLOG: Final = "binlog"
"""Logs whose numbers are positions of the ledger, too; any other log is a server, as its GTIDs name it."""

GIVEN_UP: Final = "given-up"
"""No log, but the number of source transactions that were given up because they did not become whole in time."""

Places = Mapping[str, int]
"""The numbers by log."""


def place_row(job: str, partition: str, log: str, number: int, updated_at: str) -> memoryview:
    """A place as a piece of a load body of the ledger."""
    name = f"{partition} {log}"
    row = {
        "id": row_id(job, PLACE, name),
        "job": job,
        "kind": PLACE,
        "name": name,
        "position": number,
        "updated_at": updated_at,
    }
    return memoryview(b"," + orjson.dumps(row))


def of_name(name: str) -> tuple[str, str]:
    """Source partition and log of a row's name."""
    partition, _, log = name.rpartition(" ")
    return partition, log
