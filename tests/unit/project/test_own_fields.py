"""A field is set by its own class, or beside it in the module: then the class says all that can happen to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.product_files import ROOT

DRIVER = ROOT / "starrocks_txn_sink" / "sink"
FOREIGN = {"failures.py": {"daemon"}}  # of a thread of Python's


def set_fields(tree: ast.AST) -> Iterator[ast.Attribute]:
    """The fields of objects other than `self` that a module sets, changes in place, or puts items into."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                field = part.value if isinstance(part, ast.Subscript) else part
                owner = field.value if isinstance(field, ast.Attribute) else None
                if isinstance(field, ast.Attribute) and not (isinstance(owner, ast.Name) and owner.id == "self"):
                    yield field


def own_fields(tree: ast.AST) -> set[str]:
    """The fields of a module's classes."""
    fields = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            lines = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
            fields |= {name.id for name in lines if isinstance(name, ast.Name)}
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            fields |= {node.attr} if node.value.id == "self" else set()
    return fields


def foreign_fields(text: str) -> list[str]:
    """The fields that a module sets of objects of other modules."""
    tree = ast.parse(text)
    return [ast.unparse(field) for field in set_fields(tree) if field.attr not in own_fields(tree)]


def test_the_driver_sets_no_field_of_another_modules_object() -> None:
    found = {
        f"{path.relative_to(DRIVER)}: {field}"
        for path in DRIVER.rglob("*.py")
        for field in foreign_fields(path.read_text(encoding="utf-8"))
        if field.rpartition(".")[2] not in FOREIGN.get(path.name, ())
    }
    assert found == set()


SAMPLE = """
class A:
    x: int
    def f(self, a, b):
        self.y, a.x = 1, 2
        b.z = 3
        b.t[1] = 4
        b.u |= 5
"""


def test_a_field_from_outside_is_seen() -> None:
    assert foreign_fields(SAMPLE) == ["b.z", "b.t", "b.u"]
    assert foreign_fields("sink.layout_of = plan\n") == ["sink.layout_of"]


def test_nothing_on_the_driver_plays_another_type() -> None:
    """An input has its own type: no `cast` makes a frame of it."""
    casts = [
        str(path.relative_to(DRIVER))
        for path in DRIVER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast"
    ]
    assert casts == []
