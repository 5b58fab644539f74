"""The location of a source transaction: queries of ledger and log for one position, on the leader.

The ledger has the last visible position of each source partition; every position up to it is visible. The log has the
labels. A position between two logged ends belongs to the source transaction with the next end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions, command_line
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, LOG_TABLE, identifier
from starrocks_txn_sink.sql.connection import LeaderConnection

_SPAN = (
    "SELECT first_position, last_position, label, lane, batch, row_count, tables, loaded_at FROM {} "
    "WHERE job = %s AND source_partition = %s AND last_position {} %s ORDER BY last_position {} LIMIT 1"
)


class PositionStatus(Enum):
    """Whether a position is visible, and whether the log names its label; `--json` shows the value."""

    CONTAINED = "contained"
    VISIBLE = "visible"
    NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class LedgerPosition:
    """Row of the ledger for a source partition; times are UTC of the server or the lane, as text."""

    position: int
    label: str
    batch: int
    since: str


@dataclass(frozen=True, slots=True)
class LoggedSpan:
    """Row of the log: the positions of a source partition that a label made visible."""

    first: int
    last: int
    label: str
    lane: int
    batch: int
    rows: int
    tables: str
    since: str


@dataclass(frozen=True, slots=True)
class LocatedPosition:
    """Answer for a position. `span` is set for CONTAINED; `reached` is the ledger's row, None without one.

    `upper` is set for VISIBLE: the position was visible at that time, perhaps earlier.
    """

    status: PositionStatus
    reached: LedgerPosition | None
    span: LoggedSpan | None = None
    upper: str = ""


def locate(position: int, reached: LedgerPosition | None, around: Sequence[LoggedSpan]) -> LocatedPosition:
    """Locate `position`; `around` are its neighbours in the log: the first end at or above, the last end below."""
    if reached is None or position > reached.position:
        return LocatedPosition(PositionStatus.NOT_YET, reached)
    above = min((span for span in around if span.last >= position), key=lambda span: span.last, default=None)
    if above is None:
        return LocatedPosition(PositionStatus.VISIBLE, reached, upper=reached.since)
    below = any(span.last < position for span in around)
    if above.first <= position or below:
        return LocatedPosition(PositionStatus.CONTAINED, reached, above)
    return LocatedPosition(PositionStatus.VISIBLE, reached, upper=above.since)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Queries for one source partition of a job. Raises the errors of `LeaderConnection.query`."""

    connection: LeaderConnection
    deadline: Deadline
    database: str
    job: str
    partition: str

    def ledger_position(self) -> LedgerPosition | None:
        """The partition's row in the ledger; None without one."""
        sql = (
            f"SELECT position, label, batch, updated_at FROM {identifier(self.database, LEDGER_TABLE)} "
            "WHERE job = %s AND kind = 'position' AND name = %s"
        )
        rows = self._query(sql, self.job, self.partition)
        return next((LedgerPosition(int(row[0]), str(row[1]), int(row[2]), str(row[3])) for row in rows), None)

    def spans_around(self, position: int) -> list[LoggedSpan]:
        """Rows of the log next to `position`: the first that ends at or above it, the last that ends below."""
        found = []
        for sign, order in ((">=", "ASC"), ("<", "DESC")):
            sql = _SPAN.format(identifier(self.database, LOG_TABLE), sign, order)
            found += [_span(row) for row in self._query(sql, self.job, self.partition, position)]
        return found

    def existing_tables(self) -> set[str]:
        """Names of the existing tables among ledger and log."""
        sql = "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN (%s, %s)"
        return {str(row[0]) for row in self._query(sql, self.database, LEDGER_TABLE, LOG_TABLE)}

    def known_partitions(self) -> list[str]:
        """Up to 20 source partitions of the job, to help with a wrong name."""
        ledger = identifier(self.database, LEDGER_TABLE)
        sql = f"SELECT name FROM {ledger} WHERE job = %s AND kind = 'position' ORDER BY name LIMIT 20"
        return [str(row[0]) for row in self._query(sql, self.job)]

    def known_jobs(self) -> list[str]:
        """The jobs of the ledger."""
        sql = f"SELECT DISTINCT job FROM {identifier(self.database, LEDGER_TABLE)} ORDER BY job"
        return [str(row[0]) for row in self._query(sql)]

    def finish_time(self, label: str) -> str | None:
        """Time at which the server made `label` visible; None once it has forgotten the label (wire contract 6.1)."""
        try:
            rows = self._query("SELECT max(LOAD_FINISH_TIME) FROM information_schema.loads WHERE LABEL = %s", label)
        except QueryRefused:
            return None
        return str(rows[0][0]) if rows and rows[0][0] is not None else None

    def _query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self.connection.query(sql, parameters, self.deadline)


