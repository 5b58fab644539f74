"""Checks of first loads by several writers at once, of the room for open loads, and of a partition that rows need."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from starrocks_txn_ops.doctor.server import judge_threads
from starrocks_txn_ops.doctor.target import Severity
from starrocks_txn_ops.rehearsal.findings import Checks, Evidence, as_expected, differs, harmless
from starrocks_txn_ops.rehearsal.rejections import refusal
from starrocks_txn_ops.rehearsal.stage import Stage, array
from starrocks_txn_ops.rehearsal.transactions import REPORT
from starrocks_txn_sink.errors import QueryRefused, StarRocksSinkError
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.label import Label, RetryPolicy
from starrocks_txn_sink.rows.partitions import Partitioning, statements
from starrocks_txn_sink.sql.scan_threads import measure, tables_of

CHECKS = Checks()

_WRITERS, _ROUNDS = 4, 8
"""A server that plans a table twice was seen to end one of 80 such transactions of three tables."""
_MANY = 5_000
"""Rows of a load that does not wait for its commit: a chunk of a backend has 4,096 (wire contract 4.17)."""
_INSERTED, _MISSING = "2024-02-28", "2024-02-29"
"""Days whose partitions the server makes for an INSERT, and the sink's statement."""


@CHECKS.expects("load.first", "Writers that load a table at once lose no row that was answered OK.", "4.5")
def check_first_loads(stage: Stage) -> Evidence:
    """Several writers send the first load of each table of a label at the same time, as lanes without turns would."""
    ends: Counter[str] = Counter()
    with ThreadPoolExecutor(_WRITERS, "rehearsal") as pool:
        for number in range(_ROUNDS):
            first = 1_000 + number * _WRITERS
            with stage.transaction() as label:
                tries = [
                    pool.submit(_first_loads, stage, label, key, shift)
                    for shift, key in enumerate(range(first, first + _WRITERS))
                ]
                codes = [code for code in (writer.result() for writer in tries) if code]
                if codes:
                    ends.update(codes[:1])
                    continue
                stage.finish(label)
            rows = [stage.count(table, first, first + _WRITERS - 1) for table in _TABLES]
            if rows != [_WRITERS] * len(_TABLES):
                return differs(f"{rows} of {_WRITERS} rows each are visible, and each load was answered OK", REPORT)
    if not ends:
        return as_expected(f"{_ROUNDS} transactions of {_WRITERS} writers, no row is missing")
    codes_text = ", ".join(f"{code} ({count})" for code, count in sorted(ends.items()))
    return harmless(
        f"{ends.total()} of {_ROUNDS} transactions of {_WRITERS} writers were ended: {codes_text}",
        "the sink's lanes take turns at a table, and begin again under a new label",
    )


_TABLES = ("upserts", "events", "others")


def _first_loads(stage: Stage, label: Label, key: int, shift: int) -> str:
    """Load a row into each table, each writer in another order; the code of an error, "" without one."""
    for name in itertools.islice(itertools.cycle(_TABLES), shift % len(_TABLES), shift % len(_TABLES) + len(_TABLES)):
        table = stage.table(name)
        body, headers = array({"id": key, "note": "first"}), stage.options.load_headers(table)
        try:
            stage.run(protocol.load(label, table, body, headers, RetryPolicy(), stage.rng))
        except StarRocksSinkError as error:
            return error.code
    return ""


@CHECKS.expects("load.room", "The open loads of jobs have a backend's threads for them.", "4.16")
def check_room(stage: Stage) -> Evidence:
    """Ask as the sink does, and judge as `doctor` does: each table of an open label holds a thread of its backend."""
    threads = measure(stage.options, stage.clock)
    if not threads.exact:
        return harmless(
            f"nobody answered; the sink assumes room for {threads.room} open loads: the smallest backend has "
            f"{threads.cores} cores, {threads.per_core} each",
            "the sink bounds the tables of a label by that number; a source transaction over more of them needs more "
            "threads (pipeline_connector_scan_thread_num_per_cpu of the backends)",
        )
    finding = judge_threads(threads, stage.terms.tables or _most_tables(stage), stage.terms.jobs)
    metrics = {"open_loads": float(threads.room)}
    if finding.severity is Severity.WARNING:
        return harmless(finding.what.rstrip("."), f"{finding.why} {finding.advice}", **metrics)
    return as_expected(finding.what, **metrics)


_SYSTEM = ("information_schema", "_statistics_", "sys")


def _most_tables(stage: Stage) -> int:
    """The tables of the largest database but for the scratch one; none without one."""
    names = [str(row["schema_name"]) for row in stage.rows("SELECT SCHEMA_NAME FROM information_schema.schemata")]
    databases = [name for name in names if name not in (*_SYSTEM, stage.database)]
    counts = [len(tables_of(replace(stage.options, database=name), stage.clock)) for name in databases]
    return max(counts, default=0)


@CHECKS.expects("load.partition", "A load makes the partitions that its rows need.", "4.15", "4.17")
def check_partition(stage: Stage) -> Evidence:
    """Large loads into a table with automatic partitions: into none, one that the sink makes, and one of an INSERT."""
    table, partitioning = stage.full("dated"), Partitioning("date_trunc('day', day)", ("day",), "day")
    stage.drop_at_end(stage.table("dated"))
    try:
        stage.rows(
            f"CREATE TABLE {table} (id BIGINT NOT NULL, day DATE NOT NULL) PRIMARY KEY (id, day) "
            f"PARTITION BY {partitioning.expression} DISTRIBUTED BY HASH (id) BUCKETS 1{stage.properties}"
        )
    except QueryRefused as error:
        return harmless(f"the table was refused: {error.message[:160]}", "a table without partitions needs none")
    stage.rows(f"INSERT INTO {table} (id, day) VALUES (0, '{_INSERTED}')")
    names = [str(row["partitionname"]) for row in stage.rows(f"SHOW PARTITIONS FROM {table}")]
    if names != [partitioning.name_of((_INSERTED,))]:
        return differs(f"the server calls its partition of {_INSERTED} {', '.join(names) or 'nothing'}", REPORT)
    refused = _load_day(stage, _MISSING)
    if refused is None:
        return as_expected(f"{_MANY} rows made theirs")
    what = f"{refused.code}: {' '.join(refused.message.split()).replace(stage.job, 'job')[:120]}"
    for statement, values in statements(stage.options.database, stage.table("dated"), partitioning, [(_MISSING,)]):
        stage.rows(statement, values)
    for day, whose in ((_MISSING, "of the sink"), (_INSERTED, "of an INSERT")):
        if (refusal := _load_day(stage, day)) is not None:
            return differs(
                f"{what}; with the partition {whose}: {refusal.code}", "Write no such table on this release."
            )
    return harmless(
        f"{what}; with the partition made before, it is committed",
        "the sink makes the automatic partitions that its rows need before it loads; the frontend's "
        "max_load_initial_open_partition_number has to be above a table's number of them, which doctor compares",
    )


def _load_day(stage: Stage, day: str) -> StarRocksSinkError | None:
    """The error of a transaction with many rows of a day."""
    with stage.transaction() as label:
        stage.must_load(label, "dated", array(*({"id": number, "day": day} for number in range(_MANY))))
        error, _ = refusal(stage, label)
    return error
