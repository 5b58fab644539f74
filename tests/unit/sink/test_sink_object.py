"""The sink as an object: what travels, what is refused at once, what it shows of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import types as T

from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute, TransactionAssembly
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import Fenced, LoadFailed, NotSent, OptionError, StarRocksSinkError
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink import (
    archive_writer,
    batch_events,
    failures,
    rows_writer,
    session as sessions,
    sink as sink_module,
)
from starrocks_txn_sink.sink.batch_events import BatchOrigin, BatchTries
from starrocks_txn_sink.sink.input import FrameInput, OpenInput
from starrocks_txn_sink.sink.lane_plan import LanePlan
from starrocks_txn_sink.sink.lanes import Collect, Written
from starrocks_txn_sink.sink.rows_writer import RowsWriter
from starrocks_txn_sink.sink.session import Session, job_of_frame
from starrocks_txn_sink.sink.sink import JobRun
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.telemetry import Event, ignore_event
from starrocks_txn_sink.writer.messages import LaneReport, LaneWork
from starrocks_txn_sink.writer.task import LaneTask
from tests.support.log_records import records_of
from tests.support.manual_clock import ManualClock

dumps: Callable[[object], bytes] = cloudpickle.dumps
OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once", password="geheim")


def test_it_travels_to_another_process_without_its_session() -> None:
    sink = StarRocksSink(OPTIONS, routes=[TableRoute("orders", {"id": "key"})])
    sink._run("job").open(Session("key", "job", "epoch", "checkpoint"))
    copy = cloudpickle.loads(dumps(sink))
    assert copy.options == OPTIONS
    assert copy.routes == sink.routes
    assert copy._runs == {}  # the process that runs it takes the job over for itself


@pytest.mark.parametrize("assemble", [None, TransactionAssembly()])
def test_a_frame_with_positions_needs_a_job_of_its_own(assemble: TransactionAssembly | None) -> None:
    options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop")
    columns = ["table", "row"] if assemble else ["source_partition", "position", "seq", "transaction_end", "table"]
    frame: Any = SimpleNamespace(schema=SimpleNamespace(names=columns))
    with pytest.raises(OptionError, match=r"`job` is not set, and .* left out as written\. .*Set `job` to a name of"):
        StarRocksSink(options, assemble=assemble).write(frame)


@pytest.mark.parametrize(
    ("job", "state_dir", "assembles", "message"),
    [
        (None, None, True, "job and state_dir are not set"),
        ("shop", None, True, "and state_dir is not set"),
        (None, "/state", True, "and job is not set"),
        (None, None, False, "and job is not set"),
    ],
)
def test_what_spark_connect_hides_is_asked_for_at_once(
    job: str | None, state_dir: str | None, assembles: bool, message: str
) -> None:
    sink = StarRocksSink(
        replace(OPTIONS, job=job), assemble=TransactionAssembly(state_dir=state_dir) if assembles else None
    )
    batch: Any = SimpleNamespace(sparkSession=SimpleNamespace())
    with pytest.raises(
        OptionError, match=f"Spark Connect hides the streaming query's id .*{message}.*Set `job` to a name"
    ):
        sink(batch, 0)


def test_other_frames_have_the_job_write_unless_the_user_names_another() -> None:
    options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop")
    assert job_of_frame(options, positioned=False) == "write"
    assert job_of_frame(OPTIONS, positioned=True) == "write"  # without a ledger nothing is left out
    assert job_of_frame(replace(options, job="backfill"), positioned=True) == "backfill"


def test_it_shows_no_secret() -> None:
    assert "geheim" not in repr(StarRocksSink(OPTIONS))


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [("", ["id"], "has no table"), ("orders", [], "no columns"), ("orders", "id", "no columns")],
)
def test_routes_that_route_nothing_are_refused(table: str, columns: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TableRoute(table, columns)  # type: ignore[arg-type]


def test_errors_survive_pickling_and_end_in_advice() -> None:
    error = LoadFailed("The load failed: x", label="job-1", table="orders", hint="Do this.")
    copy = cloudpickle.loads(dumps(error))
    assert isinstance(copy, LoadFailed)
    assert isinstance(copy, StarRocksSinkError)
    assert copy.context == {"label": "job-1", "table": "orders"}
    assert str(copy) == str(error) == "The load failed: x [label=job-1, table=orders] Do this."
    assert copy.retryable


def source_of(origin: BatchOrigin) -> FrameInput:
    """A micro-batch of a session that is not Spark's."""
    frame: Any = SimpleNamespace(schema=T.StructType(), sparkSession=None)
    return FrameInput(frame, origin)


