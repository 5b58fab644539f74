"""Replay of dead letters, exactly once: ownership, and the steps of one source transaction. Pure.

A killed replay may have sent a commit that the server executes later, or has executed but not yet published; a paused
replay may continue beside a new one. So a replay takes over from earlier ones as a lane does (claim, list, barrier; see
`ledger.take_over`), reads the dead letters only after that, and checks the owner before each commit. Each transaction
also writes a row of the ledger, so that the barrier waits for it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import orjson

from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.ledger.ledger import LEDGER_TABLE, MARKER, Owner, row_id
from starrocks_txn_sink.ledger.take_over import NewToken, Scope, check_owner, take_over
from starrocks_txn_sink.transaction import label as protocol
from starrocks_txn_sink.transaction.label import Label, Outcome, Patience
from starrocks_txn_sink.transaction.steps import Steps
from starrocks_txn_sink.wire import Body

REPLAY = "replay"
"""Takes the place of the driver's run in labels and owner rows; a run of a driver begins with a hexadecimal time."""


def take_over_replays(job: str, database: str, new_token: NewToken, rng: random.Random) -> Steps[Owner]:
    """End the open transactions of earlier replays, wait for their commits, and return this replay's claim.

    Raises Fenced if a newer replay has taken over meanwhile. Does not affect a driver of the job.
    """
    scope = Scope(job, database, Owner("", REPLAY, "dead-letter replay", 0, 0))
    taken = yield from take_over(scope, new_token, rng)
    return taken.owner


def replay_transaction(
    label: Label,
    job: str,
    owner: Owner,
    loads: Sequence[tuple[str, Body, Mapping[str, str]]],
    begin_headers: Mapping[str, str],
    rng: random.Random,
) -> Steps[Outcome]:
    """One StarRocks transaction with `loads` (table, body, headers); `owner` is this replay's claim.

    Rolls the label back and raises StarRocksSinkError for a failure before the commit: Fenced if a newer replay has
    taken over.
    """
    patience = Patience(commit_again=True)
    yield from protocol.begin(label, begin_headers)
    try:
        for table, body, headers in loads:
            yield from protocol.load(label, table, body, headers, patience, rng)
        yield from check_owner(job, owner, None, rng)
    except StarRocksSinkError:
        yield from protocol.roll_back(label, patience, rng)
        raise
    return (yield from protocol.commit(label, patience, rng))


def ledger_row(job: str, label: str) -> tuple[str, memoryview]:
    """Name of the ledger's table, and the row of a replay's transaction in it, as a piece of a load body."""
    row = {"id": row_id(job, MARKER, REPLAY), "job": job, "kind": MARKER, "name": REPLAY, "label": label}
    return LEDGER_TABLE, memoryview(b"," + orjson.dumps(row))
