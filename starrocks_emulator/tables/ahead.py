"""Judging ahead: a small body is judged while its transaction is open, as a backend does, so that its commit is short.

It counts only if it stays its table's one body; the rows of several (a CSV row may begin in one and end in the next)
are judged together, by the commit. What is wrong with the body is told by the commit, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Final

from starrocks_emulator.tables.engine import ASIDE, Engine
from starrocks_emulator.tables.plan import Plan
from starrocks_emulator.tables.staging import Staged, stage

SMALL: Final = 4 << 20
"""Bytes up to which a body is judged ahead: the judged rows of transactions that stay open take memory."""

_WORKERS: Final = 2


class Ahead:
    """Bodies judged by threads of its own. Thread-safe."""

    def __init__(self, engine: Engine, spool: Path) -> None:
        self._engine, self._spool = engine, spool
        self._pool = ThreadPoolExecutor(_WORKERS, "judge-ahead")
        self._judged: dict[Path, Future[Staged]] = {}
        self._guard = threading.Lock()
        self._numbers = count(1)

    def begin(self, plan: Plan, path: Path) -> None:
        """Start judging the body, unless it is a large one."""
        if path.stat().st_size > SMALL:
            return
        name = f"{ASIDE}.judged_{next(self._numbers)}"
        with self._guard:
            self._judged[path] = self._pool.submit(self._judge, plan, path, name)

    def take(self, paths: Sequence[Path]) -> Staged | None:
        """The rows of a table's one body, if they were judged ahead, until `drop`; raises what `stage` raises."""
        with self._guard:
            future = self._judged.get(paths[0]) if len(paths) == 1 else None
        return future.result() if future is not None else None

    def drop(self, paths: Iterable[Path]) -> None:
        """Forget what was judged of these bodies, also what is still being judged."""
        for path in paths:
            with self._guard:
                future = self._judged.pop(path, None)
            if future is not None and not future.cancel():
                future.add_done_callback(self._discard)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _judge(self, plan: Plan, path: Path, name: str) -> Staged:
        with self._engine.cursor() as cursor:
            try:
                return stage(cursor, plan, [path], name, self._spool, kind="TABLE")
            except BaseException:
                cursor.execute(f"DROP TABLE IF EXISTS {name}")
                raise

    def _discard(self, future: Future[Staged]) -> None:
        if future.exception() is None:  # a body that could not be judged left nothing
            with self._engine.cursor() as cursor:
                cursor.execute(f"DROP TABLE {future.result().name}")
