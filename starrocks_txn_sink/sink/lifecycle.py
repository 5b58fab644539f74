"""The life of a sink's writes on the driver: turns, Spark jobs and progress, and the end of the process.

When the process ends, the sink first rolls back open labels, within seconds. At a normal end, an exception in the main
program included, Python runs `atexit`. SIGTERM, which supervisors send first to end a driver (systemd, Kubernetes,
YARN), ends Python at once by default, and labels would stay open until their timeout. So the first write takes the
signal, unless the application has; making a sink changes nothing.

The first write of a streaming query runs in a thread of Spark's, and Python lets only the main thread set a handler
(`signal.signal`), which then waits for the query. `faulthandler.register` takes a signal from any thread: its handler
is written in C, and writes to a file at once, whatever Python does at that moment. The file is a pipe, and a thread of
the sink waits at its other end. When the signal comes, that thread has every sink give up, and then sends the signal
again with its default action, so the exit status stays the right one. A handler that the application sets wins.
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
from starrocks_txn_sink.telemetry import Event, Listener


class WriteTurns:
    """One write at a time for each job. Thread-safe; pickled empty, as the sink's sessions are."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._replaced: dict[tuple[str, str], str] = {}

    def __reduce__(self) -> tuple[type[WriteTurns], tuple[()]]:
        return WriteTurns, ()

    @contextlib.contextmanager
    def one_at_a_time(self, job: str, seconds: float) -> Iterator[None]:
        """Wait for the job's other writes in this process; raises DeadlineExceeded after `seconds`."""
        lock = self._locks.setdefault(job, threading.Lock())
        if not lock.acquire(timeout=seconds):
            raise DeadlineExceeded(f"Another write of the job {job} in this process did not end within {seconds:g} s.")
        try:
            yield
        finally:
            lock.release()

    def record_replacement(self, job: str, run: str, by: str) -> None:
        """Remember that a query's `run` has lost `job` to the writer with the checkpoint `by`."""
        self._replaced[job, run] = by

    def refuse_replaced(self, job: str, run: str) -> None:
        """Raise Fenced when another writer of this sink has taken `job` from that run of a query.

        Otherwise two queries that share sink and job would take it from each other in turns, without an error.
        """
        by = self._replaced.get((job, run))
        if by is not None:
            raise Fenced("The job was taken over by another writer, which uses the same sink.", checkpoint=by)


class SparkJobs:
    """The sink's Spark jobs; `running` counts the micro-batches being written. Thread-safe; pickled empty."""

    def __init__(self) -> None:
        self._tag = f"starrocks-txn-sink-{secrets.token_hex(8)}"
        self._guard = threading.Lock()
        self._context: Any = None
        self.running = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return SparkJobs, ()

    @contextlib.contextmanager
    def tag(self, frame: DataFrame) -> Iterator[None]:
        """Tag the jobs that this thread starts inside, so that `cancel` and progress find them."""
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
    def show_progress(self, frame: DataFrame, listener: Listener) -> Iterator[None]:
        """Show the progress of the jobs that are started inside."""
        context = context_of(frame)
        if context is None:
            yield
            return
        with show_progress(partial(read_task_progress, context, self._tag), choose_display(context, listener)):
            yield

    def cancel(self) -> None:
        """Have Spark end the sink's jobs, if it can be reached; never raises."""
        if self._context is not None:
            with contextlib.suppress(Exception):
                self._context.cancelJobsWithTag(self._tag)


def context_of(frame: DataFrame) -> Any:
    """The SparkContext of `frame`; None on Spark Connect."""
    return getattr(frame.sparkSession, "_sc", None)


def is_stopped(frame: DataFrame) -> bool:
    """Whether the query of a micro-batch is being stopped: Spark interrupts the thread that runs it.

    PySpark runs Python's calls of a micro-batch in that very thread of the JVM. False on Spark Connect.
    """
    context = context_of(frame)
    with contextlib.suppress(Exception):  # the JVM has ended: the next try says so
        return context is not None and bool(context._jvm.java.lang.Thread.currentThread().isInterrupted())
    return False


EXIT_SECONDS = 5.0
"""How long the end of the process may be delayed; supervisors wait for 10 to 90 seconds before they use SIGKILL."""


class StoppableWriter(Protocol):
    """A writer that can give up its open writes, if there are any, within `seconds`; never raises."""

    def give_up(self, seconds: float) -> None: ...


