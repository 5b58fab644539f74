"""Spark's progress of a query as a plain value, parsed from the JSON of a StreamingQueryProgress. Imports no Spark."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql.streaming import listener as spark

from starrocks_txn_sink.assembler.rules.model import Counters
from starrocks_txn_sink.sources.kafka.offsets import offsets_of
from starrocks_txn_sink.sources.kafka.skew import Skew, is_balanced, skew_of
from starrocks_txn_sink.telemetry import Event, Listener


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One micro-batch as reported by Spark. `phases` are seconds, `watermark` seconds since the Unix epoch or 0.

    `lags` are unread offsets by source partition, if the source reports its latest offsets; `skews` the reports of
    balanced sources.
    """

    input_rows: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    watermark: float = 0.0
    lags: Mapping[str, int] = field(default_factory=dict)
    skews: Sequence[Skew] = ()


def read_progress(progress: Mapping[str, Any]) -> QueryProgress:
    """Parse the document of `StreamingQueryProgress.json`."""
    operators: Sequence[Mapping[str, Any]] = progress.get("stateOperators") or ()
    sources: Sequence[Mapping[str, Any]] = progress.get("sources") or ()
    return QueryProgress(
        input_rows=sum(max(0, int(source.get("numInputRows") or 0)) for source in sources),
        phases={name: ms / 1000 for name, ms in (progress.get("durationMs") or {}).items() if name != _WHOLE},
        state_rows=sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
        state_bytes=sum(int(operator.get("memoryUsedBytes") or 0) for operator in operators),
        watermark=_time((progress.get("eventTime") or {}).get("watermark")),
        lags={name: lag for source in sources for name, lag in _lags(source)},
        skews=tuple(skew_of(source) for source in sources if is_balanced(source)),
    )


def progress_events(progress: Mapping[str, Any], counts: Mapping[str, Mapping[str, Any]]) -> Iterator[Event]:
    """Events for the model: Spark's progress, and the assemblers' counts (`counts`: by name of the observation)."""
    query = str(progress.get("id"))
    yield Event("query.progressed", {"query": query, "progress": read_progress(progress)})
    counter_names = set(Counters.names())
    for name, row in counts.items():
        if counter_names <= set(row):
            yield Event("assembler.counted", {"query": query, "name": f"{query}/{name}", "counts": row})


_WHOLE = "triggerExecution"
_LAST_WORDS_MS = 2000


def _lags(source: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(partition, unread offsets) for sources that report both offsets by topic and partition, as Kafka's does."""
    read, latest = offsets_of(source.get("endOffset")), offsets_of(source.get("latestOffset"))
    is_only_topic = len({topic for topic, _ in latest}) == 1
    for (topic, number), newest in latest.items():
        if (topic, number) in read:
            yield str(number) if is_only_topic else f"{topic}/{number}", newest - read[topic, number]


def _time(text: str | None) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0  # Python 3.10 knows no Z


# ruff: noqa: N802 - the names of the methods are Spark's


class ProgressWatch(spark.StreamingQueryListener):
    """Turns a session's callbacks into events until `close`. Never raises: Spark would log it at every micro-batch."""

    def __init__(self, session: Any, emit: Listener) -> None:
        self._session, self._emit = session, emit
        session.streams.addListener(self)

    def close(self) -> None:
        """Emit nothing more; does nothing for a session that has ended.

        Spark may be telling something yet, and prints a stack trace if this process ends meanwhile: it is awaited.
        """
        with contextlib.suppress(Exception):  # the session may have ended first, and Spark Connect has no such bus
            self._session.streams.removeListener(self)
            self._session._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(_LAST_WORDS_MS)

    def onQueryStarted(self, event: spark.QueryStartedEvent) -> None:
        """A restart, if the query has used the sink before."""
        self._emit(Event("query.started", {"query": str(event.id)}))

    def onQueryProgress(self, event: spark.QueryProgressEvent) -> None:
        """The end of a micro-batch: Spark's progress, and the counts that assemblers have observed."""
        with contextlib.suppress(Exception):
            progress = event.progress
            counts = {name: row.asDict() for name, row in progress.observedMetrics.items()}
            for metric_event in progress_events(json.loads(progress.json), counts):
                self._emit(metric_event)

    def onQueryIdle(self, event: spark.QueryIdleEvent) -> None:
        """A trigger without new rows."""
        self._emit(Event("query.idle", {"query": str(event.id)}))

    def onQueryTerminated(self, event: spark.QueryTerminatedEvent) -> None:
        """The end of a run; `failed` if it ended with an error."""
        self._emit(Event("query.ended", {"query": str(event.id), "failed": event.exception is not None}))
