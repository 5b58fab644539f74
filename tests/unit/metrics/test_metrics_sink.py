"""The sink and its endpoint: who makes it, who starts it, and that watching never breaks a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark import cloudpickle

from starrocks_txn_sink import MetricsServer, SinkOptions, StarRocksSink
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import InputError, LoadFailed, RowsRejected, notes_of
from starrocks_txn_sink.sink import batch_events
from starrocks_txn_sink.sink.batch_events import BatchOrigin, SinkEvents
from starrocks_txn_sink.sink.failures import FAILURES
from starrocks_txn_sink.telemetry import DRIVER_STEPS, Event, Span, ignore_event
from starrocks_txn_sink.writer.messages import LaneReport, LaneTrouble, SentError, attach_report, envelope

VALUES: dict[str, Any] = {"load_url": "http://fe:8030", "database": "shop", "delivery": "at-least-once"}
dumps: Callable[[object], bytes] = cloudpickle.dumps
OPTIONS = SinkOptions(**VALUES)


def told(watch: SinkEvents, receipts: Sequence[Receipt] = (), *, error: BaseException | None = None) -> None:
    with watch.follow_batch(None, BatchOrigin(1, "shop", "q", "r", streaming=True)) as collector:
        collector.collect(receipts)
        if error is not None:
            raise error


def test_a_sink_starts_its_endpoint_and_shows_it() -> None:
    with MetricsServer(0) as metrics:
        assert StarRocksSink(OPTIONS, metrics=metrics).metrics is metrics
        assert metrics.model.metrics.value("buffer_limit_bytes") == OPTIONS.buffer_bytes
    endpoint = StarRocksSink(SinkOptions(**VALUES, metrics_port=0)).metrics
    assert isinstance(endpoint, MetricsServer)
    assert endpoint.url.startswith("http://127.0.0.1:")
    endpoint.close()
    assert StarRocksSink(OPTIONS).metrics is None


def test_a_pickled_sink_arrives_with_an_endpoint_of_its_own_that_knows_the_options() -> None:
    with MetricsServer(0) as metrics:
        copy = cloudpickle.loads(dumps(StarRocksSink(OPTIONS, metrics=metrics))).metrics
    assert copy is not metrics
    assert copy.url == ""
    assert copy.model.metrics.value("buffer_limit_bytes") == OPTIONS.buffer_bytes
    told(SinkEvents(OPTIONS, copy, None))
    assert copy.model.metrics.histogram("batch_duration_seconds").count == 1


def test_the_steps_of_a_micro_batch_reach_its_endpoint_and_no_listener() -> None:
    events: list[Event] = []
    with MetricsServer(0) as metrics:
        sink = SinkEvents(OPTIONS, events.append, metrics)
        with sink.follow_steps("shop"):
            with Span(DRIVER_STEPS.get(), lambda: 0.0, "step", {"step": "commit"}):
                running = next(iter(metrics.model.jobs)).step
            assert running is not None
            assert running.name == "commit"
        assert next(iter(metrics.model.jobs)).step is None
    assert DRIVER_STEPS.get() is ignore_event
    assert [event.name for event in events] == ["sink.made"]


def test_a_failing_batch_is_reported_with_its_code_and_its_lanes_report() -> None:
    events: list[Event] = []
    watch = SinkEvents(OPTIONS, events.append, None)
    failure = LoadFailed("No.")
    with pytest.raises(LoadFailed):
        told(watch, error=failure)
    report = LaneReport("shop", 0, 1, trouble=LaneTrouble(failure=SentError("rows_rejected")))
    sparks = RuntimeError(f"Python worker said: RowsRejected: no.\n{envelope(report)}\n")
    rejection = RowsRejected("No.")
    attach_report(rejection, report)
    with pytest.raises(RowsRejected):
        told(watch, error=rejection)
    assert notes_of(rejection) == [envelope(report)], "Spark Connect's client sees no more than the text"
    for error in (sparks, RuntimeError("something of Spark's")):
        with pytest.raises(RuntimeError):
            told(watch, error=error)
    failed = [event.fields for event in events if event.name == "batch.failed"]
    assert [(failure["code"], failure["report"]) for failure in failed] == [
        ("load_failed", None),
        ("rows_rejected", report),
        ("rows_rejected", report),
        ("spark", None),
    ]


def test_a_success_forgets_a_failure_that_the_users_function_has_caught() -> None:
    """Or a later failure of the source would be taken for it."""
    watch = SinkEvents(OPTIONS, lambda _: None, None)
    with FAILURES.reserve("q"):
        with pytest.raises(InputError):
            told(watch, error=InputError("Bad row."))
        told(watch)
        assert FAILURES.take("q") is None


def test_a_micro_batch_that_a_stop_interrupts_is_no_failure() -> None:
    events: list[Event] = []
    with MetricsServer(0) as metrics:

        def listen(event: Event) -> None:
            events.append(event)
            metrics(event)

        with pytest.raises(RuntimeError):
            told(SinkEvents(OPTIONS, listen, None), error=RuntimeError("java.lang.InterruptedException"))
        assert metrics.model.metrics.value("errors_total", "spark") == 0
        assert not any(job.running_since or job.failed_at for job in metrics.model.jobs)
    assert [event.name for event in events[1:]] == ["batch.started", "batch.stopped"]


def test_an_error_of_a_stage_in_front_of_the_sink_is_raised_as_itself() -> None:
    trace = "Traceback (most recent call last):\n  File ...\nstarrocks_txn_sink.errors.InputError: A change is odd."
    events: list[Event] = []
    with pytest.raises(InputError, match="A change is odd"):
        told(SinkEvents(OPTIONS, events.append, None), error=RuntimeError(f"PythonException: {trace}"))
    assert events[-1].fields["code"] == "input"


def test_receipts_are_emitted_at_once_whether_the_micro_batch_then_succeeds_or_fails() -> None:
    events: list[Event] = []
    watch = SinkEvents(OPTIONS, events.append, None)
    receipts = [Receipt(f"l-{n}", n, "shop", 1, (), (), 1, 1, 0, False, {}, 1.0) for n in (1, 2)]
    told(watch, receipts)
    assert [event.name for event in events[1:]] == ["batch.started", *["receipt.collected"] * 2, "batch.completed"]
    assert [event.fields["receipt"] for event in events[2:4]] == receipts
    del events[:]
    with pytest.raises(LoadFailed):
        told(watch, receipts, error=LoadFailed("No."))
    assert [event.name for event in events] == ["batch.started", *["receipt.collected"] * 2, "batch.failed"]


def test_an_endpoint_that_cannot_start_breaks_no_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = MetricsServer(0)
    monkeypatch.setattr(batch_events, "is_remote", lambda: True)  # then nothing is started before the first micro-batch
    watch = SinkEvents(OPTIONS, lambda _: None, metrics)
    monkeypatch.setattr(metrics, "start", lambda: 1 / 0)
    told(watch)
    assert "metrics.broken" in caplog.text
