"""The driver's knowledge of the source's snapshot: its marks go into the ledger with the rows, then into the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starrocks_txn_sink.coordinator.coordinator import LaneShare
from starrocks_txn_sink.protocol.snapshots import MORE, OVER, READING, Marks, Progress, joined, mark_row, then
from starrocks_txn_sink.telemetry import Event, Listener, ignore_event
from starrocks_txn_sink.writer.messages import CarryOver, Message, of_kind


@dataclass(slots=True)
class SnapshotProgress:
    """`marks` are those in the ledger. Marks of rows that wait for a commit are in `waiting`."""

    job: str = ""
    marks: Marks = field(default_factory=dict)
    listener: Listener = ignore_event
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
        self._taken = then(self.waiting, joined(carried.marks for carried in shares))

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
