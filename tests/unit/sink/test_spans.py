"""OpenTelemetry's spans of a sink: what is in them, that they end, and that nothing is made where nobody listens."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.errors import CommitFailed
from starrocks_txn_sink.sink.spans import SpanListener
from starrocks_txn_sink.telemetry import DRIVER_STEPS, Event, Span, ignore_event

STARTED = Event("batch.started", {"job": "shop", "batch_id": 7, "query": "q", "database": "shop"})


class Spans:
    """A listener, and the spans that it has ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.listener = SpanListener(tracer_provider=provider)

    def ended(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def spans() -> Iterator[Spans]:
    yield Spans()
    assert DRIVER_STEPS.get() is ignore_event


def receipt() -> Receipt:
    regions = RegionCount("p-0", "orders", 3, 30), RegionCount("p-0", "items", 4, 50)
    return Receipt("l-1", 9, "shop", 7, regions, (PositionSpan("p-0", 1, 2, 2),), 2, 1, 0, False)


def step(name: str, **fields: Any) -> Span:
    return Span(DRIVER_STEPS.get(), lambda: 0.0, "step", {"step": name, "label": "l-1", **fields})


def attributes(span: ReadableSpan) -> dict[str, Any]:
    prefix = "starrocks_txn_sink."
    return {name.removeprefix(prefix): value for name, value in (span.attributes or {}).items()}


def test_a_micro_batch_has_its_steps_and_these_their_requests(spans: Spans) -> None:
    spans.listener(STARTED)
    with step("commit"), Span(DRIVER_STEPS.get(), lambda: 0.0, "request", {"operation": "get_load_state", "table": ""}):
        pass
    spans.listener(Event("receipt.collected", {"receipt": receipt()}))
    spans.listener(Event("batch.completed", {"job": "shop", "batch_id": 7, "seconds": 1.0}))
    ended = spans.ended()
    assert list(ended) == ["get_load_state", "commit", "batch"]
    assert {name: span.parent and span.parent.span_id for name, span in ended.items()} == {
        "batch": None,
        "commit": ended["batch"].context.span_id,
        "get_load_state": ended["commit"].context.span_id,
    }
    assert attributes(ended["batch"]) == {
        "db.system.name": "starrocks",
        "db.namespace": "shop",
        "job": "shop",
        "batch_id": 7,
        "query": "q",
        "labels": ("l-1",),
        "tables": ("items", "orders"),
        "rows": 7,
        "bytes": 80,
        "source_transactions": 2,
    }
    assert attributes(ended["commit"]) == {"db.system.name": "starrocks", "label": "l-1"}
    assert all(span.status.is_ok for span in ended.values())


@pytest.mark.parametrize(
    ("end", "code"), [("failed", "commit_failed"), ("stopped", None)], ids=["a failure", "a stop of the query"]
)
def test_a_micro_batch_that_ends_early_ends_all_its_spans(spans: Spans, end: str, code: str | None) -> None:
    spans.listener(STARTED)
    with pytest.raises(CommitFailed), step("commit"):
        raise CommitFailed("a secret text")
    open_step = step("begin")
    open_step.__enter__()
    fields = {"job": "shop", "batch_id": 7, "seconds": 1.0}
    spans.listener(Event(f"batch.{end}", fields | ({"code": code} if code else {})))
    ended = spans.ended()
    assert attributes(ended["commit"])["error.type"] == "commit_failed"
    assert not ended["commit"].status.is_ok
    assert (attributes(ended["batch"]).get("error.type"), ended["batch"].status.is_ok) == (code, code is None)
    assert attributes(ended["batch"]).get("stopped", False) == (end == "stopped")
    assert "begin" in ended
    assert "secret" not in str([span.to_json() for span in ended.values()])


def test_steps_of_no_micro_batch_have_no_span_and_a_copy_has_the_global_provider(spans: Spans) -> None:
    with step("commit"):
        pass
    assert spans.ended() == {}
    pickle.loads(pickle.dumps(spans.listener))(STARTED)
    DRIVER_STEPS.set(ignore_event)


def test_without_its_package_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from starrocks_txn_sink import SpanListener\n"
        "try:\n    SpanListener()\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.startswith("OptionError SpanListener needs the package opentelemetry-api.")
    assert "starrocks-txn-sink[opentelemetry]" in answer.stdout
