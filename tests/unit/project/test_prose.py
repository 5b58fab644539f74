"""The linter of words finds each of its words where it stands, and none in the project's texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.prose import WORDS, all_findings, findings


def test_no_text_of_the_project_has_such_a_word() -> None:
    assert list(map(str, all_findings())) == []


@pytest.mark.parametrize(
    ("text", "word", "line"),
    [
        ("State is kept\nfor ever.", "for ever", 2),
        ("The server knows not the user.", "knows not", 1),
        ("*Passing* is fine; passing errors are not.", "passing errors", 1),
        ("It is utilised\nat once.", "utilised", 1),
        ("PLEASE NOTE it.", "PLEASE NOTE", 1),
        ("It waits for\n  ever.", "for ever", 1),
        ("x = 1\n# It stays for\n# ever.\n", "for ever", 2),
        ("def test_it_is_set_aside(): ...", "set aside", 1),
        ('raise ValueError(f"{name} is whoever: {1}")', "whoever", 1),
    ],
)
def test_a_word_is_found_at_its_line(text: str, word: str, line: int) -> None:
    (finding,) = findings("page.md", text)
    assert (finding.word, finding.line) == (word, line)
    assert re.match(r"page.md:\d+: “", str(finding))


@pytest.mark.parametrize("text", ["a passing test", "asides", "`set_aside_at` DATETIME", "reutilise"])
def test_other_words_are_left_alone(text: str) -> None:
    assert list(findings("page.md", text)) == []


@pytest.mark.parametrize(
    "name",
    [
        "starrocks_txn_sink/a.py",
        "starrocks_txn_sink/a.c",
        "starrocks_txn_sink/metrics/page/a.html",
        "tests/unit/test_a.py",
        "tools/a.py",
        "benchmarks/a.py",
        "integration/a.py",
        "news/a.added.md",
        "docker/a.sh",
        ".github/workflows/a.yml",
        "Makefile",
    ],
)
def test_each_folder_is_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("# utilised\n")
    assert [str(finding).partition(":")[0] for finding in all_findings(tmp_path)] == [name]


def test_each_word_says_what_to_write_instead() -> None:
    assert all(WORDS.values())
