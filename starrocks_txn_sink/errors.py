"""All typed errors of the package: one root class, and two mixins for the retry policy.

A message says what happened, where (`label`, `table`, `status`, …), and what to do. Messages never contain row values
or secrets. Errors can be pickled, because Spark sends them from executors to the driver.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """`text` without effect on a terminal: control, bidi and invisible characters become `\\x1b`, `\\u202e`, ….

    Texts of servers and names of the source reach terminals through errors, logs and the commands. Line ends and tabs
    stay.
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


_ALIKE: Final = 0.65  # below, a suggestion misleads: `format` is no misspelt `compact`


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The advice for a name that is none of `names`: the most similar one, `otherwise` if none is alike."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=_ALIKE)
    return f"Did you mean {near[0]}?" if near else otherwise


class Transient:
    """Mixin: the same rows may succeed in a new attempt under a new label."""


class Outage(Transient):
    """Mixin: StarRocks cannot serve now. The sink waits and writes the micro-batch again (`sink.failures`)."""


class Terminal:
    """Mixin: a retry cannot succeed before the user changes the source, the options or the server."""


def add_note(error: BaseException, note: str) -> None:
    """Add `note` to `error`, as `BaseException.add_note` does from Python 3.11 on."""
    error.__notes__ = [*notes_of(error), note]  # type: ignore[attr-defined]


def advise(error: StarRocksSinkError, advice: str) -> None:
    """Give `error` other `advice`, of one who knows more of its place."""
    error.advice = advice


def notes_of(error: BaseException) -> list[str]:
    """The notes on `error`."""
    return list(getattr(error, "__notes__", ()))


class StarRocksSinkError(Exception):
    """Root of all errors of this package.

    `code` is stable: metrics and the runbook use it. `summary` describes the error in one sentence, for the dashboard
    and the runbook; `hint` is the advice of the class, `advice` that of this error.

    Args:
        message: The event that went wrong, without row values and secrets.
        hint: The advice; by default that of the class.
        **context: The place: label, table, status, url.
    """

    code: ClassVar[str] = "sink_error"
    summary: ClassVar[str] = "The sink failed for a reason that has no code of its own."
    hint: ClassVar[str] = "Start the query again. If the error comes again, report it with the driver's log."

    def __init__(self, message: str, *, hint: str | None = None, **context: Any) -> None:
        self.message = printable(message)
        self.advice = printable(self.hint if hint is None else hint)
        self.context = {name: value for name, value in context.items() if value is not None}
        super().__init__(self.message)

    @property
    def retryable(self) -> bool:
        """Whether a retry of the same rows may succeed."""
        return isinstance(self, Transient)

    def __str__(self) -> str:
        place = ", ".join(f"{name}={_one_line(value)}" for name, value in sorted(self.context.items()))
        parts = [self.message + (f" [{place}]" if place else "")]
        if self.advice:
            parts.append(self.advice)
        if sys.version_info < (3, 11):  # where a traceback does not show notes
            parts += [f"\n{note}" for note in notes_of(self)]
        return " ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.advice, self.context)


def _one_line(value: object) -> str:
    return printable(str(value)).replace("\n", "\\n")


def _rebuild(kind: type[StarRocksSinkError], message: str, hint: str, context: dict[str, Any]) -> StarRocksSinkError:
    return kind(message, hint=hint, **context)


