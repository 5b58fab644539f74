"""`SpanListener`: spans of OpenTelemetry for micro-batches, the steps of their driver, and the requests of steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_sink import __version__
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.telemetry import DRIVER_STEPS, Event, ignore_event

_PREFIX: Final = "starrocks_txn_sink."
_OF_START: Final = ("label", "table", "bytes")
"""Fields of a step or a request that are attributes; `job`, `batch_id` and `query` are those of a micro-batch."""


@dataclass(slots=True)
class _Batch:
    """The open spans of one micro-batch, the innermost last, and what its receipts say."""

    spans: list[Any]
    labels: list[str] = field(default_factory=list)
    tables: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, receipt: Receipt) -> None:
        self.labels.append(receipt.label)
        self.tables |= {region.table for region in receipt.regions}
        self.counts["rows"] += receipt.rows
        self.counts["bytes"] += sum(region.bytes for region in receipt.regions)
        self.counts["source_transactions"] += receipt.source_transactions

    @property
    def attributes(self) -> dict[str, Any]:
        return {"labels": self.labels, "tables": sorted(self.tables), **self.counts}


@suggests_arguments
class SpanListener:
    """Make spans of OpenTelemetry of what a sink writes; give it as the sink's `listener`.

    A span `batch` for each micro-batch, with labels, tables, rows, bytes and source transactions, and the code of its
    error. In it spans for what the driver does: `take_over` (of the job), `lanes` (they begin the label, and load),
    `begin` (where no lane can), `load` (the ledger and receipts), `check` (the owner), `commit`, `recover` and
    `rollback`; in these their requests, so a `commit` shows how long the server took to confirm. What lanes request is
    sent by executors, and has no spans.

    Args:
        tracer_provider: OpenTelemetry's provider; by default the global one, also on Spark Connect's server.

    Raises:
        OptionError: The package opentelemetry-api is missing.

    Example::

        from starrocks_txn_sink import SinkOptions, SpanListener, StarRocksSink

        options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop")
        sink = StarRocksSink(options, listener=SpanListener())
    """

    def __init__(self, *, tracer_provider: Any = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            raise OptionError(
                "SpanListener needs the package opentelemetry-api.",
                hint="pip install 'starrocks-txn-sink[opentelemetry]' on the driver.",
            ) from None
        self._trace = trace
        self._tracer = trace.get_tracer("starrocks_txn_sink", __version__, tracer_provider)
        self._batches: dict[str, _Batch] = {}  # by job

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark Connect pickles the sink with its listener."""
        return SpanListener, ()

    def __call__(self, event: Event) -> None:
        """Take one event of the sink."""
        fields = event.fields
        match event.name:
            case "batch.started":
                batch = self._batches[fields["job"]] = _Batch([])
                self._start(batch, "batch", fields, ("job", "batch_id", "query"), {"db.namespace": fields["database"]})
                DRIVER_STEPS.set(lambda step: self._take_step(batch, step))
            case "receipt.collected":
                if (batch_open := self._batches.get(fields["receipt"].job)) is not None:
                    batch_open.add(fields["receipt"])
            case "batch.completed" | "batch.failed" | "batch.stopped":
                DRIVER_STEPS.set(ignore_event)
                span = self._batches.pop(fields["job"], None)
                while span is not None and span.spans:
                    attributes = {} if len(span.spans) > 1 else span.attributes
                    self._end(span, {**attributes, "stopped": event.name == "batch.stopped"}, fields.get("code"))
            case _:
                pass

    def _take_step(self, batch: _Batch, event: Event) -> None:
        """Take an event of a step or of a request; the driver does one after the other."""
        kind, _, state = event.name.partition(".")
        if state == "started":
            self._start(batch, event.fields["step" if kind == "step" else "operation"], event.fields, _OF_START)
        elif len(batch.spans) > 1:
            self._end(
                batch, {}, event.fields.get("code") or (event.fields.get("status") if state == "failed" else None)
            )

    def _start(
        self,
        batch: _Batch,
        name: str,
        fields: dict[str, Any],
        names: tuple[str, ...],
        attributes_too: dict[str, Any] | None = None,
    ) -> None:
        context = self._trace.set_span_in_context(batch.spans[-1]) if batch.spans else None
        attributes = {f"{_PREFIX}{field}": fields[field] for field in names if fields.get(field) not in (None, "")}
        system = {"db.system.name": "starrocks"} | (attributes_too or {})
        batch.spans.append(self._tracer.start_span(name, context, attributes=system | attributes))

    def _end(self, batch: _Batch, attributes: dict[str, Any], code: str | None) -> None:
        span = batch.spans.pop()
        for name, value in attributes.items():
            if value:
                span.set_attribute(f"{_PREFIX}{name}", value)
        if code:
            span.set_attribute("error.type", code)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()
