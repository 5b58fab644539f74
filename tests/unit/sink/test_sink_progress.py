"""Progress of a long write: a bar on a terminal, events elsewhere, and never in the work's way."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from starrocks_txn_sink.sink.progress import (
    ProgressBar,
    ProgressDisplay,
    ProgressLog,
    TaskProgress,
    choose_display,
    show_progress,
)
from starrocks_txn_sink.telemetry import Event
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until


class Context:
    """What `display` asks a SparkContext for."""

    def __init__(self, outlook: str) -> None:
        self.drawn = outlook

    def getConf(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"spark.ui.showConsoleProgress": self.drawn}


def test_a_line_every_so_often_and_none_for_short_work() -> None:
    events: list[Event] = []
    lines = ProgressLog(events.append, every=10.0)
    for seconds in (1.0, 9.9, 10.0, 15.0, 20.1, 21.0):
        lines.show(TaskProgress(int(seconds), 40), seconds)
    assert [(event.name, event.fields["tasks"]) for event in events] == [
        ("write.progressed", 10),
        ("write.progressed", 20),
    ]


def test_a_bar_shows_tasks_and_leaves_the_terminal_as_it_was() -> None:
    stream = Terminal()
    bar = ProgressBar(stream)
    bar.show(TaskProgress(3, 7), 1.0)
    bar.close()
    assert "3/7" in stream.getvalue()


@pytest.mark.parametrize(
    ("stream", "outlook", "kind"),
    [(Terminal(), "false", ProgressBar), (Terminal(), "true", ProgressLog), (io.StringIO(), "false", ProgressLog)],
)
def test_the_display_fits_where_it_goes(stream: io.StringIO, outlook: str, kind: type[ProgressDisplay]) -> None:
    display = choose_display(Context(outlook), lambda _: None, stream)
    display.close()
    assert isinstance(display, kind)


def test_the_work_goes_on_whatever_the_display_does() -> None:
    class Broken:
        asked = 0

        def show(self, progress: TaskProgress, seconds: float) -> None:
            del progress, seconds
            self.asked += 1
            raise ValueError

        def close(self) -> None:
            raise ValueError

    display = Broken()
    with show_progress(lambda: TaskProgress(1, 2), display, every=0.001):
        wait_until(lambda: display.asked >= 3)
    assert not [thread for thread in threading.enumerate() if thread.name == "starrocks-progress"]


def test_an_error_of_the_work_comes_through() -> None:
    with pytest.raises(KeyError), show_progress(lambda: None, ProgressLog(lambda _: None)):
        raise KeyError
