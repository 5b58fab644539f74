"""The part of Markdown that our own documents use, as HTML: headings with anchors, paragraphs, lists, tables, code.

Everything is escaped before it is marked up. A link leads to an anchor of the same page or to another server; one to
another document, or a picture, is shown as its text, because it is not there.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_HEADING = re.compile(r"(#{1,4}) +(.+)")
_ITEM = re.compile(r"(-|\d+\.) +(.+)")
_SPAN = re.compile(
    r"`(?P<code>[^`]+)`|!?\[(?P<text>[^\]]+)\]\((?P<to>[^)\s]+)\)|\*\*(?P<bold>[^*]+)\*\*|\*(?P<mild>[^*\s][^*]*)\*"
)
_FENCE = "```"


def to_html(text: str) -> str:
    """The document's blocks, one after the other."""
    return "".join(map(_block, blocks(text.splitlines())))


def anchor(heading: str) -> str:
    """The anchor of a heading, made as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """Runs of lines that belong together: they end at an empty line, a heading, or where a fence opens or closes."""
    open_block: list[str] = []
    for line in lines:
        fenced = bool(open_block) and open_block[0].startswith(_FENCE)
        if fenced:
            open_block.append(line)
            ends = line.startswith(_FENCE)
        else:
            starts = line.startswith(_FENCE) or _HEADING.fullmatch(line) is not None
            if starts and open_block:
                yield open_block
                open_block = []
            open_block += [line] if line.strip() else []
            ends = not line.strip() or _HEADING.fullmatch(line) is not None
        if ends and open_block:
            yield open_block
            open_block = []
    if open_block:
        yield open_block


def _block(lines: list[str]) -> str:
    first = lines[0]
    heading = _HEADING.fullmatch(first)
    if heading is not None:
        level, words = len(heading[1]), heading[2]
        return f'<h{level} id="{html.escape(anchor(words))}">{html.escape(words.replace("`", ""))}</h{level}>'
    if first.startswith(_FENCE):
        code = "\n".join(line for line in lines if not line.startswith(_FENCE))
        return f'<pre tabindex="0">{html.escape(code)}</pre>'
    if len(lines) > 1 and all(line.startswith("|") for line in lines):
        return _table(lines)
    item = _ITEM.match(first)
    if item is not None:
        return _list(lines, "ul" if item[1] == "-" else "ol")
    return f"<p>{inline(' '.join(lines))}</p>"


def _list(lines: list[str], kind: str) -> str:
    items: list[str] = []
    for line in lines:
        found = _ITEM.match(line)
        if found is not None:
            items.append(found[2])
        else:
            items[-1] += f" {line.strip()}"
    return f"<{kind}>{''.join(f'<li>{inline(item)}</li>' for item in items)}</{kind}>"


def _table(lines: list[str]) -> str:
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    top = "".join(f'<th scope="col">{inline(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{inline(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


def inline(text: str) -> str:
    """The text of a paragraph: code, links, and what is stressed."""
    parts, at = [], 0
    for found in _SPAN.finditer(text):
        parts += [html.escape(text[at : found.start()]), _span(found)]
        at = found.end()
    return "".join([*parts, html.escape(text[at:])])


def _span(found: re.Match[str]) -> str:
    if found["code"]:
        return f"<code>{html.escape(found['code'])}</code>"
    if found["bold"]:
        return f"<strong>{inline(found['bold'])}</strong>"
    if found["mild"]:
        return f"<em>{inline(found['mild'])}</em>"
    to, text = found["to"], inline(found["text"])
    if to.startswith(("#", "https://", "http://")):
        return f'<a href="{html.escape(to)}">{text}</a>'
    return f"<cite>{text}</cite>"
