"""docs/conformance.md: every rule of the wire contract that the contract suite checks, and where it was seen to hold.

    python -m integration.conformance --stand-in stand-in.xml [--real real.xml]

reads pytest's JUnit files. A server that was not run is told of as such.
"""

from __future__ import annotations

import argparse
import ast
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "tests" / "contract"
PAGE = ROOT / "docs" / "conformance.md"
NOT_RUN = "not run yet"
_SECTIONS = re.compile(r"wire contract (\d+(?:\.\d+)*(?:, \d+(?:\.\d+)*)*)", re.IGNORECASE)

_HEAD = """# Conformance

What the sink relies on, and where it was seen to hold. Each line is a test of `tests/contract`; sections are those of
[the wire contract](wire-contract.md), which was read from StarRocks' sources, documentation and recorded replies.
*stand-in* is the emulator of this package, in its generations B (4.0.7 and later, 4.1) and C (newer patches); *real* is
StarRocks in a container.

The real column is filled by `make integration` where a Docker engine is; **so far nothing has been run against a real
StarRocks**, so a "passes" below says that the stand-in follows the contract as we read it, not that StarRocks does.

Made by `make conformance`; a test keeps the list of rules up to date.

| rule | sections | stand-in | real |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One test of the suite: its name, and the sections of the wire contract that its docstring names."""

    module: str
    name: str
    sections: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.name.removeprefix("test_").replace("_", " ")


def rules() -> list[Rule]:
    """The suite's tests in their order."""
    return [rule for path in sorted(SUITE.glob("test_*.py")) for rule in _rules_of(path)]


def _rules_of(path: Path) -> Iterator[Rule]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    whole = _sections((ast.get_docstring(tree) or "").split("\n", 1)[0])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Rule(path.stem, node.name, _sections(ast.get_docstring(node) or "") or whole)


def _sections(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(number for found in _SECTIONS.findall(text) for number in found.split(", ")))


def results(files: Iterable[Path]) -> dict[tuple[str, str], str]:
    """`passes`, `fails` or `skipped` for each (module, test), over all its parameters."""
    found: dict[tuple[str, str], set[str]] = {}
    for file in files:
        for case in ET.parse(file).getroot().iter("testcase"):
            module = case.get("classname", "").rsplit(".", 1)[-1]
            name = case.get("name", "").split("[", 1)[0]
            found.setdefault((module, name), set()).add(_outcome(case))
    return {key: next(word for word in ("fails", "passes", "skipped") if word in words) for key, words in found.items()}


def _outcome(case: ET.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "fails"
    return "skipped" if "skipped" in kinds else "passes"


def page(stand_in: dict[tuple[str, str], str], real: dict[tuple[str, str], str]) -> str:
    """The page's text."""
    lines = []
    for rule in rules():
        key = (rule.module, rule.name)
        cells = (rule.text, ", ".join(rule.sections), stand_in.get(key, NOT_RUN), real.get(key, NOT_RUN))
        lines.append("| " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/conformance.md from JUnit files.")
    parser.add_argument("--stand-in", type=Path, nargs="*", default=[])
    parser.add_argument("--real", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    PAGE.write_text(page(results(args.stand_in), results(args.real)), encoding="utf-8")


if __name__ == "__main__":
    main()
