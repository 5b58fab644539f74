"""The comparison of the tables with the truth, row by row: what is lost, duplicated or wrong, and where first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starrocks_demo.truth import EventRow, Truth

_SHOWN = 5  # differences per table described in full

Row = tuple[Any, ...]


@dataclass(slots=True)
class TableVerdict:
    """How one table differs from what it should hold. `examples` name the first differences by key."""

    table: str
    rows: int = 0
    missing: int = 0
    unexpected: int = 0
    duplicated: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not (self.missing or self.unexpected or self.duplicated or self.wrong)

    def note(self, difference: str) -> None:
        if len(self.examples) < _SHOWN:
            self.examples.append(f"{self.table}: {difference}")


def compare(table: str, expected: Mapping[int, Row], found: Iterable[Row]) -> TableVerdict:
    """Compare rows (key first) with `expected` by key."""
    verdict = TableVerdict(table)
    seen: set[int] = set()
    for row in found:
        key = row[0]
        verdict.rows += 1
        if key not in expected:
            verdict.unexpected += 1
            verdict.note(f"unexpected row {row}")
            continue
        if key in seen:
            verdict.duplicated += 1
            verdict.note(f"key {key} is there more than once")
        seen.add(key)
        if row != (right := tuple(expected[key])):
            verdict.wrong += 1
            verdict.note(f"key {key} is {row}, should be {right}")
    for key in expected:
        if key not in seen:
            verdict.missing += 1
            verdict.note(f"key {key} is missing, should be {tuple(expected[key])}")
    return verdict


class TransactionTally:
    """Which source transactions the events show: whole, in part, more than once."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._events: dict[tuple[int, int], set[int]] = {}
        self._repeated: set[tuple[int, int]] = set()

    def watch(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Hand the rows of order_events on, counting them."""
        for row in rows:
            event = EventRow._make(row)
            if row[0] in self._truth.order_events:
                place = (event.source_partition, event.txn_no)
                events = self._events.setdefault(place, set())
                if event.event_id in events:
                    self._repeated.add(place)
                events.add(event.event_id)
            yield row

    @property
    def visible(self) -> int:
        """Finished transactions of which every event is there."""
        return sum(len(events) == self._truth.rows_of(*place) for place, events in self._events.items())

    @property
    def lost(self) -> int:
        """Finished transactions of which at least one event is missing."""
        return self._truth.source_transactions - self.visible

    @property
    def duplicated(self) -> int:
        """Finished transactions of which at least one event is there more than once."""
        return len(self._repeated)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the run was right, and every reason why it was not."""

    written: int
    visible: int
    lost: int
    duplicated: int
    tables: tuple[TableVerdict, ...]
    samples: int
    torn: int
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # what else went wrong in the run, as sentences

    @property
    def differences(self) -> list[str]:
        """One sentence per kind of failure, then the first examples; empty when everything is right."""
        found = list(self.problems)
        if self.torn:
            found.append(f"{self.torn} of {self.samples} samples saw a torn state.")
        if not self.samples:
            found.append("The reader never got an answer, so nothing was watched.")
        if not self.written:
            found.append("No source transaction was written, so nothing was shown.")
        if self.lost:
            found.append(f"{self.lost} source transactions are lost.")
        if self.duplicated:
            found.append(f"{self.duplicated} source transactions are duplicated.")
        found.extend(
            f"{table.table} differs: {table.missing} rows missing, {table.unexpected} unexpected, "
            f"{table.duplicated} duplicated, {table.wrong} wrong."
            for table in self.tables
            if not table.right
        )
        return [*found, *self.evidence, *(example for table in self.tables for example in table.examples)]

    @property
    def right(self) -> bool:
        return not self.differences


def judge_tables(
    truth: Truth,
    found: Mapping[str, Iterable[Row]],
    *,
    samples: int,
    torn: int,
    evidence: Iterable[str] = (),
    problems: Iterable[str] = (),
) -> Verdict:
    """Compare every table with `truth`; `found` gives the rows of each by the table's name."""
    tally = TransactionTally(truth)
    tables = (
        compare("orders", truth.orders, found["orders"]),
        compare("order_items", truth.order_items, found["order_items"]),
        compare("order_events", truth.order_events, tally.watch(found["order_events"])),
    )
    return Verdict(
        written=truth.source_transactions,
        visible=tally.visible,
        lost=tally.lost,
        duplicated=tally.duplicated,
        tables=tables,
        samples=samples,
        torn=torn,
        evidence=tuple(evidence),
        problems=tuple(problems),
    )
