"""Why the server rejected rows: asked over SQL after a commit was refused, told without the rows' values.

`information_schema.loads` has the counts by table, `load_tracking_logs` the reasons (wire contract 5.10, 6.5, 7.5). A
reason of the server's repeats the row that it is about, so only what is harmless is shown: which rule, which column.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator.actions import (
    Action,
    BeginAction,
    CheckAction,
    CommitAction,
    LoadAction,
    RecoverAction,
    RollbackAction,
)
from starrocks_txn_sink.coordinator.ownership import LaneOwnership
from starrocks_txn_sink.errors import DeadlineExceeded, OutcomeUnknown, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.label import Aborted, Committed, Label, Ledger, RetryPolicy, Steps, Unknown, run
from starrocks_txn_sink.protocol.wire import Transport
from starrocks_txn_sink.rows.body import load_body
from starrocks_txn_sink.telemetry.events import Listener, Span, ignore_event

Query = Callable[[str, tuple[object, ...], Deadline], list[tuple[Any, ...]]]
"""As `LeaderConnection.query`."""

_COUNTS = "SELECT TABLE_NAME, FILTERED_ROWS FROM information_schema.loads WHERE LABEL = %s AND FILTERED_ROWS > 0"
_LOGS = "SELECT TRACKING_LOG FROM information_schema.load_tracking_logs WHERE LABEL = %s"
_MOST_REASONS = 5
_SHOWN_BYTES = 500

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), told)
    for pattern, told in (
        (r"NULL value in non-nullable column|NULL .* NOT NULL", "NULL in a NOT NULL column"),
        (r"too long|exceeds? the (?:max )?length|length .* exceed|longer than", "a text that is too long"),
        (r"out of range|overflow", "a value out of range"),
        (r"does(?: not|n't) fit type", "a value that does not fit the column's type"),
        (r"op type", "an unknown __op"),
        (r"column count|value count", "another number of columns"),
        (r"parse|json|invalid|convert|cast", "a value that cannot be read"),
    )
)
_COLUMN = re.compile(r"column:? '?`?(\w+)|(?:type|length) of '(\w+)'", re.IGNORECASE)
_REPEATED = re.compile(r"\((\d+) rows")


@dataclass(frozen=True, slots=True)
class Rejections:
    """Rejected rows by table, and the lines of the server's log."""

    rows: dict[str, int]
    lines: tuple[str, ...]


def ask(query: Query, label: str, deadline: Deadline) -> Rejections:
    """What the server knows of the rows it rejected under `label`; raises QueryFailed or QueryRefused."""
    counts = {str(table): int(rows) for table, rows in query(_COUNTS, (label,), deadline)}
    logs = [str(row[0]) for row in query(_LOGS, (label,), deadline) if row[0]]
    lines = (line.strip() for log in logs for line in log.splitlines())
    return Rejections(counts, tuple(line for line in lines if line))


def filtered_rows(query: Query, label: str, deadline: Deadline) -> dict[str, int]:
    """Rows by table that the server left out of the committed `label`, because `max_filter_ratio` let it; empty when it
    cannot be asked."""
    try:
        return {str(table): int(rows) for table, rows in query(_COUNTS, (label,), deadline)}
    except (StarRocksSinkError, ValueError):
        return {}


def explained(error: RowsRejected, found: Rejections, *, values: bool = False) -> RowsRejected:
    """`error` with tables, counts and reasons; with `values` the server's own lines, which repeat rows."""
    if not found.rows and not found.lines:
        return error
    counts = ", ".join(f"{rows} row{'s' if rows > 1 else ''} of {table}" for table, rows in sorted(found.rows.items()))
    told = found.lines[:_MOST_REASONS] if values else reasons(found.lines)
    why = "; ".join(line[:_SHOWN_BYTES] for line in told)
    message = f"The server rejected {counts or 'rows'}, so nothing of the transaction became visible"
    hint = "Correct the rows or the table, or set on_bad_rows='quarantine'."
    context = {"table": ", ".join(sorted(found.rows)) or None, **error.context}
    return RowsRejected(f"{message}: {why or 'the server gave no reason'}.", hint=hint, **context)


def reasons(lines: Iterable[str]) -> list[str]:
    """What the lines say, without the values they repeat: rule and column, the most frequent first."""
    counted: Counter[str] = Counter()
    for line in lines:
        head = line.split(" Row:", 1)[0]
        rule = next((told for pattern, told in _RULES if pattern.search(head)), "a reason of another kind")
        column = _COLUMN.search(head)
        repeated = _REPEATED.search(head)
        name = next((part for part in column.groups() if part), "") if column else ""
        counted[f"{rule}, column {name}" if name else rule] += int(repeated[1]) if repeated else 1
    most = [f"{told} ({count})" for told, count in counted.most_common(_MOST_REASONS)]
    return [*most, "…"] if len(counted) > _MOST_REASONS else most


def explain_or_keep(
    error: RowsRejected, query: Query, label: str, deadline: Deadline, *, values: bool = False
) -> RowsRejected:
    """As `explained`; the error as it is when the server cannot be asked: the question must not hide it."""
    try:
        return explained(error, ask(query, label, deadline), values=values)
    except (StarRocksSinkError, ValueError):
        return error


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
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    listener: Listener = ignore_event
    ownership: LaneOwnership | None = None
    ledger: Ledger | None = None
    query: Query | None = None
    filtered: dict[str, dict[str, int]] = field(default_factory=dict)

    def __call__(self, action: Action) -> object:
        """Do `action` and return what its steps returned; raises StarRocksSinkError as they do.

        Emits `step.started`, then `step.completed` or `step.failed`, with `label`, `step` and, of a load, its `table`
        and `bytes`. A returned outcome that has an error (Aborted, Unknown) is a failure too.
        """
        if self.listener is ignore_event:
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
                return self._ownership().check(self.rng), self.deadline
            case CommitAction():
                return protocol.commit(label, self.retry_policy, self.rng), self.deadline
            case RecoverAction(_, spans):
                return self._ownership().recover(label.name, spans, self.rng), self.deadline
            case RollbackAction():
                deadline = Deadline.after(_ROLLBACK_SECONDS, self.clock)
                return protocol.roll_back(label, self.retry_policy, self.rng), deadline

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
        return protocol.load(label, action.table, body, headers, self.retry_policy, self.rng)

    def _ownership(self) -> LaneOwnership:
        if self.ownership is None:
            raise TypeError("A lane without a ledger has no owner to check.")
        return self.ownership

    def _explained(self, action: Action, result: object) -> object:
        """Rejected rows with the server's reasons, if it can be asked for them; filtered ones are counted."""
        if self.query is None or not isinstance(action, CommitAction):
            return result
        limit = Deadline.after(min(_EXPLAIN_SECONDS, self.deadline.remaining()), self.clock)
        if isinstance(result, Committed) and self.options.allows_filtered_rows:
            self.filtered[result.label] = filtered_rows(self.query, result.label, limit)
        if not isinstance(result, Aborted) or not isinstance(result.error, RowsRejected):
            return result
        values = self.options.show_rejected_values
        error = explain_or_keep(result.error, self.query, result.label, limit, values=values)
        return Aborted(result.label, error)


def _fields(action: Action) -> dict[str, object]:
    fields: dict[str, object] = {"label": action.label, "step": type(action).__name__.removesuffix("Action").lower()}
    return fields | {"table": action.table, "bytes": action.bytes} if isinstance(action, LoadAction) else fields
