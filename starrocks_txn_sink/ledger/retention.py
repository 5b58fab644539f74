"""Owner rows of lanes that nobody can be judged by any more, and their removal.

Only retries and lanes that could not settle an outcome write such rows, one for each run of the driver, micro-batch and
lane. A row must stay as long as an attempt of that run may check it: no row means "nobody took the lane over", so its
removal would give a sleeping first attempt its lane back. What can go are rows of runs whose driver has lost the job:
a check reads the job's owner and the lane's in one statement, and the job's owner is never that run's again, because a
token is written by one INSERT that was answered (unanswered ones are repeated under another token).

The order matters: the rows are listed before the owner is read, and removed by name. Whatever was on the list then
belongs to a run before ours, however long we sleep afterwards, and however late the removal is carried out; a newer
driver's rows have other names.
"""

from __future__ import annotations

import random

from starrocks_txn_sink.ledger.take_over import insist, refuse_others
from starrocks_txn_sink.ledger.values import DeadClaims, Forget, Owner, Owners, ReadOwners
from starrocks_txn_sink.transaction.steps import Steps

MOST = 500
"""Rows that one start of a driver removes at most; the next one goes on."""


def forget_dead_claims(job: str, mine: Owner, rng: random.Random) -> Steps[int]:
    """Remove lanes' owner rows of runs of the driver before `mine`, which owns the job; returns how many it asked for.

    Best-effort: an unanswered removal is not repeated. Raises Fenced when `mine` owns the job no longer.
    """
    names: tuple[str, ...] = yield from insist(DeadClaims(job, mine.epoch, MOST), rng)
    if not names:
        return 0
    owners: Owners = yield from insist(ReadOwners(job), rng)
    refuse_others(owners, mine, mine.token)
    yield Forget(job, names)
    return len(names)
