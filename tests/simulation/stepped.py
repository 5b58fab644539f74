"""The lane's performer without its waiting: an action becomes steps and their deadline, for a fiber to step through."""

from __future__ import annotations

from typing import Any

from starrocks_txn_sink.errors import DeadlineExceeded
from starrocks_txn_sink.lane import perform
from starrocks_txn_sink.lane.actions import Action
from starrocks_txn_sink.lane.perform import Performer
from starrocks_txn_sink.transaction import label as protocol
from starrocks_txn_sink.transaction.label import Label, Outcome
from starrocks_txn_sink.transaction.steps import Steps


class SteppedPerformer(Performer):
    """Everything of the performer's but `run`: what an action means, its body, its headers, its deadline."""

    def steps(self, action: Action) -> tuple[Steps[Any], float]:
        """The steps of `action` and when they must have ended."""
        made = self._perform(action)
        return made if isinstance(made, tuple) else (made, self.deadline.at)

    def ended(self, action: Action, result: object) -> object:
        """What the performer makes of a deadline that passed; the rest is as the steps said."""
        if not isinstance(result, DeadlineExceeded):
            return result
        return _Late(self, result)._perform(action)

    def _run(self, steps: Steps[Any]) -> Any:
        return steps

    def _settle(self, label: Label, steps: Steps[Outcome]) -> Any:
        del label
        return steps

    def _roll_back(self, label: Label) -> Any:
        return protocol.roll_back(label, self.patience, self.rng), self.clock.monotonic() + perform._ROLLBACK_SECONDS


class _Late(Performer):
    """The performer as it is, in a world where the deadline has passed."""

    def __init__(self, of: Performer, late: DeadlineExceeded) -> None:
        super().__init__(of.options, of.transport, of.clock, of.deadline, of.rng, of.patience, authority=of.authority)
        object.__setattr__(self, "late", late)

    def _run(self, steps: Steps[Any]) -> Any:
        steps.close()
        raise self.late

    def _roll_back(self, label: Label) -> object:
        del label
        return self.late
