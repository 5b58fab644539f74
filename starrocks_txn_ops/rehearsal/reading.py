"""Checks of readers: followers, one SELECT over two tables while a writer commits, and the speed of one writer."""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import filterfalse

from starrocks_txn_ops.rehearsal.findings import Checks, Evidence, as_expected, differs, harmless, left_out
from starrocks_txn_ops.rehearsal.stage import STEP_SECONDS, Stage, Surprise, array, require
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.rows.body import load_body
from starrocks_txn_sink.sql.audit import Audit, AuditConnection, Auditor
from starrocks_txn_sink.sql.connection import QueryPort, is_alive, leads

CHECKS = Checks()

_MEGABYTE = 1_000_000
_PADDING = "x" * 24
_ROWS_A_PIECE = 10_000
_WRITER_TABLES = ("upserts", "events")
_BASE = 1_000_000  # the first key of the writer's rows
_ENOUGH_COMMITS = 3  # fewer do not show that nothing is torn


@CHECKS.expects("read.followers", "Followers show a commit soon.", "6.5", "10.11")
def check_followers(stage: Stage) -> Evidence:
    """Measure over a connection to each follower how soon the follower shows a commit."""
    followers = _followers(stage)
    if not followers:
        return left_out("the cluster shows no follower that options allow")
    with contextlib.ExitStack() as stack:
        opened = (QueryPort(stage.options, address, stage.deadline()) for address in followers)
        ports = [stack.enter_context(contextlib.closing(port)) for port in opened]
        stage.write(("upserts", array({"id": 200, "note": "followers"})))
        began = time.monotonic()
        waits = [_seconds_until_seen(stage, port, began) for port in ports]
    times = [wait for wait in waits if wait is not None]
    if len(times) < len(waits):
        return harmless(
            f"{len(waits) - len(times)} of {len(waits)} followers do not show a commit within {STALE_SECONDS:g} s",
            "the ledger is read on the leader; your own readers may see older data there",
        )
    slowest = max(times)
    return as_expected(f"{len(waits)} follower(s), the last after {1000 * slowest:.0f} ms", follower_seconds=slowest)


STALE_SECONDS = 3.0


def _seconds_until_seen(stage: Stage, port: QueryPort, began: float) -> float | None:
    statement = f"SELECT count(*) FROM {stage.full('upserts')} WHERE id = 200"
    while time.monotonic() - began < STALE_SECONDS:
        with contextlib.suppress(QueryRefused):  # a follower that is behind does not know the table yet
            if int(port.run(statement, (), stage.deadline()).rows[0][0]) == 1:
                return time.monotonic() - began
        stage.clock.sleep(0.05)
    return None


def _followers(stage: Stage) -> list[Address]:
    rules, addresses = stage.options.redirect_rules, []
    for row in filter(is_alive, filterfalse(leads, stage.rows_if_allowed("SHOW FRONTENDS"))):
        with contextlib.suppress(ValueError, KeyError):
            address = rules.query_target(str(row["ip"]), int(row["queryport"]))
            if rules.allows_query(address):
                addresses.append(address)
    return addresses


# --- torn reads ---


@dataclass(slots=True)
class Writer:
    """Commits transactions with one row for each of two tables, one after the other, until `stop`."""

    stage: Stage
    commits: int = 0
    error: Exception | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Commit until `stop` is set, for a thread; an error is kept in `error`, and sets `stop`."""
        try:
            while not self.stop.is_set():
                row = array({"id": _BASE + self.commits, "note": "torn"})
                with self.stage.transaction() as label:
                    for table in _WRITER_TABLES:
                        self.stage.must_load(label, table, row)
                    require(self.stage.finish(label), "the commit")
                self.commits += 1
        except (StarRocksSinkError, Surprise) as error:
            self.error = error
            self.stop.set()


@CHECKS.expects("read.torn", "One SELECT over two tables sees a commit in both or in none.", "4.11")
def check_torn(stage: Stage) -> Evidence:
    """Run two readers while a writer commits, one with default settings and one with the database's lock."""
    plain, locked, commits = _watch(stage)
    stage.locked_reader = locked, commits
    return _judge_torn(
        stage, plain, commits, "Readers that must not see half of a commit run: SET cbo_use_lock_db = true."
    )


@CHECKS.expects("read.torn_locked", "With cbo_use_lock_db it always does.", "4.11")
def check_torn_locked(stage: Stage) -> Evidence:
    """Judge the reader with the lock, which `check_torn` has run."""
    if stage.locked_reader is None:
        raise Surprise("the readers did not run")
    advice = "On this release not even cbo_use_lock_db helps: let such readers read one table only."
    return _judge_torn(stage, *stage.locked_reader, advice)


