"""Schedules without a ledger: the same trouble, and every row visible once or more.

Nobody takes a job over, so drivers may overlap, and each writes what its checkpoint has not acknowledged. A source
transaction is still whole under each label, and what was acknowledged is visible.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.options import SinkOptions
from tests.support.model_store import Change

from .checker import Checker, Published
from .driver import DATABASE, JOB, Driver
from .trace import Say
from .world import TIMEOUT, History, World


class AtLeastOnceChecker(Checker):
    """The checker without a ledger: a label has each row once, in order; another label may have it again."""

    def version(self, change: Change, tables: dict[str, list[Any]]) -> None:
        earlier, self._seen, self._order = self._seen, set(), {}
        counts: Counter[tuple[str, int]] = Counter()
        for table, rows in tables.items():
            for row in rows:
                self._row(table, row, counts)
        self.published[change.label] = Published(sum(counts.values()), self._whole(change.label, counts))
        self._seen |= earlier

    def _state(self) -> dict[tuple[str, str], tuple[int, int]]:
        """What was written again may have come last, so no order of the whole is demanded."""
        return self._serial()


class AtLeastOnceDriver(Driver):
    """A driver that begins where its checkpoint ends, without asking anybody."""

    def start(self) -> None:
        self._world.trace.say(self.name, f"starts on checkpoint {self.checkpoint.name}, micro-batch {self._batch}")
        self._next_batch()

    def _committed(self, receipt: Receipt) -> None:
        self._bounds.committed(receipt)
        self._world.checker.receipt(receipt)


class AtLeastOnceWorld(World):
    def __init__(self, seed: int, say: Say | None = None, name: int | None = None) -> None:
        super().__init__(8 * seed + 1, say, name)
        self.seed = seed
        self.keys = {}
        self.checker = AtLeastOnceChecker(self.source, self.cluster.server.store, JOB, self.trace)

    def options_of(self, lanes: int) -> SinkOptions:
        return _options(lanes, self.profile.commit_interval)

    def _make_driver(self, *arguments: Any) -> Driver:
        return AtLeastOnceDriver(self, *arguments)


@cache
def _options(lanes: int, commit_interval: float | None) -> SinkOptions:
    return SinkOptions(
        load_url="http://fe:8030",
        delivery="at-least-once",
        database=DATABASE,
        job=JOB,
        lanes=lanes,
        timeout=TIMEOUT,
        commit_interval=commit_interval,
        batch_deadline=2.0 * TIMEOUT,
        max_attempts=3,
    )


def run_at_least_once(seed: int, say: Say | None = None, name: int | None = None) -> History:
    """Run the schedule of `seed`, whose history has the seed `name`."""
    return AtLeastOnceWorld(seed, say, name).run()