def error_classes(root: type[StarRocksSinkError] = StarRocksSinkError) -> Iterator[type[StarRocksSinkError]]:
    """The error classes of the package, each before its subclasses."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def class_of(code: str) -> type[StarRocksSinkError]:
    """The class of errors with `code`; StarRocksSinkError for an unknown code."""
    return next((kind for kind in error_classes() if kind.code == code), StarRocksSinkError)


# --- options and input ---


class OptionError(StarRocksSinkError, Terminal, ValueError):
    """The message names the option and the values that are allowed."""

    code = "option"
    summary = "An option, or a combination of options, is invalid."
    hint = "Correct the option: docs/reference/options.md lists all of them."


class SparkTooOld(StarRocksSinkError, Terminal, ImportError):
    """The message names the feature, the version that it needs, and the version at hand."""

    code = "spark_too_old"
    summary = "This version of Spark does not have what a part of the package needs."
    hint = "Use a newer version of Spark; docs/guides/deploy.md lists what works where."


class InputError(StarRocksSinkError, Terminal, ValueError):
    """The message names the place: source partition, position, column."""

    code = "input"
    summary = "The rows or events break a rule of the sink or of the assembler."
    hint = "Correct the source or the query at the named place, or filter such rows out before the sink."


class UnknownSchema(InputError):
    """The message names the registry, the number, and the place of the message; the number was waited for."""

    code = "unknown_schema"
    summary = "The schema registry has no schema with the number with which a message begins."
    hint = "Check that this is the registry of the connector's converter (docs/guides/registry.md)."


class SourceTransactionError(InputError):
    """BEGIN is missing, END is late, counts do not match, or two source transactions are interleaved."""

    code = "source_transaction"
    summary = "A source transaction cannot be released whole."
    hint = "Look at the source at the named position; the assembler's policies say what else can be done."


class Unordered(InputError):
    """Only with `shuffle=False`: the query then has to deliver the order."""

    code = "unordered"
    summary = "Rows or events of a source partition did not arrive in the order of their positions."
    hint = 'Set shuffle to "auto", so that they are sorted first.'


# --- transport ---


class TransportError(StarRocksSinkError, Outage):
    """No usable reply arrived. The request may have taken effect, unless the error is NotSent."""

    code = "transport"
    summary = "StarRocks gave no usable reply."
    hint = "Check the network and that the frontends are running."


class NotSent(TransportError):
    """No address accepted a connection, or the redirect was not followed."""

    code = "not_sent"
    summary = "The request did not reach its server and had no effect."
    hint = "Check load_url, the network, and that the frontend is running."


class ReplyLost(TransportError):
    """The client had sent at least a part of the request."""

    code = "reply_lost"
    summary = "No reply to the request arrived, so the request may have taken effect."
    hint = "The sink finds out whether it took effect; check the network and the server's log."


class BadReply(TransportError):
    """The reply is not JSON, has no known `Status`, or its HTTP status is 5xx."""

    code = "bad_reply"
    summary = "A reply did not come from StarRocks' transaction interface."
    hint = (
        "Check that load_url names StarRocks frontends (http_port, 8030 by default), and that no proxy answers instead."
    )


class HttpRefused(StarRocksSinkError, Terminal):
    """StarRocks never returns this status, and a retry would get it again.

    The request may have taken effect; after a commit that ends like this, a take-over finds the outcome.
    """

    code = "http_refused"
    summary = "A server between the sink and StarRocks refused the request with HTTP status 3xx or 4xx."
    hint = "Set load_url to the frontends themselves."


class QueryFailed(TransportError):
    """The connection failed, or it broke before the result arrived."""

    code = "query_failed"
    summary = "StarRocks did not answer a statement over the MySQL protocol."
    hint = "Check query_url (query_port, 9030 by default) and that the leader frontend is running."


class NoBackend(QueryFailed):
    """The frontend answered: the addresses are right. The message has the server's text, which lists the backends."""

    code = "no_backend"
    summary = "The frontend answers, but no backend is alive that could serve a statement."
    hint = "Start the backends: SHOW BACKENDS has the reason of each (Alive, ErrMsg)."


class QueryRefused(StarRocksSinkError, Terminal):
    """A privilege or a table is missing, or StarRocks does not support the syntax."""

    code = "query_refused"
    summary = "StarRocks refused a statement over the MySQL protocol."
    hint = "Check the user's privileges, and that the database and its tables exist."


class DeadlineExceeded(StarRocksSinkError, Transient, TimeoutError):
    """The message names the unfinished step."""

    code = "deadline"
    summary = "The deadline of the micro-batch or of the command has passed."
    hint = "Raise batch_deadline, or find out why the named step is slow."


class AuthenticationFailed(StarRocksSinkError, Terminal):
    """With `enable_http_auth` a missing privilege gives HTTP 401 too (wire contract 7.2)."""

    code = "authentication"
    summary = "StarRocks rejected the user name or password (HTTP 401)."
    hint = "Check username and password."


class RedirectRefused(StarRocksSinkError, Terminal):
    """The host is neither configured nor in `redirect_hosts`."""

    code = "redirect_refused"
    summary = "The frontend redirected the request to a host that is not allowed, and no password was sent there."
    hint = "Add the host to redirect_hosts, or map it with redirect_map."


# --- replies of the server ---