def _span(row: tuple[Any, ...]) -> LoggedSpan:
    first, last, label, lane, batch, rows, tables, since = row
    return LoggedSpan(
        int(first), int(last), str(label), int(lane), int(batch), int(rows or 0), str(tables or ""), str(since)
    )


class JobLedgerMissing(StarRocksSinkError):
    """Raised by `where` when the ledger of the job cannot be read because it does not exist."""

    code = "no_ledger"
    summary = "The database has no ledger."
    hint = "Check --database; a job with at-least-once delivery has no ledger."


class UnknownJob(StarRocksSinkError):
    """Raised by `where` and `status`; the message lists the jobs."""

    code = "unknown_job"
    summary = "The ledger has no rows of the job."
    hint = "Check --job: it is the option `job`, by default query-<id of the query>."

    @classmethod
    def among(cls, job: str, database: str, jobs: Sequence[str]) -> UnknownJob:
        """The error for `job`, where the ledger has `jobs`."""
        known = f"Its jobs are: {', '.join(jobs)}." if jobs else "It has no jobs."
        return cls(f"The ledger of {database} has no rows of the job {job}. {known}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command_line.add_server_arguments(parser, load_url=False)
    command_line.add_job_arguments(parser, deadline=60.0, json="one line of JSON")
    parser.add_argument("--partition", required=True, help="the source partition, as the sink's input names it")
    parser.add_argument("--position", required=True, type=int, help="the position of the source transaction's END")


def run(args: argparse.Namespace) -> int:
    """Look the position up, print the answer and return the exit code."""
    options = command_line.server_options(args, database=args.database, job=args.job)
    found = look_up(options, args.partition, args.position, args.deadline)
    command_line.print_lines(
        [json.dumps(json_document(found))] if args.json else text_lines(found, args.partition, args.position)
    )
    return 1 if found["place"].status is PositionStatus.NOT_YET else 0


def look_up(options: SinkOptions, partition: str, position: int, seconds: float) -> dict[str, Any]:
    """Look a position up: `place`, `logged` (the log exists), `finished` (the server's time), `known` (partitions).

    Raises UnknownJob, and StarRocksSinkError if the leader does not answer or the ledger does not exist.
    """
    deadline = Deadline.after(seconds, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        lookup = Lookup(connection, deadline, options.database, str(options.job), partition)
        tables = lookup.existing_tables()
        if LEDGER_TABLE not in tables:
            raise JobLedgerMissing(f"The table {LEDGER_TABLE} does not exist in {options.database}.")
        logged = LOG_TABLE in tables
        place = locate(position, lookup.ledger_position(), lookup.spans_around(position) if logged else [])
        finished = lookup.finish_time(place.span.label) if place.span else None
        known = lookup.known_partitions() if place.reached is None else []
        if place.reached is None and not known and (job := str(options.job)) not in (jobs := lookup.known_jobs()):
            raise UnknownJob.among(job, options.database, jobs)
    return {"place": place, "logged": logged, "finished": finished, "known": known}


def json_document(found: dict[str, Any]) -> dict[str, Any]:
    place = found["place"]
    return {
        "standing": place.status.value,
        "span": asdict(place.span) if place.span else None,
        "visible_since": found["finished"],
        "visible_at_the_latest": place.upper or None,
        "ledger": asdict(place.reached) if place.reached else None,
        "log": found["logged"],
        "known_partitions": found["known"],
    }


def text_lines(found: dict[str, Any], partition: str, position: int) -> Iterator[str]:
    """The answer as text."""
    place = found["place"]
    what = f"{partition}, position {position}"
    if place.reached is None:
        yield f"{what}: not yet; nothing of this source partition is visible."
        if found["known"]:
            yield f"The ledger has: {', '.join(found['known'])}"
        return
    ledger = f"the ledger is at {place.reached.position} since {place.reached.since} (label {place.reached.label})"
    if place.status is PositionStatus.NOT_YET:
        yield f"{what}: not yet; {ledger}."
    elif place.span is not None:
        span = place.span
        since = f"visible since {found['finished']} (the server's time)" if found["finished"] else "visible"
        yield f"{what}: contained in label {span.label}, {since}, loaded at {span.since} UTC."
        yield f"  positions {span.first} to {span.last}, {span.rows} rows into {span.tables}"
        yield f"  micro-batch {span.batch}, lane {span.lane}"
    else:
        why = "the log starts later" if found["logged"] else "no receipts are logged (option receipts_log)"
        yield f"{what}: visible, at or before {place.upper} UTC; {why}; {ledger}."
