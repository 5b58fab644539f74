"""Quarantine: find the source transactions that the server rejects, and make dead letters of them.

The server judges at commit, and its reasons name no source transaction: the only way to find the rejected ones is to
commit parts. A part is a run of whole source transactions in order, up to a position of each source partition. So each
committed part is progress, the ledger leaves its rows out of the next one, and no commit has to be undone.

The search halves: of the source transactions that were rejected together, the first half is tried; after its commit the
rejected one is among the others. A part of one source transaction that is rejected becomes a dead letter. So n source
transactions take about log2(n) labels for each rejected one, and each label runs the lanes again. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starrocks_txn_sink.errors import RowsRejected

if TYPE_CHECKING:
    from starrocks_txn_sink.coordinator.coordinator import LaneShare

Cut = tuple[str, int]
"""A source partition, and a position at which a source transaction ends."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why the only source transaction of a part becomes a dead letter: the server's reason to reject `label`."""

    reason: str
    label: str


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that lanes load under one label: those up to `upto` of the source partitions named there.

    Without a ledger they are also those behind the positions `after`, which this write has committed. With
    `dead_letter` the part is one source transaction, whose rows go to the dead-letter table.
    """

    upto: Mapping[str, int] | None = None
    dead_letter: DeadLetter | None = None
    after: Mapping[str, int] = field(default_factory=dict)


EVERYTHING = Part()


@dataclass(slots=True)
class Quarantine:
    """The search of one write: at most `most` dead letters.

    `part` is the next part to write. Then `note` gets the lanes' shares, and `reject` or `commit` says what came of it.
    """

    most: int
    count: int = 0
    part: Part = EVERYTHING
    _suspects: list[Cut] = field(default_factory=list)  # the first rejected source transaction ends at one, or before
    _cuts: list[Cut] = field(default_factory=list)  # of the part that is written now
    _reached: dict[str, int] = field(default_factory=dict)  # the last position loaded of it, by source partition
    _source_transactions: int = 0  # of that part

    def note(self, shares: Sequence[LaneShare]) -> None:
        """Learn which source transactions of the part are loaded; lanes that stop may have read more."""
        spans = [span for share in shares for receipt in share.loaded for span in receipt.positions]
        self._reached = {span.partition: span.last for span in spans}
        self._source_transactions = sum(span.source_transactions for span in spans)
        cuts = {partition: positions for share in shares for partition, positions in share.cuts.items()}
        self._cuts = [
            (partition, position)
            for partition in sorted(cuts.keys() & self._reached.keys())
            for last in (self._reached[partition],)
            for position in (*(position for position in cuts[partition] if position < last), last)
        ]

    def reject(self, error: RowsRejected) -> None:
        """The server has rejected rows of the part; raises `error` if that ends the write."""
        if self.part.dead_letter is not None or not self._cuts:
            raise error  # the dead letters themselves were rejected
        self._suspects = self._cuts
        if self._source_transactions > 1:
            self._halve()
            return
        if self.count >= self.most:
            error.advice = (
                f"max_quarantined ({self.most}) is reached: correct the source or the table, or raise max_quarantined."
            )
            raise error
        label = str(error.context.get("label", ""))
        self.part = Part(dict(self._cuts), DeadLetter(error.message, label))

    def commit(self, *, stopped: bool = False) -> bool:
        """What is loaded of the part is visible; returns whether everything is.

        Lanes that have `stopped` may have left out rows of the part. Those that read Kafka would stop at the same place
        again, so the search goes on with a smaller part, not with the rest of this one.
        """
        if self.part.upto is None:
            return not stopped
        reached = self._reached if stopped else self.part.upto
        self._suspects = [
            (partition, position)
            for partition, position in self._suspects
            if position > reached.get(partition, position - 1)
        ]
        if self.part.dead_letter is not None:
            if self._suspects:
                return False  # not reached yet
            self.count += 1
        if self._suspects:
            self._halve()
        else:
            self.part = EVERYTHING
        return False

    def _halve(self) -> None:
        """The next part: the first half of the suspects, and all of one; its own cuts are finer."""
        self.part = Part(dict(self._suspects[: max(1, len(self._suspects) // 2)]))
