"""What a person sees of a run: figures while it goes on (a live panel, or lines), and its result as JSON and lines."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Final, TextIO

import orjson
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI
from rich.text import Text

from starrocks_demo.verdict import Verdict
from starrocks_txn_sink.telemetry import Event

_WIDTH = 88
_FONTS = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_LINE_EVERY = 2.0  # seconds between two lines of one phase


class Deliveries:
    """Counts receipts. An attempt beyond the first was aborted, because only the last one of a receipt committed.

    It is a listener of the sink; the counters may be read from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.committed = 0
        self.aborted = 0
        self.loads = 0
        self.bytes = 0
        self.batches = 0
        self.laps: dict[str, list[float]] = {}  # seconds of each phase of a StarRocks transaction

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.name == "receipt.collected":
                receipt = event.fields["receipt"]
                self.committed += 1
                self.aborted += receipt.attempts - 1
                self.loads += receipt.loads
                self.bytes += receipt.bytes
                for phase, seconds in receipt.phase_seconds.items():
                    self.laps.setdefault(phase, []).append(seconds)
            elif event.name == "batch.completed":
                self.batches += 1


SPARK: Final = {
    "triggerExecution": "micro-batch",
    "latestOffset": "new files",
    "walCommit": "offset log",
    "queryPlanning": "planning",
    "addBatch": "sink",
    "commitOffsets": "commit log",
}
"""Spark's names for what it measures, and ours; these are milliseconds in a query's progress."""


def median_seconds(progress: Sequence[Any], laps: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each phase, over the micro-batches with rows; `laps` are seconds of the lane's phases."""
    busy = [event.durationMs for event in progress if event.numInputRows]
    seconds = {
        name: statistics.median(durations[key] for durations in busy) / 1000
        for key, name in SPARK.items()
        if busy and all(key in durations for durations in busy)
    }
    return seconds | {f"lane: {name}": statistics.median(seconds) for name, seconds in laps.items()}


@dataclass(frozen=True, slots=True)
class Status:
    """One moment of a run. Times are seconds, `freshness` the percentiles 50 and 99 of the latest transactions.

    `elapsed` counts from the phase's start; `planned` is how long the phase should take, 0 if nobody knows. `batch` is
    the number of the micro-batch that the phase waits for, and of its last one.
    """

    phase: str
    elapsed: float
    planned: float
    batch: tuple[int, int] | None = None
    written: int = 0
    visible: int = 0
    rows_written: int = 0
    files: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    samples: int = 0
    torn: int = 0
    batches: int = 0
    committed: int = 0
    aborted: int = 0
    loads: int = 0
    megabytes: float = 0.0
    freshness: tuple[float | None, float | None] = (None, None)


def line(status: Status) -> str:
    """The status in one line, for logs and pipes."""
    p50, looks = status.freshness[0], f"{status.torn:,} torn in {status.samples:,} looks"
    return (
        f"{f'{status.phase}, {_progress(status)}':<32} {status.visible:,} of {status.written:,} transactions visible; "
        f"{looks}; commits {status.committed:,}" + ("" if p50 is None else f"; visible after {_seconds(p50)}")
    )


def _progress(status: Status) -> str:
    """How far the phase is, with its end if that is known."""
    if status.batch is not None:
        return "micro-batch {} of {}".format(*status.batch)
    return f"{status.elapsed:.0f} s" + (f" of {status.planned:.0f} s" if status.planned else "")


def picture(status: Status) -> RenderableType:
    """The status as a panel."""
    p50, p99 = (_seconds(value) for value in status.freshness)
    share = min(1.0, status.elapsed / status.planned) if status.planned else None
    if status.batch is not None:
        share = (status.batch[0] - 1) / status.batch[1]
    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text(f"{status.phase:<10}", style="bold cyan"),
        ProgressBar(total=None if share is None else 1.0, completed=share or 0.0, width=48, pulse=share is None),
        Text(_progress(status)),
    )
    torn_text = Text(f"{status.torn:,} torn", style="bold red" if status.torn else "bold green")
    body = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1), expand=True)
    body.add_column(style="dim", no_wrap=True)
    body.add_column(ratio=1)
    body.add_row("source", f"{status.written:,} transactions, {status.rows_written:,} rows in {status.files:,} files")
    backlog = max(0, status.written - status.visible)
    body.add_row("visible", f"{status.visible:,} transactions, {backlog:,} on their way")
    body.add_row("tables", "   ".join(f"{table} {rows:,}" for table, rows in status.rows.items()) or "-")
    body.add_row(
        "reader", Text.assemble(f"{status.samples:,} looks over all tables, ", torn_text, " (visible in part)")
    )
    body.add_row(
        "StarRocks",
        f"{status.committed:,} commits in {status.batches:,} micro-batches, {status.aborted:,} aborted, "
        f"{status.loads:,} loads, {status.megabytes:,.1f} MB",
    )
    body.add_row("freshness", f"p50 {p50}   p99 {p99}   (file to visible, latest 1,000)")
    return Panel(
        Group(head, body),
        title="starrocks-txn-sink demo",
        subtitle="on the embedded emulator, not on StarRocks",
        box=box.ROUNDED,
        width=_WIDTH,
    )


