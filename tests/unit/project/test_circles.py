"""No modules import each other in a circle, not for a type either: what is below is read without what is above."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.support.product_files import ROOT

PUBLIC_NAMES = "starrocks_txn_sink"  # imports them for type checkers, from above


def modules() -> dict[str, str]:
    """The texts of the product's modules by their names."""
    folders = ("starrocks_txn_sink", "starrocks_txn_ops", "starrocks_spark_stages")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files)
    return {name: path.read_text(encoding="utf-8") for name, path in zip(names, files, strict=True)}


def imports(text: str, names: Mapping[str, str]) -> Iterator[str]:
    """The modules among `names` that a module imports anywhere."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield from [full] if full in names else [node.module] if node.module in names else []
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in names)


def check(texts: Mapping[str, str]) -> None:
    TopologicalSorter(
        {name: {*imports(text, texts)} - {name} for name, text in texts.items() if name != PUBLIC_NAMES}
    ).prepare()


def test_there_is_no_circle() -> None:
    check(modules())


def test_a_circle_is_found() -> None:
    with pytest.raises(CycleError):
        check({"a": "import b", "b": "if TYPE_CHECKING:\n    from a import C\n"})
