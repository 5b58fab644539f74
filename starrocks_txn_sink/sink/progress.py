"""How far a long `write` is: a bar on a terminal, a log line now and then elsewhere. By Spark's count of tasks done."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from starrocks_txn_sink.events import Event, Listener

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
