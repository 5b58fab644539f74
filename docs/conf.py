"""Settings of Sphinx: README.md, the pages of this folder, and the public names from their docstrings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

import starrocks_txn_sink

ROOT = Path(__file__).parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]

project = "starrocks-txn-sink"
version = release = starrocks_txn_sink.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
default_role = "literal"  # in docstrings `x` is code, as in Markdown
suppress_warnings = ["misc.highlighting_failure"]  # examples of JSON leave things out


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _read)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    """Put README.md before the table of contents; a link out of this folder leads to the repository."""
    del app
    if page == "index":
        source[0] = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text(encoding="utf-8")) + source[0]
    source[0] = source[0].replace("](../README.md)", "](index.md)")
    source[0] = re.sub(r"\]\((?:\.\./)*((?:docker/|[A-Z]{4,})[\w./-]*)\)", rf"]({REPOSITORY}/blob/main/\1)", source[0])
