"""Where a lane's trouble was, in words for its errors."""

from __future__ import annotations

from starrocks_txn_sink.errors import StarRocksSinkError, TransactionTimedOut
from starrocks_txn_sink.lane.actions import Action, BeginAction, CheckAction, CommitAction, LoadAction, RollbackAction
from starrocks_txn_sink.transaction.label import Committed


def trouble(action: Action, result: object, before: str) -> str:
    """A clause about the last action that hung or failed, "" if there was none since the last commit: a deadline that
    passes a moment later, while the lane rolls back or waits for its next attempt, names it.

    `action` has just ended with `result`: its error, an outcome with an error, or anything else when it went well.
    `before` is the clause so far, which outlives what went well and a rollback, however that went.
    """
    if isinstance(result, Committed):
        return ""
    error = getattr(result, "error", result)
    if isinstance(action, RollbackAction) or not isinstance(error, StarRocksSinkError):
        return before
    return f", after {_words(action)} failed ({error.code})"


def outlived(timeout: float, open_partition: str | None, label: str) -> TransactionTimedOut:
    """The rows of `label` took longer than `timeout` seconds; `open_partition` is still inside a source transaction."""
    inside = f"; source partition {open_partition} is still inside one source transaction." if open_partition else "."
    return TransactionTimedOut(
        f"The rows of one StarRocks transaction took longer than its timeout of {timeout:g} s{inside}", label=label
    )


def _words(action: Action) -> str:
    match action:
        case BeginAction():
            return "begin"
        case LoadAction():
            return f"the load into {action.table}"
        case CheckAction():
            return "the owner check"
        case CommitAction():
            return "the commit"
        case _:
            return "the take-over after the commit"
