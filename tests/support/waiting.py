"""Wait for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    reached: Callable[[], object],
    seconds: float = 240,
    reason: str | Callable[[], object] = "waited too long",
    *,
    alive: Callable[[], object] = lambda: True,
) -> None:
    """Poll until `reached()`; AssertionError with `reason` after `seconds`, or when `alive()` no longer holds."""
    limit = time.monotonic() + seconds
    while not reached():
        if not alive() or time.monotonic() > limit:
            raise AssertionError(reason() if callable(reason) else reason)
        time.sleep(0.05)
