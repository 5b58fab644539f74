"""`starrocks-txn-sink where`: whether a source transaction is visible, and under which label it was written.

The ledger has the last visible position of each source partition; all positions up to this one are visible, or were
dead-lettered: the dead-letter table has them until they are replayed. The receipts' log has the labels. A position
between two logged ENDs belongs to the source transaction of the later END.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from starrocks_txn_ops import command_line
from starrocks_txn_ops.ledger_reader import LedgerReader
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import JobLedgerMissing, QueryRefused, UnknownJob
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import (
    DEAD_LETTER_TABLE,
    DeadLetter,
    read_dead_letters,
    select_dead_letters,
)
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, LOG_TABLE
from starrocks_txn_sink.sql.connection import LeaderConnection

_SPAN = (
    "SELECT first_position, last_position, label, batch, row_count, tables, loaded_at FROM {} "
    "WHERE job = %s AND source_partition = %s AND last_position"
)
_PARTITIONS = "SELECT name FROM {} WHERE job = %s AND kind = 'position' ORDER BY name LIMIT 20"


class PositionStatus(Enum):
    """Whether a position is visible, and whether the log names its label; `--json` shows the value.

    DEAD_LETTERED: nothing of the source transaction is visible, and the ledger is beyond it all the same.
    """

    CONTAINED = "contained"
    VISIBLE = "visible"
    NOT_YET = "not yet"
    DEAD_LETTERED = "dead-lettered"


@dataclass(frozen=True, slots=True)
class LedgerPosition:
    """Row of the ledger for a source partition; times are UTC of the server or the lane, as text."""

    position: int
    label: str
    batch: int
    since: str


@dataclass(frozen=True, slots=True)
class LoggedSpan:
    """Row of the receipts' log: the positions of a source partition that a label made visible."""

    first: int
    last: int
    label: str
    batch: int
    rows: int
    tables: str
    since: str


@dataclass(frozen=True, slots=True)
class LocatedPosition:
    """Answer for a position. `reached` is the ledger's row for the source partition, None without one.

    `span` is set for CONTAINED. `upper` is set for VISIBLE: the position was visible at that time, perhaps earlier.
    `logged`: the receipts' log exists. `finished` is the server's time for the label. `known` has source partitions of
    the job, to help with a wrong name. `letter` is set for DEAD_LETTERED.
    """

    status: PositionStatus
    reached: LedgerPosition | None
    span: LoggedSpan | None = None
    upper: str = ""
    logged: bool = False
    finished: str | None = None
    known: Sequence[str] = ()
    letter: DeadLetter | None = None


def locate(position: int, reached: LedgerPosition | None, around: Sequence[LoggedSpan]) -> LocatedPosition:
    """Locate `position`; `around` are its neighbours in the log: the next END at or above it, the last END below."""
    if reached is None or position > reached.position:
        return LocatedPosition(PositionStatus.NOT_YET, reached)
    above = min((span for span in around if span.last >= position), key=lambda span: span.last, default=None)
    if above is None:
        return LocatedPosition(PositionStatus.VISIBLE, reached, upper=reached.since)
    below = any(span.last < position for span in around)
    if above.first <= position or below:
        return LocatedPosition(PositionStatus.CONTAINED, reached, above)
    return LocatedPosition(PositionStatus.VISIBLE, reached, upper=above.since)


def _reached(reader: LedgerReader, job: str, partition: str) -> LedgerPosition | None:
    """The partition's row in the ledger; None without one."""
    sql = "SELECT position, label, batch, updated_at FROM {} WHERE job = %s AND kind = 'position' AND name = %s"
    rows = reader.rows(sql, job, partition)
    return next((LedgerPosition(int(row[0]), str(row[1]), int(row[2]), str(row[3])) for row in rows), None)


def _spans_around(reader: LedgerReader, job: str, partition: str, position: int) -> list[LoggedSpan]:
    """Rows of the log next to `position`: the first row that ends at or above it, the last row that ends below it."""
    spans = []
    for sign, order in ((">=", "ASC"), ("<", "DESC")):
        sql = f"{_SPAN} {sign} %s ORDER BY last_position {order} LIMIT 1"
        spans += [_span(row) for row in reader.rows(sql, job, partition, position, table=LOG_TABLE)]
    return spans


def _letter(reader: LedgerReader, job: str, partition: str, position: int) -> DeadLetter | None:
    """The source transaction that was dead-lettered at this position and is not replayed; None if there is none."""
    sql, values = select_dead_letters(reader.database, job, partition, position)
    return next(iter(read_dead_letters(reader.connection.query(sql, values, reader.deadline))), None)


def _finish_time(reader: LedgerReader, label: str) -> str | None:
    """Time at which the server made `label` visible; None once it has forgotten the label (wire contract 6.1)."""
    try:
        rows = reader.rows("SELECT max(LOAD_FINISH_TIME) FROM information_schema.loads WHERE LABEL = %s", label)
    except QueryRefused:
        return None
    return str(rows[0][0]) if rows and rows[0][0] is not None else None


