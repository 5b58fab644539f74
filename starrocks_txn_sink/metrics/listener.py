"""Spark's progress of the queries as events: a StreamingQueryListener on the driver."""

# ruff: noqa: N802 - the names of the methods are Spark's
from __future__ import annotations

import contextlib
import json
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from starrocks_txn_sink.events import Event, Listener
from starrocks_txn_sink.metrics.progress import progress_events


class ProgressListener(StreamingQueryListener):
    """Turns Spark's callbacks into events. Never raises: Spark would log the error at every micro-batch."""

    def __init__(self, emit: Listener) -> None:
        self._emit = emit

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Ignored: the sink emits batch.started itself."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        with contextlib.suppress(Exception):
            progress = event.progress
            counts = {name: row.asDict() for name, row in progress.observedMetrics.items()}
            for one in progress_events(json.loads(progress.json), counts):
                self._emit(one)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._emit(Event("query.idle", {"query": str(event.id)}))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._emit(Event("query.ended", {"query": str(event.id), "failed": event.exception is not None}))


class ProgressWatch:
    """Registers a listener with a session until `close`."""

    def __init__(self, session: Any, emit: Listener) -> None:
        self._session, self._listener = session, ProgressListener(emit)
        session.streams.addListener(self._listener)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the session may have ended first
            self._session.streams.removeListener(self._listener)
