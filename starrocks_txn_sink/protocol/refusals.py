"""Refusals of the server, mapped to typed errors (wire contract 2.2, 3.2, 4, 5).

The transaction interface answers nearly every failure with `FAILED` and a text, so the text decides whether another
attempt can succeed. Unknown texts count as transient; `max_attempts` bounds the attempts.
"""

import re
from typing import Any, Final

from starrocks_txn_sink import errors
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.protocol.wire import Reply, Status

# The server rejects these rows again, however often they are sent.
_BAD_ROWS = (
    "abnormal data more than max filter",
    "too many filtered rows",
    "primary key size exceed",
    "JSON parse error",
    "Failed to parse json",
    "Failed to iterate document stream",
)
# Proves rejected rows only with a log of them: the server says so in its own trouble, too (wire contract 4.9).
NO_ROWS = "No rows were imported"
_LOG_OF_ROWS = "tracking_url"
UNSAID: Final = "the server does not say why"
"""In the message of RowsRejected: no table with rejected rows has a log (wire contract 5.10)."""
# The server rejects such a request again, whatever rows it has.
_BAD_REQUESTS = (
    "Failed to find table",
    "does not exist.",
    "not equal transaction database",
    "Database[",
    "Access denied",
    "ClassCastException",
    "Unknown data format",
    "Unsupported compression type",
    "Column has no default value",
    "Mapping column is not in table",
    "Duplicate column",
    "key column",
    "Only primary key table support",
    "Conditional update only support primary key table",
    "Label format error",
    "Unknown transaction operation",
    "can only be sent to FE",
)
NO_TABLE = "Failed to find table"
_ADVICE = {
    "can only be sent to FE": "Set load_url to the frontends' http_port (8030 by default): a backend answered.",
    NO_TABLE: "Create the table in the database, or correct its name in the rows. For Debezium's topics "
    "starrocks-txn-sink plan prints the statement, and schema_changes='apply' runs it. If it is not meant to be "
    "copied (a shadow table of gh-ost or pt-osc, a heartbeat, a signal), leave it out: exclude under [tables] in "
    "sync's file, in Python `tables` with an empty template.",
    "Database[": "Create the database, or correct the option database.",
    "Access denied": "Grant INSERT on the table: `starrocks-txn-sink doctor` names what is missing.",
    "Only primary key table support": "Make it a PRIMARY KEY table, or filter deletes out before the sink.",
    "Column has no default value": "Give the column a default or make it nullable, or name it in the rows.",
    "Mapping column is not in table": "Add the column to the table, or leave it out of the rows and of `columns`.",
    "key column": "A partial update names every key column: add the missing one to the rows and to `columns`.",
    "Unknown data format": "Set `format` to json, or leave it out.",
}
"""Advice by the server's text."""
_BEYOND_ASCII = (
    "If the table is there: a load names it in an HTTP header, whose letters beyond ASCII the server may read as other "
    "ones. Then give it a name of ASCII letters, with `tables` of the assembly, or under [[routes]] in sync's file."
)
# Two first loads of a table at once (wire contract 4.5); the label has ended, and later refusals repeat this.
_LOADED_TWICE = "already exist backend"
# The label had ended before: by another load, or by another client. Neither says anything of the refused table.
_CANCELLED_BEFORE = ("has already been cancelled", "is aborting")
# What a label that was rolled back by request has for a cause.
_BY_REQUEST = re.compile(r"(?:has already been cancelled|is aborting):\s*(?:manual abort|user cancel)?$")
_COMMITTED_BEFORE = "has already been commited"  # the server's spelling
_CANNOT_COMMIT = "commit CANCELLED"
# The new leader knows the label since its begin, and nothing of its loads (wire contract 10.5). Once its JVM has
# thrown the exception often, it leaves the text out.
_LEADER_CHANGED = ('"context" is null', "NullPointerException: null", "lost due to FE leader switch")
_BY_OTHERS = (
    "The sink writes the rows again under a new label. Every user of StarRocks can roll back every label "
    "(docs/guides/security.md); a newer run of the job and a restart of the leader end labels, too."
)
_BY_COMMIT = (
    "The sink writes the rows again under a new label. If it was another client, tables without a primary key have "
    "rows twice: every user of StarRocks can commit every label (docs/guides/security.md)."
)
_REASON = re.compile(r"^STREAM_LOAD_TASK:\d+, .*?error_msg\{(?:cancel stream task for exception: )?(?P<reason>.+)\}$")
_TOO_MANY = "current running txns on db"
_TIMED_OUT = ("Load timeout", "coordinator could not finished before job timeout")
_MESSAGE_LIMIT = 600

BEING_PLANNED = "is in unexpected state BEGIN"
"""In a frontend's OK to a load without a backend: another load plans the table; repeat it (wire contract 4.5)."""
OF_A_TASK = "stream load task "
"""Begins what a frontend says of a label, in contrast to a proxy."""
ALREADY_COMMITTING = "is already committing"
DURING_COMMITTING = "during committing"
_ROLLBACK_PENDING = ("rollback pending", "abort is already in progress")
CANNOT_ABORT_VISIBLE = "Can not abort VISIBLE"


