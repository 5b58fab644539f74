"""Each public method has a docstring, or a base class of ours has one for it.

Ruff asks for those of classes (D101) and functions (D103). Its D102 knows no bases: it would ask each override.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.support.product_files import ROOT

SAMPLE = '''
class Base:
    def told(self):
        """What it does."""
    @property
    def value(self):
        """What it is."""
    @value.setter
    def value(self, value): ...
class Child(package.Base[int]):
    def told(self): ...
    def _private(self): ...
    class Inner:
        def told(self): ...
class Grandchild(Child):
    def told(self):
        def inner(): ...
class _Hidden:
    def untold(self): ...
class Other(_Hidden):
    async def untold(self): ...
'''


def classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """The classes below `node` with their whole names, but for those inside of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}.{child.name}", child
            yield from classes(child, f"{prefix}.{child.name}")
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from classes(child, prefix)


def methods(node: ast.ClassDef) -> dict[str, bool]:
    """Public methods, and whether they have a docstring: of a property the getter's is enough."""
    told: dict[str, bool] = defaultdict(bool)
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            told[child.name] |= ast.get_docstring(child) is not None
    return told


def untold(sources: Iterable[tuple[str, str]]) -> list[str]:
    """The public methods that have no docstring in the modules (name, text).

    Bases are known by their last name alone; where several classes have it, each of them has to have the docstring.
    """
    nodes = [pair for module, text in sources for pair in classes(ast.parse(text), module)]
    by_name: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for _, node in nodes:
        by_name[node.name].append(node)

    def told_above(node: ast.ClassDef, method: str) -> bool:
        names = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
        return any(all(told(base, method) for base in by_name[name]) for name in names if name in by_name)

    def told(node: ast.ClassDef, method: str) -> bool:
        return methods(node).get(method, False) or told_above(node, method)

    return [
        f"{name}.{method}"
        for name, node in nodes
        if not any(part.startswith("_") for part in name.split(".")[1:])
        for method, own in methods(node).items()
        if not own and not told_above(node, method)
    ]


def test_every_public_method_has_a_docstring() -> None:
    files = sorted(ROOT.glob("starrocks_*/**/*.py"))
    assert untold((file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")) for file in files) == []


def test_a_docstring_is_inherited_and_a_missing_one_is_found() -> None:
    assert untold([("sample", SAMPLE)]) == ["sample.Child.Inner.told", "sample.Other.untold"]
