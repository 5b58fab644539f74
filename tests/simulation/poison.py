"""Source transactions that the server rejects, under a quarantine: each becomes dead letters, whole and once.

What is bad stays bad, for every writer, until the tables are altered: two drivers, retries and older writers
all dead-letter the same ones. Replays (`replays.py`) write them again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any
from zlib import crc32

import orjson

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import QueryFailed
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.label import epoch_of
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, LOG_TABLE, REPLAY
from tests.support.model_server import NO_ROWS, Fault, ModelServer, Task
from tests.support.model_store import Change

from .checker import Checker, Published
from .source import Source, SourceTransaction

Place = tuple[str, int]
MOST_TROUBLES = 6
_OWN = (DEAD_LETTER_TABLE, LOG_TABLE)


def poisoned(source: Source, rng: Random) -> Source:
    """`source` with a bad row in some of its source transactions."""
    return Source(
        [[_spoilt(transaction) if rng.random() < 0.3 else transaction for transaction in part] for part in source.truth]
    )


def _spoilt(transaction: SourceTransaction) -> SourceTransaction:
    table, content = transaction.rows[-1]
    bad = orjson.dumps({**orjson.loads(content), "bad": True})
    return replace(transaction, rows=(*transaction.rows[:-1], (table, bad)))


def is_bad(transaction: SourceTransaction) -> bool:
    return any("bad" in orjson.loads(content) for _, content in transaction.rows)


class JudgingServer(ModelServer):
    """Rejects rows that say that they are bad, at commit, as long as it is not `lenient`.

    Its own trouble has the same words as a table without a good row: only `ask` tells them apart, where it answers.
    """

    def __init__(self, generation: str = "B") -> None:
        super().__init__(generation)
        self.lenient = False
        self._troubles = 0
        self._rejected: dict[int, dict[str, int]] = {}  # by id of the transaction: rows of each table, -1 in trouble
        self.store.keys[DEAD_LETTER_TABLE] = "id"

    @property
    def has_rejected(self) -> bool:
        """Whether a commit was refused for its bad rows."""
        return any(count > 0 for tables in self._rejected.values() for count in tables.values())

    def _refuse_commit(self, task: Task, fault: Fault | None) -> str | None:
        """With a log if a row of the table is good; else with the words for trouble of the server's own."""
        trouble = super()._refuse_commit(task, fault) or self._trouble(task)
        good, bad = Counter[str](), Counter[str]()
        for table, body in task.loads:
            for row in orjson.loads(body):
                (bad if table != DEAD_LETTER_TABLE and row.get("bad") and not self.lenient else good)[table] += 1
        self._rejected[task.txn_id] = {table: -1 if trouble else bad[table] for table, _ in task.loads}
        if trouble is not None or not bad:
            return trouble
        return "abnormal data more than max filter rate, tracking_url: http://be/x" if set(bad) & set(good) else NO_ROWS

    def _trouble(self, task: Task) -> str | None:
        if self._troubles == MOST_TROUBLES or crc32(b"%d" % task.txn_id) % 4:
            return None
        self._troubles += 1
        return NO_ROWS

    def ask(self, sql: str, _: tuple[object, ...], deadline: Deadline) -> list[dict[str, Any]]:
        """SHOW ALL STREAM LOAD for a label; of some labels it is not answered, and of some it has no row."""
        del deadline
        label = sql.split("`")[1]
        chance = crc32(label.encode()) % 8
        if chance == 0:
            raise QueryFailed("The connection to the query port is closed.")
        task = self.tasks.get(label)
        counts = self._rejected.get(task.txn_id, {}) if task is not None and chance > 1 else {}
        return [{"tablename": table, "numrowsabnormal": count, "trackingurl": ""} for table, count in counts.items()]


