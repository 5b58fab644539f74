"""`starrocks-txn-sink status`: the state of each job of a database, from the server, without the job's driver.

Ledger, open labels and dead letters come from the query port. With a broker the command also shows the lag: the
distance to the ends of Kafka's partitions. The command only reads.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from starrocks_txn_ops import command_line
from starrocks_txn_ops.ledger_reader import LedgerReader
from starrocks_txn_ops.open_labels import is_open, label_states
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError, StarRocksSinkError, UnknownJob
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.bound import Bound, ReadBound
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.gate import GATE, Gate
from starrocks_txn_sink.protocol.label import LabelPrefix
from starrocks_txn_sink.protocol.ledger import DRIVER, HOLD, LEDGER_TABLE, MARKER, POSITION, ListUnfinished
from starrocks_txn_sink.protocol.snapshots import SNAPSHOT, Progress
from starrocks_txn_sink.protocol.source_places import GIVEN_UP, PLACE, of_name
from starrocks_txn_sink.protocol.verified import ReadVerified
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger

_DATABASE: Final = "SELECT SCHEMA_NAME FROM information_schema.schemata WHERE SCHEMA_NAME = %s"
_ROWS: Final = (
    "SELECT job, kind, name, position, batch, label, epoch, updated_at, token FROM {} "
    "WHERE kind IN (%s, %s, %s, %s) OR (kind = %s AND name = %s)"
)
_DEAD: Final = "SELECT job, count(*) FROM {} GROUP BY job"
_NAMED: Final = 3
"""Source partitions that a reason names."""
_PLACE: Final = re.compile(r"(?:(.+)[-/])?(\d+)")

KafkaPartition = tuple[str, int]
Ends = Callable[[Sequence[KafkaPartition]], Mapping[KafkaPartition, int]]
"""The ends of Kafka's partitions."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Last visible position of a source partition. `lag` counts the source's rows behind `position`; None: unknown."""

    partition: str
    position: int
    batch: int
    label: str
    committed_at: str
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State of a job. `partitions` are the source partitions with the largest lags, or else with the oldest commits.

    `positions` and `lag` are sums over all `partition_count` source partitions. The server may list labels as open that
    are committed (wire contract 10.6), so which of `listed_labels` are `open_labels` takes a question for each; None:
    nobody has asked. Times are UTC, as text. `moved` says of a closed job since when and to which job,
    `lag_unknown` of which partitions the lag is not known though brokers were asked, and why, `snapshot` how far
    the source's first snapshot is, and `verified` what the last whole `verify` has found; empty without one. `given_up`
    counts the source transactions that did not become whole within `open_timeout`, and `bound` says where a command has
    the job wait.
    """

    job: str
    last_commit: str
    last_batch: int
    owner: str
    owner_since: str
    partition_count: int
    positions: int
    partitions: Sequence[PartitionStatus]
    listed_labels: Sequence[str]
    open_labels: Sequence[str] | None
    dead_letter_rows: int
    lag: int | None = None
    lag_unknown: str = ""
    moved: str = ""
    snapshot: str = ""
    verified: str = ""
    given_up: int = 0
    bound: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which jobs to show, how often, and the brokers that know the lag."""
    command_line.add_server_arguments(parser, load_url=False)
    parser.add_argument(
        "--load-url",
        help="HTTP addresses of the frontends: asks for the state of each listed label. Without it open labels are "
        "not known, because StarRocks before 4.1.3 lists committed ones as well",
    )
    command_line.add_shared_arguments(
        parser,
        database={"help": "the database that the jobs write"},
        job={"required": False, "help": "only this job (default: all of the database)"},
        deadline={"default": 30.0, "help": "seconds for one look (default %(default)g)"},
        json={"help": "print one line of JSON for each look"},
    )
    parser.add_argument("--top", type=int, default=10, metavar="N", help="source partitions to show (default 10)")
    parser.add_argument("--watch", type=float, metavar="S", help="look again every S seconds, until Ctrl-C")
    parser.add_argument("--kafka", metavar="SERVERS", help="brokers, as in b1:9092: shows the lag (extra kafka)")
    parser.add_argument(
        "--topic", help="the topic of source partitions that are named by numbers alone; else names are topic-number"
    )
    command_line.add_kafka_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the jobs' state, once or repeatedly; raises StarRocksSinkError. A watch outlasts transient errors."""
    options = command_line.server_options(args, database=args.database, job=args.job)
    if args.top < 0 or (args.watch is not None and args.watch <= 0):
        raise OptionError("--top must not be negative, and --watch must be above zero.")
    clock, ends = SystemClock(), _kafka_ends(args)
    with closing(LeaderConnection(options)) as connection:
        try:
            while True:
                try:
                    statuses = job_statuses(options, connection, Deadline.after(args.deadline, clock), args, ends)
                    _show(statuses, args, again=args.watch is not None and sys.stdout.isatty())
                except StarRocksSinkError as error:
                    if args.watch is None or not error.retryable:
                        raise
                    sys.stderr.write(f"{_time(clock)} UTC: {error} Looking again in {args.watch:g} s.\n")
                if args.watch is None:
                    return 0
                clock.sleep(args.watch)
        except KeyboardInterrupt:
            return 0


