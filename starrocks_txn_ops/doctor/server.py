"""The server: version, clock, limits on labels and on running transactions."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from starrocks_txn_ops.doctor.libraries import version_numbers
from starrocks_txn_ops.doctor.target import Finding, Severity, Target, Topic
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.table_room import SETTING, ScanThreads
from starrocks_txn_sink.errors import OptionError, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http.transport import read_load_state
from starrocks_txn_sink.options.addresses import MIN_SERVER_VERSION, require_supported
from starrocks_txn_sink.protocol.label import Label, LabelPrefix
from starrocks_txn_sink.protocol.ledger import ListUnfinished
from starrocks_txn_sink.protocol.wire import LabelState, Operation
from starrocks_txn_sink.sql import scan_threads
from starrocks_txn_sink.sql.connection import LeaderConnection, Row, SqlLedger

CLOCK_TOLERANCE = 2.0
"""Seconds that clocks may differ: utc_timestamp() has whole seconds only."""

LEAST_LABELS = 1000
"""StarRocks' default of label_keep_max_num (wire contract 3.3)."""

_CONFIG = ("label_keep_max_second", "label_keep_max_num", "max_running_txn_num_per_db")
_SAMPLE = 50

_COMMITTED_LISTED = ((4, 1), (4, 1, 3))
"""From the first release of 4.1 to the one that repairs #74386; which patch of 4.0 does is unknown (wire contract
4.15)."""
_LISTS_COMMITTED = (
    "; before 4.1.3 information_schema.loads lists committed labels as open: `recover` and `status --load-url` leave "
    "them out"
)
_LIST_SECONDS = 12.0
"""For the list of labels, asked in two ways of five seconds each."""
HELD = "While open loads hold all threads of a backend, commits, take-overs and information_schema wait."
OWN_LOADS = 2
"""Of a label for the sink's own tables: the ledger, and the receipts' log or the dead letters."""


def check_version(target: Target) -> Iterator[Finding]:
    """Check the release of the frontend behind query_url."""
    target.version = target.sql().version()
    yield judge_version(target.version, unreleased=target.options.allow_unreleased_server)


def judge_version(version: str, *, unreleased: bool = False) -> Finding:
    """Finding for the release: whether its multi-table transactions are reliable; pure."""
    try:
        require_supported(version, unreleased=unreleased)
    except OptionError as error:
        return Topic("server.version").failure(
            error.message, "Older servers answer OK to failed loads and commits, and ignore rollbacks.", error.advice
        )
    number = version_numbers(version)
    listed = _LISTS_COMMITTED if _COMMITTED_LISTED[0] <= number < _COMMITTED_LISTED[1] else ""
    return Topic("server.version").good(f"StarRocks {version}{listed}")


def judge_versions(rows: Sequence[Row], kind: str, *, unreleased: bool = False) -> Iterator[Finding]:
    """Failures for frontends or backends with an unsupported release, as in the middle of an upgrade; pure."""
    for row in rows:
        version = str(row.get("version") or "")
        if version and judge_version(version, unreleased=unreleased).severity is not Severity.GOOD:
            yield Topic("server.version", str(row.get("ip"))).failure(
                f"The {kind} {row.get('ip')} runs StarRocks {version}.",
                "Every server must handle multi-table transactions correctly: any frontend may become leader.",
                f"Upgrade it to StarRocks {MIN_SERVER_VERSION} or later (4.1.1 or later in the 4.1 line).",
            )


# --- clock ---


def check_clock(target: Target) -> Iterator[Finding]:
    """Compare the server's UTC time with the middle of the query's round trip."""
    start = target.clock.wall()
    server_text = target.sql().value("SELECT utc_timestamp()")
    end = target.clock.wall()
    server_time = epoch_seconds(server_text)
    if server_time is None:
        yield Topic("server.clock").skip(f"the server's time cannot be read from {str(server_text)[:40]!r}")
    else:
        yield judge_clock(server_time - (start + end) / 2, end - start, "the leader's clock")


