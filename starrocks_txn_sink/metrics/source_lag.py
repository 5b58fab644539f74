"""How far a query is behind its sources: rows and seconds by topic, also while a micro-batch runs.

Spark reports a source's end offsets when a micro-batch ends, so its metrics stand still while a micro-batch hangs. So
a thread asks every few seconds (`metrics.kafka_offsets`): Spark for the offsets of the last micro-batch that ended,
Kafka for the ends of the partitions.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.metrics.kafka_offsets import EndOffsets, JvmEnds, end_offsets, read_offsets
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets
from starrocks_txn_sink.telemetry import Event, Listener

INTERVAL: Final = 5.0
_PAUSE_AFTER_FAILURE: Final = 30.0
_MOST_SAMPLES: Final = 64  # of one partition; above it every second sample is dropped


@dataclass(frozen=True, slots=True)
class SourceLag:
    """Rows of a source that no ended micro-batch has read, and the seconds for which the first of them has waited."""

    rows: int
    seconds: float


@dataclass(slots=True)
class WaitingTime:
    """For how long the first unread row of each partition has waited, by samples of the partition's end.

    A row that was there before the first sample counts from the first sample on.
    """

    _seen: dict[KafkaPartition, list[tuple[float, int]]] = field(default_factory=dict)  # (time, end), ends growing

    def seconds(self, now: float, place: KafkaPartition, read: int, end: int) -> float:
        """Add the sample `end`, and return the seconds since the first end above `read`; 0 if all rows are read."""
        unread = [sample for sample in self._seen.get(place, ()) if read < sample[1] <= end]
        if end > read and (not unread or end > unread[-1][1]):
            unread.append((now, end))
        if len(unread) > _MOST_SAMPLES:
            del unread[1::2]
        self._seen[place] = unread
        return now - unread[0][0] if unread else 0.0


@dataclass(slots=True)
class QueryLag:
    """The lag of one query; `ends` has a function for each Kafka source, by its place among the query's sources."""

    ends: Mapping[int, EndOffsets]
    _waiting: WaitingTime = field(default_factory=WaitingTime)

    def measure(self, now: float, read: Mapping[int, Offsets]) -> Event | None:
        """`source.lagged` for the offsets that micro-batches have read, by source; None without any."""
        rows: dict[KafkaPartition, int] = {}
        lags: dict[str, SourceLag] = {}
        for place, offsets in read.items():
            for partition, end in (self.ends[place](offsets) if place in self.ends and offsets else {}).items():
                if partition in rows or partition not in offsets:  # the plan may have a source twice
                    continue
                rows[partition] = max(0, end - offsets[partition])
                wait_seconds = self._waiting.seconds(now, partition, offsets[partition], end)
                lag = lags.get(partition[0], SourceLag(0, 0.0))
                lags[partition[0]] = SourceLag(lag.rows + rows[partition], max(lag.seconds, wait_seconds))
        if not lags:
            return None
        is_only_topic = len(lags) == 1
        partitions = {
            str(number) if is_only_topic else f"{topic}/{number}": lag_rows
            for (topic, number), lag_rows in rows.items()
        }
        return Event("source.lagged", {"lags": lags, "partitions": partitions})

    def close(self) -> None:
        """Close the connections to the brokers."""
        for ends in self.ends.values():
            if isinstance(ends, JvmEnds):
                with contextlib.suppress(Exception):  # the JVM may have ended
                    ends.close()


class LagWatch:
    """A daemon thread that emits `source.lagged` for the `wanted` queries of a session, until `close`.

    Where a query `is_paused`, all that it has planned is visible. If a query's brokers do not answer, it emits
    `source.unknown`, and asks again: at the next interval after the first failure, then every half minute.
    """

    def __init__(
        self,
        session: Any,
        emit: Listener,
        clock: Clock,
        is_wanted: Callable[[str], bool],
        is_paused: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._session, self._emit, self._clock = session, emit, clock
        self._wanted, self._paused = is_wanted, is_paused
        self._queries: dict[str, tuple[str, QueryLag]] = {}  # by id: the run's id, and its lag
        self._not_before: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="starrocks-source-lag", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop without a wait for a running request."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL) and not has_ended(self._session):
            with contextlib.suppress(Exception):  # the JVM is about to end
                running = {str(query.id): query for query in self._session.streams.active}
                for name in self._queries.keys() - running.keys():
                    self._forget(name)
                for name in filter(self._wanted, running):
                    self._look(name, running[name])
        for name in tuple(self._queries):
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._queries.pop(name)[1].close()

    def _look(self, name: str, query: Any) -> None:
        now = self._clock.wall()
        if now < self._not_before.get(name, 0.0):
            return
        execution = query._jsq.streamingQuery()
        try:
            if self._queries.get(name, ("",))[0] != str(query.runId):
                if name in self._queries:
                    self._forget(name)
                self._queries[name] = str(query.runId), QueryLag(dict(end_offsets(self._session, execution)))
            event = self._queries[name][1].measure(
                now, read_offsets(self._session, execution, visible=self._paused(name))
            )
        except Exception:  # Kafka, py4j or a missing class raises it: the metrics are unknown
            is_repeat = name in self._not_before  # a query that has just begun may not have its plan yet
            self._not_before[name] = now + (_PAUSE_AFTER_FAILURE if is_repeat else 0.0)
            if name in self._queries:
                self._forget(name)
            self._emit(Event("source.unknown", {"query": name}))
            return
        self._not_before.pop(name, None)
        if event is not None:
            self._emit(Event(event.name, {"query": name, **event.fields}))


def has_ended(session: Any) -> bool:
    """Whether the session's SparkContext has stopped; False with Spark Connect, which shows none."""
    context = getattr(session, "_sc", None)  # on Spark Connect there is none
    return context is not None and context._jsc is None
