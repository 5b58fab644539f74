"""An auditor inside a sink: a thread that takes samples while micro-batches are written, and `linger` seconds longer.

The sink does not learn when its query ends, and reads can only be torn while a job writes. So the thread ends after
`linger` seconds without a micro-batch, and the next micro-batch starts a new one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from starrocks_txn_sink.audit.auditor import AuditConnection, Auditor
from starrocks_txn_sink.audit.invariant import Audit
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.events import Listener, fan_out
from starrocks_txn_sink.options import SinkOptions

_LINGER = 10.0


class AuditWatch:
    """`auditor` has the counts and the first violation. Thread-safe; an unpickled copy starts from zero."""

    def __init__(
        self,
        audit: Audit,
        options: SinkOptions,
        listener: Listener,
        clock: Clock | None = None,
        linger: float = _LINGER,
    ) -> None:
        if not options.query_addresses:
            raise OptionError(
                "An audit requires query_url.",
                hint="Set query_url='mysql://<frontend>:9030'.",
                option="query_url",
            )
        self._made_of = audit, options, listener
        self._clock = clock or SystemClock()
        self._linger = max(linger, 2 * audit.interval)
        self._reader = AuditConnection(options)
        self.auditor = Auditor(audit, self._reader, self._clock, fan_out((listener,)))
        self._guard = threading.Lock()
        self._writing = 0
        self._until = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return AuditWatch, self._made_of

    @property
    def running(self) -> bool:
        """Whether the thread is taking samples."""
        return self._thread is not None and self._thread.is_alive()

    @contextlib.contextmanager
    def while_writing(self) -> Iterator[None]:
        """Take samples inside the `with` block and `linger` seconds after it."""
        with self._guard:
            self._writing += 1
            if not self.running:
                self._thread = threading.Thread(
                    target=self.auditor.run, args=(self._stop, self._is_over), name="starrocks-audit", daemon=True
                )
                self._thread.start()
        try:
            yield
        finally:
            with self._guard:
                self._writing -= 1
                self._until = self._clock.monotonic() + self._linger

    def stop(self) -> None:
        """End the thread after its current sample, and wait for it. The next micro-batch starts another thread."""
        with self._guard:
            thread, self._thread = self._thread, None
            stop, self._stop = self._stop, threading.Event()
        stop.set()
        if thread is not None:
            thread.join()
            self._reader.close()

    def _is_over(self) -> bool:
        """Whether the linger time has passed; if so, drop the thread and its connection."""
        with self._guard:  # the decision and the drop are one step, or a micro-batch could rely on an ending thread
            if self._writing or self._clock.monotonic() < self._until:
                return False
            if self._thread is threading.current_thread():
                self._thread = None
            self._reader.close()
            return True
