"""A hold: a command owns a job for a while, writes in order with the job's driver, and gives the job back.

A hold is a take-over of the job (`protocol.fencing`), so the driver cannot commit any more, and what it had committed
is visible. Its claim names the owner that it was taken from. That owner, and no other writer, may take the job back by
another take-over: once the marker says that the hold has ended, and at the latest after the hold's own seconds. So a
killed command holds nothing for long, and one that slept is fenced as every writer is: its label is rolled back, and
it finds another owner in its check before the commit.

1. *hold*     Take the job over, with a claim that has HOLD, the token of the owner before, and the seconds.
2. *write*    Read and write as the owner; the check before the commit is a driver's own.
3. *release*  Write the marker with the hold's token. No owner row is written: it could be a newer driver's by now.
"""

import random

from starrocks_txn_sink.protocol import ledger
from starrocks_txn_sink.protocol.fencing import Scope, TakenOver, take_over
from starrocks_txn_sink.protocol.label import Steps
from starrocks_txn_sink.protocol.ledger import HOLD, RELEASED, Owner, ReadOwner


def hold(job: str, database: str, seconds: int, new_token: ledger.NewToken, rng: random.Random) -> Steps[TakenOver]:
    """1. Hold `job` for at most so many seconds; raises as a take-over does, JobMoved for a job that is closed."""
    owner: Owner | None = yield from ledger.retry_until_answered(ReadOwner(job), rng)
    token = "" if owner is None else owner.token if owner.held_from is None else owner.held_from
    return (yield from take_over(Scope(job, database, Owner("", HOLD, token, seconds)), new_token, rng))


def release(job: str, owner: Owner, rng: random.Random) -> Steps[None]:
    """3. Give `job` back; without effect if the hold of `owner` has ended by itself."""
    yield from ledger.retry_until_answered(ledger.WriteMarker(job, RELEASED, owner.token), rng)
