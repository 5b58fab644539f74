"""`python -m tests.cdc.killed_repair N verify …`: the command, killed by SIGKILL in front of its request number N.

Requests count from the claim of the hold on: those to the ledger, those of StarRocks transactions, and the statements
that delete doubled rows. A command that has fewer ends by itself, and its exit code is its own.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from starrocks_txn_ops import cli
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.protocol.ledger import HOLD, WriteClaim
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger


def main(number: int, words: list[str]) -> int:
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
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