def job_statuses(
    options: SinkOptions,
    connection: LeaderConnection,
    deadline: Deadline,
    args: argparse.Namespace,
    ends: Ends | None = None,
) -> list[JobStatus]:
    """The state of each job, by name; raises UnknownJob for an `options.job` without rows, and errors of the server."""
    reader = LedgerReader(connection, options.database, deadline)
    tables = reader.existing(LEDGER_TABLE, DEAD_LETTER_TABLE)
    if not tables and not reader.rows(_DATABASE, options.database):
        raise OptionError(
            f"There is no database {options.database} that the user may see.",
            hint="Check --database, and the user's privileges.",
            option="database",
        )
    ledger = SqlLedger(connection, options.database)
    rows = reader.rows(_ROWS, DRIVER, POSITION, SNAPSHOT, PLACE, MARKER, GATE) if LEDGER_TABLE in tables else []
    verified = ledger.execute(ReadVerified(), deadline) if LEDGER_TABLE in tables else {}
    letters = dict(reader.rows(_DEAD, table=DEAD_LETTER_TABLE)) if DEAD_LETTER_TABLE in tables else {}
    jobs = sorted({str(row[0]) for row in rows})
    if options.job is not None and options.job not in jobs:
        raise UnknownJob.among(options.job, options.database, jobs)
    statuses = []
    for job in [options.job] if options.job is not None else jobs:
        labels = ledger.execute(ListUnfinished(LabelPrefix(job)), deadline)
        states = _states(options, labels, deadline) if args.load_url or not labels else None
        job_rows = [row for row in rows if row[0] == job]
        status = _status(job, job_rows, labels, states, int(letters.get(job, 0)), args, ends)
        bound = ledger.execute(ReadBound(job), deadline) if job_rows else None
        proof = verified[job].text if job in verified else ""
        statuses.append(replace(status, verified=proof, bound="" if bound is None else _bound(bound)))
    return statuses


def _states(options: SinkOptions, labels: Sequence[str], deadline: Deadline) -> Mapping[str, str]:
    if not labels:
        return {}
    with closing(HttpTransport(options)) as transport:
        return label_states(transport, options.database, labels, deadline)


def _status(
    job: str,
    rows: Sequence[tuple[Any, ...]],
    labels: Sequence[str],
    states: Mapping[str, str] | None,
    dead_letter_rows: int,
    args: argparse.Namespace,
    ends: Ends | None,
) -> JobStatus:
    read = [row for row in rows if row[1] == POSITION]
    positions = {str(row[2]): int(row[3]) for row in read}
    lags = lags_of(positions, args.topic, ends) if ends is not None else {}
    partitions = [
        PartitionStatus(str(name), int(position), int(batch or 0), str(label), str(updated_at), lags.get(str(name)))
        for _, _, name, position, batch, label, _, updated_at, _ in read
    ]
    partitions.sort(key=lambda row: (-(row.lag or 0), row.committed_at, row.partition))
    owner, since = next(((str(row[6]), str(row[7])) for row in rows if row[1] == DRIVER), ("", ""))
    return JobStatus(
        job,
        last_commit=max((row.committed_at for row in partitions), default=""),
        last_batch=max((row.batch for row in partitions), default=-1),
        owner=owner,
        owner_since=since,
        partition_count=len(partitions),
        positions=sum(row.position for row in partitions),
        partitions=partitions[: args.top],
        listed_labels=labels,
        open_labels=None if states is None else [label for label in labels if is_open(states[label])],
        dead_letter_rows=dead_letter_rows,
        lag=sum(lags.values()) if lags else None,
        lag_unknown="" if ends is None else why_unknown([name for name in positions if name not in lags], args.topic),
        moved=next((_moved(Gate.of_token(str(row[8])), str(row[7])) for row in rows if row[1] == MARKER), ""),
        snapshot=Progress.of({str(row[2]): str(row[8]) for row in rows if row[1] == SNAPSHOT}).text,
        given_up=sum(int(row[3]) for row in rows if row[1] == PLACE and of_name(str(row[2]))[1] == GIVEN_UP),
    )


def _bound(bound: Bound) -> str:
    return f"verify --exact has the job wait at the source's position {bound.text}, for at most {bound.seconds} s more"


