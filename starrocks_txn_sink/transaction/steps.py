"""Steps: a protocol as a generator that yields what it needs, and the one place that waits and sends for it.

A protocol generator yields `Request` or `Wait` and is sent a `Reply`, a `TransportError` or None. It never sees a
socket, a thread or a clock, so the simulator steps through the very code that production runs.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import TransportError
from starrocks_txn_sink.events import Listener, Span, nobody
from starrocks_txn_sink.wire import Request, Transport


@dataclass(frozen=True, slots=True)
class Wait:
    """Let `seconds` pass before the next step; `reason` names what is waited for in errors and events."""

    seconds: float
    reason: str


class Question:
    """Something that is asked of the ledger rather than of the transaction interface; see `ledger.ledger`."""

    __slots__ = ()


class Ledger(Protocol):
    """Answers questions. Raises QueryFailed when an answer did not come, which may mean that it took effect."""

    def ask(self, question: Question, deadline: Deadline) -> Any: ...


class NoLedger:
    """For protocols that ask the transaction interface only."""

    def ask(self, question: Question, deadline: Deadline) -> Any:
        del deadline
        raise TypeError(f"{type(question).__name__} needs a ledger.")


Answer = Any  # of a Request: Reply or TransportError; of a Question: its answer or TransportError; of a Wait: None
Result = TypeVar("Result")
Steps = Generator[Request | Question | Wait, Answer, Result]


def run(
    steps: Steps[Result],
    transport: Transport,
    clock: Clock,
    deadline: Deadline,
    ledger: Ledger | None = None,
    listener: Listener = nobody,
) -> Result:
    """Drive `steps` to their end; raises what they raise, and DeadlineExceeded when `deadline` passes before.

    DeadlineExceeded and terminal transport errors end the steps at once: nothing sensible can be asked any more.
    Emits `request.started`, then `request.completed` (with `status`) or `request.failed`, for each request.
    """
    try:
        needed = next(steps)
        while True:
            needed = steps.send(_provide(needed, transport, ledger or NoLedger(), clock, deadline, listener))
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        steps.close()


def _provide(
    needed: Request | Question | Wait,
    transport: Transport,
    ledger: Ledger,
    clock: Clock,
    deadline: Deadline,
    listener: Listener,
) -> Answer:
    if isinstance(needed, Wait):
        clock.sleep(deadline.bounded(needed.seconds, needed.reason))
        return None
    try:
        if isinstance(needed, Question):
            return ledger.ask(needed, deadline)
        if listener is nobody:
            return transport.send(needed, deadline)
        with Span(listener, clock.monotonic, "request", _fields(needed)) as span:
            reply = transport.send(needed, deadline)
            span.end(reply, status=reply.status.value)
            return reply
    except TransportError as error:
        return error


def _fields(request: Request) -> dict[str, Any]:
    size = len(request.body) if request.body is not None else 0
    return {"operation": request.operation.value, "label": request.label, "table": request.table, "bytes": size}


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `first` to `longest` seconds, each shortened by a random part so that writers spread."""

    first: float = 0.05
    longest: float = 2.0

    def seconds(self, attempt: int, rng: random.Random) -> float:
        """The wait after the `attempt`-th failure, counted from 0."""
        full: float = min(self.longest, self.first * 2.0 ** min(attempt, 30))
        return full * rng.uniform(0.5, 1.0)
