# ruff: noqa: ARG001 - a planted bug has the signature of what it replaces
"""Planted bugs of owner rows that nobody can look at any more."""

from __future__ import annotations

from typing import Any

from starrocks_txn_sink.protocol import fencing as take_over, ledger
from starrocks_txn_sink.protocol.label import Wait
from starrocks_txn_sink.protocol.ledger import DeleteClaims, ListDeadClaims, Owner

from .. import driver
from .registry import bug


@bug
def claims_are_removed_before_the_job_is_claimed(put: Any) -> None:
    right = take_over.take_over

    def broken(scope: Any, new_token: Any, rng: Any, driver_token: Any = None) -> Any:
        if scope.owner.lane is None:
            names = yield from ledger.retry_until_answered(ListDeadClaims(scope.job, scope.owner.epoch, 500), rng)
            if names:
                yield DeleteClaims(scope.job, names)
        return (yield from right(scope, new_token, rng, driver_token))

    put(driver, "take_over", broken)


@bug
def the_driver_removes_claims_of_its_own_run(put: Any) -> None:
    def broken(job: str, mine: Owner, rng: Any) -> Any:
        while True:
            names = yield from ledger.retry_until_answered(ListDeadClaims(job, "", 500), rng)
            if names:
                yield DeleteClaims(job, names)
            yield Wait(1.0, "")

    put(driver, "delete_dead_claims", broken)
