"""Files that are made from the code are up to date, and a page's generated parts stay between their marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import __main__ as command
from tools.__main__ import ROOT, generate
from tools.pages import with_parts
from tools.tables import table

GENERATED = generate()
PAGE = "# Page\n\n<!-- made from the code: a -->\nold\n<!-- end -->\nby hand\n"


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_what_is_generated_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == GENERATED[name], "Run: make docs"


def test_a_part_is_made_again_and_the_rest_stays() -> None:
    page = with_parts(PAGE, {"a": lambda: "new\n"})
    assert page == PAGE.replace("old\n", "\nnew\n\n")
    assert with_parts(page, {"a": lambda: "new\n"}) == page


def test_a_page_without_a_part_that_it_should_have_is_refused() -> None:
    for parts in ({}, {"b": str}, {"a": str, "b": str}):
        with pytest.raises(ValueError, match="should mark"):
            with_parts(PAGE, parts)


def test_a_bar_does_not_end_a_cell() -> None:
    assert table("a | b", iter([("x|y", "z")])) == "| a | b |\n|---|---|\n| x\\|y | z |\n"


def test_the_check_names_a_stale_file_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "generate", lambda: {"page": "new"})
    (tmp_path / "page").write_text("old")
    assert command.main(["--check"]) == 1
    assert (capsys.readouterr().out, (tmp_path / "page").read_text()) == ("page is stale: make docs\n", "old")
    assert (command.main([]), (tmp_path / "page").read_text()) == (0, "new")
    assert command.main(["--check"]) == 0