def test_all_tries_at_a_micro_batch_know_the_tokens_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, token_sets = StarRocksSink(replace(OPTIONS, job="job")), list[set[str]]()

    def open_session(*_: object, tokens: set[str], **__: object) -> Session:
        token_sets.append(set(tokens))
        tokens.add(f"try {len(token_sets)}")
        raise NotSent("nobody") if len(token_sets) < 3 else Fenced("taken over")

    def fail(*_: object) -> None:
        raise NotSent("nobody")

    monkeypatch.setattr(sessions, "open_session", open_session)
    monkeypatch.setattr(sessions, "clean_up", lambda *_, **__: None)
    monkeypatch.setattr(failures, "SystemClock", ManualClock)
    monkeypatch.setattr(sink_module, "is_stopped", lambda _: False)
    monkeypatch.setattr(RowsWriter, "write", fail)
    session = Session("checkpoint", "job", "epoch", "key", token="mine", written=frozenset({"mine"}))
    sink._runs["job"] = JobRun("job", session, served=True)
    with pytest.raises(Fenced):
        sink._commit_or_wait(
            source_of(BatchOrigin(7, "job", "key", "checkpoint", True)), BatchTries(ignore_event, 600.0)
        )
    assert token_sets == [{"mine"}, {"mine", "try 1"}, {"mine", "try 1", "try 2"}]


def test_each_further_try_at_a_micro_batch_has_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """That goes for the take-over of the job and for the lanes, and their options stay the same."""
    clock, limits = ManualClock(), list[tuple[float, float]]()
    options = replace(OPTIONS, job="job", batch_deadline=600.0)
    sink, opened = StarRocksSink(options), list[float]()

    def open_session(*_: object, seconds: float, **__: object) -> Session:
        opened.append(seconds)
        return Session("key", "job", "epoch", "checkpoint")

    def write(task: LaneTask, *_: object, **__: object) -> Written:
        assert task.options == options
        limits.append((opened[-1], task.time_limit))
        clock.sleep(100.0)
        if len(limits) < 4:
            raise NotSent("nobody")
        return Written()

    monkeypatch.setattr(sessions, "open_session", open_session)
    monkeypatch.setattr(sessions, "clean_up", lambda *_, **__: None)
    monkeypatch.setattr(batch_events, "SystemClock", lambda: clock)
    monkeypatch.setattr(failures, "SystemClock", lambda: clock)
    monkeypatch.setattr(sink_module, "is_stopped", lambda _: False)
    monkeypatch.setattr(TableTerms, "of", lambda *_: TableTerms(options, {}))
    monkeypatch.setattr(FrameInput, "open", lambda *_: OpenInput(lambda *_: []))
    monkeypatch.setattr(rows_writer, "write_shared", write)
    monkeypatch.setattr(LanePlan, "of", lambda *_, **__: LanePlan(1))
    sink._runs["job"] = JobRun("job", served=True)
    sink._commit_or_wait(source_of(BatchOrigin(7, "job", "checkpoint", "key", True)), BatchTries(ignore_event, 600.0))
    assert limits[0] == (600.0, 600.0)
    assert [
        opened == lanes == pytest.approx(500.0 - 100.0 * tries, abs=20)
        for tries, (opened, lanes) in enumerate(limits[1:])
    ] == [True] * 3


