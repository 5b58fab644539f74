"""`starrocks-txn-sink dead-letter`: lists the dead letters of a job, or writes them again (`protocol.dead_letters`)."""

import argparse
import contextlib
import json
import random
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import pyarrow as pa

from starrocks_txn_ops import command_line
from starrocks_txn_ops.ledger_reader import LedgerReader
from starrocks_txn_ops.own_loads import carry_out, coordinator_of, primary_keys, table_loads
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.coordinator import LanesResult, perform_all
from starrocks_txn_sink.coordinator.model import SEPARATOR, LaneShare, Receipt
from starrocks_txn_sink.coordinator.ownership import ReplayOwnership
from starrocks_txn_sink.errors import InputError, QueryRefused, RowsRejected, StarRocksSinkError, UnfitValue
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.decoding import decoded_by
from starrocks_txn_sink.options.sink_options import OWN_TABLES, is_own_table
from starrocks_txn_sink.protocol import dead_letters as letter_table, label as protocol
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, DeadLetter, DeadLetterRow
from starrocks_txn_sink.protocol.label import Label, RetryPolicy, Steps, labels
from starrocks_txn_sink.protocol.ledger import REPLAY, NewToken, Owner, fresh_tokens
from starrocks_txn_sink.protocol.wire import Body
from starrocks_txn_sink.rows.bad_rows import refused
from starrocks_txn_sink.rows.body import load_body
from starrocks_txn_sink.rows.columns import DELETED, DELETING, PARTITION, PAYLOAD, POSITION, TABLE
from starrocks_txn_sink.rows.keys import TableKey
from starrocks_txn_sink.rows.unchanged import UnchangedValues
from starrocks_txn_sink.rows.values.judgement import RowRules, UnfitColumn
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.sql.failures import NO_TABLE
from starrocks_txn_sink.writer.known_columns import KnownColumns
from starrocks_txn_sink.writer.pipe import SourceSchema
from starrocks_txn_sink.writer.rejections import Explainer
from starrocks_txn_sink.writer.runner import Performer
from starrocks_txn_sink.writer.table_checks import TableChecks
from starrocks_txn_sink.writer.value_checks import zone_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action, and which source transactions it is for."""
    parser.add_argument("action", choices=("list", "replay"), help="show the dead letters, or write them again")
    command_line.add_server_arguments(parser, load_url=True)
    printed = {"help": "print one line of JSON for each source transaction"}
    command_line.add_shared_arguments(parser, database={}, job={}, deadline={"default": 600.0}, json=printed)
    parser.add_argument("--source-partition", help="only those of this source partition")
    parser.add_argument("--position", type=int, help="only the one at this position")


def run(args: argparse.Namespace) -> int:
    """List or replay. Raises StarRocksSinkError; source transactions that it replayed before the error stay visible.

    UnknownJob is for a job of which neither dead letters nor rows of the ledger are known.
    """
    options = command_line.server_options(args, database=args.database, job=args.job)
    deadline = Deadline.after(args.deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        query = letter_table.select_dead_letters(args.database, args.job, args.source_partition, args.position)

        def dead_letters() -> list[DeadLetter]:
            try:
                rows = connection.query(*query, deadline)
            except QueryRefused as refusal:
                if refusal.context.get("number") not in NO_TABLE:
                    raise
                rows = []  # the sink has never dead-lettered a row
            return letter_table.read_dead_letters(rows)

        letters = dead_letters()
        if not letters and not LedgerReader(connection, options.database, deadline).require_job(args.job):
            sys.stderr.write(f"The database {args.database} has no ledger to look up the job {args.job} in.\n")
        if args.action == "list":
            command_line.print_lines((_json_lines if args.json else _text_lines)(letters))
        else:
            command_line.print_lines(_replay(options, connection, dead_letters, deadline))
    return 0


def _replay(
    options: SinkOptions, connection: LeaderConnection, dead_letters: Callable[[], list[DeadLetter]], deadline: Deadline
) -> Iterator[str]:
    """Replay all dead letters and yield a line for each.

    Reads `dead_letters` only after the take-over, because an older replay may write until then.
    """
    job = str(options.job)
    names = labels(job, REPLAY, 0, secrets.randbits(62), 1)
    clock, rng, ledger = SystemClock(), random.Random(), SqlLedger(connection, options.database)
    if options.ledger_create:
        ledger.create(options.ledger_replication, deadline)
    with contextlib.closing(HttpTransport(options)) as transport:
        tokens = fresh_tokens(REPLAY, 0, random.SystemRandom())
        claim = letter_table.take_over_replays(job, options.database, tokens, rng)
        owner = protocol.run(claim, transport, clock, deadline, ledger)
        ownership = replay_ownership(options, owner, tokens)
        explainer = Explainer(options.database, connection.rows, transport.error_log, options.show_rejected_values)
        performer = Performer(
            options, transport, clock, deadline, rng, ownership=ownership, ledger=ledger, explainer=explainer
        )
        known_columns = KnownColumns(connection, options.database)
        checks = TableChecks(options, SourceSchema(), known_columns, deadline)
        row_count, keys = 0, primary_keys(connection, options, deadline)
        unchanged = UnchangedValues(
            options.database,
            lambda sql, values: connection.query(sql, values, deadline),
            keys,
            columns_now=lambda table: known_columns.columns(table, True, deadline),
        )
        for letter in dead_letters():
            query = letter_table.select_rows(options.database, job, letter.partition, letter.position)
            rows = letter_table.read_rows(connection.query(*query, deadline))
            if not rows:
                continue  # a newer replay has written this source transaction
            _refuse_own_tables(letter, rows)
            _refuse_bad_rows(checks, letter, rows)
            coordinator = coordinator_of(options, names, ownership, deadline, rng)
            try:
                fitted = _fitted(options, rows, known_columns, deadline)
                load = partial(load_rows, options, fitted, keys, unchanged=unchanged)
                perform = partial(carry_out, performer, load)
                (receipt,) = perform_all(coordinator.write(), perform)
            except StarRocksSinkError as error:
                if isinstance(error, RowsRejected):
                    error.advice = _CORRECT
                error.context |= {"source_partition": letter.partition, "position": letter.position}
                raise
            yield f"{letter.partition}  {letter.position}  {letter.rows} rows are visible, label {receipt.label}"
            row_count += 1
    yield f"replayed: {row_count or 'none'}"


def replay_ownership(options: SinkOptions, owner: Owner, tokens: NewToken) -> ReplayOwnership:
    """The ownership of a replay that has taken over as `owner`."""
    return ReplayOwnership(str(options.job), options.database, owner, tokens, now_text=lambda: "")


def load_rows(
    options: SinkOptions,
    rows: list[DeadLetterRow],
    keys: Mapping[str, TableKey],
    label: str,
    rng: random.Random,
    unchanged: UnchangedValues | None = None,
) -> Steps[LanesResult]:
    """Load one source transaction under `label`; raises the error of a load."""
    loads = _loads(options, rows, keys, unchanged)
    for table, body, headers in loads:
        yield from protocol.load(Label(options.database, label), table, body, headers, RetryPolicy(), rng)
    loaded = Receipt(label, None, str(options.job), 0, (), (), len(loads), attempts=1, retries=0, recycled=False)
    return LanesResult([LaneShare((loaded,))])


_CORRECT = (
    f"Correct the column content of {DEAD_LETTER_TABLE} (UPDATE), or the target table, and replay again; "
    "source transactions still listed are not written."
)


def _refuse_own_tables(dead_letter: DeadLetter, rows: Sequence[DeadLetterRow]) -> None:
    """Raise InputError for a row of the ledger and the like: an edited dead letter could forge a position."""
    for row in rows:
        if is_own_table(row.table):
            raise InputError(
                f"A dead letter is for the table {row.table}, which belongs to the sink.",
                hint=f"Names that begin with {OWN_TABLES} are reserved: correct the column table_name of "
                f"{DEAD_LETTER_TABLE}, or delete the dead letter.",
                source_partition=dead_letter.partition,
                position=dead_letter.position,
            )


def _fitted(
    options: SinkOptions, rows: list[DeadLetterRow], known_columns: KnownColumns, deadline: Deadline
) -> list[DeadLetterRow]:
    """The rows as their columns keep them, as a lane writes them (`rows.values`). Raises UnfitValue.

    Rows with a list of `columns` are not judged, as in a lane, unless it only decodes texts.
    """
    rules: dict[tuple[str, str], RowRules] = {}
    fitted = list[DeadLetterRow]()
    for row in rows:
        table, content = row.table, row.content
        decoded, key = decoded_by(row.columns), (table, row.columns)
        if (decoded or not row.columns) and options.judges_values(table):
            if key not in rules:
                columns, zone = known_columns.columns(table, True, deadline), zone_of(options.timestamp_zone)
                rules[key] = RowRules.of(columns, zone, encodes_bytes=True, decoded=decoded)
            try:
                content = rules[key].fit(content)
            except UnfitColumn as fault:
                raise UnfitValue(
                    f"A value does not fit column {fault.column} of table {table}: it {fault.reason}.",
                    hint=_CORRECT,
                    table=table,
                    column=fault.column,
                ) from None
        fitted.append(replace(row, content=content))
    return fitted


def _refuse_bad_rows(checks: TableChecks, dead_letter: DeadLetter, rows: Sequence[DeadLetterRow]) -> None:
    """Raise RowsRejected for a row that is still bad by the sink's own judgement: the server would not say why."""
    batch = pa.RecordBatch.from_pydict(
        {
            PARTITION: pa.array([dead_letter.partition] * len(rows)),
            POSITION: pa.array([dead_letter.position] * len(rows), pa.int64()),
            TABLE: pa.array([row.table for row in rows]),
            PAYLOAD: pa.array([SEPARATOR + row.content for row in rows], pa.large_string()),
            DELETED: pa.array([row.content.startswith(DELETING) for row in rows]),
        }
    )
    bad_rows = checks.judge(batch)
    if bad_rows:
        error = refused(batch, bad_rows)
        error.advice = _CORRECT
        raise error


