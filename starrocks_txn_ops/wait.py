"""`starrocks-txn-sink wait`, and `wait_for_position` in Python: wait until a commit of the source is visible.

An application that has committed asks its database for the position, and waits until the job's ledger has passed it
(`positions`): then its rows are visible, because ledger and rows are one StarRocks transaction.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from starrocks_txn_ops import command_line
from starrocks_txn_ops.ledger_reader import LedgerReader, look_until
from starrocks_txn_ops.positions import COLUMNS, Judgement, Kind, Position, Reached, has_passed, parse
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock, parse_duration
from starrocks_txn_sink.errors import (
    JobLedgerMissing,
    OptionError,
    PositionDeadLettered,
    PositionNotReached,
    PositionOfOtherSource,
    QueryRefused,
    UnknownJob,
)
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.gate import GATE, Gate
from starrocks_txn_sink.protocol.ledger import DRIVER, LEDGER_TABLE, MARKER, POSITION
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.sql.failures import NO_TABLE

_ROWS: Final = f"SELECT {COLUMNS}, epoch, label, updated_at FROM {{}} WHERE job = %s"
_LETTERS: Final = (
    "SELECT count(DISTINCT position), max(position), max(set_aside_at) FROM {} "
    "WHERE job = %s AND source_partition = %s AND position <= %s"
)
_LOOK_SECONDS: Final = 10.0
"""For one look: it takes milliseconds, unless the leader changes. So the time limit may be exceeded by this much."""


@dataclass(frozen=True, slots=True)
class VisiblePosition:
    """The position is visible: what `wait_for_position` returns.

    The commit of `label` may be later than the first one that was beyond the position. The ledger does not say where
    source transactions were given up, nor when.
    """

    partition: str
    position: int
    label: str
    since: str
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """What the ledger says of a job: its own rows by kind and name, each as epoch, label, time; and what it reached."""

    reached: Reached
    rows: dict[tuple[str, str], tuple[str, str, str]]
    gate: Gate | None

    @classmethod
    def of_rows(cls, rows: list[tuple[Any, ...]]) -> _Look:
        gate = next((Gate.of_token(str(row[3])) for row in rows if tuple(row[:2]) == (MARKER, GATE)), None)
        by_name = {(str(row[0]), str(row[1])): tuple(str(text or "") for text in row[4:]) for row in rows}
        return cls(Reached.of_rows(row[:4] for row in rows), by_name, gate)  # type: ignore[arg-type]

    def label_and_time(self, partition: str) -> tuple[str, str]:
        _, label, time = self.rows.get((POSITION, partition), ("", "", ""))
        return label, time

    @property
    def known(self) -> str:
        """What is known of the job's writer: its last commit and its owner."""
        commits = [(time, label) for (kind, _), (_, label, time) in self.rows.items() if kind == POSITION]
        time, label = max(commits, default=("", ""))
        epoch, _, since = self.rows.get((DRIVER, ""), ("", "", ""))
        commit = f"The job's last commit was at {time} UTC (label {label})" if time else "The job has committed nothing"
        return f"{commit}; {f'run {epoch} owns it since {since}' if epoch else 'nothing owns it'}"


@suggests_arguments
def wait_for_position(
    options: SinkOptions, position: str, *, partition: str = "", timeout: float | timedelta | str = 60.0
) -> VisiblePosition:
    """Wait until all source transactions up to a position are visible: read your own writes in StarRocks.

    Ask the source for the position after your commit: PostgreSQL `pg_current_wal_lsn()`, MariaDB `@@last_gtid`, MySQL
    the GTID that `session_track_gtids=OWN_GTID` returns. The number of a source partition, as Kafka's offset of your
    last message, needs its `partition`. The guide "Read your writes" says what the answer means, and its limits.

    Args:
        options: The place of the ledger: query_url, database, job, user and password. Nothing else counts.
        position: The position, as the source writes it.
        partition: The source partition, where several may have the position, and for a number of its own.
        timeout: The time limit: seconds, a timedelta or a text such as `30s`; 0 looks once.

    Returns:
        Where the job is: `partition`, the source partition; `position`, its number in the ledger; `label` and `since`
        of the commit that has moved it there (UTC, as text); `given_up`, how many source transactions never became
        whole and were given up so far.

    Raises:
        PositionNotReached: The time limit has passed.
        PositionDeadLettered: Source transactions up to the position are dead letters, or one was given up meanwhile.
        PositionOfOtherSource: The job's sources cannot reach it, or another source has followed meanwhile.
        UnknownJob, JobLedgerMissing, JobMoved: There is no such job here, or no longer.
        OptionError: The position has no known form, may be of several source partitions, or an option is missing.
        StarRocksSinkError: The leader did not answer.

    Example::

        from starrocks_txn_sink import SinkOptions, wait_for_position

        options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", job="shop")
        wait_for_position(options, "0/16B3748", timeout="10s")
    """
    seconds = parse_duration(timeout)
    if seconds is None or seconds < 0:
        raise OptionError(f"timeout is {timeout!r}.", hint="Give seconds, a timedelta or a text such as 30s.")
    if options.job is None:
        raise OptionError("job is not set.", hint="Name the job whose ledger is asked.", option="job")
    asked, clock = parse(position), SystemClock()
    with contextlib.closing(LeaderConnection(options)) as connection:
        return _Waiting(str(options.job), asked, partition, _Ledger(connection, options, clock)).run(
            Deadline.after(seconds, clock)
        )


