"""The driver's knowledge of the source's snapshot: its marks go into the ledger with the rows, then into the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from starrocks_txn_sink.coordinator.coordinator import LaneShare
from starrocks_txn_sink.protocol.snapshots import (
    MORE,
    ONE,
    OVER,
    READING,
    SPREAD,
    Marks,
    Progress,
    joined,
    mark_row,
    then,
    whole,
)
from starrocks_txn_sink.telemetry import Event, Listener, ignore_event
from starrocks_txn_sink.writer.messages import CarryOver, Message, of_kind


@dataclass(slots=True)
class SnapshotProgress:
    """`marks` are those in the ledger. Marks of rows that wait for a commit are in `waiting`.

    `partitions` gives the topics and partitions that the micro-batch's query reads, none if they are hidden.
    """

    job: str = ""
    marks: Marks = field(default_factory=dict)
    listener: Listener = ignore_event
    partitions: Callable[[], Collection[tuple[str, int]]] = tuple
    waiting: Marks = field(default_factory=dict)
    _taken: Marks = field(default_factory=dict)

    def take(self, messages: Sequence[Message], *, whole: bool = True) -> None:
        """The lanes of a label have read rows with these marks; those of a label before were rolled back.

        Unless they load the rows `whole`, as in a quarantine, none of the marks counts: the lanes read all rows, and
        the quarantine ends with a label for whatever is left.
        """
        if not whole:
            self._taken = self.waiting
            return
        again = any(share.stopped for share in of_kind(messages, LaneShare))  # a lane with `reached` reads on
        shares = [carried for carried in of_kind(messages, CarryOver) if carried.reached is not None or not again]
        marks = self._without_early_ends(joined(carried.marks for carried in shares))
        self._taken = then(self.waiting, marks)

    def _without_early_ends(self, marks: dict[str, str]) -> dict[str, str]:
        """SPREAD in place of an end that other partitions of the table's topic may not have reached.

        The topic has Debezium's name for the table; behind a rule with other names any topic may be it.
        """
        ends = [name for name, mark in marks.items() if mark in (ONE, OVER) and name != whole(name.partition(":")[0])]
        if not ends:
            return marks
        counts = Counter(topic for topic, _ in self.partitions())
        most = max(counts.values(), default=1)
        return marks | {name: SPREAD for name in ends if counts.get(name.replace(":", ".", 1), most) > 1}

    def rows(self, now_text: Callable[[], str]) -> list[memoryview]:
        """The marks that are new in the ledger with the commit of the label."""
        after = self._after()
        changed = [name for name, mark in after.items() if self.marks.get(name) != mark]
        return [mark_row(self.job, name, after[name], now_text()) for name in changed]

    def keep(self) -> None:
        """The label had no row, so its marks wait for the next commit."""
        self.waiting, self._taken = self._taken, {}

    def commit(self) -> None:
        """The rows of the label are visible; says what that means."""
        before, after = self.marks, self._after()
        self.marks, self.waiting, self._taken = after, {}, {}
        if after != before:
            tables = [name.partition(":")[2] for name, mark in after.items() if mark == OVER != before.get(name)]
            self.say([table for table in tables if table])

    def say(self, ended: Sequence[str] = ()) -> None:
        """Tell listeners and the log; `ended` are tables whose last row has just become visible."""
        progress = Progress.of(self.marks)
        fields = {"job": self.job, "tables": progress.tables, "over": progress.over, "text": progress.text}
        if progress.tables:
            self.listener(Event("snapshot.progressed", {**fields, "tables_over": list(ended)}))
        if progress.ended:
            self.listener(Event("snapshot.ended", {"job": self.job, "tables": progress.tables}))

    def _after(self) -> dict[str, str]:
        marks = then(self.marks, self._taken)
        return {name: READING if mark == MORE else mark for name, mark in marks.items()}
