"""`starrocks-txn-sink recover`: shows a job's open labels, and rolls them back on request.

The command never claims the job. So a live driver loses at most its open attempt, which it then repeats.
"""

import argparse
import json
import random
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

from starrocks_txn_ops import command_line
from starrocks_txn_ops.ledger_reader import LedgerReader
from starrocks_txn_ops.open_labels import is_open, label_states
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import label as protocol, ledger
from starrocks_txn_sink.protocol.fencing import roll_back_until_confirmed
from starrocks_txn_sink.protocol.label import Label, LabelPrefix
from starrocks_txn_sink.protocol.ledger import retry_until_answered
from starrocks_txn_sink.protocol.wire import LabelState
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger

_OPEN = "open"
"""A listed label without a state: its transaction is not registered yet (wire contract 6.2)."""


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
class JobFindings:
    """The open labels of a job; `accepted`: this command has accepted the ledger as it is.

    `committed` counts labels that the server lists besides though they are committed (wire contract 10.6).
    """

    job: str
    database: str
    labels: Sequence[OpenLabel]
    committed: int = 0
    accepted: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the job, and what to do about it beyond showing."""
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
    """Print the open labels; with `--roll-back` roll every one back, with `--accept-ledger` accept the ledger.

    Raises StarRocksSinkError.
    """
    options = command_line.server_options(args, database=args.database, job=args.job)
    findings = inspect_job(options, args.deadline, roll_back=args.roll_back, accept=args.accept_ledger)
    command_line.print_lines([json.dumps(asdict(findings))] if args.json else _text_lines(findings))
    return 0


def inspect_job(options: SinkOptions, seconds: float, *, roll_back: bool = False, accept: bool = False) -> JobFindings:
    """Read the open labels of `options.job` from the server, within `seconds`; raises StarRocksSinkError.

    Raises UnknownJob for a job of which neither labels nor rows of the ledger are known, unless it is to `accept`.
    With `accept` the next start of a query takes the ledger as it is (`sink.session`).
    """
    clock = SystemClock()
    deadline = Deadline.after(seconds, clock)
    with closing(LeaderConnection(options)) as connection, closing(HttpTransport(options)) as transport:
        _require_database(connection, options, deadline)
        store, rng = SqlLedger(connection, options.database), random.Random()
        names: Sequence[str] = store.execute(ledger.ListUnfinished(LabelPrefix(str(options.job))), deadline)
        if not names and not accept:
            LedgerReader(connection, options.database, deadline).require_job(str(options.job))
        states = label_states(transport, options.database, names, deadline)
        labels = []
        for name in filter(lambda name: is_open(states[name]), names):
            ending = roll_back_until_confirmed(Label(options.database, name), rng)
            outcome = protocol.run(ending, transport, clock, deadline).value if roll_back else None
            labels.append(OpenLabel(name, states[name], outcome))
        if accept:
            # one token for all tries: a repetition after a lost reply changes nothing
            acceptance = ledger.WriteMarker(str(options.job), ledger.ACCEPTED, secrets.token_hex(8))
            protocol.run(retry_until_answered(acceptance, rng), transport, clock, deadline, store)
        return JobFindings(str(options.job), options.database, labels, len(names) - len(labels), accept)


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
    if findings.committed:
        yield f"  and {findings.committed} committed ones, which StarRocks before 4.1.3 lists as well"
    for label in findings.labels:
        state = _OPEN if label.state == LabelState.UNKNOWN.value else label.state
        yield f"  {label.label}  {state}" + (f" -> {label.after}" if label.after else "")
    if findings.accepted:
        yield "The ledger is accepted as it is: the job's next start does not compare it with its checkpoint."
