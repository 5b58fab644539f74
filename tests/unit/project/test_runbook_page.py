"""The runbook's page: what a document's marks become, and that nothing of a text is taken as markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.metrics.server import read_asset
from tools.__main__ import ROOT
from tools.alerts import RUNBOOK
from tools.errors import CODES, path
from tools.runbook import runbook_page, to_html

VOID = {"meta", "link", "hr", "br"}
TAGS = {
    "h1",
    "h2",
    "h3",
    "h4",
    "p",
    "hr",
    "br",
    "blockquote",
    "ul",
    "ol",
    "li",
    "pre",
    "code",
    "strong",
    "em",
    "a",
    "cite",
    "div",
}
TABLES = {"cite", "div", "table", "thead", "tbody", "tr", "th", "td"}


class Reader(HTMLParser):
    """The page's text, its anchors and links; complains about a tag that is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.add(tag)
        self.open += [] if tag in VOID else [tag]
        self.anchors += [attributes["id"] or ""] if "id" in attributes else []
        self.links += [attributes["href"] or ""] if tag == "a" else []

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a `b*c*` d", "a <code>b*c*</code> d"),
        ("**now** and *then*", "<strong>now</strong> and <em>then</em>"),
        ("see [the `code`](#error-x)", 'see <a href="#error-x">the <code>code</code></a>'),
        ("see [types.md](types.md#a)", "see <cite>types.md</cite>"),
        ("![a picture](images/a.png)!", "<cite>a picture</cite>!"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("[x](javascript:alert)", "[x](javascript:alert)"),
        ("`<b>` & <i>", "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"),
    ],
)
def test_what_is_marked_in_a_line(text: str, html: str) -> None:
    assert to_html(text) == f"<p>{html}</p>\n"


def test_blocks() -> None:
    text = "# A `b`\nfirst\nline\n\n1. n\n\n```sh\n# no <heading>\n\n| no table\n```\nend\n\n"
    text += "| a | b |\n|---|---|\n| 1 | `2\\|3` |"
    assert to_html(text).replace("\n<", "<") == (
        '<h1 id="a-b">A b</h1><p>first\nline</p><ol><li>n</li></ol>'
        '<pre tabindex="0"># no &lt;heading&gt;\n\n| no table</pre><p>end</p><div class="scroll" tabindex="0">'
        '<table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>'
        "<tbody><tr><td>1</td><td><code>2|3</code></td></tr></tbody></table></div>\n"
    )


@given(st.text(st.sampled_from("ab<>&\"'`*[]()#|-1. \n"), max_size=60))
def test_any_text_makes_a_well_formed_page_and_no_markup_of_its_own(text: str) -> None:
    assert Reader(to_html(text)).tags <= TAGS | TABLES


def test_the_runbook_says_all_that_the_document_says_and_its_links_arrive() -> None:
    page = Reader(read_asset("operations.html").decode())
    documents = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in (RUNBOOK, *map(path, CODES)))
    words = re.findall(r"[A-Za-z]{3,}", re.sub(r"<[^>]*>|\]\([^)]*\)|```\w*", "]", documents))
    assert set(words) <= set(re.findall(r"[A-Za-z]{3,}", page.text))
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} <= set(page.anchors)
    assert "`" not in re.sub(r"(?s)\{.*?\}", "", page.text)
    assert not {"script", "style"} & page.tags
    assert "<!--" not in page.text
    assert "<a " not in page.text


def test_the_pages_of_errors_become_sections_and_the_links_between_them_anchors() -> None:
    index = '# Runbook\n\n<!-- made -->\n<a id="error-x"></a>[`x`](errors/x.md)\n<!-- end -->\n'
    error = "# Error `x`\n\n[all](../runbook.md#runbook), [itself](x.md), [other](../logs.md), [more](y.md)\n"
    page = Reader(runbook_page(index, {"x": error}))
    assert page.anchors == ["runbook", "error-x"]
    assert page.links == ["./", "#error-x", "#runbook", "#error-x"]


def test_anchors_are_made_as_github_makes_them() -> None:
    headings = "# Error `too_many_transactions`\n\n## A label is gone: what now?\n"
    assert Reader(to_html(headings)).anchors == ["error-too_many_transactions", "a-label-is-gone-what-now"]