def epoch_seconds(moment: object) -> float | None:
    """Seconds since the Unix epoch for a DATETIME in UTC, as a value or as text; None for anything else."""
    if isinstance(moment, str):
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError:
            return None
    if not isinstance(moment, datetime.datetime):
        return None
    return moment.replace(tzinfo=datetime.timezone.utc).timestamp()


def judge_clock(lead: float, uncertain: float, whose: str, place: str = "") -> Finding:
    """Finding for a clock `lead` seconds of the driver's, measured within `uncertain` seconds; pure."""
    check = Topic("executor.clock" if place else "server.clock", place)
    if abs(lead) <= CLOCK_TOLERANCE + uncertain:
        return check.good(f"{whose} agrees with the driver's")
    return check.warning(
        f"{whose} is {abs(lead):.0f} s {'ahead of' if lead > 0 else 'behind'} the driver's.",
        "No decision of the sink uses it, but latencies, `updated_at` in the ledger and times in receipts are wrong.",
        "Synchronize all machines with the same time server (NTP).",
    )


# --- limits ---


def check_limits(target: Target) -> Iterator[Finding]:
    """Check label retention and the headroom for running transactions."""
    try:
        rows = target.sql().rows("ADMIN SHOW FRONTEND CONFIG")
        config = {str(row["key"]): str(row["value"]) for row in rows if str(row.get("key")) in _CONFIG}
    except QueryRefused:
        yield Topic("server.limits").skip("ADMIN SHOW FRONTEND CONFIG needs OPERATE ON SYSTEM: limits are unknown")
        config = {}
    age = checkpoint_age(target.checkpoint, target.clock.wall()) if target.checkpoint else None
    yield from judge_retention(config, age, target.options.exactly_once)
    if target.checkpoint and age is None:
        yield Topic("checkpoint.age").skip("this machine sees no commit files of the checkpoint")
    database = target.require_database()
    yield from check_threads(target)
    try:
        labels = unfinished_labels(target, database)
    except QueryRefused as refused:
        yield Topic("transaction.headroom").skip(f"open labels cannot be listed: {refused.message}")
        return
    except StarRocksSinkError as error:
        yield Topic("transaction.headroom").warning(error.message, HELD, error.advice)
        return
    yield judge_headroom(_count_running(target, database, labels), config)


class _EveryLabel(LabelPrefix):
    """The labels of all writers."""

    @property
    def text(self) -> str:
        return ""

    def matches(self, label: str) -> bool:
        return bool(label)


def unfinished_labels(target: Target, database: str) -> Sequence[str]:
    """Labels that have not ended, of all writers, as a take-over lists them.

    Raises QueryFailed if the list does not come in time.
    """
    with closing(LeaderConnection(target.options)) as connection:
        deadline = Deadline.after(_LIST_SECONDS, target.clock)
        labels: Sequence[str] = SqlLedger(connection, database).execute(ListUnfinished(_EveryLabel("")), deadline)
        return labels


def check_threads(target: Target) -> Iterator[Finding]:
    """Check how many tables a StarRocks transaction can have open (wire contract 4.16)."""
    options = replace(target.options, database=target.require_database())
    threads = scan_threads.measure(options, target.clock)
    yield judge_threads(threads, target.written or len(scan_threads.tables_of(options, target.clock)))


_SEVERAL: Final = " (rehearse --jobs N --tables M counts those of several)"
"""A driver does not know of others: what they hold is in no view that answers while all threads are held."""


def judge_threads(threads: ScanThreads, tables: int, jobs: int = 1) -> Finding:
    """Finding for the threads that open loads hold, for `jobs` that write as many `tables` each; pure.

    A job has one label with rows open at a time.
    """
    check = Topic("backend.threads")
    if not threads.exact:
        return check.skip(f"{SETTING} and the backends' cores cannot be read: open loads are not counted exactly")
    there = (
        f"the smallest backend has {threads.count} threads for open loads, of which {threads.reserve} stay free for "
        "queries"
    )
    need = jobs * (tables + OWN_LOADS)
    several = f", {jobs} jobs at once {need}" if jobs > 1 else ""
    if need > threads.room:
        return check.warning(
            f"A micro-batch with rows for all {tables} tables needs {tables + OWN_LOADS} open loads{several}; {there}.",
            "The sink splits it into several StarRocks transactions, and a source transaction with rows for more than "
            f"{threads.room - OWN_LOADS} tables ends the query (too_many_tables). All jobs and loads of the server "
            f"share these threads{_SEVERAL}.",
            f"Raise {SETTING} (now {threads.per_core}; it takes effect at once), to tables × jobs ÷ cores, and some.",
        )
    for_all = several or f"; all jobs of the server share them{_SEVERAL}"
    return check.good(f"{there}; a job with {tables} tables needs {tables + OWN_LOADS}{for_all}")


