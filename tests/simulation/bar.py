"""A bar on a terminal, for those who wait; elsewhere the lines that are said anyway are enough."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO, TypeVar

Item = TypeVar("Item")


def on_terminal(items: Iterable[Item], total: int, stream: TextIO | None = None) -> Iterable[Item]:
    """`items`, with a bar on `stream` (standard error) while they come, if that is a terminal and rich is there."""
    target = sys.stderr if stream is None else stream
    if not target.isatty():
        return items
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return items
    return track(items, "schedules", total, console=Console(file=target), transient=True)