def _span(row: tuple[Any, ...]) -> LoggedSpan:
    first, last, label, batch, rows, tables, since = row
    return LoggedSpan(int(first), int(last), str(label), int(batch), int(rows or 0), str(tables or ""), str(since))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the job and the position."""
    command_line.add_server_arguments(parser, load_url=False)
    command_line.add_shared_arguments(parser, database={}, job={}, deadline={"default": 60.0}, json={})
    parser.add_argument("--partition", required=True, help="the source partition, as the sink's input names it")
    parser.add_argument("--position", required=True, type=int, help="the position of the source transaction's END")


def run(args: argparse.Namespace) -> int:
    """Print where the position is: 0 visible, 1 not yet, 3 dead-lettered; raises as `look_up`."""
    options = command_line.server_options(args, database=args.database, job=args.job)
    place = look_up(options, args.partition, args.position, args.deadline)
    command_line.print_lines(
        [json.dumps(json_document(place))] if args.json else text_lines(place, args.partition, args.position)
    )
    return _EXIT_CODES.get(place.status, 0)


def look_up(options: SinkOptions, partition: str, position: int, seconds: float) -> LocatedPosition:
    """Look a position up on the leader.

    Raises UnknownJob, and StarRocksSinkError if the leader does not answer or the ledger does not exist.
    """
    job, database = str(options.job), options.database
    with contextlib.closing(LeaderConnection(options)) as connection:
        reader = LedgerReader(connection, database, Deadline.after(seconds, SystemClock()))
        tables = reader.existing(LEDGER_TABLE, LOG_TABLE, DEAD_LETTER_TABLE)
        if LEDGER_TABLE not in tables:
            raise JobLedgerMissing(f"The table {LEDGER_TABLE} does not exist in {database}.")
        logged = LOG_TABLE in tables
        reached = _reached(reader, job, partition)  # read before the log: a commit writes both, so the log is as new
        place = locate(position, reached, _spans_around(reader, job, partition, position) if logged else [])
        letter = _letter(reader, job, partition, position) if DEAD_LETTER_TABLE in tables else None
        if letter is not None:
            place = LocatedPosition(PositionStatus.DEAD_LETTERED, reached, letter=letter)
        finished = _finish_time(reader, place.span.label) if place.span else None
        partition_names = [str(row[0]) for row in reader.rows(_PARTITIONS, job)] if reached is None else []
        if reached is None and not partition_names and job not in (jobs := reader.jobs()):
            raise UnknownJob.among(job, database, jobs)
    return replace(place, logged=logged, finished=finished, known=partition_names)


_EXIT_CODES = {PositionStatus.NOT_YET: 1, PositionStatus.DEAD_LETTERED: 3}  # 2 is an error


def json_document(place: LocatedPosition) -> dict[str, Any]:
    """The answer for `--json`; times are texts of the server's."""
    return {
        "standing": place.status.value,
        "span": asdict(place.span) if place.span else None,
        "visible_since": place.finished,
        "visible_at_the_latest": place.upper or None,
        "ledger": asdict(place.reached) if place.reached else None,
        "log": place.logged,
        "dead_letter": {**asdict(place.letter), "rows": place.letter.rows} if place.letter else None,
        "known_partitions": place.known,
    }


def text_lines(place: LocatedPosition, partition: str, position: int) -> Iterator[str]:
    """The answer in sentences, with the command that replays a dead letter."""
    place_text = f"{partition}, position {position}"
    if place.letter is not None:
        tables = ", ".join(f"{rows} of {table}" for table, rows in sorted(place.letter.tables.items()))
        yield f"{place_text}: dead-lettered at {place.letter.at} UTC, nothing of it is visible: {tables}."
        yield f"  {place.letter.reason}"
        yield f"  dead-letter replay --source-partition {shlex.quote(partition)} --position {position} writes it"
        return
    if place.reached is None:
        yield f"{place_text}: not yet; nothing of this source partition is visible."
        if place.known:
            yield f"The ledger has: {', '.join(place.known)}"
        return
    ledger = f"the ledger is at {place.reached.position} since {place.reached.since} (label {place.reached.label})"
    if place.status is PositionStatus.NOT_YET:
        yield f"{place_text}: not yet; {ledger}."
    elif place.span is not None:
        span = place.span
        since = f"visible since {place.finished} (the server's time)" if place.finished else "visible"
        yield f"{place_text}: contained in label {span.label}, {since}, loaded at {span.since} UTC."
        yield f"  positions {span.first} to {span.last}, {span.rows} rows into {span.tables}"
        yield f"  micro-batch {span.batch}"
    else:
        why = "the log starts later" if place.logged else "no receipts are logged (option receipts_log)"
        yield f"{place_text}: visible, at or before {place.upper} UTC; {why}; {ledger}."
