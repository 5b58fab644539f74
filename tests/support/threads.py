"""The threads of this process that a test may find and must not leave behind."""

from __future__ import annotations

import threading


def running() -> set[threading.Thread]:
    """All threads but timers: a failure that an earlier test has posted waits for a moment to be printed."""
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading.Timer)}
