"""The Spark jobs of one sink, tagged so that all of them can be cancelled at once, and nobody else's.

Does nothing on Spark Connect, where there is no SparkContext.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from starrocks_txn_sink.events import Listener
from starrocks_txn_sink.sink import progress


class Jobs:
    """`running` tells how many micro-batches are being written now. Thread-safe; a copy begins with none."""

    def __init__(self) -> None:
        self._tag = f"starrocks-txn-sink-{secrets.token_hex(8)}"
        self._guard = threading.Lock()
        self._context: Any = None
        self.running = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Jobs, ()

    @contextlib.contextmanager
    def tagged(self, frame: DataFrame) -> Iterator[None]:
        """Jobs that this thread starts inside belong to the sink."""
        context = context_of(frame)
        with self._guard:
            self._context = context
            self.running += 1
        if context is not None:
            context.addJobTag(self._tag)
        try:
            yield
        finally:
            with self._guard:
                self.running -= 1
            if context is not None:
                with contextlib.suppress(Exception):  # the JVM may have ended first; that error counts
                    context.removeJobTag(self._tag)

    @contextlib.contextmanager
    def followed(self, frame: DataFrame, listener: Listener) -> Iterator[None]:
        """Show how far the jobs that are started inside are."""
        context = context_of(frame)
        if context is None:
            yield
            return
        with progress.followed(partial(progress.tasks_done, context, self._tag), progress.display(context, listener)):
            yield

    def cancel(self) -> None:
        """Have Spark end what runs, as far as it can be reached; never raises."""
        if self._context is not None:
            with contextlib.suppress(Exception):
                self._context.cancelJobsWithTag(self._tag)


def context_of(frame: DataFrame) -> Any:
    """The SparkContext of `frame`; None on Spark Connect."""
    return getattr(frame.sparkSession, "_sc", None)
