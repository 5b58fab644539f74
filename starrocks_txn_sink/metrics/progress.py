"""Spark's progress of a query as a plain value, parsed from the JSON of a StreamingQueryProgress. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from starrocks_txn_sink.assembler.model import Counters
from starrocks_txn_sink.events import Event
from starrocks_txn_sink.sources.skew import Skew, is_balanced, skew_of


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
    wanted = set(Counters.names())
    for name, row in counts.items():
        if wanted <= set(row):
            yield Event("assembler.counted", {"query": query, "name": f"{query}/{name}", "counts": row})


_WHOLE = "triggerExecution"


def _lags(source: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(partition, unread offsets) for sources that report both offsets by topic and partition, as Kafka's does."""
    read, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    for place, newest in latest.items():
        if place in read:
            yield place[1] if len({topic for topic, _ in latest}) == 1 else "/".join(place), newest - read[place]


def _offsets(offset: Any) -> dict[tuple[str, str], int]:
    if isinstance(offset, str):
        try:
            offset = orjson.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, Mapping):
        return {}
    return {
        (topic, partition): at
        for topic, partitions in offset.items()
        if isinstance(partitions, Mapping)
        for partition, at in partitions.items()
        if isinstance(at, int)
    }


def _time(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