def _moved(gate: Gate, time: str) -> str:
    return (f"to {gate.to} " if gate.to else "") + f"at {time} (move {gate.move})" if gate.closed else ""


def lags_of(positions: Mapping[str, int], topic: str | None, ends: Ends) -> dict[str, int]:
    """Kafka's rows behind each position, by source partition; for names `topic-number` and, with `topic`, numbers."""
    places: dict[str, KafkaPartition] = {}
    for name in positions:
        match = _PLACE.fullmatch(name)
        if match is not None and (match[1] or topic):
            places[name] = (match[1] or str(topic), int(match[2]))
    ends_by_place = ends(sorted(set(places.values()))) if places else {}
    return {
        name: max(0, ends_by_place[place] - positions[name] - 1)
        for name, place in places.items()
        if place in ends_by_place
    }


def why_unknown(names: Sequence[str], topic: str | None) -> str:
    """Of which source partitions no lag is known, and why; "" without one."""
    reasons: dict[str, list[str]] = {}
    for name in sorted(names):
        place = _PLACE.fullmatch(name)
        if place is None:
            why = "no partition of a topic has such a name"
        elif not (place[1] or topic):
            why = "it has no topic: name it with --topic"
        else:
            why = "the brokers know no such partition"
        reasons.setdefault(why, []).append(name)
    return "; ".join(
        f"{', '.join(listed[:_NAMED])}{f' and {len(listed) - _NAMED} more' if len(listed) > _NAMED else ''}: {why}"
        for why, listed in reasons.items()
    )


def _kafka_ends(args: argparse.Namespace) -> Ends | None:
    if args.kafka is None:
        return None
    from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin  # the extra kafka

    pairs = (text.partition("=") for text in args.kafka_option)
    config = {**{name.strip(): value for name, _, value in pairs}, "bootstrap.servers": args.kafka, "log_level": 2}
    return KafkaAdmin(config, args.deadline, SystemClock()).end_offsets


# --- output ---


def _owner(status: JobStatus) -> str:
    if status.owner == HOLD:
        return (
            f"a command (verify --repair or --exact, resync), which holds or held the job since {status.owner_since}; "
            "its query takes it back by itself, with its next rows"
        )
    return f"run {status.owner} since {status.owner_since}" if status.owner else "none"


def _show(statuses: Sequence[JobStatus], args: argparse.Namespace, *, again: bool) -> None:
    if args.json:
        command_line.print_lines(
            [json.dumps({"database": args.database, "jobs": [asdict(status) for status in statuses]})]
        )
        return
    if again:
        sys.stdout.write("\x1b[H\x1b[2J")
    command_line.print_lines(text_lines(statuses, args.database, SystemClock()))


def text_lines(statuses: Sequence[JobStatus], database: str, clock: Clock) -> Iterator[str]:
    """The state as text; `clock` dates it, because times of the ledger are UTC."""
    if not statuses:
        yield f"No job has written exactly-once into {database}: it has no ledger, or an empty one."
    for status in statuses:
        yield f"Job {status.job}, database {database} (now {_time(clock)} UTC)"
        yield (
            f"  last commit: {status.last_commit} UTC, micro-batch {status.last_batch}"
            if status.last_commit
            else "  no commit"
        )
        lost = f"{status.given_up} source transactions, incomplete for open_timeout" if status.given_up else ""
        said = (("snapshot", status.snapshot), ("verify", status.verified), ("given up", lost), ("held", status.bound))
        for title, text in said:
            if text:
                yield f"  {title}: {text}"
        if status.moved:
            yield f"  closed: the job was moved {status.moved}"
        yield f"  owner: {_owner(status)}"
        if status.open_labels is None:
            yield f"  open labels: not known; {len(status.listed_labels)} are listed, open or committed"
            yield "    (StarRocks before 4.1.3 lists committed labels, too; --load-url asks for the state of each)"
        else:
            names = "".join(f"\n    {name}" for name in status.open_labels)
            yield f"  open labels: {len(status.open_labels) or 'none'}{names}"
        yield f"  dead letters: {f'{status.dead_letter_rows} rows' if status.dead_letter_rows else 'none'}"
        lag = f", {status.lag} rows behind" if status.lag is not None else ""
        yield f"  source partitions: {status.partition_count}, sum of positions {status.positions}{lag}"
        if status.lag_unknown:
            yield f"    lag not known of {status.lag_unknown}"
        for row in status.partitions:
            later = f"  {row.lag} behind" if row.lag is not None else ""
            yield f"    {row.partition}  {row.position}{later}  at {row.committed_at} UTC"
        if status.partition_count > len(status.partitions):
            yield f"    … and {status.partition_count - len(status.partitions)} more (--top)"


def _time(clock: Clock) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(clock.wall()))
