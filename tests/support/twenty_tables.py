"""A shop of twenty tables, whose micro-batches are written without Spark: what it should have written, and a check."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.refusals import UNSAID
from tests.support.query_port import query
from tests.support.threaded_lanes import ThreadedJob, Transaction

TABLES = [f"t{number}" for number in range(20)]
_BEHIND: Final = 10**12
"""The first id behind all ranges of the tables."""
DDL = [
    f"CREATE TABLE shop.{name} (id BIGINT NOT NULL) DUPLICATE KEY (id) "
    f"PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN ('{_BEHIND}')) DISTRIBUTED BY HASH (id)"
    for name in TABLES
]
BAD_IDS: Final[Mapping[str, object]] = {
    "a value that does not fit the column's type": "no number",
    "NULL in a NOT NULL column": None,
    "a row that no partition takes": _BEHIND,
}
"""Ids of bad rows, which only the server finds, by words of the reason."""

Place = tuple[str, int]
"""A source partition, and a position."""


@dataclass
class Shop:
    """A job on an emulator, and the rows that it should have written: the share `bad` of them is bad."""

    server: Emulator
    lanes: int
    rng: random.Random
    bad: float = 0.0
    rows: dict[str, list[object]] = field(default_factory=dict)
    dead: dict[Place, tuple[str, str, Transaction]] = field(default_factory=dict)  # table and words of the bad row
    _ids: int = 0
    _next: dict[int, int] = field(default_factory=dict)  # position, by lane

    def job(self, **options: Any) -> ThreadedJob:
        settings = {
            "database": "shop",
            "job": "shop",
            "lanes": self.lanes,
            "timeout": 60,
            "batch_deadline": 60,
            **options,
        }
        return ThreadedJob(
            SinkOptions(load_url=self.server.load_url, query_url=self.server.query_url, **settings), self.lanes
        )

    def transaction(self, lane: int, tables: int) -> Transaction:
        """A source transaction with a row or two of each of as many tables."""
        made = {table: self._new_ids(self.rng.randint(1, 2)) for table in self.rng.sample(TABLES, tables)}
        position = self._next[lane] = self._next.get(lane, 0) + 1
        chosen = [(table, place) for table in made for place in range(len(made[table])) if self.rng.random() < self.bad]
        if chosen:
            table, place = chosen[0]  # one a source transaction, whose reason is known then
            words = self.rng.choice(list(BAD_IDS))
            made[table][place] = BAD_IDS[words]
            self.dead[f"p{lane}", position] = table, words, made
        else:
            for table, ids in made.items():
                self.rows.setdefault(table, []).extend(ids)
        return made

    def ids(self, table: str, count: int) -> list[object]:
        """New ids of rows that should come to be in `table`."""
        new = self._new_ids(count)
        self.rows.setdefault(table, []).extend(new)
        return new

    def _new_ids(self, count: int) -> list[object]:
        first, self._ids = self._ids, self._ids + count
        return list(range(first, first + count))

    def micro_batch(self, most: int) -> list[list[Transaction]]:
        """Up to five source transactions of each lane, of up to `most` tables."""
        return [
            [self.transaction(lane, self.rng.randint(1, most)) for _ in range(self.rng.randint(0, 5))]
            for lane in range(self.lanes)
        ]

    def count_wrong(self) -> Counter[str]:
        """Rows that are `lost`, `doubled`, `not_dead` though bad, and `dead` without need or twice.

        Dead ones are `misjudged` if their reason is another one.
        """
        wrong: Counter[str] = Counter()
        for table in TABLES:
            there = Counter(number for (number,) in query(self.server, f"SELECT id FROM shop.{table}"))
            wanted = Counter(self.rows.get(table, []))
            wrong["lost"] += (wanted - there).total()
            wrong["doubled"] += (there - wanted).total()
        if self.bad:
            letters = self._dead_letters()
            rows = Counter(
                (*place, table, number)
                for place, (_, _, made) in self.dead.items()
                for table in made
                for number in made[table]
            )
            wrong["not_dead"] = (rows - Counter(letter[:4] for letter in letters)).total()
            wrong["dead"] = (Counter(letter[:4] for letter in letters) - rows).total()
            wrong["misjudged"] = sum(
                not self._explains(reason, self.dead.get((name, position))) for name, position, _, _, reason in letters
            )
        return +wrong

    def count_reasons(self) -> Counter[str]:
        """Bad source transactions that are dead letters: those with a reason, and those without one."""
        reasons = {(name, position): reason for name, position, _, _, reason in self._dead_letters()}
        return Counter("unsaid" if f"{UNSAID}." in reason else "said" for reason in reasons.values())

    def _dead_letters(self) -> list[tuple[str, int, str, object, str]]:
        names = "source_partition, position, table_name, content, reason"
        letters = query(self.server, f"SELECT {names} FROM shop.{DEAD_LETTER_TABLE}")
        return [
            (name, position, table, json.loads(content)["id"], why) for name, position, table, content, why in letters
        ]

    @staticmethod
    def _explains(reason: str, bad: tuple[str, str, Transaction] | None) -> bool:
        """Whether a reason names the table of a bad row, and why it is bad if server or sink can know it."""
        if bad is None:
            return False
        table, words, made = bad
        is_said = words in reason or (len(made[table]) == 1 and f"{UNSAID};" in reason)  # the sink finds why
        return f" of {table}," in reason and is_said

    def check(self) -> None:
        """All rows are where they should be, once, and loads never waited for threads."""
        assert self.count_wrong() == Counter()
        for threads in self.server.scan_threads:
            assert threads.peak <= threads.size
            assert threads.running == threads.unread == 0
