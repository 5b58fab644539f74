"""docs/operations.md as a page with an anchor for each heading, so that an error's code leads to its advice offline."""

from __future__ import annotations

import html
import re
from functools import cache
from importlib import resources
from pathlib import Path

_HEADING = re.compile(r"(#{1,4}) +(.+)")
_NAME = "operations.md"


@cache
def runbook_text() -> str:
    """The document's text: shipped in the wheel, or in the repository; empty when it is in neither."""
    shipped = resources.files("starrocks_txn_sink.metrics").joinpath("page", _NAME)
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    source = Path(__file__).parents[2] / "docs" / _NAME
    return source.read_text(encoding="utf-8") if source.is_file() else ""


def runbook_page() -> str:
    """The page: headings are headings, all else is shown as it is written."""
    text = runbook_text() or "# Runbook\n\nThe runbook (docs/operations.md) is not part of this installation.\n"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Runbook</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="dashboard.css"></head><body class="runbook"><main>'
        f'<p><a href="./">Dashboard</a></p>{_body(text)}</main></body></html>'
    )


def anchor(heading: str) -> str:
    """The anchor of a heading, made as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _body(text: str) -> str:
    parts: list[str] = []
    plain: list[str] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        found = None if fenced else _HEADING.fullmatch(line)
        if found is None:
            plain.append(line)
            continue
        parts += [_plain(plain), _heading(len(found[1]), found[2])]
        plain = []
    return "".join([*parts, _plain(plain)])


def _heading(level: int, heading: str) -> str:
    return f'<h{level} id="{html.escape(anchor(heading))}">{html.escape(heading.replace("`", ""))}</h{level}>'


def _plain(lines: list[str]) -> str:
    text = "\n".join(lines).strip("\n")
    return f"<pre>{html.escape(text)}</pre>" if text else ""
