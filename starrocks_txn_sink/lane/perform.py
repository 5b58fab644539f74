"""Performing an action: the coordinator's wish becomes steps of a label, run over the transport.

What comes back is what `completed` of the coordinator expects: a result of the steps, or the error they raised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import DeadlineExceeded, OutcomeUnknown, RowsRejected
from starrocks_txn_sink.events import Listener, Span, nobody
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
from starrocks_txn_sink.lane.rejections import Query, explain_or_keep, filtered_rows
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.transaction import label as protocol
from starrocks_txn_sink.transaction.label import Aborted, Committed, Label, Patience, Unknown
from starrocks_txn_sink.transaction.steps import Ledger, Steps, run
from starrocks_txn_sink.wire import Transport

_EXPLAIN_SECONDS = 10.0  # for asking why rows were rejected
_ROLLBACK_SECONDS = 10.0  # a rollback may go on after the batch's deadline, but not for long


@dataclass(frozen=True, slots=True)
class Performer:
    """Runs actions; may be called from several threads at once.

    `listener` hears of each action and of its requests. `filtered` gets, by label, the rows of each table that the
    server left out of a commit (`max_filter_ratio`).
    """

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
    filtered: dict[str, dict[str, int]] = field(default_factory=dict)

    def __call__(self, action: Action) -> object:
        """Do `action` and return what its steps returned; raises StarRocksSinkError as they do.

        Emits `step.started`, then `step.completed` or `step.failed`, with `label`, `step` and, of a load, its `table`
        and `bytes`. A returned outcome that has an error (Aborted, Unknown) is a failure too.
        """
        if self.listener is nobody:
            return self._perform(action)
        with Span(self.listener, self.clock.monotonic, "step", _fields(action)) as span:
            result = self._perform(action)
            span.end(result, **({} if result is None else {"result": type(result).__name__.lower()}))
            return result

    def steps(self, action: Action) -> tuple[Steps[object], Deadline]:
        """What `action` asks, and when that must have ended: for whoever runs steps in another way than `__call__`."""
        label = Label(self.options.database, action.label)
        match action:
            case BeginAction():
                return protocol.begin(label, self.options.begin_headers()), self.deadline
            case LoadAction():
                return self._load(label, action), self.deadline
            case CheckAction():
                return self._authority().check(self.rng), self.deadline
            case CommitAction():
                return protocol.commit(label, self.patience, self.rng), self.deadline
            case RecoverAction(_, spans):
                return self._authority().recover(label.name, spans, self.rng), self.deadline
            case RollbackAction():
                deadline = Deadline.after(_ROLLBACK_SECONDS, self.clock)
                return protocol.roll_back(label, self.patience, self.rng), deadline

    def late(self, action: Action, error: DeadlineExceeded) -> object:
        """What it means that the steps of `action` did not end in time: a result, or `error` raised.

        Whatever happens, a commit that was sent ends in an outcome or in an error about its owner.
        """
        match action:
            case CommitAction(label) | RecoverAction(label):
                unknown = OutcomeUnknown(
                    "The batch's deadline passed before the server said whether the transaction was committed.",
                    label=label,
                )
                unknown.__cause__ = error
                return Unknown(label, unknown)
            case RollbackAction():
                return error
            case _:
                raise error

    def _perform(self, action: Action) -> object:
        steps, deadline = self.steps(action)
        try:
            result = run(steps, self.transport, self.clock, deadline, self.ledger, self.listener)
        except DeadlineExceeded as error:
            result = self.late(action, error)
        return self._explained(action, result)

    def _load(self, label: Label, action: LoadAction) -> Steps[protocol.Loaded]:
        codec, csv = self.options.compression_of(action.table).value, self.options.writes_csv(action.table)
        body = load_body(action.pieces, codec, csv=csv)
        headers = self.options.load_headers(action.table)
        return protocol.load(label, action.table, body, headers, self.patience, self.rng)

    def _authority(self) -> Authority:
        if self.authority is None:
            raise TypeError("A lane without a ledger has no owner to check.")
        return self.authority

    def _explained(self, action: Action, result: object) -> object:
        """Rejected rows with the server's reasons, if it can be asked for them; filtered ones are counted."""
        if self.query is None or not isinstance(action, CommitAction):
            return result
        limit = Deadline.after(min(_EXPLAIN_SECONDS, self.deadline.remaining()), self.clock)
        if isinstance(result, Committed) and self.options.lets_rows_go:
            self.filtered[result.label] = filtered_rows(self.query, result.label, limit)
        if not isinstance(result, Aborted) or not isinstance(result.error, RowsRejected):
            return result
        values = self.options.show_rejected_values
        error = explain_or_keep(result.error, self.query, result.label, limit, values=values)
        return Aborted(result.label, error)


def _fields(action: Action) -> dict[str, object]:
    fields: dict[str, object] = {"label": action.label, "step": type(action).__name__.removesuffix("Action").lower()}
    return fields | {"table": action.table, "bytes": action.bytes} if isinstance(action, LoadAction) else fields
