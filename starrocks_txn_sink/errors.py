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

    `code` is stable and bounded: metrics and the runbook use it. `summary` says in one sentence what has happened, for
    the dashboard and the runbook; `hint` says what to do. `context` holds the place: label, table, status, url.
    """

    code: ClassVar[str] = "sink_error"
    summary: ClassVar[str] = "The sink failed for a reason that has no code of its own."
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
    """The message names the option and the values that are allowed."""

    code = "option"
    summary = "An option, or a combination of options, cannot work."


class InputError(StarRocksSinkError, Terminal, ValueError):
    """The message names the place: source partition, position, column."""

    code = "input"
    summary = "The rows or events break a rule of the sink or of the assembler."


class SourceTransactionError(InputError):
    """A source transaction that cannot be released whole, such as one whose BEGIN was never seen or that stays open."""

    code = "source_transaction"
    summary = "A source transaction cannot be released whole."


class Unordered(InputError):
    """`shuffle` is off, so the query promised that order."""

    code = "unordered"
    summary = "Rows or events of a source partition did not arrive in the order of their positions."


# --- the way to the server ---


class TransportError(StarRocksSinkError, Transient):
    """No usable reply arrived. The request may have taken effect all the same, unless the error is a NotSent."""

    code = "transport"
    summary = "StarRocks gave no usable reply."


class NotSent(TransportError):
    """No address could be connected to, or the redirect was never followed."""

    code = "not_sent"
    summary = "The request did not reach its server and had no effect."
    hint = "Check load_url, the network and that the frontend is running."


class ReplyLost(TransportError):
    """The client has sent at least a part of the request."""

    code = "reply_lost"
    summary = "No reply to the request came back, so the request may have taken effect."


class BadReply(TransportError):
    """The reply is no JSON, has no `Status` or an unknown one, or its HTTP status is 5xx."""

    code = "bad_reply"
    summary = "The reply is not one of the transaction interface."
    hint = "Check that load_url names StarRocks frontends (http_port, 8030 by default) and no proxy answers for them."


class HttpRefused(StarRocksSinkError, Terminal):
    """The status is one that no frontend or backend gives and that a repetition would meet again.

    Whether the request took effect is not said; a take-over settles a commit that ends like this.
    """

    code = "http_refused"
    summary = "A server between the sink and StarRocks refused the request with HTTP status 3xx or 4xx."


class QueryFailed(TransportError):
    """No connection could be made, or it broke before the answer."""

    code = "query_failed"
    summary = "StarRocks did not answer a statement over the MySQL protocol."
    hint = "Check query_url (query_port, 9030 by default) and that the leader frontend is running."


class QueryRefused(StarRocksSinkError, Terminal):
    """A privilege or a table is missing, or StarRocks does not know the syntax."""

    code = "query_refused"
    summary = "StarRocks refused a statement over the MySQL protocol."


class DeadlineExceeded(StarRocksSinkError, Transient, TimeoutError):
    """The message names the step that was waiting."""

    code = "deadline"
    summary = "The time allowed for the work is used up."
    hint = "Raise batch_deadline, or find out why the named step takes so long."


class AuthenticationFailed(StarRocksSinkError, Terminal):
    """With `enable_http_auth` a missing privilege is HTTP 401 too (wire contract 7.2)."""

    code = "authentication"
    summary = "StarRocks rejected the user name or password (HTTP 401)."
    hint = "Check username and password."


class RedirectRefused(StarRocksSinkError, Terminal):
    """The host is neither configured nor in `redirect_hosts`."""

    code = "redirect_refused"
    summary = "The frontend redirected the request to a host that is not allowed, and no password was sent there."
    hint = "Add the host to redirect_hosts, or rewrite it with redirect_map."


# --- what the server said ---


class ServerRefused(StarRocksSinkError, Terminal):
    code = "refused"
    summary = "StarRocks refused an operation and would refuse it again."


class BeginFailed(StarRocksSinkError, Transient):
    code = "begin_failed"
    summary = "StarRocks did not begin a transaction."


class TooManyTransactions(BeginFailed):
    """`current running txns on db … larger than limit` (wire contract 4.13)."""

    code = "too_many_transactions"
    summary = "The database has reached its limit of running transactions."
    hint = "Use fewer lanes, or raise the frontend's max_running_txn_num_per_db."


class LoadFailed(StarRocksSinkError, Transient):
    code = "load_failed"
    summary = "A load failed, and its StarRocks transaction was rolled back."


class CommitFailed(StarRocksSinkError, Transient):
    code = "commit_failed"
    summary = "StarRocks did not commit, and nothing of the transaction became visible."


class RowsRejected(StarRocksSinkError, Terminal):
    """The rows break types, NOT NULL or lengths, and more than the filter ratio allows (wire contract 4.9, 7.4)."""

    code = "rows_rejected"
    summary = "StarRocks rejected rows at the commit, and nothing of the transaction became visible."
    hint = "Ask the server for the reasons (information_schema.loads: TRACKING_SQL), correct the rows or the table."


class OutcomeUnknown(StarRocksSinkError, Terminal):
    """The sink stops and never guesses."""

    code = "outcome_unknown"
    summary = "The sink could not find out before the deadline whether a commit took effect."
    hint = "Look the label up (SHOW TRANSACTION, get_load_state) before the job is started again."


class Fenced(StarRocksSinkError, Terminal):
    """This writer stops, and its open transaction is rolled back."""

    code = "fenced"
    summary = "A newer writer has taken over the job or the lane."
    hint = "Run one query per job: give a second one another `job`, and restart this one only when the other has ended."


class SourceChanged(StarRocksSinkError, Terminal):
    """The ledger has a fingerprint of the content that was written there."""

    code = "source_changed"
    summary = "The source has other content at a position that is already written."


class TransactionTimedOut(StarRocksSinkError, Terminal):
    code = "transaction_timed_out"
    summary = "A source transaction took longer than the timeout of its StarRocks transaction."
    hint = (
        "Raise `timeout` above the time that the largest source transaction takes; with `compact`, the time that a "
        "whole micro-batch takes, or make micro-batches smaller (maxOffsetsPerTrigger, maxFilesPerTrigger)."
    )
