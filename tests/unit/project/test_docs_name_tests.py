"""The pages on reliability and architecture point to tests; each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ("docs/inside/reliability.md", "docs/inside/found.md", "docs/inside/architecture.md")
FUNCTIONS = set(re.findall(r"^def (test_\w+)", "\n".join(f.read_text() for f in ROOT.glob("tests/**/test_*.py")), re.M))


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"\b(test_\w+)(?=`|\[|,)", (ROOT / page).read_text()))
    assert sorted(named - FUNCTIONS) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_tests_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`(tests/[\w/.*]+)", (ROOT / page).read_text()))
    assert named or page.endswith(("found.md", "architecture.md"))
    assert [place for place in sorted(named) if not list(ROOT.glob(place.rstrip("/")))] == []
