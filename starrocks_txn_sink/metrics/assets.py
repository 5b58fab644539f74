"""Files of the page; they ship in the package."""

from __future__ import annotations

from functools import cache
from importlib import resources

ASSETS = {
    "index.html": "text/html; charset=utf-8",
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "drawing.js": "text/javascript; charset=utf-8",
    "operations.html": "text/html; charset=utf-8",
}


@cache
def read_asset(name: str) -> bytes:
    """Content of a file of ASSETS."""
    return resources.files("starrocks_txn_sink.metrics").joinpath("page", name).read_bytes()
