"""Collects the news fragments of news/ into CHANGELOG.md: python .ci/news.py VERSION DATE.

`python .ci/news.py --section VERSION` prints what CHANGELOG.md says of a version: the notes of its release.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

KINDS = ("added", "changed", "fixed", "removed")
NAME = re.compile(rf"([a-z0-9-]+)\.({'|'.join(KINDS)})\.md")
TOP = "Unreleased changes are in `news/`.\n"


def fragments(folder: Path) -> dict[str, list[Path]]:
    """The fragments by kind; raises ValueError for a file that is none."""
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.iterdir()):
        if path.name == "README.md":
            continue
        name = NAME.fullmatch(path.name)
        if name is None or not path.read_text(encoding="utf-8").strip():
            raise ValueError(f"{path.name} is no news fragment: <short-name>.<{'|'.join(KINDS)}>.md with some text.")
        found[name[2]].append(path)
    return found


def section(version: str, date: str, folder: Path) -> str:
    """The changelog's section of a version; raises ValueError when there is nothing to tell."""
    lines = [f"\n## {version} ({date})\n"]
    for kind, paths in fragments(folder).items():
        if paths:
            lines.append(f"\n{kind.capitalize()}:\n\n")
            lines += ["- " + " ".join(path.read_text(encoding="utf-8").split()) + "\n" for path in paths]
    if len(lines) == 1:
        raise ValueError("There are no news fragments.")
    return "".join(lines)


def release(root: Path, version: str, date: str) -> None:
    """Write the section into CHANGELOG.md and remove the fragments."""
    if re.fullmatch(r"\d+\.\d+\.\d+", version) is None:
        raise ValueError(f"{version!r} is no version like 1.2.3.")
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    if f"## {version} " in text or TOP not in text:
        raise ValueError(f"CHANGELOG.md has {version} already, or lacks its first lines.")
    changelog.write_text(text.replace(TOP, TOP + section(version, date, root / "news"), 1), encoding="utf-8")
    for paths in fragments(root / "news").values():
        for path in paths:
            path.unlink()


def told(root: Path, version: str) -> str:
    """What CHANGELOG.md says of a version, below its heading; raises ValueError without such a section."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section for {version}.")
    return found[1].strip() + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--section"]:
        sys.stdout.write(told(Path(__file__).parents[1], sys.argv[2]))
    else:
        release(Path(__file__).parents[1], *sys.argv[1:])
