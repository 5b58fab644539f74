"""What a lane counts: it is all in the report, once, whether the lane succeeds or fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt
from starrocks_txn_sink.errors import InputError, KeyRepeated, LoadFailed, OutcomeUnknown
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.label import Backoff, Committed, Loaded, Unknown
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.protocol.wire import Operation
from starrocks_txn_sink.rows.columns import COLUMNS, DELETED, EVENT_TIME
from starrocks_txn_sink.sink.lanes import RoundRunner, Written
from starrocks_txn_sink.telemetry import Event, Span
from starrocks_txn_sink.writer import task, worker
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import LaneReport, LaneTrouble, LaneWork, Message, attached_report
from starrocks_txn_sink.writer.metrics import Deletes, EventTimes, LaneMetrics
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.manual_clock import ManualClock
from tests.support.model_server import Fault, Faults, ModelServer, plan_faults

TYPES = (pa.string(), pa.int64(), pa.string(), pa.bool_(), pa.string(), pa.int64(), pa.bool_())
SCHEMA = pa.schema(list(zip((*COLUMNS, EVENT_TIME, DELETED), TYPES, strict=True)))
Row = tuple[object, ...]
SECOND = 1_000_000
ROWS: list[Row] = [
    ("0", 1, "orders", False, ',{"a":1}', 10 * SECOND, False),
    ("0", 1, "items", True, ',{"__op":1,"a":1}', 11 * SECOND, True),
    ("0", 2, "orders", True, ',{"__op":1}', 12 * SECOND, True),
    ("1", 5, "orders", True, ',{"a":2}', None, None),
]


def batch(*rows: Row) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


Write = Callable[..., Written]


OPTIONS = SinkOptions(
    load_url="http://fe:8030", database="shop", delivery="at-least-once", max_attempts=2, shuffle=False
)


def lane_report(outcome: Written) -> LaneReport:
    """The report of the lane of the last attempt."""
    return [report for report in outcome.reports if report.lane == 1][-1]


def driver_report(outcome: Written) -> LaneReport:
    return outcome.reports[-1]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a micro-batch of one lane against a model server with `faults`, or raises."""

    def run(*rows: Row, faults: Faults | None = None, retry: bool = False, without: tuple[str, ...] = ()) -> Written:
        server = ModelServer(faults=faults)
        monkeypatch.setattr(worker, "HttpTransport", lambda _: server)
        clock, attempt = SystemClock(), Attempt(1, 1, retry)
        lane_of_job = task.LaneTask(OPTIONS, "job", "e", "c", 3, claims=retry)
        batches = [batch(*rows).drop_columns(list(without))] if rows else []

        def run_lane(lane_task: task.LaneTask) -> list[Message]:
            return SparkLane(lane_task).run(batches, attempt, clock)

        deadline = Deadline.after(60.0, clock)
        with worker.RESOURCES.lease(OPTIONS) as resources:
            return RoundRunner(lane_of_job, resources, deadline, random.Random(1), run_lane).write()

    monkeypatch.setattr(Backoff, "seconds", lambda *_: 0.0)
    yield run
    worker.RESOURCES.close()


def asked(report: LaneReport) -> dict[str, int]:
    return {operation: statuses["OK"] for operation, statuses in report.cost.requests.items() if "OK" in statuses}


def test_a_micro_batch_that_succeeds(write: Write) -> None:
    outcome = write(*ROWS)
    (receipt,), report, driver = outcome.receipts, lane_report(outcome), driver_report(outcome)
    assert (report.job, report.lane, report.batch_id, report.trouble.aborted) == ("job", 1, 3, 0)
    assert (driver.lane, driver.trouble.aborted) == (0, 0)
    assert asked(report) == {"load": 2}
    assert asked(driver).keys() == {"begin", "commit", "get_load_state"}
    assert report.work.deletes == {"items": 1, "orders": 1}
    assert {table: (load.encoding, load.times.count) for table, load in report.work.loads.items()} == {
        "items": ("none", 1),
        "orders": ("none", 1),
    }
    assert report.work.loads["items"].bytes == len('[{"__op":1,"a":1}]')
    assert report.work.event_times == {"0": 12.0}  # the time of partition 1 is not known
    assert report.work.latency.count == 2
    assert report.work.latency.total == pytest.approx(2 * receipt.committed_at - 11 - 12, rel=1e-2)
    assert report.cost.buffer_peak >= receipt.bytes
    assert 1 <= report.cost.inflight_peak <= 2
    for report_ in (report, driver):
        assert (report_.trouble.errors, report_.code, report_.cost.retries) == ({}, "", {})
    assert set(receipt.phase_seconds) == {"begin", "commit", "publish"}
    assert receipt.open_seconds > 0


