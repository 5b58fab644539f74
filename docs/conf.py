"""Settings of Sphinx: the pages of this folder, and the public names from their docstrings."""

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
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]+)" src="([^"]+)">\s*</picture>')
IMAGES = """\
```{image} \\3
:alt: \\2
:class: only-light
```
```{image} \\1
:alt: \\2
:class: only-dark
```"""
RUNBOOK, ERRORS = "operations/runbook", "\n```{toctree}\n:glob:\n:hidden:\n\nerrors/*\n```\n"
default_role = "literal"  # in docstrings `x` is code, as in Markdown
suppress_warnings = ["misc.highlighting_failure"]  # examples of JSON leave things out


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _read)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    """A link out of this folder leads to the repository; the theme chooses a picture's light or dark image.

    The pages of the error codes are under the runbook.
    """
    del app
    if page == RUNBOOK:
        source[0] += ERRORS
    source[0] = PICTURE.sub(IMAGES, source[0])
    source[0] = re.sub(
        r"\]\((?:\.\./)+((?:docker/|[A-Z]{4,}|pyproject)[\w./-]*)\)", rf"]({REPOSITORY}/blob/main/\1)", source[0]
    )
