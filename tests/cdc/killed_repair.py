"""`python -m tests.cdc.killed_repair WHERE verify …`: the command, killed by SIGKILL at a place of its way.

WHERE is a number N: in front of its request N. Requests count from the claim of the hold on: those to the ledger, those
of StarRocks transactions, and the statements that delete doubled rows. With `write=N` it is small parts of repairs that
count (`in_small_parts`): in front of StarRocks transaction N; with `range=N` ranges of keys: behind the Nth that was
compared. A command that has fewer ends by itself, and its exit code is its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from starrocks_txn_ops import cli
from starrocks_txn_ops.verify import repair
from starrocks_txn_ops.verify.held import Held
from starrocks_txn_ops.verify.progress import Progress
from starrocks_txn_ops.verify.rules import core
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.protocol.ledger import HOLD, WriteClaim
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger


def in_small_parts(put: Callable[[object, str, Any], object] = setattr) -> None:
    """Small ranges, few keys at a time and in a transaction."""
    put(core, "RANGE_ROWS", 100)
    put(core.spans, "__defaults__", (100,))
    put(core, "ENOUGH", 60)
    put(core, "SUSPECTS", 30)
    put(core, "KEYS", 20)
    put(repair, "MOST_KEYS", 60)


def main(where: str, words: list[str]) -> int:
    kind, _, number = where.rpartition("=")
    if kind:
        in_small_parts()
        _killed_at(*{"write": (Held, "write"), "range": (Progress, "done")}[kind], int(number))
    else:
        _killed_in_front_of(int(number))
    return cli.main(words)


def _killed_at(owner: Any, name: str, number: int) -> None:
    """In front of the call of this number of a method."""
    right, left = getattr(owner, name), number

    def stopped(*args: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return right(*args, **named)

    setattr(owner, name, stopped)


def _killed_in_front_of(number: int) -> None:
    left: int | None = None

    def site(subject: Any) -> None:
        nonlocal left
        if isinstance(subject, WriteClaim) and subject.owner.epoch == HOLD and left is None:
            left = number
        if left is not None:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def patched(kind: Any, name: str, position: int) -> None:
        right = getattr(kind, name)

        def stopped(*args: Any, **named: Any) -> Any:
            site(args[position])
            return right(*args, **named)

        setattr(kind, name, stopped)

    patched(SqlLedger, "execute", 1)
    patched(HttpTransport, "send", 1)
    query = LeaderConnection.query

    def asked(self: LeaderConnection, sql: str, *args: Any) -> Any:
        if sql.startswith("DELETE"):
            site(sql)
        return query(self, sql, *args)

    setattr(LeaderConnection, "query", asked)  # noqa: B010 - mypy


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