def test_a_failed_attempt_that_was_repeated(write: Write) -> None:
    outcome = write(*ROWS, faults=plan_faults({(Operation.LOAD, 0): Fault.REFUSED}))
    (receipt,), driver = outcome.receipts, driver_report(outcome)
    assert receipt.attempts == 2
    assert driver.trouble.aborted == 1
    assert driver.cost.requests["rollback"] == {"OK": 1}
    lanes = [report for report in outcome.reports if report.lane == 1]
    failed, succeeded = sorted(lanes, key=lambda report: report.code == "")
    assert failed.trouble.errors["load_failed"] >= 1  # the other table's load may fail with it
    assert (failed.code, succeeded.code, succeeded.trouble.errors) == ("load_failed", "", {})
    assert (failed.work.latency.count, succeeded.work.latency.count) == (0, 2)  # once, whatever was repeated


def test_a_key_that_comes_again_is_no_failure() -> None:
    metrics = LaneMetrics("job", 1, 3, "none", ManualClock())
    for step, outcome in (("begin", None), ("load", KeyRepeated("A key came again.")), ("rollback", None)):
        metrics(Event("step.started", {"step": step, "label": "l"}))
        ended = "step.failed" if outcome else "step.completed"
        metrics(Event(ended, {"step": step, "label": "l", "outcome": outcome}))
    report = metrics.report()
    assert (report.trouble, report.cost.retries) == (LaneTrouble(), {"load": {"key_repeated": 1}})


def test_a_lane_that_fails_tells_it_in_its_error(write: Write) -> None:
    with pytest.raises(LoadFailed) as failure:
        write(*ROWS, faults=plan_faults({(Operation.LOAD, number): Fault.REFUSED for number in range(9)}))
    report = attached_report(failure.value)
    assert report is not None
    assert (report.code, report.lane) == ("load_failed", 1)
    assert report.trouble.errors["load_failed"] >= 1
    assert report.work.latency.count == 0


def test_an_error_of_the_input_is_counted_once(write: Write) -> None:
    with pytest.raises(InputError) as failure:
        write(ROWS[0])
    report = attached_report(failure.value)
    assert report is not None
    assert (report.code, report.trouble.errors) == ("input", {"input": 1})


def test_a_delete_without_a_table_is_refused_with_its_report(write: Write) -> None:
    with pytest.raises(InputError, match="Column table is NULL") as failure:
        write(("0", 1, None, True, ',{"__op":1}', None, True))
    report = attached_report(failure.value)
    assert report is not None
    assert (report.code, report.work.deletes) == ("input", {})


def test_a_report_that_json_cannot_hold_does_not_hide_the_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    right = LaneMetrics.report

    def broken(*arguments: Any) -> LaneReport:
        report = right(*arguments)
        report.work.deletes = {None: 1}  # type: ignore[dict-item]
        return report

    monkeypatch.setattr(LaneMetrics, "report", broken)
    with pytest.raises(InputError, match="end inside a source transaction"):
        write(ROWS[0])


def test_an_outcome_that_stays_unknown_is_in_doubt() -> None:
    steps = Steps()
    steps.run("begin", "L0", 1)
    steps.run("commit", "L0", 1, Unknown("L0", OutcomeUnknown("?")))
    report = steps.metrics.report(OutcomeUnknown("?"))
    assert (report.trouble.unsettled, report.code) == (1, "outcome_unknown")
    assert report.cost.retries == {"commit": {"outcome_unknown": 1}}


def test_a_task_that_spark_runs_again_says_so(write: Write) -> None:
    assert lane_report(write(*ROWS, retry=True)).cost.retries == {"task": {"failed": 1}}
    assert lane_report(write(*ROWS)).cost.retries == {}


def test_each_row_is_counted_once_on_the_driver_however_often_its_lane_ran(write: Write) -> None:
    outcome = write(*ROWS, faults=plan_faults({(Operation.LOAD, 0): Fault.REFUSED}))
    model = Model(SystemClock())
    model.record(Event("batch.started", {"job": "job", "batch_id": 3, "lanes": 2, "query": "q"}))
    for report in outcome.reports:
        model.record(Event("lane.reported", {"report": report}))
    for receipt in outcome.receipts:
        model.record(Event("receipt.collected", {"receipt": receipt}))
    model.record(Event("batch.completed", {"job": "job", "batch_id": 3, "seconds": 1.0, "receipts": 1}))
    metrics = model.metrics
    assert metrics.total("rows_total") == len(ROWS)
    assert metrics.value("source_transactions_total", "committed") == 3
    assert [metrics.value("commits_total", outcome) for outcome in ("committed", "aborted")] == [1, 1]
    assert metrics.histogram("end_to_end_latency_seconds").count == 2


