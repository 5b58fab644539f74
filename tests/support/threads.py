"""The threads of this process that a test may find and must not leave behind."""

from __future__ import annotations

import threading


def running(name: str = "") -> set[threading.Thread]:
    """All threads whose name begins with `name`, but no timers: a failure that an earlier test has posted waits for a
    moment to be printed."""
    threads = {thread for thread in threading.enumerate() if thread.name.startswith(name)}
    return {thread for thread in threads if not isinstance(thread, threading.Timer)}
