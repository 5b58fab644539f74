"""docs/reference/wire-contract.md: each rule that code, tests and pages name has its section, in one form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from starrocks_txn_ops.rehearsal.command import CHECKS
from tests.unit.project import PROJECT_FOLDERS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "wire-contract.md").read_text(encoding="utf-8")
FOLDERS = (*PROJECT_FOLDERS, "news", ".github")
KINDS = {".py", ".md", ".c", ".yml", ".yaml", ".sh", ".sql", ".toml", ".html", ".js", ".json", ".conf", ""}
PAGES = ("CONTRIBUTING.md", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml")

NUMBERS = r"(\d+(?:\.\d+)*(?:, \d+(?:\.\d+)*)*)"
REFERENCE = re.compile(rf"\bwire contract {NUMBERS}", re.IGNORECASE)
INSIDE = re.compile(rf"\(?\bsee {NUMBERS}")
HEADING = re.compile(r"^#{2,3} (\d+(?:\.\d+)*) ", re.MULTILINE)
OTHER_FORMS = re.compile(
    r"(?<!wire )contract,? §?\d"
    r"|\bcontract,? sections?\b"
    r"|\bcontract \(sections?\b"
    r"|\bdesign (?:sections? )?\d"
    r"|\bdesign sections?\b"
    r"|\bsections? \d"
    r"|§ ?\d",
    re.IGNORECASE,
)
UNQUOTED = re.compile(r"\bdocs/[\w/-]+\.md, [A-Z]\w+ ?\w*")
IN_DOCUMENT = re.compile(r'\bdocs/([\w/-]+\.md), "([^"]+)"')


def texts() -> Iterator[tuple[str, str]]:
    """Path and text of each file that may name a rule; a line break inside a comment or docstring counts as a space."""
    this_file = Path(__file__)
    every = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))
    files = [file for file in every if file.suffix in KINDS and file.is_file()]
    for file in sorted((*files, *(ROOT / page for page in PAGES))):
        if file != this_file and "__pycache__" not in file.parts:
            text = re.sub(r"\s*\n\s*(?:[#*]\s*)?", " ", file.read_text(encoding="utf-8"))
            yield str(file.relative_to(ROOT)), text


TEXTS = dict(texts())


def numbers(pattern: re.Pattern[str], text: str) -> list[str]:
    return [number for listed in pattern.findall(text) for number in listed.split(", ")]


SECTIONS = HEADING.findall(PAGE)
REFERENCES = [(place, number) for place, text in TEXTS.items() for number in numbers(REFERENCE, text)]


def test_sections_are_numbered_in_order_and_once() -> None:
    parts = [tuple(int(part) for part in number.split(".")) for number in SECTIONS]
    assert parts == sorted(set(parts))
    assert {part[0] for part in parts} == set(range(1, 12))


def test_every_reference_leads_to_a_section() -> None:
    assert REFERENCES
    assert [(place, number) for place, number in REFERENCES if number not in SECTIONS] == []


def test_the_checks_of_a_rehearsal_name_sections() -> None:
    assert [(check.name, number) for check in CHECKS for number in check.sections if number not in SECTIONS] == []


def test_references_inside_the_page_lead_to_a_section() -> None:
    sections = numbers(INSIDE, re.sub(r"\s+", " ", PAGE))
    assert sections
    assert [number for number in sections if number not in SECTIONS] == []


def test_no_rule_is_named_in_another_form() -> None:
    places = [(place, form) for place, text in TEXTS.items() for form in OTHER_FORMS.findall(text)]
    assert places == []


@pytest.mark.parametrize(
    "text",
    ["contract section 4.8", "contract 5", "(contract, section 2)", "design section 5", "section 2", "§ 3"],
)
def test_other_forms_are_noticed(text: str) -> None:
    assert OTHER_FORMS.search(text)
    assert not OTHER_FORMS.search("wire contract 4.8, 5")


def test_named_headings_of_pages_exist() -> None:
    headings = {pair for text in TEXTS.values() for pair in IN_DOCUMENT.findall(text)}
    missing = [
        (page, heading)
        for page, heading in sorted(headings)
        if not re.search(rf"(?m)^##+ {re.escape(heading)}$", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    ]
    assert missing == []
    assert [(place, name) for place, text in TEXTS.items() for name in UNQUOTED.findall(text)] == []
