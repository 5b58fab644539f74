"""The checker: it looks at every version of the tables that a reader can see, and at what writers say.

It knows the truth of the source and nothing of the protocol. Kinds of violation: `lost`, `duplicated`, `torn`, `stuck`,
and `other`: rows of unfinished source transactions or changed ones, wrong order, a ledger that differs from the data, a
receipt without its transaction, a commit by a writer that had been superseded, an error that nothing calls for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson

from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from tests.support.model_store import Change, ModelStore

from .source import Cut, Source, SourceTransaction
from .trace import Trace

KINDS = ("lost", "duplicated", "torn", "stuck", "other")


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    text: str


@dataclass(slots=True)
class Published:
    """What the checker remembers of a visible StarRocks transaction."""

    rows: int
    positions: dict[str, int]
    receipts: int = 0


class Checker:
    """Gets every version, receipt, take-over and acknowledgement; `violations` are what was wrong."""

    def __init__(self, source: Source, store: ModelStore, job: str, trace: Trace) -> None:
        self.violations: list[Violation] = []
        self.published: dict[str, Published] = {}
        self._source = source
        self._store = store
        self._job = job
        self._trace = trace
        self._by_place: dict[tuple[str, int], SourceTransaction] = {
            (transaction.partition, transaction.position): transaction
            for transactions in source.truth
            for transaction in transactions
        }
        self._contents = {
            (transaction.partition, transaction.position, seq): (table, orjson.loads(content))
            for transactions in source.truth
            for transaction in transactions
            for seq, (table, content) in enumerate(transaction.rows)
        }
        self._seen: set[tuple[str, int, int]] = set()
        self._truth = {transactions[0].partition: transactions for transactions in source.truth}
        self._next = dict.fromkeys(self._truth, 0)
        self._order: dict[tuple[str, str], tuple[int, int]] = {}
        self._superseded: dict[str, str] = {}
        self.most_tables: int | None = None  # that have room under a label
        self.keyed: frozenset[str] = frozenset()  # tables of which a StarRocks transaction has one row per key
        self._replaced = 0  # sum of the rows that are not visible, because a later one replaced them
        store.watch = self.version

    def report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))
        self._trace.say("CHECKER", f"{kind}: {text}")

    # --- each visible version ---

    def version(self, change: Change, tables: dict[str, list[Any]]) -> None:
        """A StarRocks transaction has become visible with `tables`' rows."""
        label = change.label
        self.refuse_superseded(label)
        data = {table for table in tables if not is_own_table(table)}
        if self.most_tables is not None and len(data) > self.most_tables:
            self.report("stuck", f"{label} has {len(data)} tables, so its commit waits for itself")
        counts: Counter[tuple[str, int]] = Counter()
        for table, rows in tables.items():
            if table != LEDGER_TABLE:
                for row in rows:
                    self._row(table, row, counts)
        rows_in = sum(counts.values())
        self._count_replaced(label, tables.get(LEDGER_TABLE, []), counts)
        positions = self._whole(label, counts)
        self.published[label] = Published(rows_in, positions)
        self._ledger(label, positions, counts, tables.get(LEDGER_TABLE, []))

    def refuse_superseded(self, label: str) -> None:
        """Report a label whose writer was excluded by a take-over that has ended."""
        if label.rsplit("-", 3)[0] in self._superseded:
            self.report("other", f"{label} became visible after its writer had been superseded")

    def _row(self, table: str, row: dict[str, Any], counts: Counter[tuple[str, int]]) -> None:
        key = (row["p"], row["x"], row["s"])
        if self._contents.get(key) != (table, row):
            self.report("other", f"a row of no finished source transaction, or with other content: {key} in {table}")
            return
        counts[(row["p"], row["x"])] += 1
        if key in self._seen:
            self.report("duplicated", f"row {key} of {table} is there twice")
        self._seen.add(key)
        place = (table, row["p"])
        if table not in self.keyed and self._order.get(place, (-1, -1)) > key[1:]:
            self.report("other", f"row {key} of {table} came after {self._order[place]}")
        self._order[place] = key[1:]

    def _count_replaced(self, label: str, ledger: list[dict[str, Any]], counts: Counter[tuple[str, int]]) -> None:
        """Count the rows of keyed tables that the transaction need not show, and report those that it shows."""
        for row in ledger:
            if row["kind"] != "position" or row["name"] not in self._next:
                continue
            new = self._truth[row["name"]][self._next[row["name"]] :]
            places = [
                (transaction.partition, transaction.position, seq)
                for transaction in new
                for seq in range(len(transaction.rows))
            ]
            last: dict[tuple[str, str], tuple[str, int, int]] = {}
            for place in places:
                table, content = self._contents[place]
                before = last.get((table, content["k"]))
                if table not in self.keyed or place[1] > row["position"]:
                    continue
                last[(table, content["k"])] = place
                if before is None:
                    continue
                if before in self._seen:
                    self.report("other", f"{label} shows row {before}, which {place} replaces")
                    continue
                self._seen.add(before)
                counts[before[:2]] += 1
                self._replaced += self._contents[before][1]["v"]

    def _whole(self, label: str, counts: Counter[tuple[str, int]]) -> dict[str, int]:
        """Source transactions are whole and follow one another; returns the last position of each partition."""
        positions: dict[str, int] = {}
        for place, count in sorted(counts.items()):
            transaction = self._by_place[place]
            if count % len(transaction.rows):
                self.report("torn", f"{label} shows {count} of {len(transaction.rows)} rows of {place}")
            if transaction.number > self._next[transaction.partition]:
                self.report("lost", f"{label} shows {place}, but what comes before it is missing")
            self._next[transaction.partition] = max(self._next[transaction.partition], transaction.number + 1)
            positions[transaction.partition] = transaction.position
        return positions

    def _ledger(
        self, label: str, positions: dict[str, int], counts: Counter[tuple[str, int]], rows: list[dict[str, Any]]
    ) -> None:
        entries = {row["name"]: row["position"] for row in rows if row["kind"] == "position"}
        if entries != positions:
            self.report("other", f"{label}: the ledger says {entries}, the data {positions}")
        for row in rows:
            expected = sum(count for place, count in counts.items() if place[0] == row["name"])
            if (row["label"], row["row_count"], bool(row["digest"])) != (label, expected, True):
                self.report("other", f"{label}: ledger row {row} for {expected} rows")
        for partition, number in self._next.items():
            entry = self._store.ledger.get((self._job, "position", partition))
            position = entry["position"] if entry else None
            newest = self._truth[partition][number - 1].position if number else None
            if position != newest:
                self.report("other", f"the ledger has {position} for {partition}, the data {newest}")

    # --- a reader, at a moment of its own ---

    def sample(self) -> None:
        """Read all tables in one statement: money was only moved, never made."""
        total = sum(row["v"] for rows in self._store.tables.values() for row in rows) + self._replaced
        if total:
            self.report("torn", f"a reader saw a sum of {total} instead of 0")

    # --- what writers say ---

    def superseded(self, writer: str, token: str) -> None:
        """A take-over has ended that excludes `writer` with its claim `token`.

        Writers are named as their labels begin: `{job}-{epoch}`, or up to the attempt.
        """
        self._superseded[writer] = token

    def is_superseded(self, writer: str) -> bool:
        return writer in self._superseded

    def receipt(self, receipt: Receipt) -> None:
        """A lane says that a StarRocks transaction is visible."""
        published = self.published.get(receipt.label)
        if published is None:
            self.report("lost", f"a receipt for {receipt.label}, which is not visible")
            return
        published.receipts += 1
        spans = {span.partition: span.last for span in receipt.positions}
        if published.receipts > 1 or (receipt.rows, spans) != (published.rows, published.positions):
            self.report("other", f"the receipt of {receipt.label} differs from its transaction, or is its second")

    def acknowledged(self, who: str, cut: Cut) -> None:
        """A driver's micro-batch is done: Spark will never send its rows again."""
        for (partition, number), upto in zip(self._next.items(), cut, strict=True):
            if number < upto:
                self.report("lost", f"{who} acknowledged {upto} source transactions of {partition}; {number} are there")

    def final(self) -> None:
        """Nothing more will happen: everything is there once, as a serial replay would leave it."""
        missing = len(self._contents) - len(self._seen)
        if missing:
            self.report("lost", f"{missing} rows never became visible")
        if not self.violations and self._state() != self._serial():
            self.report("other", "the final state is not the one of a serial replay")
        self.sample()

    def _state(self) -> dict[tuple[str, str], tuple[int, int]]:
        return {(t, row["k"]): (row["x"], row["s"]) for t, rows in self._store.tables.items() for row in rows}

    def _serial(self) -> dict[tuple[str, str], tuple[int, int]]:
        return {(table, row["k"]): key[1:] for key, (table, row) in self._contents.items()}


class AtLeastOnceChecker(Checker):
    """The checker without a ledger: under a label each row is there once, in order; another label may have it again."""

    def version(self, change: Change, tables: dict[str, list[Any]]) -> None:
        earlier, self._seen, self._order = self._seen, set(), {}
        counts: Counter[tuple[str, int]] = Counter()
        for table, rows in tables.items():
            for row in rows:
                self._row(table, row, counts)
        self.published[change.label] = Published(sum(counts.values()), self._whole(change.label, counts))
        self._seen |= earlier

    def _state(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The newest row of each key, whatever came last: an older one may have been written again after it."""
        newest: dict[tuple[str, str], tuple[int, int]] = {}
        for table, rows in self._store.tables.items():
            for row in rows:
                key = (table, row["k"])
                newest[key] = max(newest.get(key, (-1, -1)), (row["x"], row["s"]))
        return newest
