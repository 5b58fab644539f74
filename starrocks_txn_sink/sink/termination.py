"""The end of the process: the sinks roll back their open labels, within seconds.

At a normal end, and after an exception in the main program, Python runs `atexit`. But supervisors (systemd, Kubernetes,
YARN) end a driver with SIGTERM, which by default ends Python at once and leaves labels open until their timeout. So the
first write installs a handler, unless the application has one. Making a sink installs nothing.

`signal.signal` cannot be used: only the main thread may call it, while the first write of a streaming query runs in a
thread of Spark's; and its handler runs in the main thread, which waits for the query. `faulthandler.register` works in
any thread, and its handler in C writes to a file at once, whatever Python does at that moment. The file is a pipe, at
whose other end a thread of the sink waits. When the signal comes, this thread has every sink give up. Then it sends the
signal again with the default action, so that the exit status is right. A handler that the application sets wins.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from starrocks_txn_sink.clock import SystemClock

EXIT_SECONDS = 5.0
"""How long the end of the process may be delayed; supervisors wait for 10 to 90 seconds before they use SIGKILL."""


class StoppableWriter(Protocol):
    """A writer that can give up its open writes, if there are any, within `seconds`; never raises."""

    def give_up(self, seconds: float) -> None: ...


_writers = weakref.WeakKeyDictionary[StoppableWriter, int]()  # writer → id of the process in which it writes


class _Sigterm:
    """Whether this process has taken SIGTERM; forked children have not."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ending = False
        self._taken = False
        self._follows_forks = False
        self._mask = threading.local()

    def take(self) -> None:
        """Take the signal if its action is the default one; a second call does nothing."""
        if self._taken or not hasattr(faulthandler, "register"):  # Windows has no such call
            return
        if not _is_default() or signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            return
        self._taken = True
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._reset_in_child)
        reading, writing = os.pipe()  # open as long as the process lives
        os.set_blocking(writing, False)  # a handler must never wait
        threading.Thread(target=self._wait, args=(reading,), name="starrocks-sigterm", daemon=True).start()
        # all_threads=False: frames of other threads may change while they are written. The kernel chooses the main
        # thread unless the main thread blocks the signal.
        faulthandler.register(signal.SIGTERM, file=writing, all_threads=False)

    def release(self) -> None:
        """Give the signal back its default action, unless the application has set a handler meanwhile."""
        if self._taken and _is_default():
            faulthandler.unregister(signal.SIGTERM)
        self._taken = False

    def _wait(self, reading: int) -> None:
        os.read(reading, 1)
        self.ending = True
        self.release()  # a second signal ends the process at once
        try:
            _give_up_all()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    # A forked child inherits the handler and the parent's pipe, so a signal to the child would end the parent. So the
    # signal stays blocked until the child has released the handler.

    def _block(self) -> None:
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _reset_in_child(self) -> None:
        self.lock, self.ending = threading.Lock(), False
        self.release()
        self._unblock()


_sigterm = _Sigterm()


def _is_default() -> bool:
    """Whether the application leaves SIGTERM alone: it neither handles nor ignores it."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def roll_back_at_exit(writer: StoppableWriter, *, on_sigterm: bool) -> None:
    """Have `writer` give up when the process ends, with `on_sigterm` also when SIGTERM ends it; keeps a weak reference.

    Every write calls this first, in any thread. A forked child leaves its parent's writers alone. After SIGTERM the
    call does not return, so that no write begins while the sink rolls back.
    """
    with _sigterm.lock:
        if _sigterm.ending:
            SystemClock().sleep(2 * EXIT_SECONDS)
        if _writers.get(writer) == os.getpid():
            return
        if not _writers:
            atexit.unregister(_at_exit)
            atexit.register(_at_exit)
        _writers[writer] = os.getpid()
        if on_sigterm:
            _sigterm.take()


def _at_exit() -> None:
    if _sigterm.ending:  # the thread in `_Sigterm._wait` rolls back, and then ends the process
        SystemClock().sleep(2 * EXIT_SECONDS)
    _give_up_all()
    _sigterm.release()


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