def _count_running(target: Target, database: str, labels: Sequence[str]) -> int:
    """The number of `labels` that are not committed: some releases list committed labels, too (wire contract 10.6).

    Requests the states of a sample, and extrapolates.
    """
    sample = labels[:: max(1, len(labels) // _SAMPLE)]
    if target.leader is None or not sample:
        return len(labels)
    finished = 0
    for label in sample:
        answer = target.send(Label(database, label).request(Operation.LOAD_STATE), target.leader)
        finished += read_load_state(answer.status, answer.body).state in (LabelState.COMMITTED, LabelState.VISIBLE)
    return round(len(labels) * (len(sample) - finished) / len(sample))


def checkpoint_age(path: str, now: float) -> float | None:
    """Seconds since the newest file in the checkpoint's `commits`; None without one.

    Reads only checkpoints on a file system that this process sees.
    """
    folder = Path(path.removeprefix("file://")) / "commits"
    times = [file.stat().st_mtime for file in folder.glob("[0-9]*")] if folder.is_dir() else []
    return now - max(times) if times else None


def judge_retention(config: Mapping[str, str], age: float | None, exactly_once: bool) -> Iterator[Finding]:
    """Findings for label retention, compared with the checkpoint's `age` in seconds (None: unknown); pure."""
    seconds = _config_number(config, "label_keep_max_second")
    number = _config_number(config, "label_keep_max_num")
    if number is not None and number < LEAST_LABELS:
        yield Topic("label.retention").warning(
            f"The server remembers only {number:.0f} labels per database (label_keep_max_num).",
            "When the server forgets a label before the sink reads the commit's outcome, a take-over has to settle it.",
            f"Raise label_keep_max_num to {LEAST_LABELS} or more.",
        )
    elif number is not None:
        yield Topic("label.retention").good(f"the last {number:.0f} labels of a database are remembered")
    if age is None or seconds is None:
        return
    age_text = f"the last commit is {_days(age)} old, labels are kept for {_days(seconds)}"
    if age <= seconds or exactly_once:
        tail = "" if age <= seconds else "; the ledger, not the label, decides what is visible"
        yield Topic("checkpoint.age").good(age_text + tail)
    else:
        yield Topic("checkpoint.age").warning(
            age_text[0].upper() + age_text[1:] + ".",
            "The outcome of an interrupted commit is lost; without a ledger its micro-batch may be written twice.",
            "Use exactly-once (set query_url), or compare the last micro-batch with the tables before the job starts.",
        )


def judge_headroom(running: int, config: Mapping[str, str]) -> Finding:
    """Finding for unfinished labels plus the job's, against the server's limit per database; pure."""
    check, limit = Topic("transaction.headroom"), _config_number(config, "max_running_txn_num_per_db")
    if limit is None:
        return check.skip(f"{running} transactions are running; the server's limit is unknown")
    load_text = f"{running} of {limit:.0f} running transactions, one to come"
    why = "At the limit the server refuses begin and commit (too many running txns)."
    advice = "Find the writer that leaves transactions open, or raise max_running_txn_num_per_db."
    if running + 1 > limit:
        return check.failure(f"No room: {load_text}.", why, advice)
    if running + 1 > 0.8 * limit:
        return check.warning(f"Little room: {load_text}.", why, advice)
    return check.good(load_text)


def _config_number(config: Mapping[str, str], name: str) -> float | None:
    try:
        return float(config[name])
    except (KeyError, ValueError):
        return None


def _days(seconds: float) -> str:
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 3 * 86_400 else f"{seconds / 86_400:.1f} days"
