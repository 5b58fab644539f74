"""Documents that are made of the code or of fragments are up to date; snippets of guides are run."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
GUIDES = ("types.md", "dead-letter.md")
PAGES = (*GUIDES, "comparison.md", "data-source.md", "emulator.md", "migration.md")


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
    text = (ROOT / "docs" / guide).read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, guide, "exec"), {})


def test_links_between_documents_lead_somewhere() -> None:
    for guide in (*(ROOT / "docs" / name for name in PAGES), ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", guide.read_text(encoding="utf-8")):
            assert (guide.parent / target).exists(), (guide.name, target)


def test_the_news_fragments_can_be_collected() -> None:
    assert any(news().fragments(ROOT / "news").values())


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
    with pytest.raises(ValueError, match="already"):
        module.release(tmp_path, "0.2.0", "2026-12-02")
    with pytest.raises(ValueError, match="no news fragments"):
        module.release(tmp_path, "0.3.0", "2026-12-02")


@pytest.mark.parametrize("name", ["thing.md", "Thing.fixed.md", "thing.maybe.md"])
def test_a_file_that_is_no_fragment_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text")
    with pytest.raises(ValueError, match="no news fragment"):
        news().fragments(tmp_path)
