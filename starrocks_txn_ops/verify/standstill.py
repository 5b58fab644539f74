"""Has a job stand still at a snapshot of its source while tables are compared (`protocol.bound`).

The job itself goes on to what the snapshot shows, says so, and waits. Where it is there already, as at a source that
rests behind a commit to a table of the job, no further commit is needed. Whether it has stood until a table was
compared is seen in its ledger: each of its commits changes the rows there, and so do a repair and a replay of dead
letters.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from starrocks_txn_ops.ledger_reader import look_until
from starrocks_txn_ops.positions import parse
from starrocks_txn_ops.verify.held import REPAIRED, Held, Holder
from starrocks_txn_ops.verify.passage import Passage
from starrocks_txn_ops.verify.progress import Progress
from starrocks_txn_ops.verify.sides import Source
from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator.ownership import REPLAYED
from starrocks_txn_sink.errors import Fenced, OptionError, StarRocksSinkError
from starrocks_txn_sink.protocol import bound as bounds
from starrocks_txn_sink.protocol.bound import EXACT, NEAR, Bound
from starrocks_txn_sink.protocol.label import LedgerRequest
from starrocks_txn_sink.protocol.ledger import MARKER, NAME_BYTES, POSITION, ReadMarker
from starrocks_txn_sink.protocol.source_places import PLACE
from starrocks_txn_sink.sql.connection import SqlLedger

Result = TypeVar("Result")

_TRIES: Final = 5
"""Holds until one is not lost at once, and snapshots until one shows exactly what the job has written."""
_PAUSE: Final = 0.5  # seconds before the next hold, times its number
_LEDGER_SECONDS: Final = 60.0  # for one look at the ledger
_ROWS: Final = (
    "SELECT kind, name, position, token, label FROM {} WHERE job = %s AND (kind IN (%s, %s) OR (kind = %s AND name IN "
    "(%s, %s))) ORDER BY kind, name"
)
_NOT_YET: Final = "no transaction behind it has come, or no job runs that heeds it (an earlier release does not)"
_OTHER_ORDER: Final = "commits of the same moment were visible there in another order than in the log"
_OVER: Final = "its seconds are over"
_TOO_MANY: Final = "too many transactions run at the source"
_WITHOUT: Final = "Without --exact the tables are compared while the job goes on."


@dataclass(slots=True)
class Standstill:
    """A job on its way to a bound, or at it; `lacks` says why it does not stand. It may go on at the time `until`.

    `there`: it was at the bound already when it was bound in a hold.
    """

    passage: Passage
    ledger: SqlLedger
    clock: Clock
    until: float
    lacks: str = ""
    bound: Bound | None = None
    there: bool = False
    _rows: list[tuple[Any, ...]] = field(default_factory=list)

    def bind(self, source: Source, held: Held | None = None) -> None:
        """Bind the job to the snapshot, in place of the one before, in a hold or while it waits; `lacks` says why not.

        Raises OptionError for a source whose snapshots have no place in its log.
        """
        if source.unknown:
            raise OptionError(f"The job cannot be held at the source's position. {source.unknown}", hint=_WITHOUT)
        positions = [parse(text) for text in source.position]
        judgement = self.passage.judge(positions)
        seconds = int(self.until - self.clock.monotonic())
        numbers = {log: number for position in positions for log, number in position.numbers.items()}
        token, text = secrets.token_hex(8), source.position[-1]
        bound = Bound(token, judgement.partition, numbers, source.shown, seconds, text)
        if not judgement.partition:
            self.lacks = judgement.lacks
        elif seconds <= 0:
            self.lacks = _OVER
        elif len(bound.name.encode()) > NAME_BYTES:
            self.lacks = _TOO_MANY
        else:
            self.lacks, self.bound = "", bound
            self._ask(bounds.WriteBound(self.passage.job, bound))
            # All that the job has written was committed before the snapshot, which shows it but for what still runs.
            self.there = held is not None and judgement.at and source.shown.rpartition(":")[2] == ""
            if held is not None and self.there:
                self._rows = self._state()
                held.check()

    def comes(self) -> bool:
        """Wait until the job stands; whether all that the snapshot shows is visible then, and nothing else."""
        bound, left = self.bound, self.until - self.clock.monotonic()
        if bound is None or self.lacks:
            return False
        if self.there:
            return self.stands()
        rests = self.passage.resting()

        def look() -> str | None:
            how = next((how for how in (EXACT, NEAR) if self._ask(self._marker(bound, how))), None)
            return how or (self.passage.both_rest if rests(self._state()) else None)

        how = look_until(look, Deadline.after(max(0.0, min(self.passage.seconds, left)), self.clock))
        self._rows = self._state()
        self.lacks = {EXACT: "", NEAR: _OTHER_ORDER, None: _NOT_YET}.get(how, f"{_NOT_YET}; {how}")
        self.passage.in_vain = how == self.passage.both_rest
        return not self.lacks and self.stands()

    def stands(self) -> bool:
        """Whether the job has written nothing since it stands, and may not go on yet."""
        stands = self.bound is not None and self._state() == self._rows
        return stands and self.clock.monotonic() < self.until

    def free(self) -> None:
        """Have the job go on; without an answer it does so by itself."""
        bound, self.bound = self.bound, None
        if bound is not None:
            with contextlib.suppress(StarRocksSinkError):
                self._ask(bounds.WriteBound(self.passage.job, replace(bound, seconds=0)))

    def _marker(self, bound: Bound, how: str) -> ReadMarker:
        return ReadMarker(self.passage.job, bounds.REACHED, bound.reached(how))

    def _state(self) -> list[tuple[Any, ...]]:
        """The rows of the ledger that each commit for the job changes."""
        names = (POSITION, PLACE, MARKER, REPAIRED, REPLAYED)
        return self.passage.reader_now().rows(_ROWS, self.passage.job, *names)

    def _ask(self, request: LedgerRequest) -> Any:
        return self.ledger.execute(request, Deadline.after(_LEDGER_SECONDS, self.clock))


@contextlib.contextmanager
def standing(
    open_snapshot: Callable[[], AbstractContextManager[Source]], passage: Passage, holder: Holder, progress: Progress
) -> Iterator[tuple[Source, Standstill | None]]:
    """The source, and the job that stands at its snapshot; None if it does not, which `progress` says.

    The job goes on behind the block, and by itself after the holder's seconds.
    """
    clock, ledger = holder.clock, SqlLedger(holder.connection, holder.options.database)
    still = Standstill(passage, ledger, clock, clock.monotonic() + holder.seconds)
    with contextlib.ExitStack() as end:
        end.callback(still.free)
        snapshots = end.enter_context(contextlib.ExitStack())

        def bound(held: Held | None = None) -> Source:
            snapshots.close()
            source = snapshots.enter_context(open_snapshot())
            passage.place_now = source.place
            still.bind(source, held)
            return source

        source = _in_hold(holder, bound)
        progress.says(
            f"The job is at the source's position {source.position[0]}, and waits there."
            if still.there
            else f"The job goes on to the source's position {source.position[0]}, and waits there, at most "
            f"{holder.seconds} s. It is there once a commit behind it comes to one of its tables."
        )
        for number in range(_TRIES):
            source = bound() if number else source  # the driver finds it in place of the one before
            if still.comes() or still.lacks != _OTHER_ORDER:
                break
        if still.lacks:
            still.free()
            progress.says(f"The job does not stand at the source's position, so nothing is exact: {still.lacks}.")
        yield source, None if still.lacks else still


def _in_hold(holder: Holder, work: Callable[[Held], Result]) -> Result:
    """Do the work while the job is held; again if its driver has taken it over at the same moment."""
    for number in itertools.count(1):
        try:
            with holder.hold() as held:
                return work(held)
        except Fenced:
            if number == _TRIES:
                raise
            holder.clock.sleep(_PAUSE * number)
    raise AssertionError("The loop has no end of its own.")
