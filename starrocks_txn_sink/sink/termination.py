"""The end of the program: the sinks roll back their open labels, within seconds.

Python runs `atexit` at a normal end and after an exception in the main program. SIGTERM ends Python without it, unless
the application takes the signal, as `run_forever` does: the next start then rolls the labels back, or their timeout.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

EXIT_SECONDS = 5.0
"""How long the end of the program may be delayed; supervisors wait for 10 to 90 seconds before they use SIGKILL."""


class StoppableWriter(Protocol):
    """A writer that can give up its open writes, if there are any, within `seconds`; never raises."""

    def give_up(self, seconds: float) -> None:
        """Roll back what is open, and return after `seconds` at the latest. Any thread may call it."""


_writers = weakref.WeakKeyDictionary[StoppableWriter, int]()  # writer → id of the process in which it writes


def roll_back_at_exit(writer: StoppableWriter) -> None:
    """Have `writer` give up when the program ends; keeps a weak reference. Every write calls this first, in any thread.

    A forked child leaves its parent's writers alone.
    """
    if _writers.get(writer) != os.getpid():
        if not _writers:
            atexit.unregister(_give_up_all)
            atexit.register(_give_up_all)
        _writers[writer] = os.getpid()


def _give_up_all() -> None:
    writers = [writer for writer, process in list(_writers.items()) if process == os.getpid()]
    run_with_timeout([partial(writer.give_up, EXIT_SECONDS) for writer in writers], EXIT_SECONDS)


def run_with_timeout(calls: Sequence[Callable[[], None]], seconds: float) -> None:
    """Run each of `calls` in a thread of its own, and wait at most `seconds`; leave calls that hang behind.

    If Python starts no threads any more, runs the calls one after the other. So each call needs a limit of its own.
    """
    limit = time.monotonic() + seconds
    threads = [(call, start_thread(call)) for call in calls]
    for call, thread in threads:
        if thread is None:
            call()
        else:
            thread.join(max(0.0, limit - time.monotonic()))


def start_thread(call: Callable[[], None]) -> threading.Thread | None:
    """Run `call` in a daemon thread; None if the interpreter is ending and starts no threads (Python 3.12)."""
    thread = threading.Thread(target=call, name="starrocks-give-up", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
