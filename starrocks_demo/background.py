"""A thread with a stop sign whose failure is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

_ENDS_WITHIN = 90.0  # seconds; more than one SQL statement may take


class Background:
    """Runs `work(stop)` in a thread; as a context manager it stops and joins it. `error` is what the work raised."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        """Stop the work and wait for it."""
        self.stop.set()
        self._thread.join(_ENDS_WITHIN)

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _run(self) -> None:
        try:
            self._work(self.stop)
        except BaseException as error:  # handed to whoever watches
            self.error = error
