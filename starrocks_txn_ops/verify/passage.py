"""Whether a job's ledger has passed a position of the source; waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from starrocks_txn_ops.ledger_reader import LedgerReader, look_until
from starrocks_txn_ops.positions import COLUMNS, Judgement, Kind, Position, Reached, has_passed, parse
from starrocks_txn_ops.verify.sides import Place
from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import PositionOfOtherSource

_LESS: Final = 2.0  # seconds, once a wait was in vain
_LOOK_SECONDS: Final = 60.0  # for one look at the ledger
_IN_LEDGER: Final = (Kind.LSN, Kind.BINLOG)


@dataclass(slots=True)
class Passage:
    """The ledger of one job; `partition` is the source partition of the connector, "" where it is not known.

    `numbered`: positions of the ledger are places in the source's log themselves, as with whole transactions of
    Debezium.
    """

    reader: LedgerReader
    job: str
    partition: str
    seconds: float
    clock: Clock
    numbered: bool
    in_vain: bool = False
    last: Judgement = field(default_factory=lambda: Judgement(False))

    def passed(self, place: Place) -> bool:
        """Wait until the ledger has passed the position, at most `seconds`; `last` says what it lacked.

        Raises PositionOfOtherSource if the job reads another source, and a TransportError at the end of the time.
        """
        positions = [parse(text) for text in place]
        deadline = Deadline.after(min(self.seconds, _LESS) if self.in_vain else self.seconds, self.clock)

        def look() -> Judgement | None:
            self.last = self.judge(positions)
            return self.last if self.last.passed else None

        self.in_vain = look_until(look, deadline) is None
        return not self.in_vain

    def reader_now(self) -> LedgerReader:
        """The reader for one look at the ledger."""
        return replace(self.reader, deadline=Deadline.after(_LOOK_SECONDS, self.clock))

    def judge(self, positions: Sequence[Position]) -> Judgement:
        """Whether the position is passed now, by the first of its forms that the ledger knows."""
        reached = Reached.of_rows(self.reader_now().rows(f"SELECT {COLUMNS} FROM {{}} WHERE job = %s", self.job))
        partition = self.partition if any(name.startswith(self.partition) for name in reached.numbers) else ""
        last = positions[-1]
        if any(log for logs in reached.numbers.values() for log in logs):
            for position in positions[:-1]:
                with contextlib.suppress(PositionOfOtherSource):
                    return has_passed(reached, position, partition)
        elif self.numbered and last.kind in _IN_LEDGER:  # an earlier release's, whose own numbers are the log's
            last = Position(Kind.NUMBER, {"": max(last.numbers.values())}, last.text)
        return has_passed(reached, last, partition)
