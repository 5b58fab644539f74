"""The turns of lanes on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from starrocks_txn_sink.protocol.turns import TurnQueue, TurnRequest
from starrocks_txn_sink.protocol.wire import Operation, Request

from .scheduler import Fiber, Scheduler

_LOOK = 0.5  # how soon the end of a dead lane's connection is noticed
_COLLISIONS = 0.05  # of the loads that come without a turn


class TurnDesk:
    """Gives turns to fibers. In some schedules lanes cannot reach it at times, and their first loads may collide."""

    def __init__(self, scheduler: Scheduler, rng: Random) -> None:
        self.broken: Callable[[str], None] = lambda _: None
        self._reached = rng.choice((1.0, 1.0, 0.5, 0.0))  # the share of questions that get through
        self._scheduler, self._rng = scheduler, rng
        self._queue = TurnQueue()
        self._waiting: dict[Fiber, TurnRequest] = {}
        self._holding: dict[Fiber, TurnRequest] = {}

    def ask(self, turn: TurnRequest, fiber: Fiber) -> None:
        """Resume `fiber` when it has its turn, when its time is over, or at once if it does not reach the desk."""
        if self._rng.random() >= self._reached:
            self._scheduler.after(0.0, fiber.resume, None)
            return
        self._leave(fiber)
        fiber.at_end = lambda: self._leave(fiber)
        self._waiting[fiber] = turn
        if self._queue.take(turn, fiber):
            self._grant(fiber)
        else:
            self._scheduler.after(fiber.left(), self._too_late, fiber)
            self._scheduler.after(_LOOK, self._look, turn)

    def collides(self, request: Request, fiber: Fiber) -> bool:
        """Whether a load meets another first load; where all lanes reach the desk it must have waited for its turn."""
        if request.operation is not Operation.LOAD or fiber in self._holding:
            return False
        if self._reached == 1.0:
            self.broken(f"A load into {request.table} under {request.label} has not waited for its turn.")
        return self._rng.random() < _COLLISIONS

    def _grant(self, fiber: Fiber) -> None:
        self._holding[fiber] = self._waiting.pop(fiber)
        if [*self._holding.values()].count(self._holding[fiber]) > 1:
            self.broken(f"Two loads have the turn at {self._holding[fiber].table}.")
        self._scheduler.after(0.0, fiber.resume, None)

    def _too_late(self, fiber: Fiber) -> None:
        if fiber in self._waiting:
            fiber.resume(None)

    def _leave(self, fiber: Fiber) -> None:
        self._holding.pop(fiber, None)
        self._waiting.pop(fiber, None)
        following = self._queue.leave(fiber)
        if isinstance(following, Fiber):
            self._grant(following)

    def _look(self, turn: TurnRequest) -> None:
        """The connections of dead lanes have ended."""
        for fiber in [fiber for fiber in (*self._holding, *self._waiting) if not fiber.node.alive]:
            self._leave(fiber)
        if turn in self._waiting.values():
            self._scheduler.after(_LOOK, self._look, turn)
