"""The keys of source tables under which rows have come, as rows of the ledger.

A row says that the rows of a source's table came under a key, and that the job has taken them. So a key that is new is
known as such after a restart, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from starrocks_txn_sink.protocol.label import LedgerRequest, Rows, Sql
from starrocks_txn_sink.protocol.ledger import NAME_BYTES, table_of, token_row

KEY: Final = "key"
"""Kind of the rows; the name has connector, collection and key."""

SourceKey = tuple[str, str, str, tuple[str, ...]]
"""Connector, collection, StarRocks table, and the names in the key; none: the messages have no key."""

KnownKeys = dict[tuple[str, str], set[tuple[str, ...]]]
"""The keys by connector and collection."""


def key_row(job: str, connector: str, collection: str, key: tuple[str, ...], updated_at: str) -> memoryview | None:
    """A key as a piece of a load body of the ledger; None for one whose names are too long to be kept."""
    name = orjson.dumps([connector, collection, list(key)]).decode()
    return token_row(job, KEY, name, "", updated_at) if len(name.encode()) <= NAME_BYTES else None


@dataclass(frozen=True, slots=True)
class ReadKeys(LedgerRequest):
    """Read the keys of a job. Result: KnownKeys."""

    job: str

    def statement(self, database: str) -> Sql:
        return f"SELECT name FROM {table_of(database)} WHERE job = %s AND kind = %s", (self.job, KEY)

    def result(self, rows: Rows) -> KnownKeys:
        keys: KnownKeys = {}
        for (name,) in rows:
            connector, collection, key = orjson.loads(name)
            keys.setdefault((connector, collection), set()).add(tuple(key))
        return keys
