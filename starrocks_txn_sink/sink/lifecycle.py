"""The life of a sink's writes on the driver: whose turn it is, their Spark jobs, their progress, their end.

When the process ends, the sink first rolls back open labels, within seconds.

At a normal end, an exception in the main program among them, Python calls us. Not so for SIGTERM, which supervisors
send first to end a driver (systemd, Kubernetes, YARN): its default action ends Python at once, and labels would stay
open until their timeout. So the first write takes the signal, if nobody else has; making a sink changes nothing.

The first write of a streaming query runs in a thread of Spark's, and Python lets only the main thread set a handler
(`signal.signal`), which then waits for the query. `faulthandler.register` takes a signal from any thread: its handler
is written in C, and writes to a file at once, whatever Python does just then. Our file is a pipe, and a thread of ours
waits at its other end. When the signal comes, that thread has every sink give up, and then lets the signal do what it
would have done, so the exit status stays the right one. A handler that the application sets, before or later, wins.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import secrets
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TextIO

from pyspark.sql import DataFrame

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import DeadlineExceeded, Fenced
from starrocks_txn_sink.telemetry.events import Event, Listener


class Turns:
    """Whose turn it is, by job. Thread-safe; travels without what it knows, as the sink's sessions do."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._replaced: dict[tuple[str, str], str] = {}

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()

    @contextlib.contextmanager
    def one_at_a_time(self, job: str, seconds: float) -> Iterator[None]:
        """Wait until nobody else writes `job`; raises DeadlineExceeded after `seconds`."""
        lock = self._locks.setdefault(job, threading.Lock())
        if not lock.acquire(timeout=seconds):
            raise DeadlineExceeded(f"Another write of the job {job} in this process was waited for {seconds:g} s.")
        try:
            yield
        finally:
            lock.release()

    def replaced(self, job: str, run: str, by: str) -> None:
        """A query's `run` has lost `job` to the writer with the checkpoint `by`."""
        self._replaced[job, run] = by

    def refuse_replaced(self, job: str, run: str) -> None:
        """Raise Fenced when another writer of this sink has taken `job` from that run of a query."""
        by = self._replaced.get((job, run))
        if by is not None:
            raise Fenced("The job was taken over by another writer, which uses the same sink.", checkpoint=by)


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
        with followed(partial(tasks_done, context, self._tag), display(context, listener)):
            yield

    def cancel(self) -> None:
        """Have Spark end what runs, as far as it can be reached; never raises."""
        if self._context is not None:
            with contextlib.suppress(Exception):
                self._context.cancelJobsWithTag(self._tag)


def context_of(frame: DataFrame) -> Any:
    """The SparkContext of `frame`; None on Spark Connect."""
    return getattr(frame.sparkSession, "_sc", None)


SECONDS = 5.0
"""What the process lives on at most; supervisors wait for 10 to 90 seconds before they use SIGKILL."""


class Writer(Protocol):
    """Something that can give up what it is writing, within `seconds`, if there is anything; never raises."""

    def give_up(self, seconds: float) -> None: ...


_writers: weakref.WeakKeyDictionary[Writer, int] = weakref.WeakKeyDictionary()  # and the process that each writes in


