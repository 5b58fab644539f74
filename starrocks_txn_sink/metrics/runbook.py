"""docs/operations.md as a page with an anchor for each heading, so that an error's code leads to its advice offline."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from starrocks_txn_sink.metrics.markdown import to_html

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
    """The whole page, in the dashboard's style."""
    text = runbook_text() or "# Runbook\n\nThe runbook (docs/operations.md) is not part of this installation.\n"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Runbook</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="dashboard.css"></head>'
        f'<body class="runbook"><main><p><a href="./">← Dashboard</a></p>{to_html(text)}</main></body></html>'
    )
