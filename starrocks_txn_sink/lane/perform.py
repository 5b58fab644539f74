"""Performing an action: the coordinator's wish becomes steps of a label, run over the transport.

What comes back is what `completed` of the coordinator expects: a result of the steps, or the error they raised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import DeadlineExceeded, OutcomeUnknown, RowsRejected
from starrocks_txn_sink.events import Event, Listener, nobody
from starrocks_txn_sink.lane.actions import (
    Action,
    BeginAction,
    CheckAction,
    CommitAction,
    LoadAction,
    RecoverAction,
    RollbackAction,
)
from starrocks_txn_sink.lane.authority import Authority
from starrocks_txn_sink.lane.body import load_body
from starrocks_txn_sink.lane.rejections import Query, explain_or_keep
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.transaction import label as protocol
from starrocks_txn_sink.transaction.label import Aborted, Label, Outcome, Patience, Unknown
from starrocks_txn_sink.transaction.steps import Ledger, Result, Steps, run
from starrocks_txn_sink.wire import Transport

_EXPLAIN_SECONDS = 10.0  # for asking why rows were rejected
_ROLLBACK_SECONDS = 10.0  # a rollback may go on after the batch's deadline, but not for long


@dataclass(frozen=True, slots=True)
class Performer:
    """Runs actions; may be called from several threads at once."""

    options: SinkOptions
    transport: Transport
    clock: Clock
    deadline: Deadline
    rng: random.Random
    patience: Patience = field(default_factory=Patience)
    listener: Listener = nobody
    authority: Authority | None = None
    ledger: Ledger | None = None
    query: Query | None = None

    def __call__(self, action: Action) -> object:
        """Do `action` and return what its steps returned; raises StarRocksSinkError as they do."""
        started = self.clock.monotonic()
        result = self._perform(action)
        name = type(action).__name__.removesuffix("Action").lower()
        fields = {"label": action.label, "seconds": self.clock.monotonic() - started, "result": type(result).__name__}
        self.listener(Event(f"{name}.ended", fields))
        return result

    def _perform(self, action: Action) -> object:
        label = Label(self.options.database, action.label)
        match action:
            case BeginAction():
                return self._run(protocol.begin(label, self.options.begin_headers()))
            case LoadAction():
                return self._load(label, action)
            case CheckAction():
                return self._run(self._authority().check(self.rng))
            case CommitAction():
                return self._explained(self._settle(label, protocol.commit(label, self.patience, self.rng)))
            case RecoverAction(_, spans):
                return self._settle(label, self._authority().recover(label.name, spans, self.rng))
            case RollbackAction():
                return self._roll_back(label)

    def _load(self, label: Label, action: LoadAction) -> protocol.Loaded:
        body = load_body(action.pieces, self.options.compression_of(action.table).value)
        headers = self.options.load_headers(action.table)
        return self._run(protocol.load(label, action.table, body, headers, self.patience, self.rng))

    def _authority(self) -> Authority:
        if self.authority is None:
            raise TypeError("A lane without a ledger has no owner to check.")
        return self.authority

    def _settle(self, label: Label, steps: Steps[Outcome]) -> Outcome:
        """Whatever happens, a commit that was sent ends in an outcome or in an error about its owner."""
        try:
            return self._run(steps)
        except DeadlineExceeded as late:
            error = OutcomeUnknown(
                "The batch's deadline passed before the server said whether the transaction was committed.",
                label=label.name,
            )
            error.__cause__ = late
            return Unknown(label.name, error)

    def _explained(self, outcome: Outcome) -> Outcome:
        """Rejected rows with the server's reasons, if it can be asked for them."""
        if self.query is None or not isinstance(outcome, Aborted) or not isinstance(outcome.error, RowsRejected):
            return outcome
        limit = Deadline.after(min(_EXPLAIN_SECONDS, self.deadline.remaining()), self.clock)
        values = self.options.show_rejected_values
        error = explain_or_keep(outcome.error, self.query, outcome.label, limit, values=values)
        return Aborted(outcome.label, error)

    def _roll_back(self, label: Label) -> object:
        deadline = Deadline.after(_ROLLBACK_SECONDS, self.clock)
        try:
            return run(protocol.roll_back(label, self.patience, self.rng), self.transport, self.clock, deadline)
        except DeadlineExceeded as late:
            return late

    def _run(self, steps: Steps[Result]) -> Result:
        return run(steps, self.transport, self.clock, self.deadline, self.ledger)
