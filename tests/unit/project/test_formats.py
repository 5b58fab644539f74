"""A format is one class: nobody else asks which one it is, by its class or by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from starrocks_txn_sink.sink.assembly import FORMATS, Assembly
from tests.support.product_files import ROOT

OWN = {name: kind for name, kind in FORMATS.items() if kind.__module__ == Assembly.__module__}
CLASSES = {kind.__name__ for kind in OWN.values()} | {
    *("CanalMessages", "DebeziumChanges", "DebeziumMarkers", "DebeziumMessages", "MaxwellMessages", "TxnEventLines"),
    *("IncrementalAssembler", "Policy", "SingleEvents", "VerifiedLane", "VerifiedPolicy"),
}
HOMES = (  # the formats, the rules of transactions, the stages of one format each, and the list of public names
    *("starrocks_txn_sink/sources/formats/", "starrocks_txn_sink/assembler/", "starrocks_txn_sink/sink/assembly.py"),
    *("starrocks_spark_stages/assemble/", "starrocks_spark_stages/parse/", "starrocks_txn_sink/__init__.py"),
)


def concrete(tree: ast.AST) -> Iterator[str]:
    """Where a module tells formats apart: names of their classes that run, and texts that are their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and part.id in CLASSES:
                    yield part.id
        if isinstance(node, ast.Constant) and node.value in OWN and node.value != "transactions":  # also an argument
            yield node.value


def test_no_module_tells_formats_apart() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("starrocks_txn_sink", "starrocks_txn_ops", "starrocks_spark_stages")
        for path in (ROOT / folder).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(HOMES)
        for name in concrete(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()


def test_a_question_for_a_format_is_seen() -> None:
    assert [*concrete(ast.parse("isinstance(rules, DebeziumAssembly)\n"))] == ["DebeziumAssembly"]
    assert [*concrete(ast.parse('kind == "canal"\n'))] == ["canal"]
