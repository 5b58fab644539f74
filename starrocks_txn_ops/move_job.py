"""`starrocks-txn-sink ledger`: moves a job to another name, database or cluster (`moving`)."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import secrets
import time
from functools import partial
from pathlib import Path

from starrocks_txn_ops import command_line
from starrocks_txn_ops.ledger_file import JobExport, Token, read_export, write_export
from starrocks_txn_ops.ledger_reader import LedgerReader
from starrocks_txn_ops.moving import MOVE, TAKE_BACK, Mover, close_job, delete_row, open_job, refuse_target
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import MoveRefused, OptionError, UnknownJob
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.label import Result, Steps, labels
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, fresh_tokens, token_row
from starrocks_txn_sink.protocol.snapshots import SNAPSHOT
from starrocks_txn_sink.protocol.source_keys import KEY
from starrocks_txn_sink.rows.body import load_body
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action, and the file or the new name that it needs."""
    parser.add_argument(
        "action",
        choices=("export", "import", "rename"),
        help="close a job and write its positions into a file; open a job with them; or both, for a new name",
    )
    command_line.add_server_arguments(parser, load_url=True)
    command_line.add_shared_arguments(parser, database={}, job={}, deadline={"default": 60.0}, json={})
    parser.add_argument("--file", type=Path, help="of export and import: the file of positions, as JSON lines")
    parser.add_argument("--to", metavar="JOB", help="of rename: the job's new name in the same database")


def run(args: argparse.Namespace) -> int:
    """Move a job, or a half of it; raises StarRocksSinkError. The same command again goes on after a crash."""
    if (args.file is None) == (args.action != "rename") or (args.to is None) == (args.action == "rename"):
        raise OptionError("export and import take --file, and rename takes --to.")
    options = command_line.server_options(args, database=args.database, job=args.job)
    with contextlib.closing(_Move(options, args.deadline)) as move:
        if args.action == "export":
            text, export = _export(move, args.job, args.file)
        elif args.action == "import":
            text, export = _import(move, args.job, args.file)
        else:
            to = command_line.server_options(args, database=args.database, job=args.to)  # checks the name
            text, export = _rename(move, args.job, str(to.job))
    positions = {name: position.position for name, position in export.positions.items()}
    command_line.print_lines([json.dumps({"move": export.move, "positions": positions}) if args.json else text])
    return 0


class _Move:
    """The connections of a command, and what its steps need."""

    def __init__(self, options: SinkOptions, seconds: float) -> None:
        self.options = options
        self.clock = SystemClock()
        self.deadline = Deadline.after(seconds, self.clock)
        self.connection = LeaderConnection(options)
        self.transport = HttpTransport(options)
        self.ledger = SqlLedger(self.connection, options.database)
        self.reader = LedgerReader(self.connection, options.database, self.deadline)
        compression = options.compression_of(LEDGER_TABLE).value
        self.mover = Mover(
            database=options.database,
            labels=lambda job: labels(job, MOVE, 0, secrets.randbits(62), 1),
            begin_headers=options.begin_headers(),
            load_headers=options.load_headers(LEDGER_TABLE),
            body=partial(load_body, compression=compression),
            new_token=fresh_tokens(MOVE, 0, random.SystemRandom()),
            now_text=self.now_text,
            rng=random.Random(),
        )

    def now_text(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.clock.wall()))

    def tokens(self, job: str) -> list[Token]:
        """What the ledger knows of the job's source beside positions; final for a job that is closed."""
        sql = "SELECT kind, name, token FROM {} WHERE job = %s AND kind IN (%s, %s) ORDER BY kind, name"
        rows = self.reader.rows(sql, job, SNAPSHOT, KEY) if self.reader.existing(LEDGER_TABLE) else []
        return [(str(kind), str(name), str(token or "")) for kind, name, token in rows]

    def run(self, steps: Steps[Result]) -> Result:
        return protocol.run(steps, self.transport, self.clock, self.deadline, self.ledger)

    def close(self) -> None:
        self.connection.close()
        self.transport.close()


def _export(move: _Move, job: str, path: Path) -> tuple[str, JobExport]:
    if path.exists():
        raise OptionError(f"--file {path} exists already.", hint="Name a new file.")
    export = _close(move, job)
    write_export(export, path)
    closed = (
        f"Job {job} of database {export.database} is closed (move {export.move}): nothing is written under its name"
    )
    return f"{closed} any more. Its {len(export.positions)} positions are in {path}.", export


def _import(move: _Move, job: str, path: Path) -> tuple[str, JobExport]:
    export = read_export(path)
    if move.options.ledger_create and not move.reader.existing(LEDGER_TABLE):
        move.ledger.create(move.options.ledger_replication, move.deadline)
    return _open(move, job, export), export


def _rename(move: _Move, job: str, to: str) -> tuple[str, JobExport]:
    if to == job:
        raise OptionError("--to is the present name.", hint="Name another job.")
    export = _close(move, job, to)
    return f"Job {job} is closed. {_open(move, to, export)}", export


def _open(move: _Move, job: str, export: JobExport) -> str:
    of_source = {(kind, name): token for kind, name, token in export.tokens}
    stale = [delete_row(job, kind, name) for kind, name, _ in move.tokens(job) if (kind, name) not in of_source]
    time = move.now_text()
    rows = [token_row(job, kind, name, token, time) for (kind, name), token in of_source.items()]
    move.run(open_job(move.mover, job, export.move, export.positions, [*stale, *rows]))
    return (
        f"Job {job} of database {move.options.database} is open, with the {len(export.positions)} positions that job "
        f"{export.job} of database {export.database} had (move {export.move}): start its query."
    )


def _close(move: _Move, job: str, to: str = "") -> JobExport:
    """Close `job`, unless something stands in the way of its move."""
    jobs = move.reader.jobs() if move.reader.existing(LEDGER_TABLE) else []
    if job not in jobs:
        raise UnknownJob.among(job, move.options.database, jobs)
    _refuse_dead_letters(move.reader, job)
    if to:
        move.run(refuse_target(job, to, move.mover.rng))
    check = partial(_refuse_dead_letters, move.reader, job)  # again, when the driver writes none any more
    gate, positions = move.run(close_job(move.mover, job, secrets.token_hex(8), to, check))
    if to and gate.to not in ("", to):
        raise MoveRefused(
            f"The job {job} is closed already, by a move to the job {gate.to}.",
            hint=f"Go on with --to {gate.to}. {TAKE_BACK.format(job)}",
        )
    return JobExport(gate.move, job, move.options.database, move.now_text(), positions, move.tokens(job))


def _refuse_dead_letters(reader: LedgerReader, job: str) -> None:
    if not reader.existing(DEAD_LETTER_TABLE):
        return
    ((count,),) = reader.rows("SELECT count(*) FROM {} WHERE job = %s", job, table=DEAD_LETTER_TABLE)
    if int(count):
        raise MoveRefused(
            f"The job {job} has {count} rows of dead letters, which a move would leave behind.",
            hint="Replay them (starrocks-txn-sink dead-letter replay), or delete them, and move the job then.",
        )
