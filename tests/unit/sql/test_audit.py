"""The torn-read auditor: what a violation is, what is kept of it, what survives, where its rows may go."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import Audit
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError, QueryFailed, QueryRefused
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.wire import Operation, Request, Status
from starrocks_txn_sink.sql.audit import AuditConnection, Auditor, AuditWatch, Evidence
from starrocks_txn_sink.sql.connection import Answer
from starrocks_txn_sink.telemetry import Event, ignore_event
from tests.support.manual_clock import ManualClock
from tests.support.query_port import connect
from tests.support.waiting import wait_until

pytestmark = pytest.mark.emulator(
    "CREATE DATABASE bank",
    "CREATE TABLE bank.a (id BIGINT, cents BIGINT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    "CREATE TABLE bank.b (id BIGINT, cents BIGINT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    "INSERT INTO bank.a (id, cents) VALUES (1, 60)",
    "INSERT INTO bank.b (id, cents) VALUES (1, 40)",
)

CANARY = "row-value-of-the-customer"
ONE_SUM = (
    "SELECT * FROM (SELECT (SELECT sum(cents) FROM bank.a) + (SELECT sum(cents) FROM bank.b) AS total) t "
    "WHERE total <> 100"
)
NOTHING, ONE_ROW = Answer(("total",), [], 0), Answer(("total",), [(CANARY,)], 1)


def execute(server: Emulator, *statements: str) -> None:
    with connect(server.query_port) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def options(server: Emulator) -> SinkOptions:
    return SinkOptions(load_url=server.load_url, query_url=server.query_url, database="bank")


def script(*answers: Answer | Exception) -> Callable[[str, int], Answer]:
    """Answers in turn, the last one forever."""
    answers_left = list(answers)

    def ask(_sql: str, _limit: int) -> Answer:
        answer = answers_left.pop(0) if len(answers_left) > 1 else answers_left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


# --- what may be asked ---


@pytest.mark.parametrize(
    "sql",
    ["SELECT 1", " with x as (select 1) select * from x", "(SELECT 1) UNION (SELECT 2)", "-- why\n/* x */ select 1"],
)
def test_statements_that_read_are_taken(sql: str) -> None:
    assert Audit(sql).sql == sql


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sql": "DELETE FROM a"}, "SELECT or WITH"),
        ({"sql": "selection"}, "SELECT or WITH"),
        ({"sql": "SELECT 1", "interval": 0}, "interval"),
        ({"sql": "SELECT 1", "interval": float("inf")}, "interval"),
        ({"sql": "SELECT 1", "evidence_rows": 0}, "evidence_rows"),
    ],
)
def test_audits_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Audit(**settings)


# --- counting ---


def test_a_row_is_a_violation_and_the_first_ones_rows_are_kept() -> None:
    events: list[Event] = []
    second_answer = Answer(("total",), [("later",)], 1)
    auditor = Auditor(Audit("SELECT 1"), script(NOTHING, ONE_ROW, second_answer), ManualClock(), events.append)
    assert all(auditor.take_sample() for _ in range(3))
    assert (auditor.samples, auditor.violations, auditor.failures) == (3, 2, 0)
    assert auditor.first is not None
    assert (auditor.first.sample, auditor.first.rows) == (2, ((CANARY,),))
    assert [event.name for event in events] == ["integrity.violated"] * 2
    assert [event.fields["kind"] for event in events] == ["torn"] * 2


def test_no_event_and_no_repr_holds_a_row_or_the_statement() -> None:
    events: list[Event] = []
    audit = Audit(f"SELECT '{CANARY}'")
    auditor = Auditor(audit, script(ONE_ROW, QueryRefused(CANARY)), ManualClock(), events.append)
    auditor.take_sample()
    auditor.take_sample()
    assert auditor.violations == auditor.failures == 1
    assert CANARY not in repr((events, audit, auditor.first, auditor))


def test_a_sample_that_fails_is_no_violation_and_the_next_one_counts() -> None:
    events: list[Event] = []
    auditor = Auditor(Audit("SELECT 1"), script(QueryFailed("away"), NOTHING), ManualClock(), events.append)
    assert [auditor.take_sample(), auditor.take_sample()] == [False, True]
    assert (auditor.samples, auditor.violations, auditor.failures) == (1, 0, 1)
    assert events == [Event("audit.failed", {"code": "query_failed"})]


def test_evidence_is_bounded_and_marks_what_is_left_out() -> None:
    excerpt = Answer(("a", "b"), [(None, "x" * 1000), (b"\x01\xff", 7)], 9)
    evidence = Evidence.of(3, 0.0, excerpt)
    assert evidence.rows == ((None, "x" * 200 + "…"), ("01ff", "7"))
    assert evidence.total == 9


# --- against the emulator ---


def test_a_torn_sum_is_seen_and_a_restarted_server_asked_again(server: Emulator) -> None:
    reader = AuditConnection(options(server))
    auditor = Auditor(Audit(ONE_SUM), reader, ManualClock())
    assert auditor.take_sample()
    execute(server, "INSERT INTO bank.a (id, cents) VALUES (1, 50)")
    assert auditor.take_sample()
    assert auditor.first is not None
    assert (auditor.violations, auditor.first.columns, auditor.first.rows) == (1, ("total",), (("90",),))
    reader.close()
    assert auditor.take_sample()
    reader.close()


def test_of_many_rows_only_the_first_are_kept_and_the_next_sample_works(server: Emulator) -> None:
    execute(server, f"INSERT INTO bank.a (id, cents) VALUES {', '.join(f'({n}, {n})' for n in range(2, 2000))}")
    reader = AuditConnection(options(server))
    for _ in range(2):
        excerpt = reader("SELECT id FROM bank.a ORDER BY id", 3)
        assert (excerpt.columns, [row[0] for row in excerpt.rows], excerpt.total) == (("id",), [1, 2, 3], 1999)
    assert reader("SELECT id FROM bank.b", 3).total == 1
    reader.close()


def test_a_watch_runs_while_something_is_written_and_a_while_after(server: Emulator) -> None:
    events: list[Event] = []
    watch = AuditWatch(Audit(ONE_SUM, interval=0.01), options(server), events.append, linger=0.05)
    assert not watch.running
    with watch.while_writing():
        wait_until(lambda: watch.auditor.samples >= 2, 20, "samples")
        execute(server, "INSERT INTO bank.b (id, cents) VALUES (1, 41)")
        wait_until(lambda: watch.auditor.violations >= 1, 20, "a violation")
    wait_until(lambda: not watch.running, 20, "the end")
    assert "integrity.violated" in {event.name for event in events}
    before = watch.auditor.samples
    with watch.while_writing():
        wait_until(lambda: watch.auditor.samples > before, 20, "another sample")
        thread = watch._thread
        assert thread is not None
        watch.stop()
        assert not watch.running
        assert not thread.is_alive()


def test_a_micro_batch_after_a_stop_waits_for_the_last_sample(server: Emulator) -> None:
    watch = AuditWatch(Audit(ONE_SUM, interval=0.01), options(server), ignore_event)
    asking, release, connection, alone = threading.Event(), threading.Event(), threading.Lock(), list[bool]()

    def ask(_sql: str, _limit: int) -> Answer:
        free = connection.acquire(blocking=False)
        alone.append(free)
        asking.set()
        release.wait(20)
        if free:
            connection.release()
        return NOTHING

    watch.auditor.run_statement = ask
    with watch.while_writing():
        assert asking.wait(20)
        ending = threading.Thread(target=watch.stop)
        ending.start()
        wait_until(lambda: not watch.running, 20, "the stop")
        with watch.while_writing():
            asking.clear()
            assert not asking.wait(0.2)  # the next thread's first sample, if it did not wait
            release.set()
            wait_until(lambda: len(alone) > 3, 20, "samples of the next thread")
        ending.join(20)
        watch.stop()
    assert all(alone)


def test_a_listener_that_raises_does_not_end_the_watch(server: Emulator) -> None:
    def broken(_event: Event) -> None:
        raise ValueError

    watch = AuditWatch(Audit("SELECT 1", interval=0.01), options(server), broken)
    with watch.while_writing():
        wait_until(lambda: watch.auditor.samples >= 3, 20, "samples")
    watch.stop()


def test_a_watch_needs_a_query_url_and_survives_pickling(server: Emulator) -> None:
    watch = AuditWatch(Audit(ONE_SUM), options(server), ignore_event)
    assert pickle.loads(pickle.dumps(watch)).auditor.audit == watch.auditor.audit
    with pytest.raises(OptionError, match="requires query_url"):
        AuditWatch(Audit(ONE_SUM), SinkOptions(load_url="fe", database="d", delivery="at-least-once"), ignore_event)


@pytest.mark.parametrize("locked", [False, True])
def test_half_a_publish_is_seen_by_default_and_not_with_the_databases_lock(server: Emulator, locked: bool) -> None:
    """Wire contract 4.11."""
    server.faults.replace({"rules": [{"operation": "commit", "action": "publish_apart", "seconds": 1.0}]})
    clock = SystemClock()
    with closing(HttpTransport(options(server))) as transport:

        def send(operation: Operation, **fields: Any) -> None:
            request = Request(operation, "bank", "move", **fields)
            assert transport.send(request, Deadline.after(30, clock)).status is Status.OK

        send(Operation.BEGIN, headers={"timeout": "60"})
        for table, cents in (("a", 50), ("b", 50)):
            send(Operation.LOAD, table=table, headers={"format": "json"}, body=[b'{"id": 1, "cents": %d}' % cents])
        writer = threading.Thread(target=send, args=(Operation.COMMIT,))
        with closing(AuditConnection(options(server), lock_database=locked)) as reader:
            auditor = Auditor(Audit(ONE_SUM, interval=0.001, lock_database=locked), reader, clock)
            assert auditor.take_sample()
            writer.start()
            auditor.run(threading.Event(), lambda: not writer.is_alive())
        writer.join()
    assert auditor.samples > 1
    assert bool(auditor.violations) is not locked