def save_picture(status: Status, path: Path) -> None:
    """Write the panel as SVG: `path` for light pages, NAME-dark for dark ones. They need nothing from the network."""
    path.parent.mkdir(parents=True, exist_ok=True)
    light, dark = (DEFAULT_TERMINAL_THEME, "0,0,0"), (MONOKAI, "255,255,255")
    files = {path: light, path.with_name(f"{path.stem}-dark{path.suffix}"): dark}
    for file, (theme, border) in files.items():
        console = Console(record=True, width=_WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
        console.print(picture(status))
        svg = console.export_svg(title="make demo", theme=theme, unique_id="demo")
        svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", _FONTS)
        svg = svg.replace("rgba(255,255,255,", f"rgba({border},")  # Rich draws a white border on every theme
        file.write_text("\n".join(text.rstrip() for text in svg.splitlines() if text.strip()) + "\n")


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one run, measured on the emulator. Freshness is None when no transaction was seen.

    `phases` are median seconds of the parts of a micro-batch.
    """

    verdict: Verdict
    committed: int
    aborted: int
    loads: int
    freshness_p50: float | None
    freshness_p99: float | None
    wall_seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)
    given_up: int = 0

    def as_json(self) -> str:
        """One line."""
        verdict = self.verdict
        document = {
            "source_transactions": {
                "written": verdict.written,
                "visible": verdict.visible,
                "lost": verdict.lost,
                "duplicated": verdict.duplicated,
            },
            "rows": {table.table: table.rows for table in verdict.tables},
            "reader": {"samples": verdict.samples, "torn": verdict.torn},
            "starrocks_transactions": {"committed": self.committed, "aborted": self.aborted},
            "loads": self.loads,
            "freshness_seconds": {"p50": _rounded(self.freshness_p50), "p99": _rounded(self.freshness_p99)},
            "micro_batch_seconds": {name: _rounded(seconds) for name, seconds in self.phases.items()},
            "wall_seconds": _rounded(self.wall_seconds),
        }
        return orjson.dumps(document).decode()

    def as_lines(self) -> list[str]:
        """The figures line by line, then RIGHT, or WRONG and each difference."""
        verdict = self.verdict
        rows = ", ".join(f"{table.table} {table.rows:,}" for table in verdict.tables)
        per_commit = verdict.visible / self.committed if self.committed else 0.0
        lines = [
            f"source transactions    {verdict.written:,} written, {verdict.visible:,} visible, "
            f"{verdict.lost:,} lost, {verdict.duplicated:,} duplicated",
            f"given up half way      {self.given_up:,} by the source, on purpose; none of their rows may be visible",
            f"rows                   {rows}; compared one by one",
            f"concurrent reader      {verdict.samples:,} samples, {verdict.torn:,} torn",
            f"StarRocks transactions {self.committed:,} committed, {self.aborted:,} aborted, {self.loads:,} loads "
            f"({per_commit:.1f} source transactions each)",
            f"freshness              p50 {_seconds(self.freshness_p50)}, p99 {_seconds(self.freshness_p99)} "
            "from file to visible",
            f"wall time              {self.wall_seconds:.1f} s",
        ]
        if verdict.right:
            return [*lines, "RIGHT: every source transaction is visible exactly once, and none was ever seen in part."]
        return [*lines, "WRONG:", *(f"  {difference}" for difference in verdict.differences)]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


@contextlib.contextmanager
def own_copy(stream: TextIO) -> Iterator[TextIO]:
    """The stream under a descriptor of its own: it is also reached while descriptors 1 and 2 lead to a log."""
    stream.flush()
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):  # not a file
        yield stream
        return
    with os.fdopen(descriptor, "w", encoding=stream.encoding, errors=stream.errors) as copy:
        yield copy


class Display:
    """Shows statuses as they come, and sentences in between: a panel on a terminal, else a line now and then."""

    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        self._console = Console(file=stream, quiet=quiet)
        self._draws = self._console.is_terminal and not quiet
        self._drawn = 0  # lines of the panel above the cursor
        self._shown: tuple[str, float] = ("", 0.0)

    def say(self, text: str) -> None:
        """Print a sentence that stays; the next panel is drawn below it."""
        self._drawn = 0
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def waiting(self, text: str, step: Callable[[], str], interval: float = 3.0) -> Iterator[None]:
        """Say `text`, and how far it is as long as the block lasts: a moving sign, or a line each `interval` (seconds).

        `step` says what goes on at the moment.
        """
        self.say(text)
        with contextlib.ExitStack() as stack:
            if self._draws:
                stack.enter_context(self._console.status("a few seconds …"))
            else:
                over = threading.Event()
                stack.callback(over.set)
                threading.Thread(target=self._still, args=(over, step, interval), daemon=True).start()
            yield

    def _still(self, over: threading.Event, step: Callable[[], str], interval: float) -> None:
        seconds = interval
        while not over.wait(interval):
            self.say(f"  {step()}, {seconds:g} s")
            seconds += interval

    def show(self, status: Status) -> None:
        """Draw the panel anew; without a terminal print a line for a new phase, and each two seconds of one."""
        phase, elapsed = self._shown
        if self._draws:
            self._draw(status)
        elif status.phase != phase or status.elapsed - elapsed >= _LINE_EVERY:
            self._shown = (status.phase, status.elapsed)
            self.say(line(status))

    def _draw(self, status: Status) -> None:
        """Over the last panel, line by line and in one piece: no line is ever empty in between."""
        with self._console.capture() as captured:
            self._console.print(picture(status))
        text = captured.get()
        self._console.file.write((f"\x1b[{self._drawn}F" if self._drawn else "") + text)
        self._console.file.flush()
        self._drawn = text.count("\n")
