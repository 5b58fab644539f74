"""A coordinator's orders on the virtual clock, for the job's drivers and for replays of dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starrocks_txn_sink.coordinator.coordinator import Order, Orders
from starrocks_txn_sink.errors import DeadlineExceeded, StarRocksSinkError
from starrocks_txn_sink.protocol.label import Aborted, Steps, Unknown
from starrocks_txn_sink.writer.runner import Performer

from .scheduler import Done, Fiber, Node, Send


def follow(orders: Orders[Any], carry_out: Callable[[Order, Done], None], callback: Done) -> None:
    """As `coordinator.coordinator.perform_all`, one order after the other; `callback` gets the result or the error."""

    def go_on(answer: object) -> None:
        try:
            order = orders.throw(answer) if isinstance(answer, BaseException) else orders.send(answer)
        except StopIteration as ended:
            callback(ended.value)
        except (StarRocksSinkError, ConnectionError, InterruptedError) as error:
            callback(error)
        else:
            carry_out(order, go_on)

    go_on(None)


def perform(
    node: Node,
    performer: Performer,
    action: Any,
    send: Send,
    callback: Done,
    watch: Callable[[Steps[Any]], Steps[Any]] = lambda steps: steps,
) -> None:
    """As `Performer`, also once the deadline has passed; `watch` may put steps around those of `action`."""
    steps, deadline = performer.steps(action)

    def ended(result: object) -> None:
        if isinstance(result, DeadlineExceeded):
            try:
                result = performer.result_after_deadline(action, result)
            except DeadlineExceeded as error:
                result = error
        callback(performer.explained(action, result) if isinstance(result, Aborted | Unknown) else result)

    Fiber(node, watch(steps), deadline.at, send, ended)
