"""Whose turn it is at a table of a label: one load at a time, over all lanes of a job.

The server takes one load of a (label, table) at a time, and refuses the others (wire contract 4.5). Two first loads at
once it does not always refuse: then it cancels the label for all tables. So a load waits for its turn first, and keeps
it until its steps have ended. A turn orders loads and proves nothing: where none can be had, the load goes ahead, and
the server's refusal orders the loads.

`Turns` is the way to who gives the turns, and answers which lane begins a label (`protocol.openings`); `TurnQueue` is
the giving itself.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.protocol.openings import Answer, LaneQuestion


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A load's question for its turn at `table`; the answer is None, and means that the load may go ahead."""

    label: str
    table: str


class Turns(Protocol):
    """Waits for turns and answers. May be called from several threads at once; a thread has one turn at most."""

    def take(self, turn: TurnRequest, deadline: Deadline) -> None:
        """Wait for `turn`, no longer than `deadline`; returns without it where none can be had."""

    def ask(self, question: LaneQuestion, deadline: Deadline) -> Answer | None:
        """The answer to `question`, waited for no longer than `deadline`; None where none can be had."""

    def leave(self) -> None:
        """End this thread's turn, and what it was told to begin and has not."""


class TurnQueue:
    """Gives the turns in the order in which they were asked for; a holder has one turn, or waits for one.

    Lanes may take tables in any order: a load asks for its turn before it sends a byte, and has no other one. So nobody
    who has a turn waits for another one, no circle of waits can close, and who has waited longest goes next.
    """

    def __init__(self) -> None:
        self._queues: dict[TurnRequest, deque[Hashable]] = {}  # the first of each has the turn
        self._places: dict[Hashable, TurnRequest] = {}

    def take(self, turn: TurnRequest, holder: Hashable) -> bool:
        """Whether `holder` has the turn at once; else `leave` of another one names it."""
        self._places[holder] = turn
        queue = self._queues.setdefault(turn, deque())
        queue.append(holder)
        return queue[0] is holder

    def is_awaited(self, holder: Hashable) -> bool:
        """Whether `holder` has a turn that another one waits for."""
        turn = self._places.get(holder)
        return turn is not None and self._queues[turn][0] is holder and len(self._queues[turn]) > 1

    def leave(self, holder: Hashable) -> Hashable | None:
        """Take `holder` out of its queue; returns who has the turn by that, None if nobody has."""
        turn = self._places.pop(holder, None)
        if turn is None:
            return None
        queue = self._queues[turn]
        had_it = queue[0] is holder
        queue.remove(holder)
        if not queue:
            del self._queues[turn]
            return None
        return queue[0] if had_it else None
