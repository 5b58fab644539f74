"""What a person sees while the demo runs: a live picture on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.terminal_theme import MONOKAI
from rich.text import Text

_WIDTH = 88

_FONTS = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, slots=True)
class Status:
    """One moment of a run. Times are seconds, `freshness` the percentiles 50 and 99 of the latest transactions.

    `elapsed` counts from the phase's start; `planned` is how long the phase should take, 0 if nobody knows.
    """

    phase: str
    elapsed: float
    planned: float
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

    @property
    def backlog(self) -> int:
        return max(0, self.written - self.visible)


def line(status: Status) -> str:
    """The status in one line, for logs and pipes."""
    p50, p99 = (_seconds(value) for value in status.freshness)
    return (
        f"{status.elapsed:5.1f} s  {status.phase:<10}  source transactions {status.written:,}, visible "
        f"{status.visible:,}; reader samples {status.samples:,}, torn {status.torn:,}; commits {status.committed:,}, "
        f"loads {status.loads:,}; fresh in {p50}, p99 {p99}"
    )


def picture(status: Status) -> RenderableType:
    """The status as a panel."""
    p50, p99 = (_seconds(value) for value in status.freshness)
    share = min(1.0, status.elapsed / status.planned) if status.planned else None
    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text(f"{status.phase:<10}", style="bold cyan"),
        ProgressBar(total=None if share is None else 1.0, completed=share or 0.0, width=48, pulse=share is None),
        Text(f"{status.elapsed:.0f} s" + (f" of {status.planned:.0f} s" if status.planned else "")),
    )
    torn = Text(f"{status.torn:,} torn", style="bold red" if status.torn else "bold green")
    body = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1), expand=True)
    body.add_column(style="dim", no_wrap=True)
    body.add_column(ratio=1)
    body.add_row("source", f"{status.written:,} transactions, {status.rows_written:,} rows in {status.files:,} files")
    body.add_row("visible", f"{status.visible:,} transactions, {status.backlog:,} on their way")
    body.add_row("tables", "   ".join(f"{table} {rows:,}" for table, rows in status.rows.items()) or "-")
    body.add_row("reader", Text.assemble(f"{status.samples:,} samples over all tables, ", torn))
    body.add_row(
        "StarRocks",
        f"{status.committed:,} transactions in {status.batches:,} batches, {status.aborted:,} aborted, "
        f"{status.loads:,} loads, {status.megabytes:,.1f} MB",
    )
    body.add_row("freshness", f"p50 {p50}   p99 {p99}   (file to visible, latest 1,000)")
    return Panel(
        Group(head, body),
        title="starrocks-txn-sink demo",
        subtitle="on the embedded stand-in, not on StarRocks",
        box=box.ROUNDED,
        width=_WIDTH,
    )


def save_picture(status: Status, path: Path) -> None:
    """Write the panel as an SVG file that needs nothing from the network."""
    console = Console(record=True, width=_WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(picture(status))
    path.parent.mkdir(parents=True, exist_ok=True)
    svg = console.export_svg(title="make demo", theme=MONOKAI, unique_id="demo")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", _FONTS)
    path.write_text("\n".join(text.rstrip() for text in svg.splitlines() if text.strip()) + "\n")


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
