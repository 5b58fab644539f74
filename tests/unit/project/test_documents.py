"""Documents that are made of the code or of fragments are up to date; snippets of guides are run."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from tests.unit.project import PROJECT_FOLDERS

ROOT = Path(__file__).parents[3]
GUIDES = ("types.md", "columns.md", "dead-letters.md", "security.md")
FOLDERS = ("docs", "docker")
PAGES = [*(file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.md"))), *sorted(ROOT.glob("*.md"))]
SUFFIXES = {".py", ".yml", ".yaml", ".json", ".sh", ".md", ".toml", ""}


def news() -> ModuleType:
    spec = importlib.util.spec_from_file_location("news", ROOT / ".ci" / "news.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("guide", GUIDES)
def test_the_python_of_the_guides_runs(guide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "STARROCKS_PASSWORD", "x")
    monkeypatch.setitem(os.environ, "MASK_SALT", "x")
    text = (ROOT / "docs" / "guides" / guide).read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, guide, "exec"), {})


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,6} +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for link in re.findall(r'(?:\]\(|src(?:set)?=")([^):"\s]+)[)"]', page.read_text(encoding="utf-8")):
        file, _, place = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if "/" not in link or not file.startswith("../../security/"):  # GitHub's own page
            assert target.exists(), link
            assert not place or place in anchors(target), link


def judgements() -> list[tuple[str, str]]:
    """The places in the architecture page's table of judgements, and the tests of each."""
    page = (ROOT / "docs" / "inside" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## One place for each judgement")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(place, tests) for _, place, tests in rows[1:]]


def test_the_place_of_each_judgement_and_its_tests_are_there() -> None:
    assert len(judgements()) > 20
    for place, tests in judgements():
        beside = near = ROOT / "tests" / "unit"
        for name, file in re.findall(r"(?:`(\w+)` in )?`([\w/]+\.(?:py|h))`", place):
            paths = [parent / file for parent in (beside, ROOT / "starrocks_txn_sink", ROOT)]
            path = next((path for path in paths if path.exists()), paths[0])
            assert path.exists(), file
            beside = path.parent
            assert not name or re.search(rf"(class|def) {name}\b", path.read_text(encoding="utf-8")), (name, file)
        for file in re.findall(r"`([\w/]+\.py|[\w/]+/)`", tests):
            path = next((path for path in (ROOT / "tests" / file, near / file) if path.exists()), near / file)
            near = path.parent if file.endswith(".py") else near
            assert path.exists(), file


def test_functions_that_pages_name_in_their_text_can_be_called() -> None:
    calls = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`(starrocks_\w+(?:\.\w+)+)\(", page.read_text(encoding="utf-8"))
    }
    assert calls
    wrong = [(page, name) for page, name in sorted(calls) if not callable(resolve_name(name))]
    assert wrong == []


def test_every_page_that_code_names_is_there() -> None:
    files = [
        file
        for folder in PROJECT_FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.suffix in SUFFIXES and file.is_file()
    ]
    files += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / ".github").rglob("*.yml")]
    pages = {
        (str(file.relative_to(ROOT)), page)
        for file in files
        if "__pycache__" not in file.parts and file.name not in ("CHANGELOG.md", Path(__file__).name)
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text(encoding="utf-8", errors="replace"))
    }
    assert pages
    assert sorted((file, page) for file, page in pages if not (ROOT / page).is_file()) == []


def test_every_page_is_on_a_map() -> None:
    """The user's pages on the first one, those of maintainers on theirs alone; the runbook has those of error codes."""
    docs = ROOT / "docs"
    maps = [docs / "index.md", docs / "inside" / "index.md"]
    names = {file for file in docs.rglob("*.md") if file not in maps and file.parent.name != "errors"}
    named: dict[Path, Path] = {}
    for page in maps:
        text = page.read_text(encoding="utf-8")
        linked = {(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", text)}
        listed = {
            (page.parent / f"{line}.md").resolve() for line in text.splitlines() if re.fullmatch(r"[\w./-]+", line)
        }
        named |= dict.fromkeys(linked & listed, page)
    assert sorted(names - named.keys()) == []
    maintainers = {file for file, page in named.items() if page == maps[1]}
    assert {file for file in names if file.parent == maps[1].parent} <= maintainers
    assert docs / "reference" / "wire-contract.md" in maintainers


def test_the_news_fragments_can_be_collected() -> None:
    assert set(news().fragments(ROOT / "news")) == {"added", "changed", "fixed", "removed"}


def test_a_release_collects_the_fragments_once(tmp_path: Path) -> None:
    module = news()
    (tmp_path / "news").mkdir()
    (tmp_path / "news" / "README.md").write_text("text")
    (tmp_path / "news" / "one.fixed.md").write_text("A thing\nis right.\n")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{module.TOP}\n## 0.1.0\n")
    module.release(tmp_path, "0.2.0", "2026-12-01")
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert "## 0.2.0 (2026-12-01)\n\nFixed:\n\n- A thing is right.\n" in text
    assert text.index("## 0.2.0") < text.index("## 0.1.0")
    assert not (tmp_path / "news" / "one.fixed.md").exists()
    assert module.told(tmp_path, "0.2.0") == "Fixed:\n\n- A thing is right.\n"
    assert module.told(tmp_path, "0.1.0") == "\n"
    with pytest.raises(ValueError, match="no section"):
        module.told(tmp_path, "0.2")
    with pytest.raises(ValueError, match="already"):
        module.release(tmp_path, "0.2.0", "2026-12-02")
    with pytest.raises(ValueError, match="no news fragments"):
        module.release(tmp_path, "0.3.0", "2026-12-02")


@pytest.mark.parametrize("name", ["thing.md", "Thing.fixed.md", "thing.maybe.md"])
def test_a_file_that_is_no_fragment_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text")
    with pytest.raises(ValueError, match="no news fragment"):
        news().fragments(tmp_path)
