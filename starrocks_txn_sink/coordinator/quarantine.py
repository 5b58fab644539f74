"""Quarantine: find the source transactions with bad rows, and make dead letters of them.

Rows that the sink itself judges to be bad are named by the lanes: a lane sets their source transactions aside while it
reads them, or, if it has loaded rows of them before, when the lanes run again.

Other bad rows only the server knows. It judges at commit, and its reasons name no source transaction: the only way to
find the rejected ones is to commit parts. A part is a run of whole source transactions in order, up to a position of
each source partition. So each committed part is progress, the ledger leaves its rows out of the next one, and no commit
has to be undone.

The search halves: of the source transactions that were rejected together, the first half is tried; after its commit the
rejected one is among the others. The server names the tables with bad rows, so only source transactions with rows of
these tables are suspects. The last suspect of a part that is rejected becomes a dead letter. So n suspects take about
log2(n) labels for each rejected one, and each label runs the lanes again.

The server has no reason for rows that are alone in a table's load, as those of the last suspect often are. But parts of
one search lie in each other, so a larger part that had as many rejected rows of the table had the same ones, and what
the server said of them is the reason. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.errors import RowsRejected, advise
from starrocks_txn_sink.protocol.refusals import UNSAID

Cut = tuple[str, int]
"""A source partition, and a position at which a source transaction ends."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a source transaction becomes dead letters, and the label under which that was found out."""

    reason: str
    label: str


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that lanes load under one label: those up to `upto` of the source partitions named there.

    Without a ledger they are also those behind the positions `after`, which this write has committed. The rows of the
    source transactions in `set_aside` go to the dead-letter table. Lanes name the cuts of source transactions that have
    rows of `tables`; none: of all.
    """

    upto: Mapping[str, int] | None = None
    set_aside: Mapping[Cut, DeadLetter] = field(default_factory=dict)
    tables: frozenset[str] = frozenset()
    after: Mapping[str, int] = field(default_factory=dict)


EVERYTHING = Part()


@dataclass(slots=True)
class Quarantine:
    """The search of one write: at most `most` dead letters.

    `part` is the next part to write. Then `note` gets the lanes' shares, and `reject` or `commit` says what came of it;
    or lanes have met bad rows too late, and `add` takes them.
    """

    most: int
    count: int = 0
    part: Part = EVERYTHING
    _set_aside: dict[Cut, DeadLetter] = field(default_factory=dict)  # known, and not written yet
    _suspects: list[Cut] = field(default_factory=list)  # the first rejected source transaction ends at one, or before
    _cuts: list[Cut] = field(default_factory=list)  # of the part that is written now
    _reached: dict[str, int] = field(default_factory=dict)  # the last position loaded of it, by source partition
    _dead_letters: int = 0  # source transactions of that part
    _said: dict[str, tuple[int, str]] = field(default_factory=dict)  # of this search, by table: rejected rows, and why
    _over: RowsRejected | None = None

    def add(self, places: Mapping[Cut, DeadLetter]) -> Part:
        """The part of now with these source transactions set aside; raises RowsRejected for too many."""
        self._set_aside |= places
        self._limit(len(self._set_aside), next(iter(places.values())).reason)
        self.part = replace(self.part, set_aside=dict(self._set_aside))
        return self.part

    def note(self, shares: Sequence[LaneShare]) -> None:
        """Learn which source transactions of the part are loaded.

        Raises RowsRejected if the lanes have set more aside than may be.
        """
        receipts = [receipt for share in shares for receipt in share.loaded]
        self._reached = {span.partition: span.last for receipt in receipts for span in receipt.positions}
        self._dead_letters = sum(receipt.dead_lettered_transactions for receipt in receipts)
        self._limit(self._dead_letters, next((share.set_aside for share in shares if share.set_aside), ""))
        self._cuts = [
            (partition, position)
            for partition, positions in sorted(
                (partition, positions) for share in shares for partition, positions in share.cuts.items()
            )
            for position in positions
        ]

    def reject(self, error: RowsRejected) -> None:
        """The server has rejected rows of the part; raises `error` if that ends the write."""
        if error is self._over:
            raise error
        if self.part.upto is None:  # a new search
            self._said.clear()
        self._said |= {table: (rows, why) for table, (rows, why) in error.by_table.items() if why}
        tables = frozenset(filter(None, str(error.context.get("table") or "").split(", ")))
        if self.part.tables and not self.part.tables & tables:  # others than those whose cuts the lanes have named
            self.part = replace(self.part, tables=tables)
            return
        if not self._cuts:
            raise error  # the dead letters themselves were rejected
        self._suspects = self._cuts
        if len(self._suspects) > 1:
            self._halve(tables)
            return
        if self.count + len(self._set_aside) >= self.most:
            limit = f"max_quarantined ({self.most}) is reached"
            advise(error, f"{limit}: correct the source or the table, or raise max_quarantined.")
            raise error
        label = str(error.context.get("label", ""))
        self.add({self._suspects[0]: DeadLetter(self._reason_of(error), label)})

    def _reason_of(self, error: RowsRejected) -> str:
        """The message of the last suspect's rejection, with what the server has said of the same rows before."""
        reasons = [
            self._said[table][1]
            for table, (rows, _) in error.by_table.items()
            if self._said.get(table, (0, ""))[0] == rows
        ]
        return error.message.replace(UNSAID, "; ".join(reasons)) if reasons else error.message

    def commit(self, *, stopped: bool = False) -> bool:
        """What is loaded of the part is visible; returns whether everything is.

        Lanes that have `stopped` may have left out rows of the part. Those that read Kafka would stop at the same place
        again, so the search goes on with a smaller part, not with the rest of this one.
        """
        self.count += self._dead_letters
        self._set_aside = {
            (partition, position): letter
            for (partition, position), letter in self._set_aside.items()
            if position > self._reached.get(partition, position - 1)
        }
        upto, tables = self.part.upto, self.part.tables
        self.part = Part(set_aside=dict(self._set_aside)) if self._set_aside else EVERYTHING
        if upto is None:
            return not stopped
        reached = self._reached if stopped else upto
        self._suspects = [
            (partition, position)
            for partition, position in self._suspects
            if position > reached.get(partition, position - 1)
        ]
        if self._suspects:
            self._halve(tables)
        return False

    def _halve(self, tables: frozenset[str]) -> None:
        """The next part: the first half of the suspects, and all of one; its own cuts are finer."""
        half = dict(self._suspects[: max(1, len(self._suspects) // 2)])
        self.part = Part(half, dict(self._set_aside), tables)

    def _limit(self, count: int, reason: str) -> None:
        if self.count + count > self.most:
            self._over = RowsRejected(
                f"More source transactions have bad rows than max_quarantined ({self.most}) allows: {reason}",
                hint="Correct the source or the table, or raise max_quarantined.",
            )
            raise self._over
