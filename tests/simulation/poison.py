"""Source transactions that the server rejects, under a quarantine: each becomes dead letters, whole and once.

What is bad stays bad, whoever writes it: two drivers, retries and zombies all find and bury the same ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import orjson

from starrocks_txn_sink.dead_letter.table import DEAD_LETTER_TABLE
from starrocks_txn_sink.testing.model_server import Fault, ModelServer, Task
from starrocks_txn_sink.testing.model_store import Change

from .checker import Checker
from .profile import Profile
from .source import Source, SourceTransaction

Place = tuple[str, int]
Letter = tuple[str, int, str, str]  # source partition, position, table, content


def poison_profile(profile: Profile) -> Profile:
    """A lane must be able to take its rows apart, so it keeps them."""
    return replace(profile, retry_buffer_bytes=100_000)


def poisoned(source: Source, rng: Random) -> Source:
    """`source` with a bad row in some of its source transactions."""
    return Source([[_spoilt(one) if rng.random() < 0.3 else one for one in part] for part in source.truth])


def _spoilt(one: SourceTransaction) -> SourceTransaction:
    table, content = one.rows[-1]
    bad = orjson.dumps({**orjson.loads(content), "bad": True})
    return replace(one, rows=(*one.rows[:-1], (table, bad)))


def is_bad(one: SourceTransaction) -> bool:
    return any("bad" in orjson.loads(content) for _, content in one.rows)


class JudgingServer(ModelServer):
    """Rejects rows that say that they are bad, at commit."""

    def _refuse_commit(self, task: Task, fault: Fault | None) -> str | None:
        for table, body in task.loads:
            if table != DEAD_LETTER_TABLE and any(row.get("bad") for row in orjson.loads(body)):
                return "abnormal data more than max filter rate, tracking_url: http://be/x"
        return super()._refuse_commit(task, fault)


class PoisonChecker(Checker):
    """The checker where some source transactions are set aside: rows in = visible + dead-lettered, each once."""

    def __init__(self, source: Source, *others: Any) -> None:
        super().__init__(source, *others)
        self._bad = {place: one for place, one in self._by_place.items() if is_bad(one)}
        self._contents = {key: row for key, row in self._contents.items() if key[:2] not in self._bad}
        self._letters: Counter[Letter] = Counter()
        self._here: set[Place] = set()  # set aside by the version that is looked at

    def version(self, change: Change, tables: dict[str, list[Any]]) -> None:
        """A StarRocks transaction has become visible with `tables`' rows."""
        letters = tables.get(DEAD_LETTER_TABLE, [])
        found = Counter((row["source_partition"], row["position"]) for row in letters)
        self._here = set(found)
        for place, rows in found.items():
            one = self._bad.get(place)
            if one is None or rows != len(one.rows):
                self.report(
                    "torn", f"{change.label} sets aside {rows} rows of {place}, which is not one bad transaction"
                )
        for row in letters:
            letter = (row["source_partition"], row["position"], row["table_name"], row["content"])
            if self._letters[letter]:
                self.report("duplicated", f"{letter} is set aside twice")
            self._letters[letter] += 1
        super().version(change, {name: rows for name, rows in tables.items() if name != DEAD_LETTER_TABLE})

    def _whole(self, label: str, counts: Counter[Place]) -> dict[str, int]:
        """What is set aside takes its place among the others."""
        both = counts + Counter({place: len(self._bad[place].rows) for place in self._here if place in self._bad})
        return super()._whole(label, both)

    def _digest_expected(self) -> bool:
        """A part of what was rejected ends at a source transaction of which no fingerprint was made."""
        return False

    def sample(self) -> None:
        """Read all tables in one statement: whole source transactions were set aside, so no money is missing."""
        rows = (row for name, rows in self._store.tables.items() if name != DEAD_LETTER_TABLE for row in rows)
        if total := sum(row["v"] for row in rows):
            self.report("torn", f"a reader saw a sum of {total} instead of 0")

    def _state(self) -> dict[tuple[str, str], tuple[int, int]]:
        tables = {name: rows for name, rows in self._store.tables.items() if name != DEAD_LETTER_TABLE}
        return {(t, row["k"]): (row["x"], row["s"]) for t, rows in tables.items() for row in rows}

    def final(self) -> None:
        """Nothing more will happen: what is good is visible, what is bad is set aside."""
        bad = [
            (one.partition, one.position, table, content.decode())
            for one in self._bad.values()
            for table, content in one.rows
        ]
        if set(bad) != set(self._letters):
            self.report("lost", f"{len(bad)} rows are bad, {len(self._letters)} are set aside")
        super().final()
