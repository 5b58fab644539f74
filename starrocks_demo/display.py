"""Where the status goes: a live panel on a terminal, a line every few seconds elsewhere, or nowhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live

from starrocks_demo.status import Status, line, picture

_LINE_EVERY = 2.0


class Display(Protocol):
    """Shows statuses as they come, and sentences in between."""

    def say(self, text: str) -> None: ...

    def show(self, status: Status) -> None: ...


class Silent:
    """Shows nothing."""

    def say(self, text: str) -> None:
        del text

    def show(self, status: Status) -> None:
        del status


class Lines:
    """A line per phase and every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: tuple[str, float] = ("", 0.0)

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def show(self, status: Status) -> None:
        phase, elapsed = self._shown
        if status.phase != phase or status.elapsed - elapsed >= _LINE_EVERY:
            self._shown = (status.phase, status.elapsed)
            self.say(line(status))


class Panel:
    """A panel that stays in place; sentences appear above it."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console, self._live = console, live

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, status: Status) -> None:
        if not self._live.is_started:
            self._live.start()
        self._live.update(picture(status), refresh=True)


@contextlib.contextmanager
def display(stream: TextIO, *, quiet: bool) -> Iterator[Display]:
    """The display that fits `stream`."""
    console = Console(file=stream)
    if quiet:
        yield Silent()
    elif not console.is_terminal:
        yield Lines(stream)
    else:
        live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        try:
            yield Panel(console, live)
        finally:
            live.stop()