class ServerRefused(StarRocksSinkError, Terminal):
    """The answer blames the request or the table, so the same request has the same end (`protocol.refusals`)."""

    code = "refused"
    summary = "StarRocks refused an operation and would refuse it again."
    hint = "Correct the table, the columns or the stream-load properties that the message names."


class BeginFailed(StarRocksSinkError, Outage):
    """Any answer to a begin but OK, if no class says more. Nothing was opened."""

    code = "begin_failed"
    summary = "StarRocks did not begin a transaction."
    hint = "Look at the frontends (SHOW FRONTENDS) and at the message; `starrocks-txn-sink doctor` tries a begin."


class TooManyTransactions(BeginFailed):
    """`current running txns on db … larger than limit` (wire contract 4.13)."""

    code = "too_many_transactions"
    summary = "The database has reached its limit of running transactions."
    hint = "Use fewer lanes, or raise the frontend's max_running_txn_num_per_db."


class TooManyTables(StarRocksSinkError, Terminal):
    """A source transaction has more tables than a backend has threads for open loads (wire contract 4.16)."""

    code = "too_many_tables"
    summary = "A source transaction has rows for more tables than a StarRocks transaction can have open."
    hint = (
        "Raise the setting on the backends, which takes effect at once (UPDATE information_schema.be_configs SET value "
        "= '64' WHERE name = 'pipeline_connector_scan_thread_num_per_cpu', and in be.conf for the next start), then "
        "start the query again. All source transactions before this one are visible."
    )


class LoadFailed(StarRocksSinkError, Outage):
    """Any answer to a load but OK and TXN_IN_PROCESSING, if no class says more (wire contract 4.8)."""

    code = "load_failed"
    summary = "A load failed, and its StarRocks transaction was rolled back."
    hint = "Look at the backends (SHOW BACKENDS): memory, disks, compaction."


class LoadsCollided(LoadFailed):
    """The server cancels a label if two first loads of a table meet (wire contract 4.5). The lanes begin again."""

    code = "loads_collided"
    summary = "Two lanes loaded a table of a StarRocks transaction for the first time at once; the server cancelled it."
    hint = (
        "If it comes again and again, let executors reach the driver (the log says turns.unreachable), or set lanes=1."
    )


class KeyRepeated(StarRocksSinkError, Transient):
    """An earlier load has sent another row of the key; the lanes repeat the transaction when they have all rows."""

    code = "key_repeated"
    summary = "A key came again in a later load of a StarRocks transaction, and nothing of it became visible."
    hint = "Free space in the executor's directory for temporary files."


class BufferFull(StarRocksSinkError, Terminal):
    """Raised only if a lane has to hold back all rows of a StarRocks transaction (`rows.body`)."""

    code = "buffer_full"
    summary = "The rows of a StarRocks transaction fit neither into memory nor into a temporary file."
    hint = (
        "Free space in the executor's directory for temporary files, raise buffer_bytes, or make micro-batches smaller."
    )


class CommitFailed(StarRocksSinkError, Outage):
    """Raised for a commit that certainly had no effect; without that certainty it is OutcomeUnknown."""

    code = "commit_failed"
    summary = "StarRocks did not commit, and nothing of the transaction became visible."
    hint = "Look at the backends and replicas of the tables, and at the message."


class ThreadsHeld(CommitFailed):
    """A commit had no answer while no thread of a backend was free (wire contract 4.16). The lanes begin again, with
    half of the tables."""

    code = "threads_held"
    summary = "A commit waited for threads of a backend that open loads hold, and nothing of it became visible."
    hint = (
        "Find the other jobs, loads and scans of external tables that share the backends' threads, and raise the "
        "setting there, which takes effect at once: UPDATE information_schema.be_configs SET value = '64' WHERE name = "
        "'pipeline_connector_scan_thread_num_per_cpu', and in be.conf for the next start."
    )


class RowsRejected(StarRocksSinkError, Terminal):
    """Rows violate types, NOT NULL or lengths (wire contract 4.9, 7.4), or are no JSON."""

    code = "rows_rejected"
    summary = "StarRocks or the sink rejected rows, and nothing of the transaction became visible."
    hint = "Correct the rows or the table, or set on_bad_rows='quarantine'."
    by_table: Mapping[str, tuple[int, str]] = MappingProxyType({})
    """Of each table, as far as the server says: rejected rows, and why ("" if it does not say). Not pickled."""