def begin_error(reply: Reply, label: str) -> StarRocksSinkError:
    """The error for a begin without OK: TooManyTransactions, ServerRefused or BeginFailed."""
    text, place = _text(reply), _context(reply, label)
    if _TOO_MANY in text:
        return errors.TooManyTransactions(f"No StarRocks transaction could be begun: {text}", **place)
    if _contains_any(text, _BAD_REQUESTS):
        message = f"The server refused to begin a StarRocks transaction: {text}"
        return errors.ServerRefused(message, hint=_advice(text), **place)
    return errors.BeginFailed(f"No StarRocks transaction could be begun: {text}", **place)


def load_error(reply: Reply, label: str, table: str) -> StarRocksSinkError:
    """The error for a load with neither OK nor TXN_IN_PROCESSING: LoadFailed unless the text says more.

    A load that cannot be planned ends the label for all tables (wire contract 4.8). Later loads are refused with its
    cause in their texts: these errors are transient and name no table, so that the first one counts.
    """
    text, place = _text(reply), _context(reply, label, table)
    if _TOO_MANY in text:
        return errors.TooManyTransactions(f"The server did not take the load: {text}", **place)
    if _contains_any(text, _TIMED_OUT):
        return timed_out(label, text)
    if _LOADED_TWICE in text:
        return errors.LoadsCollided(f"Two lanes loaded {table} for the first time at once: {text}", **place)
    if _BY_REQUEST.search(text):
        message = f"The label was rolled back by another client or lane, so a load into {table} was refused: {text}"
        return errors.LoadFailed(message, hint=_BY_OTHERS, **_context(reply, label))
    if _COMMITTED_BEFORE in text:
        message = f"The label was committed by another client or lane, so a load into {table} was refused: {text}"
        return errors.LoadFailed(message, hint=_BY_COMMIT, **_context(reply, label))
    if _contains_any(text, _CANCELLED_BEFORE):
        message = f"The label had ended before, so a load into {table} was refused: {text}"
        return errors.LoadFailed(message, hint="The cause is in the server's text.", **_context(reply, label))
    reason = match["reason"] if (match := _REASON.match(text)) is not None else text
    if _contains_any(text, _BAD_REQUESTS):
        advice = _advice(text)
        if advice == _ADVICE[NO_TABLE] and not table.isascii():
            advice = f"{_BEYOND_ASCII} {advice}"
        return errors.ServerRefused(f"The server refused the load into {table}: {reason}", hint=advice, **place)
    return errors.LoadFailed(f"The load into {table} failed: {reason}", **place)


def commit_error(reply: Reply, label: str) -> StarRocksSinkError:
    """The error for a commit that certainly had no effect."""
    text, place = _text(reply), _context(reply, label)
    if _contains_any(text, _BAD_ROWS) or (NO_ROWS in text and _LOG_OF_ROWS in text):
        return errors.RowsRejected(
            f"The server rejected rows, so nothing of the transaction became visible: {text}", **place
        )
    if _TOO_MANY in text:
        return errors.TooManyTransactions(f"The server did not commit: {text}", **place)
    if _contains_any(text, _TIMED_OUT):
        return timed_out(label, text)
    if _CANNOT_COMMIT in text:
        message = f"The label was rolled back by another client or by the server before its commit: {text}"
        return errors.CommitFailed(message, hint=_BY_OTHERS, **place)
    if _contains_any(text, _LEADER_CHANGED):
        message = f"Another frontend leads since the transaction began, so the transaction is lost: {text}"
        return errors.CommitFailed(message, hint="The sink writes the rows again under a new label.", **place)
    if _NO_PARTITION.search(text):
        message = f"The server did not commit, because a load could not make or open a partition: {text}"
        return errors.PartitionClosed(message, hint=_ABOUT_PARTITIONS, **place)
    return errors.CommitFailed(f"The server did not commit: {text}", **place)


def timed_out(label: str, text: str) -> errors.TransactionTimedOut:
    """The error for a load or commit whose `text` says that the label's timeout is over (wire contract 4.12)."""
    return errors.TransactionTimedOut(
        f"The StarRocks transaction reached its timeout before it could commit: {text}", label=label
    )


_NO_PARTITION: Final = re.compile(r"(?i)\bcreate partition failed")
_ABOUT_PARTITIONS: Final = (
    "Compare the table's partitions with max_load_initial_open_partition_number of the frontends (doctor does), raise "
    "that above their number, or make the partition by an INSERT; then start the query again."
)


def _advice(text: str) -> str | None:
    return next((advice for fragment, advice in _ADVICE.items() if fragment in text), None)


def _text(reply: Reply) -> str:
    return " ".join(reply.message.split())[:_MESSAGE_LIMIT] or "(the server gave no message)"


def _context(reply: Reply, label: str, table: str | None = None) -> dict[str, Any]:
    return {"label": label, "table": table, "status": reply.status.value}


def _contains_any(text: str, fragments: tuple[str, ...]) -> bool:
    return any(fragment in text for fragment in fragments)


def is_rolled_back(reply: Reply) -> bool:
    """Whether a reply to a rollback says that it is done.

    Generation C also says OK to a rollback that has only begun: the label may still end committed (wire contract 10.5).
    """
    return reply.status is Status.OK and not _contains_any(reply.message, _ROLLBACK_PENDING)


def is_gone(reply: Reply) -> bool:
    """Whether the frontend does not know the label: never begun, forgotten, or lost with a restart."""
    return "does not exist" in reply.message and "stream load task" in reply.message
