"""`starrocks-txn-sink recover`: shows a job's open labels and its rows in the ledger, and rolls back on request.

The command never claims the job. So a live driver loses at most its open attempt, which it then repeats.
"""

import argparse
import json
import random
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.operations.ledger_reader import LedgerReader
from starrocks_txn_sink.options import SinkOptions, command_line
from starrocks_txn_sink.protocol import label as protocol, ledger
from starrocks_txn_sink.protocol.fencing import roll_back_until_confirmed
from starrocks_txn_sink.protocol.label import Label, LabelPrefix, Steps
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, retry_until_answered
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger

_OPEN = "open"
"""A listed label without a state: its transaction is not registered yet (wire contract 6.2)."""
_OWNERS = (
    "SELECT kind, epoch, checkpoint, updated_at FROM {} WHERE job = %s AND kind IN ('driver', 'replay') ORDER BY kind"
)
_POSITIONS = (
    "SELECT name, position, batch, label, row_count, updated_at FROM {} WHERE job = %s AND kind = 'position'"
    " ORDER BY name"
)


@dataclass(frozen=True, slots=True)
class OpenLabel:
    """An unfinished label, its state on the server, and how it has ended `after` a requested rollback.

    Generation B knows no state before a commit with loads: the label is UNKNOWN to it, and open all the same, because
    it is listed (wire contract 6.2). After a rollback the answer to it counts.
    """

    label: str
    state: str
    after: str | None = None


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The driver of the job, or the last replay of its dead letters (`kind`); `since` is the server's time."""

    kind: str
    epoch: str
    checkpoint: str
    since: str


@dataclass(frozen=True, slots=True)
class PositionRow:
    """Last visible position of a source partition."""

    partition: str
    position: int
    batch: int
    label: str
    rows: int
    updated_at: str


@dataclass(frozen=True, slots=True)
class JobFindings:
    """State of a job on the server. `ledger`: the ledger exists. `other_jobs` help with a wrong name of the job.

    `accepted`: this command has accepted the ledger as it is.
    """

    job: str
    database: str
    ledger: bool
    labels: Sequence[OpenLabel]
    owners: Sequence[OwnerRow]
    positions: Sequence[PositionRow]
    other_jobs: Sequence[str]
    accepted: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command_line.add_server_arguments(parser, load_url=True)
    command_line.add_shared_arguments(parser, database={}, job={}, deadline={"default": 60.0}, json={})
    parser.add_argument("--roll-back", action="store_true", help="roll the open labels back")
    parser.add_argument(
        "--accept-ledger",
        action="store_true",
        help="record that the ledger's rows of the job count as they are, so that a query that ended with "
        "ledger_behind starts again; rows may then be missing or come twice",
    )


def run(args: argparse.Namespace) -> int:
    """Print the job's state; with `--roll-back` roll every open label back first, with `--accept-ledger` accept it.

    Raises StarRocksSinkError.
    """
    options = command_line.server_options(args, database=args.database, job=args.job)
    findings = inspect_job(options, args.deadline, roll_back=args.roll_back, accept=args.accept_ledger)
    command_line.print_lines([json.dumps(asdict(findings))] if args.json else _text_lines(findings))
    return 0


def inspect_job(options: SinkOptions, seconds: float, *, roll_back: bool = False, accept: bool = False) -> JobFindings:
    """Read the state of `options.job` from the server, within `seconds`; raises StarRocksSinkError.

    With `accept` the next start of a query takes the ledger as it is (`sink.session`).
    """
    clock = SystemClock()
    deadline = Deadline.after(seconds, clock)
    with closing(LeaderConnection(options)) as connection, closing(HttpTransport(options)) as transport:
        _require_database(connection, options, deadline)
        store = SqlLedger(connection, options.database)
        labels = protocol.run(_labels(options, roll_back), transport, clock, deadline, store)
        if accept:
            # one token for all tries: a repetition after a lost reply changes nothing
            acceptance = ledger.WriteMarker(str(options.job), ledger.ACCEPTED, secrets.token_hex(8))
            protocol.run(retry_until_answered(acceptance, random.Random()), transport, clock, deadline, store)
        reader = LedgerReader(connection, options.database, deadline)
        return replace(_findings(reader, str(options.job), labels), accepted=accept)


def _labels(options: SinkOptions, roll_back: bool) -> Steps[list[OpenLabel]]:
    rng = random.Random()
    labels = []
    for name in (yield from retry_until_answered(ledger.ListUnfinished(LabelPrefix(str(options.job))), rng)):
        label = Label(options.database, name)
        state, after = (yield from _label_state(label)), None
        if roll_back:
            ended = yield from roll_back_until_confirmed(label, rng)
            after = ended.value
        labels.append(OpenLabel(name, state, after))
    return labels


def _label_state(label: Label) -> Steps[str]:
    """The label's state as the server reports it: UNKNOWN without a registered transaction (wire contract 6.2)."""
    answer = yield label.request(Operation.LOAD_STATE)
    return answer.state.value if isinstance(answer, Reply) and answer.state is not None else "not answered"


def _findings(reader: LedgerReader, job: str, labels: Sequence[OpenLabel]) -> JobFindings:
    if not reader.existing(LEDGER_TABLE):
        return JobFindings(job, reader.database, False, labels, (), (), ())
    owners = [OwnerRow(*(str(value or "") for value in row)) for row in reader.rows(_OWNERS, job)]
    positions = [_position(row) for row in reader.rows(_POSITIONS, job)]
    jobs = [name for name in reader.jobs() if name != job]
    return JobFindings(job, reader.database, True, labels, owners, positions, jobs)


def _position(row: tuple[Any, ...]) -> PositionRow:
    partition, position, batch, label, rows, updated = row
    return PositionRow(str(partition), int(position), int(batch), str(label), int(rows), str(updated))


def _require_database(connection: LeaderConnection, options: SinkOptions, deadline: Deadline) -> None:
    names = [str(row[0]) for row in connection.query("SHOW DATABASES", (), deadline)]
    if options.database not in names:
        raise OptionError(
            f"The database {options.database!r} does not exist, or the user may not see it.",
            hint="Check --database, and the user's privileges.",
        )


# --- output ---


def _text_lines(findings: JobFindings) -> Iterator[str]:
    yield f"Job {findings.job}, database {findings.database}"
    yield f"open labels: {len(findings.labels) or 'none'}"
    for label in findings.labels:
        state = _OPEN if label.state == LabelState.UNKNOWN.value else label.state
        yield f"  {label.label}  {state}" + (f" -> {label.after}" if label.after else "")
    if not findings.ledger:
        yield f"ledger: the table {LEDGER_TABLE} does not exist; no job wrote exactly-once here"
        return
    yield f"owners: {len(findings.owners) or 'none'}"
    for owner in findings.owners:
        yield f"  {owner.kind} run {owner.epoch}, checkpoint {owner.checkpoint}, since {owner.since}"
    yield f"positions: {len(findings.positions) or 'none'}"
    for row in findings.positions:
        yield f"  {row.partition}  {row.position}  micro-batch {row.batch}, label {row.label}, at {row.updated_at}"
    if findings.accepted:
        yield "The ledger is accepted as it is: the job's next start does not compare it with its checkpoint."
    if not findings.owners and findings.other_jobs:
        yield f"The ledger has no rows of this job. Its jobs are: {', '.join(findings.other_jobs)}"