@dataclass(frozen=True, slots=True)
class _Ledger:
    """Looks at the ledger of one job, on the leader."""

    connection: LeaderConnection
    options: SinkOptions
    clock: Clock

    def look(self) -> _Look:
        """What the ledger says now. Raises JobLedgerMissing, UnknownJob, and JobMoved for a job that is closed."""
        job, database = str(self.options.job), self.options.database
        rows = self._rows(_ROWS, job)
        if rows is None:
            raise JobLedgerMissing(f"The table {LEDGER_TABLE} does not exist in {database}.")
        if not rows:
            raise UnknownJob.among(job, database, self._reader.jobs())
        look = _Look.of_rows(rows)
        if look.gate is not None and look.gate.closed:
            raise look.gate.refusal(job)
        return look

    def letters(self, partition: str, upto: int) -> tuple[int, int, str]:
        """The dead letters of a source partition up to a position: how many, the newest position, the newest time.

        Asked after the look: the label that moves the ledger over a source transaction has its dead letter, too.
        """
        rows = self._rows(_LETTERS, self.options.job, partition, upto, table=DEAD_LETTER_TABLE)
        count, newest, time = rows[0] if rows else (0, None, None)
        return int(count), int(newest or 0), str(time or "")

    def _rows(self, sql: str, *parameters: object, table: str = LEDGER_TABLE) -> list[tuple[Any, ...]] | None:
        """The rows of a statement; None if the table does not exist."""
        try:
            return self._reader.rows(sql, *parameters, table=table)
        except QueryRefused as refusal:
            if refusal.context.get("number") not in NO_TABLE:
                raise
            return None

    @property
    def _reader(self) -> LedgerReader:
        return LedgerReader(self.connection, self.options.database, Deadline.after(_LOOK_SECONDS, self.clock))


@dataclass(slots=True)
class _Waiting:
    """A wait for a position of a job."""

    job: str
    position: Position
    partition: str
    ledger: _Ledger
    _source: str = ""
    _given_up: int | None = None

    def run(self, deadline: Deadline) -> VisiblePosition:
        """Look until the position is passed; raises as `wait_for_position`."""
        last: tuple[_Look, Judgement] | None = None

        def look() -> VisiblePosition | None:
            nonlocal last
            seen = self.ledger.look()
            last = (seen, self._judge(seen))
            return self._answer(*last) if last[1].passed else None

        answer = look_until(look, deadline)
        if answer is None:
            assert last is not None
            raise self._late(*last)
        return answer

    def _judge(self, look: _Look) -> Judgement:
        """Judge the position; raises PositionOfOtherSource if another source has followed since the first look."""
        judgement = has_passed(look.reached, self.position, self.partition)
        if judgement.number is not None:
            if self._source not in ("", judgement.partition):
                raise PositionOfOtherSource(
                    f"The source has changed while this waited for {self.position.text[:200]}: {judgement.partition} "
                    f"has followed {self._source}.",
                    hint="Ask the source that is there now for the position again.",
                )
            self._source = judgement.partition
            if self._given_up is None:
                self._given_up = judgement.given_up
        return judgement

    def _answer(self, look: _Look, judgement: Judgement) -> VisiblePosition:
        """The answer for a position that is passed; raises PositionDeadLettered if that does not mean visible."""
        number = judgement.number or 0
        own = self.position.kind in (Kind.NUMBER, Kind.LSN, Kind.BINLOG)
        upto = min(number, *self.position.numbers.values()) if own else number
        count, newest, time = self.ledger.letters(judgement.partition, upto)
        place = f"{self.position.text[:200]} of {judgement.partition}"
        if count:
            raise PositionDeadLettered(
                f"The ledger has passed {place}, but {count} source transaction(s) up to it are dead letters: the "
                f"newest at position {newest}, set aside by {time} UTC.",
                position=newest,
            )
        given_up = judgement.given_up - (self._given_up or 0)
        if given_up > 0:
            raise PositionDeadLettered(
                f"The ledger has passed {place}, but {given_up} source transaction(s) that did not become whole were "
                "given up meanwhile (open_timeout), and this may be one of them.",
                hint='The query\'s log names them (transaction.quarantined); on_open_timeout="fail" gives up none.',
            )
        return VisiblePosition(
            judgement.partition, number, *look.label_and_time(judgement.partition), judgement.given_up
        )

    def _late(self, look: _Look, judgement: Judgement) -> PositionNotReached:
        partition = f" of {judgement.partition}" if judgement.partition else ""
        return PositionNotReached(
            f"{self.position.text[:200]}{partition} is not visible yet: {judgement.lacks}. {look.known}."
        )


