"""Commits held at COMMITTED by the fault plan, and when they become VISIBLE (contract section 3.2, publish)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable


class Publisher:
    """Publishes held transactions after their time, or at `release`. One timer thread per timed hold."""

    def __init__(self, publish: Callable[[int], None]) -> None:
        self._publish = publish
        self._timers: dict[int, threading.Timer | None] = {}
        self._guard = threading.Lock()

    def hold(self, txn_id: int, seconds: float) -> None:
        """Publish `txn_id` in `seconds`; infinity: only when released."""
        timer = None if math.isinf(seconds) else threading.Timer(seconds, self._due, (txn_id,))
        with self._guard:
            self._timers[txn_id] = timer
        if timer is not None:
            timer.daemon = True
            timer.start()

    @property
    def held(self) -> list[int]:
        with self._guard:
            return sorted(self._timers)

    def _due(self, txn_id: int) -> None:
        with self._guard:
            if txn_id not in self._timers:
                return
            del self._timers[txn_id]
        self._publish(txn_id)

    def release(self) -> list[int]:
        """Publish everything held, oldest first; the ids that were held."""
        released = self._take_all()
        for txn_id in released:
            self._publish(txn_id)
        return released

    def stop(self) -> None:
        """Stop waiting; what is held stays COMMITTED until the store is opened again."""
        self._take_all()

    def _take_all(self) -> list[int]:
        with self._guard:
            timers, self._timers = self._timers, {}
        for timer in timers.values():
            if timer is not None:
                timer.cancel()
        return sorted(timers)
