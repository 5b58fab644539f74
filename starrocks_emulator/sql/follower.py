"""A follower frontend's view of the store: what was visible when it last caught up; everything but reading goes on to
the leader, as followers forward it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import duckdb
from sqlglot import exp

from starrocks_emulator.sql.session import Answer, QuerySession
from starrocks_emulator.sql.show import is_show
from starrocks_emulator.sql.statements import parsed, run
from starrocks_emulator.tables.engine import Engine
from starrocks_emulator.tables.store import Store


class LaggingStore:
    """Reads as of the last `catch_up` (at first, of the start); it lags as long as nobody calls that."""

    def __init__(self, leader: Store) -> None:
        self._leader = leader
        self.engine = _OldEngine(leader.engine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leader, name)

    def query(self, sql: str, session: QuerySession) -> Answer:
        """As `statements.run` on the leader's store; SELECT sees the old state."""
        reading = not is_show(sql) and all(isinstance(tree, exp.Query) for tree in parsed(sql))
        return run(cast(Store, self), session, sql) if reading else run(self._leader, session, sql)

    def catch_up(self) -> None:
        """See what is visible now."""
        self.engine.renew()

    def close(self) -> None:
        self.engine.close()


class _OldEngine:
    """Gives everybody the same session, inside a transaction that began at the last `renew`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._guard = threading.RLock()
        self._stack = ExitStack()
        self._session: duckdb.DuckDBPyConnection | None = None
        self.renew()

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._guard:
            if self._session is None:
                raise RuntimeError("the follower has been closed")
            yield self._session

    def renew(self) -> None:
        with self._guard, self._engine.writing:
            self._stack.close()
            self._session = self._stack.enter_context(self._engine.cursor())
            self._session.execute("BEGIN")
            self._session.execute("SELECT count(*) FROM duckdb_tables()").fetchall()  # a snapshot is taken at first use

    def close(self) -> None:
        with self._guard:
            self._stack.close()
            self._session = None