def _judge_torn(stage: Stage, auditor: Auditor, commits: int, advice: str) -> Evidence:
    if not auditor.samples:
        error = auditor.last_error
        raise Surprise(f"no sample could be taken: {error.message if error else 'no time'}")
    torn_reads, samples = auditor.violations, auditor.samples
    rate = torn_reads / samples
    summary = f"{torn_reads} of {samples} SELECTs over two tables were torn, over {commits} commits"
    metrics = {"samples": samples, "torn": torn_reads, "torn_rate": rate, "commits": commits}
    if not torn_reads and (samples < stage.terms.enough_samples or commits < _ENOUGH_COMMITS):
        raise Surprise(f"{summary}: too few to say; give it more --seconds")
    if torn_reads:
        return differs(f"{summary} ({100 * rate:.3g} %)", advice, **metrics)
    return as_expected(summary, **metrics)


def _watch(stage: Stage) -> tuple[Auditor, Auditor, int]:
    """Write and read for the seconds of the terms; returns the readers without and with the lock, and the commits."""
    first, second = (f"(SELECT count(*) FROM {stage.full(table)} WHERE id >= {_BASE})" for table in _WRITER_TABLES)
    audit = Audit(f"SELECT * FROM (SELECT {first} - {second} AS ahead) t WHERE ahead <> 0", interval=0.001)
    writer, clock = Writer(stage), stage.clock
    readers = [AuditConnection(stage.options, lock_database=locked) for locked in (False, True)]
    plain, locked = (Auditor(audit, reader, clock) for reader in readers)
    work = (writer.run, partial(plain.run, writer.stop), partial(locked.run, writer.stop))
    threads = [threading.Thread(target=target, name="rehearsal", daemon=True) for target in work]
    for thread in threads:
        thread.start()
    try:
        _let_run(stage, writer, plain, Deadline.after(stage.terms.seconds, clock))
        _let_run_on(
            writer, (plain, locked), Deadline.after(stage.terms.longer_seconds, clock), stage.terms.enough_samples
        )
    finally:
        writer.stop.set()
        for thread in threads:
            thread.join(STEP_SECONDS)
        for reader in readers:
            reader.close()
    if writer.error is not None:
        raise Surprise(f"the writer ended early: {writer.error}")
    return plain, locked, writer.commits


def _let_run(stage: Stage, writer: Writer, auditor: Auditor, deadline: Deadline) -> None:
    """Wait until `deadline`, or until the writer ends."""
    next_line = stage.terms.seconds - 5.0
    while not deadline.expired() and not writer.stop.is_set():
        writer.stop.wait(min(0.5, deadline.remaining()))
        if deadline.remaining() <= next_line:
            next_line -= 5.0
            stage.tell(
                f"read.torn: {deadline.remaining():.0f} s to go, {writer.commits} commits, {auditor.samples} samples, "
                f"{auditor.violations} torn"
            )


def _let_run_on(writer: Writer, auditors: Sequence[Auditor], deadline: Deadline, samples: int) -> None:
    """Wait for so many samples, and enough commits, at most until `deadline`; do not wait for a reader that failed."""
    while not deadline.expired() and not writer.stop.is_set():
        read = all(auditor.samples >= samples or auditor.last_error for auditor in auditors)
        if read and writer.commits >= _ENOUGH_COMMITS:
            return
        writer.stop.wait(min(0.1, deadline.remaining()))


# --- speed ---


@CHECKS.expects("speed", "How fast one writer is.")
def check_speed(stage: Stage) -> Evidence:
    """Bytes per second of one writer: one transaction, loads of one table one after the other."""
    size, sent_bytes, number = stage.terms.megabytes * _MEGABYTE, 0, 0
    began = stage.clock.monotonic()
    with stage.transaction() as label:
        while sent_bytes < size:
            piece = b"".join(
                b',{"id":%d,"note":"%s"}' % (2 * _BASE + number + row, _PADDING.encode())
                for row in range(_ROWS_A_PIECE)
            )
            stage.must_load(label, "events", load_body([memoryview(piece)], "none"))
            sent_bytes, number = sent_bytes + len(piece), number + _ROWS_A_PIECE
        loaded = stage.clock.monotonic() - began
        require(stage.finish(label), "the commit")
    seconds = stage.clock.monotonic() - began
    rate = sent_bytes / seconds
    return as_expected(
        f"{rate / _MEGABYTE:.1f} MB/s and {number / seconds:,.0f} rows/s in one table, "
        f"{seconds - loaded:.1f} of {seconds:.1f} s for the commit",
        bytes_per_second=rate,
        rows_per_second=number / seconds,
    )
