"""Merge commit: Stream Loads with equal parameters share a transaction within a time window (wire contract 11.3)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from starrocks_emulator.transactions.backend import Backend, BodySource, LoadRefused as Refused
from starrocks_emulator.transactions.commit import CommitFaults
from starrocks_emulator.transactions.messages import Body, Request, Stopwatch, stream_load_answer
from starrocks_emulator.transactions.single import PUBLISH_TIMEOUT, TOO_MANY_FILTERED, Single, SingleTable, not_streamed

BY_FRONTEND = "FRONTEND_STREAMING"
_PARAMETERS = ("merge_commit_async", "merge_commit_interval_ms", "merge_commit_parallel")

_Key = tuple[int, str, str, tuple[tuple[str, str], ...]]


def is_merged(request: Request) -> bool:
    """Whether a Stream Load asks for merge commit."""
    return request.header("enable_merge_commit").lower() == "true"


def check_window(headers: Mapping[str, str]) -> float:
    """The window's length in seconds; raises `LoadRefused` in the frontend's words."""
    for name, word in (("merge_commit_interval_ms", "interval"), ("merge_commit_parallel", "parallel")):
        text = headers.get(name, "")
        if not text.isdecimal() or int(text) == 0:
            message = f"Batch write {word} must be set positive, but is {text or 'null'}"
            raise Refused("INVALID_ARGUMENT", message)
    return int(headers["merge_commit_interval_ms"]) / 1000


@dataclass(slots=True)
class _Window:
    """One transaction that still takes bodies, until `ends` (seconds of the monotonic clock)."""

    live: Single
    ends: float
    turn: threading.Lock = field(default_factory=threading.Lock)
    closed: threading.Event = field(default_factory=threading.Event)
    timer: threading.Timer | None = None
    failure: str = ""
    published: bool = True

    @property
    def left(self) -> float:
        return max(0.0, self.ends - time.monotonic())


class Merging:
    """The windows that are open. Thread-safe."""

    def __init__(self, single: SingleTable) -> None:
        self._single = single
        self._windows: dict[_Key, _Window] = {}
        self._guard = threading.Lock()

    def load(
        self, backend: Backend, request: Request, body: BodySource, names: tuple[str, str], faults: CommitFaults
    ) -> Body:
        """Take one body into a window; by default wait for its end. Raises `BodyBroken`, no refusal.

        The faults of a window's first request are those of its commit.
        """
        watch, request_id = Stopwatch(), request.header("label") or str(uuid.uuid4())
        window: _Window | None = None
        try:
            seconds = self._single.timeout_of(request)
            window = self._take(backend, request, body, names, faults)
            left = _times(request_id, int(window.left * 1000))
            if request.header("merge_commit_async") != "true":
                _wait(window, seconds)
        except Refused as refused:
            label, txn_id = (window.live.entry.label, window.live.entry.txn_id) if window else ("", -1)
            return not_streamed(label, txn_id, refused, (0, watch.milliseconds), **_times(request_id, 0))
        entry, size = window.live.entry, body.length or 0
        figures = size, watch.milliseconds
        return stream_load_answer(entry.label, entry.txn_id, "Success", "OK", (0, 0, 0), figures, **left)

    def _take(
        self, backend: Backend, request: Request, body: BodySource, names: tuple[str, str], faults: CommitFaults
    ) -> _Window:
        properties = {**request.load_properties(), **{name: request.header(name) for name in _PARAMETERS}}
        key = id(backend), *names, tuple(sorted(properties.items()))
        while True:
            with self._guard:
                window = self._windows.get(key)
                if window is None:
                    window = self._windows[key] = self._open(backend, request, names, key, faults)
            with window.turn:
                if not window.closed.is_set():
                    backend.receive(window.live.context, request, body)
                    return window

    def _open(
        self, backend: Backend, request: Request, names: tuple[str, str], key: _Key, faults: CommitFaults
    ) -> _Window:
        seconds = check_window(request.headers)
        label = f"merge_commit_{uuid.uuid4().hex}"
        live = self._single.open(backend, *names, label, self._single.timeout_of(request), BY_FRONTEND)
        window = _Window(live, time.monotonic() + seconds)
        window.timer = threading.Timer(seconds, self._close, (key, window, faults))
        window.timer.daemon = True
        window.timer.start()
        return window

    def _close(self, key: _Key, window: _Window, faults: CommitFaults) -> None:
        with self._guard:
            self._windows.pop(key, None)
        with window.turn:
            try:
                window.published = self._single.commit(window.live, faults, _told).published
            except Refused as refused:
                window.failure = refused.message
            finally:
                window.closed.set()

    def stop(self) -> None:
        """Commit nothing more."""
        with self._guard:
            windows, self._windows = list(self._windows.values()), {}
        for window in windows:
            if window.timer is not None:
                window.timer.cancel()
            window.failure = "Batch write is stopped"
            window.closed.set()


def _told(refused: Refused) -> str:
    """The reason that the transaction and the waiting clients are given."""
    if refused.message != TOO_MANY_FILTERED:
        return refused.message
    return (
        "There is a data quality issue. Please check the tracking URL or SQL for details. "
        f"Tracking URL: {refused.url}. Tracking SQL: "
        "SELECT tracking_log FROM information_schema.load_tracking_logs"
    )


def _times(request_id: str, left_ms: int) -> dict[str, object]:
    """What only a merged load's reply has (wire contract 11.3)."""
    times = dict.fromkeys(("PendingTimeMs", "WaitPlanTimeMs", "WaitFinishTimeMs"), 0)
    return {"RequestId": request_id, "LeftMergeTimeMs": left_ms, **times}


def _wait(window: _Window, seconds: float) -> None:
    if not window.closed.wait(seconds):
        raise Refused("TIMEOUT", "load timeout, txn status: PREPARE")
    if window.failure:
        raise Refused("INTERNAL_ERROR", f"Load is aborted, reason: {window.failure}")
    if not window.published:
        raise Refused("PUBLISH_TIMEOUT", PUBLISH_TIMEOUT)