def test_missing_loops_are_said_once_at_the_start(
    loop: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    events = list[Event]()
    sink = StarRocksSink(replace(OPTIONS, job="job"), listener=events.append)
    monkeypatch.setattr(sessions, "open_session", lambda *_, **__: Session("key", "job", "epoch", "checkpoint"))
    monkeypatch.setattr(sessions, "clean_up", lambda *_, **__: None)
    monkeypatch.setattr(RowsWriter, "write", lambda *_: None)
    for batch in range(2):
        sink._run("job").session = None  # as after a failure
        sink._commit_or_wait(
            source_of(BatchOrigin(batch, "job", "checkpoint", "key", False)), BatchTries(ignore_event, 600.0)
        )
    event_names = [event.name for event in events if event.name in ("loops.missing", "session.opened")]
    assert event_names == ["session.opened", *(["loops.missing"] if loop == "pure" else []), "session.opened"]
    warnings = records_of(caplog, "loops.missing")
    assert [record.levelname for record in warnings] == (["WARNING"] if loop == "pure" else [])
    assert all("C compiler" in record.getMessage() for record in warnings)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_query_has_the_class_archive_written_and_a_batch_write_does_not(
    streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = list[str]()
    sink = StarRocksSink(replace(OPTIONS, job="job"))
    monkeypatch.setattr(archive_writer, "write_later", lambda job, _: jobs.append(job))
    monkeypatch.setattr(sessions, "open_session", lambda *_, **__: Session("key", "job", "epoch", "checkpoint"))
    monkeypatch.setattr(sessions, "clean_up", lambda *_, **__: None)
    monkeypatch.setattr(RowsWriter, "write", lambda *_: None)
    origin = BatchOrigin(0, "job", "checkpoint", "key", streaming)
    sink._commit_or_wait(source_of(origin), BatchTries(ignore_event, 600.0))
    assert jobs == ["job"] * streaming


def test_what_a_failed_micro_batch_has_written_is_counted_and_renews_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a micro-batch are visible one by one; an outage may come after a round as late as it likes."""
    clock, events, tries = ManualClock(), list[Event](), list[float]()
    sink = StarRocksSink(replace(OPTIONS, job="job", batch_deadline=600.0), listener=events.append)
    session = Session("key", "job", "epoch", "checkpoint")

    def write(_writer: object, _frame: object, _task: object, _listen: object, collect: Collect) -> None:
        tries.append(clock.monotonic())
        clock.sleep(500.0)
        if len(tries) < 4:
            receipt = Receipt(f"l{len(tries)}", None, "job", 7, (), (), 1, 1, 0, True)
            collect([receipt], [LaneReport("job", 0, 7)])
        clock.sleep(500.0)
        raise NotSent("nobody")

    monkeypatch.setattr(sessions, "open_session", lambda *_, **__: session)
    monkeypatch.setattr(sessions, "clean_up", lambda *_, **__: None)
    monkeypatch.setattr(batch_events, "SystemClock", lambda: clock)
    monkeypatch.setattr(failures, "SystemClock", lambda: clock)
    monkeypatch.setattr(sink_module, "is_stopped", lambda _: False)
    monkeypatch.setattr(RowsWriter, "write", write)
    origin = BatchOrigin(7, "job", "checkpoint", "key", True)
    sink._runs["job"] = JobRun("job", served=True)
    with pytest.raises(NotSent), sink._events.follow_batch(None, origin) as collector:
        sink._commit_or_wait(source_of(origin), collector)
    assert len(tries) == 4, "the last one wrote nothing in its 1000 seconds"
    names = [event.name for event in events if event.name in ("lane.reported", "receipt.collected", "batch.failed")]
    assert names == ["lane.reported", "receipt.collected"] * 3 + ["batch.failed"]
    labels = [event.fields["receipt"].label for event in events if event.name == "receipt.collected"]
    assert labels == ["l1", "l2", "l3"]


@pytest.mark.parametrize("streaming", [True, False])
def test_rows_that_are_left_out_are_told_once_with_the_positions_that_the_ledger_has(
    caplog: pytest.LogCaptureFixture, *, streaming: bool
) -> None:
    """Of a batch frame too, whose next one may have other rows: what it leaves out is not remembered."""
    sink, session = StarRocksSink(OPTIONS), Session("key", "job", "epoch", "checkpoint")
    origin, tries = BatchOrigin(7, "job", "checkpoint", "key", streaming), BatchTries(ignore_event, 600.0)
    work = LaneWork(skips={f"p-{number}": Skip(number + 40, met=False) for number in range(7)})
    for _ in range(2):
        sink._collect(origin, session, tries, [], [LaneReport("job", 0, 7, work)])
    (record,) = records_of(caplog, "replay.skipping")
    assert "source_partitions=7 upto='p-0: 40, p-1: 41, p-2: 42, p-3: 43, p-4: 44'" in record.getMessage()
    assert set(session.skips) == set(work.skips if streaming else {})
