"""A line for each step of a lane's StarRocks transactions: begin, load, check, commit, recover, roll back."""

from __future__ import annotations

from collections.abc import Callable

from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.events import Event, Listener
from starrocks_txn_sink.lane.actions import Action, LoadAction

Perform = Callable[[Action], object]


def told(perform: Perform, listener: Listener, clock: Clock) -> Perform:
    """`perform`, which tells `step.ended` (label, step, seconds, result) or `step.failed` (… code) of every action.

    A load's table and bytes are told too. What an outcome's or a failure's error says stays with the error.
    """

    def tell(action: Action) -> object:
        started = clock.monotonic()
        place: dict[str, object] = {"label": action.label, "step": _step(action)}
        if isinstance(action, LoadAction):
            place |= {"table": action.table, "bytes": action.bytes}
        try:
            result = perform(action)
        except Exception as error:
            code = error.code if isinstance(error, StarRocksSinkError) else type(error).__name__
            listener(Event("step.failed", {**place, "seconds": clock.monotonic() - started, "code": code}))
            raise
        cause = getattr(result, "error", result)
        end = {"code": cause.code} if isinstance(cause, StarRocksSinkError) else {}
        end |= {"result": type(result).__name__.lower()} if result is not None else {}
        name = "step.failed" if end.get("code") else "step.ended"
        listener(Event(name, {**place, "seconds": clock.monotonic() - started, **end}))
        return result

    return tell


def _step(action: Action) -> str:
    return type(action).__name__.removesuffix("Action").lower()
