"""`python -m tools.prose`: words that the project's texts do not use, and what to write instead; part of `make lint`.

It reads whole files: pages, comments, docstrings, messages and names. Linters of words on the package index know single
words only (codespell), or need a program of their own (vale).
"""

from __future__ import annotations

import re
import sys
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
PATTERNS = (
    *("*.md", "docs/**/*.md", "docker/*.md", "news/*.md", ".github/**/*.md"),
    *(f"{folder}/**/*.py" for folder in FOLDERS),
    *("Makefile", "*.toml", ".ci/*", ".github/**/*.yml", "docker/**/*.sh", "docker/*.yaml", "starrocks_txn_sink/*.c"),
    *("starrocks_txn_sink/metrics/page/*.html", "starrocks_txn_sink/metrics/page/*.js"),
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

_BETWEEN = r"[\\s#_]+"  # words of a wrapped comment, or of a name
_WORD = re.compile(
    "|".join(rf"(?P<w{number}>(?<![^\W_])(?:{re.sub(' ', _BETWEEN, word)})\b)" for number, word in enumerate(WORDS)),
    re.IGNORECASE,
)


class Finding(NamedTuple):
    """A word at a line of a file."""

    place: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: “{self.word}”: write {self.instead}"


def findings(place: str, text: str) -> Iterator[Finding]:
    """The words of `text`."""
    for match in _WORD.finditer(text):
        instead = list(WORDS.values())[int(str(match.lastgroup)[1:])]
        yield Finding(place, 1 + text.count("\n", 0, match.start()), " ".join(re.split(r"[\s#_]+", match[0])), instead)


def all_findings(root: Path = ROOT) -> Iterator[Finding]:
    """Those of the whole repository."""
    for file in sorted({file for pattern in PATTERNS for file in root.glob(pattern) if file.is_file()}):
        place = file.relative_to(root).as_posix()
        if place not in NAMES_THE_WORDS and "__pycache__" not in place:
            yield from findings(place, file.read_text(encoding="utf-8"))


def main() -> int:
    """Exit code 1 if a text has one of the words."""
    words = list(all_findings())
    sys.stdout.writelines(f"{finding}\n" for finding in words)
    return int(bool(words))


if __name__ == "__main__":
    sys.exit(main())