# --- the command ---


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the position, and the job by the file of `sync` or by server, database and name."""
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="the file of sync; or give the server, database and job"
    )
    parser.add_argument("--position", required=True, help="an LSN, a GTID, a place in a binlog, or a number")
    parser.add_argument("--partition", default="", help="the source partition, where several may have the position")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds to wait at most (default %(default)g)"
    )
    command_line.add_server_arguments(parser, load_url=False, required=False)
    job = {"required": False, "help": "the job's name, unless FILE has it"}
    command_line.add_shared_arguments(parser, database={"required": False}, job=job, json={})


def run(args: argparse.Namespace) -> int:
    """Wait; 0: visible, 1: the time limit has passed, 3: dead letters. Raises the other errors."""
    position = parse(args.position)
    options = _options_of_file(args, position) if args.file else _options_of_arguments(args)
    try:
        place = wait_for_position(options, args.position, partition=args.partition, timeout=args.timeout)
    except (PositionNotReached, PositionDeadLettered) as error:
        sys.stderr.write(f"starrocks-txn-sink: {error}\n")
        return 1 if isinstance(error, PositionNotReached) else 3
    given_up = f"; {place.given_up} source transaction(s) were given up so far" if place.given_up else ""
    text = (
        f"{position.text}: visible; {place.partition} is at {place.position} since {place.since} UTC "
        f"(label {place.label}){given_up}."
    )
    command_line.print_lines([json.dumps({"position": position.text, "ledger": asdict(place)}) if args.json else text])
    return 0


def _options_of_arguments(args: argparse.Namespace) -> SinkOptions:
    lacking = [name for name in ("query_url", "database", "job") if not getattr(args, name)]
    if lacking:
        name = lacking[0].replace("_", "-")
        raise OptionError(f"--{name} is missing.", hint="Give the file of sync, or --query-url, --database and --job.")
    return command_line.server_options(args, database=args.database, job=args.job)


def _options_of_file(args: argparse.Namespace, position: Position) -> SinkOptions:
    """The options in a file of sync, with its job; raises OptionError, and PositionOfOtherSource by its format."""
    from starrocks_txn_ops.sync.settings import read_sync  # the extra spark
    from starrocks_txn_ops.sync.transactions import needs_transactions

    if args.query_url or args.database:
        raise OptionError("FILE has the server and the database.", hint="Leave --query-url and --database out.")
    sync = read_sync(args.file)
    if position.kind is not Kind.NUMBER and not needs_transactions(sync):
        raise PositionOfOtherSource(
            f"The position {position.text[:200]} is {position.kind.value}, and the file takes each change by itself: "
            "its ledger counts Kafka's offsets.",
            hint="Give --partition TOPIC-PARTITION and an offset; whole source transactions of Debezium know the rest.",
        )
    job = args.job or sync.options.job or _job_of_checkpoint(sync.checkpoint)
    return replace(sync.options, job=job)


def _job_of_checkpoint(path: str) -> str:
    """The job of a query without a name, by its checkpoint; raises OptionError where this machine does not see it."""
    metadata = Path(urlsplit(path).path, "metadata")
    try:
        return f"query-{json.loads(metadata.read_text(encoding='utf-8'))['id']}"
    except (OSError, ValueError, KeyError, TypeError):
        hint = "Give --job as `status` names it, or set job in [target]."
        raise OptionError("The file names no job, and its checkpoint is not here, or new.", hint=hint) from None