class OutcomeUnknown(StarRocksSinkError, Terminal):
    """The sink stops: a guess could lose rows or write them twice."""

    code = "outcome_unknown"
    summary = "The sink could not find out before the deadline whether a commit took effect."
    hint = (
        "Look for the label's rows before you start the job again. get_load_state proves a commit by VISIBLE or "
        "COMMITTED; its UNKNOWN proves nothing."
    )


class Fenced(StarRocksSinkError, Terminal):
    """This writer rolls its open transaction back and stops."""

    code = "fenced"
    summary = "A newer writer has taken over the job."
    hint = (
        "Run one query per job: set another `job` for a second query, and restart this one after the other has ended."
    )


class JobHeld(StarRocksSinkError, Outage):
    """This writer rolls its open transaction back, waits for the command, and takes the job over again."""

    code = "job_held"
    summary = "A command holds the job for a while, and the query goes on by itself."
    hint = "Nothing is to be done: the hold ends with the command, and at the latest after its seconds."


class JobMoved(StarRocksSinkError, Terminal):
    """Raised by the take-over: nothing was written. The message names the move."""

    code = "job_moved"
    summary = "The job was moved to another name, database or cluster, and is closed here."
    hint = "Start the query with the `job` that it was moved to."


class UnknownColumn(StarRocksSinkError, Terminal):
    """The message names table, columns, source partition and position of the first such row; nothing was committed."""

    code = "unknown_column"
    summary = "A JSON row names a column that its table does not have, so the server would drop the value."
    hint = "Add the column to the table, correct the name (case counts), or set schema_changes to 'apply' or 'ignore'."


class NarrowColumn(StarRocksSinkError, Terminal):
    """The message names table, column and both types; nothing was committed."""

    code = "narrow_column"
    summary = "The source's schema allows values that StarRocks would round or cut in a column."
    hint = "Give the column the source's type, or declare its type if all values fit (TableOptions)."


class PartitionClosed(StarRocksSinkError, Terminal):
    """The message names table and reason, and the place of a row; nothing was committed."""

    code = "partition_closed"
    summary = "A table with automatic partitions lacks one that rows need, or a load does not open it."
    hint = "Make the partition before its rows come, or upgrade StarRocks."


class UnfitValue(StarRocksSinkError, Terminal):
    """The message names table, column, source partition and position; nothing was committed.

    It has no value, but for the row's key with `show_rejected_values`.
    """

    code = "unfit_value"
    summary = "A row has a value that its column in StarRocks would change, cut or refuse."
    hint = (
        "Correct the source or the column: docs/reference/values.md says what each type keeps. Or set on_bad_rows = "
        '"quarantine": then such source transactions become dead letters, and the others go on. Without check_values '
        "StarRocks changes such values without a word."
    )


class SourceKeyChanged(StarRocksSinkError, Terminal):
    """The message names the source's table, its keys, the StarRocks table and its key; nothing was committed."""

    code = "source_key_changed"
    summary = "The source's table got another primary key, by which the StarRocks table would lose rows."
    hint = "Create the table with the source's key, and have the source snapshot it again; or declare its `keys`."


class SourceChanged(StarRocksSinkError, Terminal):
    """The ledger stores a fingerprint of the content at its last position."""

    code = "source_changed"
    summary = "What the source delivers at positions that were read before is not what was there."
    hint = (
        "Give a new source a new `job` and a new checkpoint; for values that differ from run to run set "
        "check_replays=False."
    )


class SourceDamaged(StarRocksSinkError, Terminal):
    """The message names topic, partition and offset, and has the client's reason."""

    code = "source_damaged"
    summary = "A record batch of Kafka is damaged, or the client cannot read it."
    hint = (
        "Compare the partition's replicas with kafka-dump-log, make an intact one the leader, and start the query "
        "again. The rows are still to be read: a new checkpoint would lose them."
    )


class LaneDied(StarRocksSinkError):
    """The message has Spark's reason, the place what the lane reads (`writer.lane_try`)."""

    code = "lane_died"
    summary = "The task of a lane ended early several times in a row, and nothing was committed."
    hint = (
        "Look at the reason, at that place's rows and into the executors' logs: a row kills its process, or memory "
        "is short (exit code 137, a crashed worker). Raise spark.executor.memoryOverhead, or lower buffer_bytes or "
        "maxOffsetsPerTrigger."
    )