class _Sigterm:
    """Whether this process has taken SIGTERM; forked children have not."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ending = False
        self._taken = False
        self._follows_forks = False
        self._mask = threading.local()

    def take(self) -> None:
        """Take the signal where it does what it does by default; a second call does nothing."""
        if self._taken or not hasattr(faulthandler, "register"):  # Windows has no such call
            return
        if not _is_default() or signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            return
        self._taken = True
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(before=self._hold, after_in_parent=self._let_through, after_in_child=self._forked)
        reading, writing = os.pipe()  # open as long as the process lives
        os.set_blocking(writing, False)  # a handler must never wait
        threading.Thread(target=self._wait, args=(reading,), name="starrocks-sigterm", daemon=True).start()
        # Only the frames of the thread that gets the signal are written: those of others may change meanwhile. The
        # kernel chooses the main thread unless that one blocks the signal.
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

    # A forked child has the handler, and the parent's pipe: its signals would end the parent. So they are held back
    # until the child has let go of it.

    def _hold(self) -> None:
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _let_through(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _forked(self) -> None:
        self.lock, self.ending = threading.Lock(), False
        self.release()
        self._let_through()


_sigterm = _Sigterm()


def _is_default() -> bool:
    """Whether the application leaves SIGTERM alone: it neither handles nor ignores it."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def roll_back_at_exit(writer: Writer, *, on_sigterm: bool) -> None:
    """Have `writer` give up when the process ends, as long as it lives; `on_sigterm` also when that signal ends it.

    Called at the start of each write, in any thread. A forked child leaves its parent's writers alone. Once SIGTERM has
    come, a call does not return: nothing new begins while the rest is rolled back.
    """
    with _sigterm.lock:
        if _sigterm.ending:
            SystemClock().sleep(2 * SECONDS)
        if _writers.get(writer) == os.getpid():
            return
        if not _writers:
            atexit.unregister(_at_exit)
            atexit.register(_at_exit)
        _writers[writer] = os.getpid()
        if on_sigterm:
            _sigterm.take()


def _at_exit() -> None:
    if _sigterm.ending:  # the thread that gives up ends the process by the signal
        SystemClock().sleep(2 * SECONDS)
    _give_up_all()
    _sigterm.release()


def _give_up_all() -> None:
    mine = [writer for writer, process in list(_writers.items()) if process == os.getpid()]
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


LOOK_EVERY = 0.5


TELL_EVERY = 10.0
"""Seconds between two lines; what takes less than this says nothing."""


@dataclass(frozen=True, slots=True)
class Done:
    """Spark tasks that ended, of those that are known so far: later stages are added when they are planned."""

    tasks: int
    of: int


Ask = Callable[[], Done | None]


class Show(Protocol):
    """Where progress goes."""

    def show(self, done: Done, seconds: float) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Tells `write.progressed` every so many seconds."""

    def __init__(self, listener: Listener, every: float = TELL_EVERY) -> None:
        self._listener, self._every, self._told = listener, every, 0.0

    def show(self, done: Done, seconds: float) -> None:
        if seconds - self._told >= self._every:
            self._told = seconds
            self._listener(Event("write.progressed", {"tasks": done.tasks, "of": done.of, "seconds": seconds}))

    def close(self) -> None:
        """Nothing is left open."""


class Bar:
    """A bar that is gone when the work is done. Needs rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=Console(file=stream), transient=True, redirect_stdout=False)
        self._task = self._progress.add_task("StarRocks write, Spark tasks", total=None)
        self._progress.start()

    def show(self, done: Done, seconds: float) -> None:
        del seconds
        self._progress.update(self._task, completed=done.tasks, total=done.of)

    def close(self) -> None:
        self._progress.stop()


@contextlib.contextmanager
def followed(ask: Ask, show: Show, every: float = LOOK_EVERY) -> Iterator[None]:
    """Inside, a thread asks and shows; what it meets never touches the work."""
    stop, started = threading.Event(), time.monotonic()

    def follow() -> None:
        while not stop.wait(every):
            with contextlib.suppress(Exception):
                done = ask()
                if done is not None:
                    show.show(done, time.monotonic() - started)

    thread = threading.Thread(target=follow, name="starrocks-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5.0)
        with contextlib.suppress(Exception):
            show.close()


def display(context: Any, listener: Listener, stream: TextIO | None = None) -> Show:
    """A bar on a terminal where rich is installed and Spark draws none of its own; lines otherwise."""
    target = sys.stderr if stream is None else stream
    drawn = str(context.getConf().get("spark.ui.showConsoleProgress", "false")).lower() == "true"
    if target.isatty() and not drawn:
        with contextlib.suppress(ImportError):
            return Bar(target)
    return Lines(listener)


def tasks_done(context: Any, tag: str) -> Done | None:
    """What Spark says of the jobs that have `tag`; None before the first one."""
    jobs = list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))
    tracker = context.statusTracker()
    stages = {stage for job in jobs if (info := tracker.getJobInfo(job)) is not None for stage in info.stageIds}
    seen = [info for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
    if not seen:
        return None
    return Done(sum(info.numCompletedTasks for info in seen), sum(info.numTasks for info in seen))
