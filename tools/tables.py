"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator


def table(head: str, rows: Iterator[tuple[str, ...]]) -> str:
    """A Markdown table; a bar in a cell is escaped."""
    lines = [f"| {head} |", "|" + "---|" * (head.count(" | ") + 1)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"
