"""Whether a job's ledger has passed a position of the source; waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from starrocks_txn_ops.ledger_reader import LedgerReader, look_until
from starrocks_txn_ops.positions import COLUMNS, Judgement, Kind, Position, Reached, has_passed, parse
from starrocks_txn_ops.verify.sides import Place
from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import PositionOfOtherSource

REST_SECONDS: Final = 30.0
_LESS: Final = 2.0  # seconds, once a wait was in vain
_LOOK_SECONDS: Final = 60.0  # for one look at the ledger
_NOTHING: Final = "its ledger has nothing of the source"
_IN_LEDGER: Final = (Kind.LSN, Kind.BINLOG)


@dataclass(slots=True)
class Rest:
    """Notices that nothing comes any more: what it is shown has been the same for so many seconds."""

    seconds: float
    clock: Clock
    _seen: object = None
    _since: float = 0.0

    def lasts(self, seen: object) -> bool:
        """Whether this was all there was to see for the seconds."""
        now = self.clock.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since >= self.seconds


@dataclass(slots=True)
class Passage:
    """The ledger of one job; `partition` is the source partition of the connector, "" where it is not known.

    `numbered`: positions of the ledger are places in the source's log themselves, as with whole transactions of
    Debezium. A wait ends early if for `rest_seconds` neither the ledger nor the source, which is at `place_now`, moves:
    only a further commit brings the ledger there.
    """

    reader: LedgerReader
    job: str
    partition: str
    seconds: float
    clock: Clock
    numbered: bool
    in_vain: bool = False
    last: Judgement = field(default_factory=lambda: Judgement(False))
    place_now: Callable[[], Place] | None = None
    rest_seconds: float = REST_SECONDS

    def resting(self) -> Callable[[object], bool]:
        """Says of what is seen of the ledger, look by look, whether it and the source rest."""
        rest = Rest(self.rest_seconds, self.clock)
        return lambda seen: self.place_now is not None and rest.lasts((self.place_now(), seen))

    def passed(self, place: Place) -> bool:
        """Wait until the ledger has passed the position, at most `seconds`; `last` says what it lacked.

        Raises PositionOfOtherSource if the job reads another source, and a TransportError at the end of the time.
        """
        positions, rests = [parse(text) for text in place], self.resting()
        deadline = Deadline.after(min(self.seconds, _LESS) if self.in_vain else self.seconds, self.clock)

        def look() -> Judgement | None:
            self.last = self.judge(positions)
            if not self.last.passed and rests(self.last):
                self.last = replace(self.last, lacks=f"{self.last.lacks or _NOTHING}; {self.both_rest}")
                return self.last
            return self.last if self.last.passed else None

        look_until(look, deadline)
        self.in_vain = not self.last.passed
        return self.last.passed

    @property
    def both_rest(self) -> str:
        """Why a wait has ended early, and what to do."""
        return (
            f"neither the job nor the source has moved for {self.rest_seconds:g} s, so a commit to a table of the job "
            "has to bring it there, as a heartbeat does"
        )

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