_writers = weakref.WeakKeyDictionary[StoppableWriter, int]()  # with the process that each writes in


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

    # A forked child has the handler, and the parent's pipe: a signal to it would end the parent. So the signal is
    # blocked until the child has released the handler.

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
    """Have `writer` give up when the process ends (a weak reference); `on_sigterm` also when SIGTERM ends it.

    Called at the start of each write, in any thread. A forked child leaves its parent's writers alone. Once SIGTERM has
    come, a call does not return: no new write begins while the open ones are rolled back.
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
    if _sigterm.ending:  # the thread that gives up ends the process by the signal
        SystemClock().sleep(2 * EXIT_SECONDS)
    _give_up_all()
    _sigterm.release()


def _give_up_all() -> None:
    mine = [writer for writer, process in list(_writers.items()) if process == os.getpid()]
    run_with_timeout([partial(writer.give_up, EXIT_SECONDS) for writer in mine], EXIT_SECONDS)


def run_with_timeout(calls: Sequence[Callable[[], None]], seconds: float) -> None:
    """Run all `calls` at once, in threads of their own, and wait at most `seconds`: calls that hang are left behind.

    Where no thread can be started any more they run one after the other, so each must be bounded by itself.
    """
    limit = time.monotonic() + seconds
    threads = [(call, start_thread(call)) for call in calls]
    for call, thread in threads:
        if thread is None:
            call()
        else:
            thread.join(max(0.0, limit - time.monotonic()))


def start_thread(call: Callable[[], None]) -> threading.Thread | None:
    """Run `call` in a daemon thread; None when the interpreter is ending and starts none (Python 3.12)."""
    thread = threading.Thread(target=call, name="starrocks-give-up", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


POLL_SECONDS = 0.5
LOG_SECONDS = 10.0
"""Seconds between two log lines of progress; a shorter write has none."""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Spark tasks that ended, out of those known so far: later stages are added when Spark plans them."""

    tasks: int
    of: int


ReadProgress = Callable[[], TaskProgress | None]


class ProgressDisplay(Protocol):
    """Shows progress; `seconds` have passed since the write began."""

    def show(self, done: TaskProgress, seconds: float) -> None: ...

    def close(self) -> None: ...


class ProgressLog:
    """Emits `write.progressed` every so many seconds."""

    def __init__(self, listener: Listener, every: float = LOG_SECONDS) -> None:
        self._listener, self._every, self._shown_at = listener, every, 0.0

    def show(self, done: TaskProgress, seconds: float) -> None:
        if seconds - self._shown_at >= self._every:
            self._shown_at = seconds
            self._listener(Event("write.progressed", {"tasks": done.tasks, "of": done.of, "seconds": seconds}))

    def close(self) -> None:
        """Holds nothing open."""


class ProgressBar:
    """A bar that disappears at the end of the write. Needs rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=Console(file=stream), transient=True, redirect_stdout=False)
        self._task = self._progress.add_task("StarRocks write, Spark tasks", total=None)
        self._progress.start()

    def show(self, done: TaskProgress, seconds: float) -> None:
        del seconds
        self._progress.update(self._task, completed=done.tasks, total=done.of)

    def close(self) -> None:
        self._progress.stop()


@contextlib.contextmanager
def show_progress(read: ReadProgress, display: ProgressDisplay, every: float = POLL_SECONDS) -> Iterator[None]:
    """Inside, a thread reads and shows progress; its errors never touch the write."""
    stop, started = threading.Event(), time.monotonic()

    def poll() -> None:
        while not stop.wait(every):
            with contextlib.suppress(Exception):
                progress = read()
                if progress is not None:
                    display.show(progress, time.monotonic() - started)

    thread = threading.Thread(target=poll, name="starrocks-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5.0)
        with contextlib.suppress(Exception):
            display.close()


def choose_display(context: Any, listener: Listener, stream: TextIO | None = None) -> ProgressDisplay:
    """A bar on a terminal if rich is installed and Spark draws no bar of its own; log lines otherwise."""
    target = sys.stderr if stream is None else stream
    drawn = str(context.getConf().get("spark.ui.showConsoleProgress", "false")).lower() == "true"
    if target.isatty() and not drawn:
        with contextlib.suppress(ImportError):
            return ProgressBar(target)
    return ProgressLog(listener)


def end_progress_bar(frame: DataFrame) -> None:
    """End the progress bar of Spark's console and clear its line: JSON lines go to the same stream."""
    context = context_of(frame)
    with contextlib.suppress(Exception):  # Spark Connect has no context, and another Spark no such bar
        bar = context._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().finishAll()
            bar.get().stop()


def read_task_progress(context: Any, tag: str) -> TaskProgress | None:
    """The progress of the jobs with `tag`; None before the first one."""
    jobs = list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))
    tracker = context.statusTracker()
    stages = {stage for job in jobs if (info := tracker.getJobInfo(job)) is not None for stage in info.stageIds}
    seen = [info for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
    if not seen:
        return None
    return TaskProgress(sum(info.numCompletedTasks for info in seen), sum(info.numTasks for info in seen))
