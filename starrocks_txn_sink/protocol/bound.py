"""A bound: a command has a job stand still at one position of its source for a while, and compares the two there.

A hold (`protocol.hold`) stops a job where it happens to be. A bound has it go on to what a snapshot of the source
shows, and no further:

1. *bound*  In a hold, the command opens the snapshot, and writes the bound's row. Nothing behind the snapshot is
            visible then, and the driver, whose take-over comes behind the hold, finds the row.
2. *reach*  The driver's lanes release no source transaction behind the bound. Once they have one, all in front of it is
            committed: the driver writes the marker REACHED, and ends its try with JobHeld.
3. *free*   The command writes the row without seconds. The driver's next try waits for it, for the bound's seconds at
            most, and leaves the bound out. It reads its micro-batch again, and the ledger leaves out what is visible.

What waits is a micro-batch that is not over, as in any outage. So no state is of a bound: a driver that dies reads row
and micro-batch again. The seconds count by the server's clock from the row on, so that no restart makes them more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from starrocks_txn_sink.protocol import ledger
from starrocks_txn_sink.protocol.label import LedgerRequest, Rows, Sql, Steps, Wait

BOUND: Final = "bound"
"""Kind of the row, of which a job has one: the bound is in its name."""
REACHED: Final = "reached"
"""Name of the marker row: the job stands at the bound whose token it has, with EXACT or NEAR behind it."""
EXACT, NEAR = "exact", "near"
"""Whether all that the snapshot shows is visible, and nothing else; a snapshot may order some commits otherwise."""
NAME_BYTES: Final = ledger.NAME_BYTES
_LONGEST_LOOK: Final = 0.5
"""Seconds between two looks at a bound."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a snapshot shows of the source partition `source`, whose name is the ledger's.

    `numbers` are a position behind the snapshot, by log (`protocol.source_places`). PostgreSQL's snapshot is more than
    a place in the log: `snapshot` is its text of it, as txid_current_snapshot() gives it. `seconds` are those that are
    left when it is read; `text` is the position for sentences.
    """

    token: str
    source: str
    numbers: Mapping[str, int]
    snapshot: str = ""
    seconds: int = 0
    text: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The bound as the row's name has it."""
        return orjson.dumps([self.source, dict(self.numbers), self.snapshot, self.text]).decode()

    def reached(self, how: str) -> str:
        """The token of the marker REACHED."""
        return f"{self.token} {how}"


@dataclass(frozen=True, slots=True)
class WriteBound(LedgerRequest):
    """Write the row; a bound without seconds is over. Result: None."""

    job: str
    bound: Bound

    def statement(self, database: str) -> Sql:
        job, bound = self.job, self.bound
        return (
            f"INSERT INTO {ledger.table_of(database)} (id, job, kind, name, token, batch, updated_at) "
            "VALUES (%s, %s, %s, %s, %s, %s, now())",
            (ledger.row_id(job, BOUND), job, BOUND, bound.name, bound.token, bound.seconds),
        )


@dataclass(frozen=True, slots=True)
class ReadBound(LedgerRequest):
    """Read the bound of a job. Result: Bound, or None without one that has seconds left."""

    job: str

    def statement(self, database: str) -> Sql:
        return (
            f"SELECT name, token, batch, TIMESTAMPDIFF(SECOND, updated_at, now()) FROM {ledger.table_of(database)} "
            "WHERE job = %s AND kind = %s",
            (self.job, BOUND),
        )

    def result(self, rows: Rows) -> Bound | None:
        for name, token, seconds, age in rows:
            left = int(str(seconds)) - max(0, int(str(age)))
            source, numbers, snapshot, text = orjson.loads(str(name))
            return Bound(str(token), source, numbers, snapshot, left, text) if left > 0 else None
        return None


def read(job: str, rng: random.Random) -> Steps[Bound | None]:
    """The bound of `job` that holds now."""
    bound: Bound | None = yield from ledger.retry_until_answered(ReadBound(job), rng)
    return bound


def reach(job: str, bound: Bound, how: str, rng: random.Random) -> Steps[None]:
    """2. Say that `job` stands at the bound."""
    yield from ledger.retry_until_answered(ledger.WriteMarker(job, REACHED, bound.reached(how)), rng)


def await_end(job: str, token: str, rng: random.Random) -> Steps[None]:
    """Wait until the bound with `token` has ended, at most for the seconds that it had left at the first look."""
    waited, limit = 0.0, 0
    while True:
        bound = yield from read(job, rng)
        limit = limit or (0 if bound is None else bound.seconds)
        if bound is None or bound.token != token or waited >= limit:
            return
        yield Wait(_LONGEST_LOOK, "the command that compares the tables at a position")
        waited += _LONGEST_LOOK