class Steps:
    """Steps of one lane, told to its metrics by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = LaneMetrics("job", 0, 0, "none", self.clock)

    def start(self, step: str, label: str) -> Span:
        span = Span(self.metrics, self.clock.monotonic, "step", {"step": step, "label": label})
        return span.__enter__()

    def end(self, span: Span, outcome: object = None) -> None:
        span.end(outcome)
        span.__exit__(None, None, None)

    def run(self, step: str, label: str, seconds: float, outcome: object = None) -> None:
        span = self.start(step, label)
        self.clock.advance(seconds)
        self.end(span, outcome)

    def commit(self, label: str, seconds: float, request: float) -> None:
        """A commit whose request took `request` of its seconds."""
        span = self.start("commit", label)
        fields = {"operation": "commit", "label": label, "table": None, "bytes": 0}
        with Span(self.metrics, self.clock.monotonic, "request", fields) as request_span:
            self.clock.advance(request)
            request_span.end(None, status="OK")
        self.clock.advance(seconds - request)
        self.end(span, Committed(label, 1))

    def phases(self, label: str) -> dict[str, float]:
        (receipt,) = self.metrics.add_details([Receipt(label, 1, "job", 0, (), (), 1, 1, 0, False)])
        return receipt.phase_seconds


def test_each_phase_is_timed_and_the_commit_told_apart_from_the_wait() -> None:
    steps = Steps()
    steps.run("begin", "L0", 1)
    steps.run("load", "L0", 2, Loaded(7, 0))
    steps.run("check", "L0", 3)
    steps.commit("L0", 5, request=1.5)
    assert steps.phases("L0") == {"begin": 1, "load": 2, "check": 3, "commit": 1.5, "publish": 3.5}
    (receipt,) = steps.metrics.add_details([Receipt("L0", 1, "job", 0, (), (), 1, 1, 0, False)])
    assert receipt.open_seconds == 11


def test_loads_count_while_any_of_them_is_under_way() -> None:
    steps = Steps()
    steps.run("begin", "L0", 1)
    first = steps.start("load", "L0")
    steps.clock.advance(2)
    second = steps.start("load", "L0")
    steps.clock.advance(2)
    steps.end(first)
    steps.clock.advance(2)
    steps.end(second)
    steps.clock.advance(50)  # rows are awaited
    steps.run("load", "L0", 3)
    steps.commit("L0", 1, request=1)
    assert steps.phases("L0")["load"] == 9


def test_failed_attempts_count_for_the_commit_that_follows_and_for_no_later_one() -> None:
    steps = Steps()
    steps.run("begin", "L0", 1)
    steps.run("load", "L0", 2, LoadFailed("no"))
    steps.run("rollback", "L0", 40)
    steps.run("begin", "L1", 1)
    steps.run("load", "L1", 2)
    steps.run("commit", "L1", 4, Unknown("L1", OutcomeUnknown("?")))
    steps.run("recover", "L1", 8, Committed("L1", None))
    steps.run("begin", "L2", 1)
    steps.commit("L2", 1, request=1)
    assert steps.phases("L1") == {"begin": 2, "load": 4, "recover": 8, "commit": 0, "publish": 4}
    assert steps.phases("L2") == {"begin": 1, "commit": 1, "publish": 0}


def test_a_lane_without_rows_has_nothing_to_tell(write: Write) -> None:
    outcome = write()
    assert (outcome.receipts, lane_report(outcome).cost.requests) == ([], {})


def test_without_the_column_no_row_is_a_delete(write: Write) -> None:
    assert lane_report(write(ROWS[3], without=(DELETED,))).work.deletes == {}


def test_deletes_that_are_visible_already_are_not_counted_again() -> None:
    deletes = Deletes({"0": Position("0", 1, "c", 0, "l", 1, "")})
    deletes.add(batch(*ROWS))
    assert deletes.by_table == {"orders": 1}


def test_event_times_belong_to_the_transaction_whose_receipt_has_them() -> None:
    times = EventTimes()
    times.add(batch(*ROWS[:2]))
    times.add(batch(*ROWS[2:]))

    def receipt(first: int, last: int, at: float) -> Receipt:
        return Receipt("l", 1, "job", 0, (), (PositionSpan("0", first, last, 1),), 1, 1, 0, False, {}, at)

    assert times.latest([receipt(1, 1, 12.0), receipt(2, 2, 20.0)]) == {"0": 12.0}
    assert times.ages([receipt(1, 1, 12.0), receipt(2, 2, 20.0)]) == ((1.0, 1), (8.0, 1))
    assert times.ages([receipt(1, 1, 12.0)]) == ((1.0, 1),)
    ((age, count),) = times.ages([receipt(1, 2, 1245.678)])
    assert (round(age, 6), count) == (1230.0, 2)  # three digits
    report = LaneReport("job", 0, 0, LaneWork(ages=((0.2, 2), (1.5, 1)), loaded_at=100.0)).commit(100.3)
    assert (report.work.latency.count, round(report.work.latency.total, 6), report.work.ages) == (3, 2.8, ())


def test_rows_without_event_time_cost_nothing_and_tell_nothing() -> None:
    times = EventTimes()
    times.add(batch(*ROWS).drop_columns([EVENT_TIME]))
    assert times.ages([]) == ()
