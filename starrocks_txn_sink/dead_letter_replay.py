"""Writing dead letters again, exactly once: who may, and the steps of one source transaction. Pure.

A replay that was killed may have sent a commit that the server carries out later, or has carried out without showing it
yet; one that slept may go on beside a new one. So a replay takes over from those before it as a lane does (claim, list,
barrier; see `ledger.take_over`), reads the dead letters only then, and reads the owner again before each commit. A row
of the ledger goes along with every transaction: that is what makes the barrier wait for it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import orjson

from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.ledger.table import MARKER, row_id
from starrocks_txn_sink.ledger.take_over import NewToken, Scope, check_owner, take_over
from starrocks_txn_sink.ledger.values import LEDGER_TABLE, Owner
from starrocks_txn_sink.transaction import label as protocol
from starrocks_txn_sink.transaction.label import Label, Outcome, Patience
from starrocks_txn_sink.transaction.steps import Steps
from starrocks_txn_sink.wire import Body

REPLAY = "replay"
"""In place of a run of the driver in labels and owner rows; runs of the driver begin with a hexadecimal time."""


def take_over_replays(job: str, database: str, new_token: NewToken, rng: random.Random) -> Steps[Owner]:
    """End what other replays of the job have begun, and wait for what they have committed; returns the claim.

    Raises Fenced when a newer replay took over meanwhile. A driver of the job is not disturbed.
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
    """One StarRocks transaction with `loads` (table, body, headers) and the ledger's row; `owner` is our claim.

    Whatever fails before the commit is raised, and the label is rolled back: Fenced when a newer replay took over.
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
    """The ledger's table, and the row that a replay's transaction has in it: a load body's piece."""
    row = {"id": row_id(job, MARKER, REPLAY), "job": job, "kind": MARKER, "name": REPLAY, "label": label}
    return LEDGER_TABLE, memoryview(b"," + orjson.dumps(row))
