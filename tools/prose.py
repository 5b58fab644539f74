"""`python -m tools.prose`: words that the project's texts do not use, and what to write instead; part of `make lint`.

It reads the Markdown pages without their code; of every Python file the comments and each text that has a space
(docstrings, messages, meanings of options, help of commands) and the names of tests; and the whole of the other files
that people read.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "starrocks_txn_sink",
    "starrocks_emulator",
    "starrocks_demo",
    "tools",
    "tests",
    "integration",
    "benchmarks",
    "docker",
    "docs",
    ".ci",
)
PAGES = ("*.md", "docs/**/*.md", "docker/*.md", "news/*.md", ".github/**/*.md")
OTHERS = (
    "Makefile",
    "*.toml",
    ".ci/*",
    ".github/**/*.yml",
    "docker/**/*.sh",
    "docker/*.yaml",
    "starrocks_txn_sink/*.c",
    "starrocks_txn_sink/metrics/page/*.html",
    "starrocks_txn_sink/metrics/page/*.js",
)
NAMES_THE_WORDS = ("tools/prose.py", "tests/unit/project/test_prose.py", "CHANGELOG.md")

WORDS = {
    r"stand-ins?": "emulator, double",
    r"set(?:s|ting)? aside": "dead-letter, as a verb",
    r"passing errors?|\(passing\)": "transient",
    r"zombie writers?": "older writer",
    r"(?:know|knows|knew) not": "does not know",
    r"for ever": "forever",
    r"whoever": "the reader's role, or “a client that”",
    r"utili[sz]e[sd]?": "use",
    r"please note": "nothing",
}
"""A regular expression of whole words → what to write instead."""

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>")
_WORD = re.compile(
    "|".join(rf"(?P<w{number}>\b(?:{word})\b)" for number, word in enumerate(WORDS)).replace(" ", r"\s+"), re.IGNORECASE
)


class Finding(NamedTuple):
    """A word at a line of a file."""

    place: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: “{self.word}”: write {self.instead}"


def findings(place: str, text: str, line: int = 1) -> Iterator[Finding]:
    """The words of `text`, whose first line is the line `line` of the file; code in backticks is left out."""
    bare = _CODE.sub(_blank, text)
    for match in _WORD.finditer(bare):
        number = int(str(match.lastgroup)[1:])
        word = " ".join(match[0].split())
        yield Finding(place, line + bare.count("\n", 0, match.start()), word, list(WORDS.values())[number])


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def in_page(place: str, text: str) -> Iterator[Finding]:
    """The words of a Markdown page outside of its code blocks."""
    return findings(place, _FENCE.sub(_blank, text))


def in_code(place: str, source: str) -> Iterator[Finding]:
    """The words of a module's texts and comments, and of its tests' names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield from findings(place, node.value, node.lineno)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield from findings(place, node.name.replace("_", " "), node.lineno)
    comments = [""] * (source.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0] - 1] = token.string.lstrip("#")
    yield from findings(place, "\n".join(comments))


def _files(root: Path, *patterns: str) -> Iterator[tuple[str, str]]:
    """Place and text of the files of `patterns`."""
    for file in sorted({file for pattern in patterns for file in root.glob(pattern) if file.is_file()}):
        place = file.relative_to(root).as_posix()
        if place not in NAMES_THE_WORDS and "__pycache__" not in place:
            yield place, file.read_text(encoding="utf-8")


def all_findings(root: Path = ROOT) -> Iterator[Finding]:
    """Those of the whole repository."""
    for place, text in _files(root, *PAGES):
        yield from in_page(place, text)
    for place, text in _files(root, *(f"{folder}/**/*.py" for folder in FOLDERS)):
        yield from in_code(place, text)
    for place, text in _files(root, *OTHERS):
        if not place.endswith(".py"):
            yield from findings(place, text)


def main() -> int:
    """Exit code 1 if a text has one of the words."""
    words = list(all_findings())
    for finding in words:
        sys.stdout.write(f"{finding}\n")
    return int(bool(words))


if __name__ == "__main__":
    sys.exit(main())
