"""The server: its version, its clock, its limits on labels and running transactions."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from starrocks_txn_sink.doctor.finding import Finding, Severity, failure, good, skipped, warning
from starrocks_txn_sink.doctor.patient import Target
from starrocks_txn_sink.errors import OptionError, QueryRefused
from starrocks_txn_sink.options.server_version import MIN_SERVER_VERSION, require_supported
from starrocks_txn_sink.sql_connection import Row

CLOCK_TOLERANCE = 2.0
"""Seconds that clocks may differ; the server's answer has whole seconds."""

LEAST_LABELS = 1000
"""StarRocks' own default of label_keep_max_num (wire contract 3.3)."""

_CONFIG = ("label_keep_max_second", "label_keep_max_num", "max_running_txn_num_per_db")
_ENDED_STATES = ("FINISHED", "CANCELLED")


def check_version(target: Target) -> Iterator[Finding]:
    """current_version() of the frontend that answered."""
    target.version = str(target.sql().value("SELECT current_version()"))
    yield judge_version(target.version)


def judge_version(found: str) -> Finding:
    """Whether this release's multi-table transactions can be trusted; pure."""
    try:
        require_supported(found)
    except OptionError as error:
        return failure(
            "server.version",
            error.message,
            "Older servers answer OK to loads and commits that failed, and do not roll back when told to.",
            error.advice,
        )
    return good("server.version", f"StarRocks {found}")


def judge_versions(rows: Sequence[Row], kind: str) -> Iterator[Finding]:
    """Frontends or backends that run another release than they should, as in the middle of an upgrade; pure."""
    for row in rows:
        found = str(row.get("version") or "")
        if found and judge_version(found).severity is not Severity.GOOD:
            yield failure(
                "server.version",
                f"The {kind} {row.get('ip')} runs StarRocks {found}.",
                "Every server that takes part must handle multi-table transactions correctly, a future leader too.",
                f"Upgrade it to StarRocks {MIN_SERVER_VERSION} or later (4.1.1 or later in the 4.1 line).",
                str(row.get("ip")),
            )


# --- clock ---


def check_clock(target: Target) -> Iterator[Finding]:
    """The server's UTC time against ours, by the middle of the question's way there and back."""
    before = target.clock.wall()
    said = target.sql().value("SELECT utc_timestamp()")
    after = target.clock.wall()
    told = epoch_seconds(said)
    if told is None:
        yield skipped("server.clock", f"the server's time cannot be read from {str(said)[:40]!r}")
    else:
        yield judge_clock(told - (before + after) / 2, after - before, "the leader's clock")


def epoch_seconds(said: object) -> float | None:
    """Seconds since the Unix epoch of a DATETIME in UTC, as a value or as text; None when it is neither."""
    if isinstance(said, str):
        try:
            said = datetime.datetime.fromisoformat(said)
        except ValueError:
            return None
    if not isinstance(said, datetime.datetime):
        return None
    return said.replace(tzinfo=datetime.UTC).timestamp()


def judge_clock(ahead: float, uncertain: float, whose: str, place: str = "") -> Finding:
    """A clock that is `ahead` seconds of the driver's, known to `uncertain` seconds; pure."""
    if abs(ahead) <= CLOCK_TOLERANCE + uncertain:
        return good("server.clock" if not place else "executor.clock", f"{whose} agrees with the driver's", place)
    return warning(
        "server.clock" if not place else "executor.clock",
        f"{whose} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the driver's.",
        "Nothing is decided by it, but latencies, `updated_at` in the ledger and the receipts' times will be wrong.",
        "Let all machines follow the same time server (NTP).",
        place,
    )


# --- limits ---


def check_limits(target: Target) -> Iterator[Finding]:
    """Label retention and the head-room for running transactions."""
    sql = target.sql()
    try:
        rows = sql.rows("ADMIN SHOW FRONTEND CONFIG")
        config = {str(row["key"]): str(row["value"]) for row in rows if str(row.get("key")) in _CONFIG}
    except QueryRefused:
        yield skipped("server.limits", "ADMIN SHOW FRONTEND CONFIG needs OPERATE ON SYSTEM: limits are unknown")
        config = {}
    age = checkpoint_age(target.checkpoint, target.clock.wall()) if target.checkpoint else None
    yield from judge_retention(config, age, target.options.exactly_once)
    if target.checkpoint and age is None:
        yield skipped("checkpoint.age", "no file of this checkpoint's commits can be seen from here")
    database = target.require_database()
    running = sql.value(
        "SELECT count(DISTINCT LABEL) FROM information_schema.loads WHERE DB_NAME = %s "
        f"AND STATE NOT IN ({', '.join(['%s'] * len(_ENDED_STATES))})",
        (database, *_ENDED_STATES),
    )
    yield judge_headroom(int(running or 0), target.options.lanes, config)


def checkpoint_age(path: str, now: float) -> float | None:
    """Seconds since the query's last commit, by the newest file in the checkpoint's `commits`; None if there is none.

    Only a checkpoint on a file system that this process sees can be looked at.
    """
    folder = Path(path.removeprefix("file://")) / "commits"
    times = [file.stat().st_mtime for file in folder.glob("[0-9]*")] if folder.is_dir() else []
    return now - max(times) if times else None


def judge_retention(config: Mapping[str, str], age: float | None, exactly_once: bool) -> Iterator[Finding]:
    """How long the server remembers labels, against the checkpoint's age; pure."""
    kept = _config_number(config, "label_keep_max_second")
    number = _config_number(config, "label_keep_max_num")
    if number is not None and number < LEAST_LABELS:
        yield warning(
            "label.retention",
            f"The server remembers only {number:.0f} labels a database (label_keep_max_num).",
            "A label that is forgotten between its commit and the question for its fate costs a take-over each time.",
            f"Raise label_keep_max_num to {LEAST_LABELS} or more.",
        )
    elif number is not None:
        yield good("label.retention", f"the last {number:.0f} labels of a database are remembered")
    if age is None or kept is None:
        return
    shown = f"the last commit is {_days(age)} old, labels are kept for {_days(kept)}"
    if age <= kept or exactly_once:
        tail = "" if age <= kept else "; the ledger, not the label, tells what is visible"
        yield good("checkpoint.age", shown + tail)
    else:
        yield warning(
            "checkpoint.age",
            shown[0].upper() + shown[1:] + ".",
            "A commit that was interrupted then can no longer be looked up; without a ledger its batch may be doubled.",
            "Use exactly-once (set query_url), or compare the last micro-batch with the tables before starting.",
        )


def judge_headroom(running: int, lanes: int, config: Mapping[str, str]) -> Finding:
    """Unfinished labels in the database and our lanes, against the server's limit; pure."""
    limit = _config_number(config, "max_running_txn_num_per_db")
    if limit is None:
        return skipped("transaction.headroom", f"{running} transactions are running; the server's limit is unknown")
    check, shown = "transaction.headroom", f"{running} of {limit:.0f} running transactions, {lanes} lane(s) to come"
    why = "At the limit the server refuses to begin or to commit (too many running txns)."
    advice = "Find out who leaves transactions open, use fewer lanes, or raise max_running_txn_num_per_db."
    if running + lanes > limit:
        return failure(check, f"No room: {shown}.", why, advice)
    if running + lanes > 0.8 * limit:
        return warning(check, f"Little room: {shown}.", why, advice)
    return good(check, shown)


def _config_number(config: Mapping[str, str], name: str) -> float | None:
    try:
        return float(config[name])
    except (KeyError, ValueError):
        return None


def _days(seconds: float) -> str:
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 3 * 86_400 else f"{seconds / 86_400:.1f} days"
