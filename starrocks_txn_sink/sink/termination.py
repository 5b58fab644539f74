"""The process ends: what is open on the server is rolled back first, within seconds.

At a normal end, an exception in the main program among them, Python asks us. Not so for SIGTERM, which whoever ends a
driver sends first (systemd, Kubernetes, YARN): its default action ends Python at once, and labels would stay open until
their timeout. So, as PySpark does for SIGINT, a sink that is made in the main thread installs a handler, if nobody else
has; it never replaces one of the application's. The handler has every sink give up, in threads of their own, and then
lets the signal do what it would have done, so the exit status stays the right one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Protocol

SECONDS = 5.0
"""What the process lives on at most; supervisors wait for 10 to 90 seconds before they use SIGKILL."""


class Writer(Protocol):
    """Something that can give up what it is writing, within `seconds`, if there is anything; never raises."""

    def give_up(self, seconds: float) -> None: ...


_writers: weakref.WeakKeyDictionary[Writer, int] = weakref.WeakKeyDictionary()  # and the process that made each


def roll_back_at_exit(writer: Writer, *, on_sigterm: bool) -> None:
    """Have `writer` give up when the process ends, as long as it lives; `on_sigterm` also when that signal ends it.

    A handler is installed in the main thread only (Python takes signals only there), and only where SIGTERM does what
    it does by default. A forked child leaves its parent's writers alone.
    """
    if not _writers:
        atexit.unregister(_give_up_all)
        atexit.register(_give_up_all)
    _writers[writer] = os.getpid()
    if on_sigterm:
        _install()


def _install() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    with contextlib.suppress(ValueError):  # the main thread of another interpreter of this process
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    try:
        _give_up_all()
    finally:
        os.kill(os.getpid(), number)


def _give_up_all() -> None:
    mine = [writer for writer, maker in list(_writers.items()) if maker == os.getpid()]
    in_time([partial(writer.give_up, SECONDS) for writer in mine], SECONDS)


def in_time(work: Sequence[Callable[[], None]], seconds: float) -> None:
    """Do all of `work` at once, in threads of its own, and wait for it at most `seconds`: what hangs is left behind.

    Where no thread can be started any more it is done one after the other, so each must be bounded by itself.
    """
    limit = time.monotonic() + seconds
    threads = [(one, begun(one)) for one in work]
    for one, thread in threads:
        if thread is None:
            one()
        else:
            thread.join(max(0.0, limit - time.monotonic()))


def begun(work: Callable[[], None]) -> threading.Thread | None:
    """`work` in a thread that nobody has to wait for; None when the interpreter ends and starts none (Python 3.12)."""
    thread = threading.Thread(target=work, name="starrocks-give-up", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
