"""The linter of words finds each of its words where it stands, and none in the project's texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.prose import WORDS, all_findings, in_code, in_page


def test_no_text_of_the_project_has_such_a_word() -> None:
    assert list(map(str, all_findings())) == []


@pytest.mark.parametrize(
    ("text", "word", "line"),
    [
        ("State is kept\nfor ever.", "for ever", 2),
        ("The server knows not the user.", "knows not", 1),
        ("*Passing* is fine; passing errors are not.", "passing errors", 1),
        ("It is told\nat once.", "told", 1),
        ("Two jobs run BESIDE it.", "BESIDE", 1),
        ("It waits for\n  ever.", "for ever", 1),
    ],
)
def test_a_word_is_found_at_its_line(text: str, word: str, line: int) -> None:
    (found,) = in_page("page.md", text)
    assert (found.word, found.line) == (word, line)
    assert re.match(r"page.md:\d+: “", str(found))


@pytest.mark.parametrize(
    "text",
    [
        "They are told apart.",
        "until told to stop",
        "`beside=order`",
        "```sh\nanew\n```",
        "[a](anew.md)",
        "besides",
        "renew",
    ],
)
def test_code_links_and_other_words_are_left_alone(text: str) -> None:
    assert list(in_page("page.md", text)) == []


def test_docstrings_and_messages_are_read_and_names_are_not() -> None:
    source = '"""Kept for ever."""\nbeside = "anew"\nraise ValueError(f"{beside} was told: {1}")\n'
    assert [(each.line, each.word) for each in in_code("a.py", source)] == [(1, "for ever"), (3, "told")]


def test_comments_and_names_of_tests_are_read_and_other_names_are_not() -> None:
    source = "beside = 1  # counted anew\n# It stays for\n# ever.\ndef told(): ...\ndef test_is_told(): ...\n"
    found = sorted((each.line, each.word) for each in in_code("a.py", source))
    assert found == [(1, "anew"), (2, "for ever"), (5, "told")]


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
    file.write_text("# set anew\n")
    assert [str(each).partition(":")[0] for each in all_findings(tmp_path)] == [name]


def test_each_word_says_what_to_write_instead() -> None:
    assert all(WORDS.values())
