"""One root for every error, and two mixins that tell the retry policy what to do with it.

An error carries what is needed to find the place (`label`, `table`, `status`, …) and ends in a sentence that tells the
user what to do. Row values and secrets never enter a message. Errors survive pickling, because Spark ships them from
executors to the driver.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Transient:
    """Mixin: the same work may succeed when it is tried again (as a new attempt under a new label)."""


class Terminal:
    """Mixin: trying again cannot help; somebody has to change something first."""


class StarRocksSinkError(Exception):
    """Root of all errors of this package.

    `code` is stable and bounded (metrics and the runbook use it); `context` holds the place: label, table, status, url.
    """

    code: ClassVar[str] = "sink_error"
    hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None, **context: Any) -> None:
        self.message = message
        self.advice = self.hint if hint is None else hint
        self.context = {name: value for name, value in context.items() if value is not None}
        super().__init__(message)

    @property
    def retryable(self) -> bool:
        """Whether the same work may succeed when it is tried again."""
        return isinstance(self, Transient)

    def __str__(self) -> str:
        place = ", ".join(f"{name}={value}" for name, value in sorted(self.context.items()))
        parts = [self.message + (f" [{place}]" if place else "")]
        if self.advice:
            parts.append(self.advice)
        return " ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.advice, self.context)


def _rebuild(kind: type[StarRocksSinkError], message: str, hint: str, context: dict[str, Any]) -> StarRocksSinkError:
    return kind(message, hint=hint, **context)


# --- what the user wrote ---


class OptionError(StarRocksSinkError, Terminal, ValueError):
    """An option, or a combination of options, cannot work; the message names the option and what is allowed."""

    code = "option"


class InputError(StarRocksSinkError, Terminal, ValueError):
    """The DataFrame or one of its rows breaks the sink's or the assembler's contract; the message names the place."""

    code = "input"


class SourceTransactionError(InputError):
    """A source transaction that cannot be released whole, such as one whose BEGIN was never seen or that stays open."""

    code = "source_transaction"


class Unordered(InputError):
    """Rows or events of a source partition did not arrive in the order of their positions, though they were said to."""

    code = "unordered"


# --- the way to the server ---


class TransportError(StarRocksSinkError, Transient):
    """No usable reply arrived. `effect_possible` tells whether the request may have taken effect all the same."""

    code = "transport"
    effect_possible: ClassVar[bool] = True


class NotSent(TransportError):
    """The request surely had no effect: no address could be connected to, or the redirect was never followed."""

    code = "not_sent"
    effect_possible = False
    hint = "Check load_url, the network and that the frontend is running."


class ReplyLost(TransportError):
    """The request was sent at least in part and no reply came back; whether it took effect is unknown."""

    code = "reply_lost"


class BadReply(TransportError):
    """Something answered, but not as the transaction interface does: no JSON, no `Status`, an unknown one, HTTP 5xx."""

    code = "bad_reply"
    hint = "Check that load_url names StarRocks frontends (http_port, 8030 by default) and no proxy answers for them."


class HttpRefused(StarRocksSinkError, Terminal):
    """An HTTP status that no StarRocks frontend or backend gives and that a repetition would meet again: 3xx, 4xx.

    Whether the request took effect is not said; a take-over settles a commit that ends like this.
    """

    code = "http_refused"


class QueryFailed(TransportError):
    """StarRocks could not be asked over the MySQL protocol, or the connection broke before the answer."""

    code = "query_failed"
    hint = "Check query_url (query_port, 9030 by default) and that the leader frontend is running."


class QueryRefused(StarRocksSinkError, Terminal):
    """StarRocks refused a statement over the MySQL protocol: privileges, a missing table, a syntax it does not know."""

    code = "query_refused"


class DeadlineExceeded(StarRocksSinkError, Transient, TimeoutError):
    """The time allowed for the whole batch is used up; the message names the step that was waiting."""

    code = "deadline"
    hint = "Raise batch_deadline, or find out why the named step takes so long."


class AuthenticationFailed(StarRocksSinkError, Terminal):
    """HTTP 401: the server does not know the user or the password (contract section 7)."""

    code = "authentication"
    hint = "Check username and password."


class RedirectRefused(StarRocksSinkError, Terminal):
    """The frontend redirected to a host that is neither configured nor allowed; no credentials were sent there."""

    code = "redirect_refused"
    hint = "Add the host to redirect_hosts, or rewrite it with redirect_map."


# --- what the server said ---


class ServerRefused(StarRocksSinkError, Terminal):
    """The server refused an operation with a status that a repetition would only meet again."""

    code = "refused"


class BeginFailed(StarRocksSinkError, Transient):
    """No StarRocks transaction could be begun."""

    code = "begin_failed"


class TooManyTransactions(BeginFailed):
    """`current running txns on db … larger than limit` (contract section 4.13)."""

    code = "too_many_transactions"
    hint = "Use fewer lanes, or raise the frontend's max_running_txn_num_per_db."


class LoadFailed(StarRocksSinkError, Transient):
    """A load was not accepted; its StarRocks transaction has been rolled back."""

    code = "load_failed"


class CommitFailed(StarRocksSinkError, Transient):
    """The server did not commit; nothing of the StarRocks transaction became visible."""

    code = "commit_failed"


class RowsRejected(StarRocksSinkError, Terminal):
    """The server judged rows unfit at commit (types, NOT NULL, lengths, filter ratio); nothing became visible."""

    code = "rows_rejected"
    hint = "Ask the server for the reasons (information_schema.loads: TRACKING_SQL), correct the rows or the table."


class OutcomeUnknown(StarRocksSinkError, Terminal):
    """Whether a commit took effect could not be established within the deadline; the sink stops and never guesses."""

    code = "outcome_unknown"
    hint = "Look the label up (SHOW TRANSACTION, get_load_state) before the job is started again."


class Fenced(StarRocksSinkError, Terminal):
    """Somebody newer took over the job or the lane; this writer stops, its open transaction is rolled back."""

    code = "fenced"
    hint = "Run one query per job: give a second one another `job`, and restart this one only when the other has ended."


class SourceChanged(StarRocksSinkError, Terminal):
    """The source tells another story than the one that the ledger has: other content at a position already written."""

    code = "source_changed"


class TransactionTimedOut(StarRocksSinkError, Terminal):
    """A source transaction alone outlived the StarRocks transaction's timeout."""

    code = "transaction_timed_out"
    hint = (
        "Raise `timeout` above the time that the largest source transaction takes; with `compact`, the time that a "
        "whole micro-batch takes, or make micro-batches smaller (maxOffsetsPerTrigger, maxFilesPerTrigger)."
    )