class LedgerBehind(StarRocksSinkError, Terminal):
    """Found when a query goes on above micro-batch 0, before anything is written."""

    code = "ledger_behind"
    summary = "The ledger knows less than the query's checkpoint, so rows would be missing or written twice."
    hint = "Load again under a new `job`, or accept it: starrocks-txn-sink recover … --accept-ledger."


class TransactionTimedOut(StarRocksSinkError, Outage):
    """Rows, loads or the commit were slow, or the driver slept: the next label has its whole time again."""

    code = "transaction_timed_out"
    summary = "A micro-batch or a source transaction took longer than the timeout of its StarRocks transaction."
    hint = (
        "Raise `timeout` above its duration. Spark repeats the micro-batch as planned, so maxOffsetsPerTrigger and "
        "maxFilesPerTrigger help only the following ones. Without shuffle=False this one is committed in several "
        "rounds. Some releases of StarRocks end a transaction after 300 s, whatever `timeout` says."
    )


# --- tasks of Spark ---


class TaskRepeated(StarRocksSinkError, Transient):
    """Rows of the lane's first try may be under the label, so the driver takes a new one, a few times."""

    code = "task_repeated"
    summary = "Spark runs the task of a lane again, and nothing was committed."


# --- open source transactions between micro-batches ---


class StateNotRead(StarRocksSinkError, Transient):
    """The file system fails; a missing file is another error."""

    code = "state_not_read"
    summary = "The open source transactions of earlier micro-batches could not be read."
    hint = (
        "Check that driver and executors may read the checkpoint's folder starrocks_txn_sink (or state_dir): access "
        "keys, network, rights."
    )


class StateNotWritten(StarRocksSinkError, Transient):
    """Spark repeats the micro-batch from the previous manifest."""

    code = "state_not_written"
    summary = "The open source transactions of a micro-batch could not be saved."
    hint = (
        "Check that driver and executors may write the checkpoint's folder starrocks_txn_sink (or state_dir), and that "
        "all of them see the same one."
    )


# --- commands ---


class JobLedgerMissing(StarRocksSinkError):
    """Raised by `where` when the ledger of the job cannot be read because it does not exist."""

    code = "no_ledger"
    summary = "The database has no ledger."
    hint = "Check --database; a job with at-least-once delivery has no ledger."


class UnknownJob(StarRocksSinkError):
    """Raised by `where`, `status`, `recover` and `dead-letter`; the message lists the jobs."""

    code = "unknown_job"
    summary = "The ledger has no rows of the job."
    hint = "Check --job: it is the option `job`, by default query-<id of the query>."

    @classmethod
    def among(cls, job: str, database: str, jobs: Sequence[str]) -> UnknownJob:
        """The error for `job`; the ledger has only `jobs`."""
        sentence = f"Its jobs are: {', '.join(jobs)}." if jobs else "It has no jobs."
        return cls(f"The ledger of {database} has no rows of the job {job}. {sentence}")


class MoveRefused(StarRocksSinkError):
    """Raised by `ledger`; the message says what stands in the way."""

    code = "move_refused"
    summary = "A job cannot be moved as asked, because rows would be lost or written twice."
    hint = "docs/guides/move.md says what a move needs."


class PositionOfOtherSource(StarRocksSinkError):
    """Raised by `wait`; the message has the position, and what the ledger knows of the job's sources."""

    code = "position_of_other_source"
    summary = "A position that was asked for is of another source than those of the job, or the source has changed."
    hint = "Check --job and --partition, and ask the database that the job's connector reads for the position."


class PositionNotReached(StarRocksSinkError, TimeoutError):
    """Raised by `wait_for_position`; the message says how far the ledger is, who owns the job, and its last commit."""

    code = "position_not_reached"
    summary = "A position that was asked for was not visible when the time limit came."
    hint = "See whether the job runs (starrocks-txn-sink status); a source at rest needs a heartbeat."


class PositionDeadLettered(StarRocksSinkError):
    """Raised by `wait_for_position`; the message names the newest dead letter up to the position."""

    code = "position_dead_lettered"
    summary = "The ledger has passed a position that was asked for, but source transactions up to it are dead letters."
    hint = "starrocks-txn-sink dead-letter lists them, and writes them again."


OF_COMMANDS: Final = (
    JobLedgerMissing,
    MoveRefused,
    PositionDeadLettered,
    PositionNotReached,
    PositionOfOtherSource,
    UnknownJob,
)
"""Errors that only commands raise, so no query meets them."""