class PoisonChecker(Checker):
    """The checker where some source transactions are dead-lettered, and written later: each is in one place, once."""

    def __init__(self, source: Source, *arguments: Any) -> None:
        super().__init__(source, *arguments)
        self._dead: dict[Place, set[str]] = {}  # the keys of its dead letters
        self._here: Counter[Place] = Counter()  # dead-lettered by the version that is looked at
        self._logged: list[dict[str, Any]] = []
        self._replayed = False

    def version(self, change: Change, tables: dict[str, list[Any]]) -> None:
        """A StarRocks transaction has become visible with `tables`' rows."""
        dead_letters = tables.get(DEAD_LETTER_TABLE, [])
        data_tables = {name: rows for name, rows in tables.items() if name not in _OWN}
        self._logged = tables.get(LOG_TABLE, [])
        if epoch_of(change.label) == REPLAY:
            self._written_again(change.label, {row["id"] for row in dead_letters if row.get("__op") == 1}, data_tables)
            return
        self._dead_letter(change.label, dead_letters)
        super().version(change, data_tables)

    def _dead_letter(self, label: str, dead_letters: list[dict[str, Any]]) -> None:
        self._here = Counter((row["source_partition"], row["position"]) for row in dead_letters)
        for place, rows in self._here.items():
            transaction = self._by_place.get(place)
            if transaction is None or rows != len(transaction.rows) or not is_bad(transaction):
                self.report("torn", f"{label} dead-letters {rows} rows of {place}, which is not one bad transaction")
            if place in self._dead or any(key[:2] == place for key in self._seen):
                self.report("duplicated", f"{label} dead-letters {place}, which is visible or dead-lettered already")
            self._dead[place] = set()
        for row in dead_letters:
            self._dead[row["source_partition"], row["position"]].add(row["id"])

    def _row(self, table: str, row: dict[str, Any], counts: Counter[Place]) -> None:
        if (row["p"], row["x"]) in self._dead:
            self.report("duplicated", f"{row['p']}@{row['x']} is visible and dead-lettered")
        super()._row(table, row, counts)

    def _whole(self, label: str, counts: Counter[Place]) -> dict[str, int]:
        """What is dead-lettered takes its place among the others."""
        return super()._whole(label, counts + self._here)

    def _ledger(
        self, label: str, positions: dict[str, int], counts: Counter[Place], rows: list[dict[str, Any]]
    ) -> None:
        """The receipts' log tells of the same positions, whatever became of the replies."""
        super()._ledger(label, positions, counts, rows)
        entries = {row["source_partition"]: row["last_position"] for row in self._logged if row["label"] == label}
        if entries != positions or len(self._logged) != len(positions):
            self.report("other", f"{label}: the receipts' log says {self._logged}, the data {positions}")

    def _written_again(self, label: str, deleted: set[str], tables: dict[str, list[Any]]) -> None:
        """A replay has written what was dead-lettered, whole and once, and deleted its dead letters with it."""
        if label.rsplit("-", 1)[0] in self._superseded:
            self.report("other", f"{label} became visible after another replay had taken over")
        self._replayed = True
        rows = [(table, row) for table, rows in tables.items() if table != LEDGER_TABLE for row in rows]
        keys = {(row["p"], row["x"], row["s"]) for _, row in rows}
        if len(keys) != len(rows) or keys & self._seen:
            self.report("duplicated", f"{label} writes rows again that are there")
        self._seen |= keys
        places = {key[:2] for key in keys}
        for table, row in rows:
            if self._contents.get((row["p"], row["x"], row["s"])) != (table, row):
                self.report("other", f"{label} writes a row with other content: {row}")
        if len(places) != 1 or len(rows) != len(self._by_place[min(places)].rows):
            self.report("torn", f"{label} writes {len(rows)} rows of {places}")
        for place in places:
            if self._dead.pop(place, None) != deleted:
                self.report("duplicated", f"{label} writes {place}, and deletes other dead letters than its own")
        self.published[label] = Published(len(rows), {})

    def sample(self) -> None:
        """Read all tables in one statement: whole source transactions were dead-lettered, so no money is missing."""
        rows = (row for name, rows in self._store.tables.items() if name not in _OWN for row in rows)
        if total := sum(row["v"] for row in rows):
            self.report("torn", f"a reader saw a sum of {total} instead of 0")

    def final(self) -> None:
        """Nothing more will happen: everything is visible once, and no dead letter is left."""
        remainder = len(self._store.tables.get(DEAD_LETTER_TABLE, []))
        if remainder or self._dead:
            self.report("stuck", f"{remainder} dead letters are left, of {sorted(self._dead)}")
        super().final()

    def _state(self) -> dict[tuple[str, str], tuple[int, int]]:
        """A replay writes old rows late, which is what it is for."""
        if self._replayed:
            return self._serial()
        tables = {name: rows for name, rows in self._store.tables.items() if name not in _OWN}
        return {(t, row["k"]): (row["x"], row["s"]) for t, rows in tables.items() for row in rows}
