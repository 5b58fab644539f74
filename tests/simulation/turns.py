"""The turns of lanes on the virtual clock, and which lane begins a label."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from starrocks_txn_sink.protocol.openings import Answers, LaneQuestion, Openings, Word
from starrocks_txn_sink.protocol.turns import TurnQueue, TurnRequest
from starrocks_txn_sink.protocol.wire import Operation, Request

from .scheduler import Fiber, Node, Scheduler

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
        self._openings = Openings()
        self._drivers: dict[str, Node] = {}  # by open label
        self._opened: set[str] = set()
        self._loading: dict[str, str] = {}  # the try that loads, by label and lane
        self._asking: dict[Fiber, tuple[str, Callable[[object], None]]] = {}  # the label, and who gets the answer
        self._telling: dict[Fiber, str] = {}  # the label that it is to begin
        self.abandoned: set[str] = set()  # labels whose lane died while it was to begin them

    def open(self, label: str, driver: Node) -> None:
        """`driver` lets its lanes begin `label`."""
        self._openings.open(label)
        self._drivers[label] = driver
        self._opened.add(label)

    def close(self, label: str) -> bool:
        """The lanes of `label` have ended, or count no more; whether one of them may have begun it."""
        self._look_at(label)
        del self._drivers[label]
        closed = self._openings.close(label, self._scheduler.now)
        self._send(closed.answers)
        return closed.told

    def hear(self, question: LaneQuestion, fiber: Fiber) -> None:
        """Answer a lane's question once its driver can; its process may be stopped, or gone."""
        driver = self._drivers.get(question.label)
        if (driver is not None and not driver.alive) or self._rng.random() >= self._reached:
            self._forget(fiber)
            self._scheduler.after(0.0, fiber.resume, None)
            return
        fiber.at_end = lambda: self._forget(fiber)
        self._asking[fiber] = question.label, _once(fiber)
        self._scheduler.after(fiber.left(), self._asking[fiber][1], None)
        self._scheduler.after(_LOOK, self._look_at, question.label)
        if driver is None:
            self._take(question, fiber)
        else:
            driver.when_awake(self._take, question, fiber)

    def _take(self, question: LaneQuestion, fiber: Fiber) -> None:
        if fiber in self._asking:  # else it is gone, and so is what it was told
            self._send(self._openings.answer(question, fiber, self._scheduler.now))

    def _send(self, answers: Answers) -> None:
        for fiber, answer in answers:
            assert isinstance(fiber, Fiber)
            label, respond = self._asking.pop(fiber)
            if answer.word is Word.BEGIN:
                self._telling[fiber] = label
            elif answer.word is Word.BEGUN:
                self._telling.pop(fiber, None)
            self._scheduler.after(0.0, respond, answer)

    def _forget(self, fiber: Fiber) -> None:
        """The fiber asks no more: its steps have ended, its process, or its connection."""
        self._asking.pop(fiber, None)
        self._telling.pop(fiber, None)
        self._send(self._openings.leave(fiber))

    def _look_at(self, label: str) -> None:
        """The connections of dead lanes have ended, and so have all of a dead driver."""
        driver = self._drivers.get(label)
        for fiber in [fiber for fiber, told in self._telling.items() if told == label and not fiber.node.alive]:
            self.abandoned.add(label)
            self._forget(fiber)
        waiting = [fiber for fiber, (asked, _) in self._asking.items() if asked == label]
        for fiber in waiting:
            respond = self._asking[fiber][1]
            if not fiber.node.alive or (driver is not None and not driver.alive):
                self._forget(fiber)
                respond(None)
        if label in self._telling.values() or any(asked == label for asked, _ in self._asking.values()):
            self._scheduler.after(_LOOK, self._look_at, label)

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
        if request.operation is not Operation.LOAD:
            return False
        self._load(request.label, fiber.node.name)
        if fiber in self._holding:
            return False
        if self._reached == 1.0:
            self.broken(f"A load into {request.table} under {request.label} has not waited for its turn.")
        return self._rng.random() < _COLLISIONS

    def _load(self, label: str, name: str) -> None:
        """One try at a lane loads under a label that lanes begin, whatever became of its claim."""
        lane, _, _ = name.rpartition(".")
        if label in self._opened and lane and self._loading.setdefault(f"{label} {lane}", name) != name:
            self.broken(f"{name} loads under {label}, as another try at its lane did.")

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


def _once(fiber: Fiber) -> Callable[[object], None]:
    """Resume `fiber` with the first answer; its patience may end before."""
    answered = False

    def respond(answer: object) -> None:
        nonlocal answered
        if not answered:
            answered = True
            fiber.resume(answer)

    return respond