def _loads(
    options: SinkOptions, rows: list[DeadLetterRow], keys: Mapping[str, TableKey], unchanged: UnchangedValues | None
) -> list[tuple[str, Body, Mapping[str, str]]]:
    """Loads of one source transaction: its rows, and the deletes of its dead letters."""
    deletes = [memoryview(piece) for piece in letter_table.delete_rows(name for row in rows for name in row.ids)]
    letters = load_body(deletes, options.compression_of(DEAD_LETTER_TABLE).value)
    return [
        *table_loads(options, rows, keys, unchanged),
        (DEAD_LETTER_TABLE, letters, options.load_headers(DEAD_LETTER_TABLE)),
    ]


# --- output ---


def _json_lines(dead_letters: list[DeadLetter]) -> Iterator[str]:
    yield from (json.dumps({**asdict(letter), "rows": letter.rows}) for letter in dead_letters)


def _text_lines(dead_letters: list[DeadLetter]) -> Iterator[str]:
    rows = f", {sum(letter.rows for letter in dead_letters)} rows" if dead_letters else ""
    yield f"dead letters: {len(dead_letters) or 'none'}{rows}"
    for letter in dead_letters:
        tables = ", ".join(f"{rows} of {table}" for table, rows in sorted(letter.tables.items()))
        yield f"  {letter.partition}  {letter.position}  {tables}; micro-batch {letter.batch}, at {letter.at}"
        yield f"    {letter.reason}"
