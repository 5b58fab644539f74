"""Progress of a long write of a frame: a bar on a terminal, the event `write.progressed` elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from starrocks_txn_sink.telemetry import Event, Listener

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
    shows_progress = str(context.getConf().get("spark.ui.showConsoleProgress", "false")).lower() == "true"
    if target.isatty() and not shows_progress:
        with contextlib.suppress(ImportError):
            return ProgressBar(target)
    return ProgressLog(listener)


def read_task_progress(context: Any, tag: str) -> TaskProgress | None:
    """The progress of the jobs with `tag`; None before the first one."""
    jobs = list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))
    tracker = context.statusTracker()
    stages = {stage for job in jobs if (info := tracker.getJobInfo(job)) is not None for stage in info.stageIds}
    infos = [info for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
    if not infos:
        return None
    return TaskProgress(sum(info.numCompletedTasks for info in infos), sum(info.numTasks for info in infos))
