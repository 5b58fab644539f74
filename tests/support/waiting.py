"""Wait for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    reached: Callable[[], object],
    seconds: float = 240,
    what: str | Callable[[], object] = "waited too long",
    *,
    alive: Callable[[], object] = lambda: True,
) -> None:
    """Poll until `reached()`; AssertionError with `what` after `seconds`, or when `alive()` no longer holds."""
    limit = time.monotonic() + seconds
    while not reached():
        if not alive() or time.monotonic() > limit:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.05)
