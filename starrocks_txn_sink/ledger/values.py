"""What the ledger holds and what can be asked of it, as plain values.

A `Question` is to the ledger what a `Request` is to the transaction interface: the protocol yields it, `ledger.access`
turns it into SQL, a model answers it in tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from starrocks_txn_sink.transaction.names import Family
from starrocks_txn_sink.transaction.steps import Question

LEDGER_TABLE = "_starrocks_txn_sink_ledger"
NAME_BYTES = 1024
"""The longest name of a source partition, in UTF-8, that the ledger has room for."""


@dataclass(frozen=True, slots=True)
class Position:
    """The last source transaction of a source partition that is visible, and the StarRocks transaction it came with.

    `digest` fingerprints that source transaction's content, so that a source which went back and tells another story at
    the same position is noticed. `checkpoint` is the streaming query's id.
    """

    partition: str
    position: int
    checkpoint: str
    batch: int
    label: str
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes: a driver (`lane` None) or an attempt of a lane; `token` is new for every claim.

    `epoch` tells the driver's runs apart; `batch` is the micro-batch that a lane's claim was made in. `since` is the
    server's time of the claim as text, for people.
    """

    token: str
    epoch: str
    checkpoint: str
    batch: int = -1
    lane: int | None = None
    since: str = ""


@dataclass(frozen=True, slots=True)
class Owners:
    """The owner rows of a job and of one of its lanes, None where there is none."""

    driver: Owner | None
    lane: Owner | None


# --- questions; each names the type of its answer ---


@dataclass(frozen=True, slots=True)
class Claim(Question):
    """Write the owner row. Answer: None."""

    job: str
    owner: Owner


@dataclass(frozen=True, slots=True)
class Unfinished(Question):
    """List labels of `family` in the database that have not ended. Answer: tuple of labels."""

    family: Family


@dataclass(frozen=True, slots=True)
class Mark(Question):
    """Write the barrier's marker row with `token`; it must not touch an owner row. Answer: None."""

    job: str
    scope: str
    token: str


@dataclass(frozen=True, slots=True)
class Marked(Question):
    """Whether the marker row with `token` is visible. Answer: bool."""

    job: str
    scope: str
    token: str


@dataclass(frozen=True, slots=True)
class ReadOwners(Question):
    """Read who owns the job, and who claimed `lane`, if one is given, in that run of the driver and micro-batch.

    Claims of other runs and micro-batches are other rows: a late one among them cannot hide the claim that counts.
    Answer: Owners.
    """

    job: str
    lane: int | None = None
    epoch: str = ""
    batch: int = -1


@dataclass(frozen=True, slots=True)
class ReadPositions(Question):
    """Read all positions of the job. Answer: dict of source partition to Position."""

    job: str


@dataclass(frozen=True, slots=True)
class DeadClaims(Question):
    """Read the names of lanes' owner rows of other runs of the driver than `epoch`. Answer: tuple of at most `most`."""

    job: str
    epoch: str
    most: int


@dataclass(frozen=True, slots=True)
class Forget(Question):
    """Delete the owner rows of lanes with these names. Answer: None."""

    job: str
    names: tuple[str, ...]


LedgerQuestion = Claim | Unfinished | Mark | Marked | ReadOwners | ReadPositions | DeadClaims | Forget
