"""The runbook's page of the metrics endpoint, as HTML: `docs/operations/runbook.md`, and the pages of the error codes.

They are one page here, so that error codes lead to their text without a network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin

_HEAD = """\
<!doctype html>
<!-- Made by `make docs` from docs/operations/runbook.md and docs/operations/errors. -->
<html lang="en">
<head>
<meta charset="utf-8">
<title>Runbook</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="dashboard.css">
</head>
<body class="runbook">
<main>
<p><a href="./">← Dashboard</a></p>
"""
_FOOT = "</main>\n</body>\n</html>\n"
_REACHED = ("#", "https://", "http://")
_MARK = re.compile(r"<!-- .*? -->\n|<a id=\"[\w-]+\"></a>")
_ERROR = re.compile(r"\]\((?:errors/)?([a-z_]+)\.md\)")


def runbook_page(text: str, errors: Mapping[str, str]) -> str:
    """The whole page, in the dashboard's style, from Markdown: the runbook, then the page of each error by its code.

    Headings have the anchors that GitHub gives them.
    """
    pages = [_in_one_page(text, errors), *(f"##{_in_one_page(page, errors)}" for page in errors.values())]
    return f"{_HEAD}{to_html(chr(10).join(pages))}{_FOOT}"


def _in_one_page(text: str, errors: Mapping[str, str]) -> str:
    """Without marks for tools, and with links between the pages as links to anchors."""
    text = _MARK.sub("", text).replace("](../runbook.md#", "](#")
    return _ERROR.sub(lambda match: f"](#error-{match[1]})" if match[1] in errors else match[0], text)


def to_html(text: str) -> str:
    """The document's blocks. HTML in `text` stays text.

    A link leads to an anchor of the same page or to another server. Another document, or a picture, becomes its text,
    because the endpoint does not serve it.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").use(anchors_plugin, max_level=4)
    reader.core.ruler.push("served", _serve)
    for kind, rule in {"fence": _code, "image": _picture, "table_open": _table, "table_close": _table_end}.items():
        reader.add_render_rule(kind, rule)
    return str(reader.render(text))


def _serve(state: StateCore) -> None:
    """Adapt the tokens: no links to other documents, plain words in headings, columns' names that a reader can hear."""
    for place, token in enumerate(state.tokens):
        if token.type == "th_open":
            token.attrSet("scope", "col")
        for child in token.children or ():
            if child.type == "code_inline" and state.tokens[place - 1].type == "heading_open":
                child.type = "text"
        _name_documents(token.children or ())


def _name_documents(tokens: Sequence[Token]) -> None:
    reached = True
    for token in tokens:
        if token.type == "link_open":
            reached = str(token.attrGet("href")).startswith(_REACHED)
        if token.type in ("link_open", "link_close") and not reached:
            token.tag, token.attrs = "cite", {}


def _code(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    """A block that the keyboard can scroll."""
    return f'<pre tabindex="0">{escapeHtml(tokens[place].content)}</pre>\n'


def _picture(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    return f"<cite>{escapeHtml(tokens[place].content)}</cite>"


def _table(*_: Any) -> str:
    return '<div class="scroll" tabindex="0"><table>\n'


def _table_end(*_: Any) -> str:
    return "</table></div>\n"
