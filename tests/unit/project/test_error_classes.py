"""Each error class of the package says in its own words what has happened: a code and a summary of its own."""

from __future__ import annotations

import ast
import pickle
from collections import Counter

import pytest

from starrocks_txn_sink import errors
from starrocks_txn_sink.errors import StarRocksSinkError
from tests.support.product_files import python_files

ROOT = StarRocksSinkError.__name__


def classes() -> list[ast.ClassDef]:
    """Every class at the top of a module of the package, read without importing its module, which may need an extra."""
    nodes = [node for file in python_files() for node in ast.parse(file.read_text(encoding="utf-8")).body]
    return [node for node in nodes if isinstance(node, ast.ClassDef)]


def bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).rpartition(".")[2] for base in node.bases}


def error_classes() -> dict[str, ast.ClassDef]:
    error_nodes, names = classes(), {ROOT}
    while more := {node.name for node in error_nodes if bases(node) & names} - names:
        names |= more
    return {node.name: node for node in error_nodes if node.name == ROOT or bases(node) & names}


ERRORS = error_classes()


def attribute(node: ast.ClassDef, name: str) -> str:
    """The text that the class itself gives `name`; empty when it inherits it."""
    for line in node.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and target.id == name:
            value = ast.literal_eval(line.value) if line.value else ""
            return value if isinstance(value, str) else ""
    return ""


def test_a_report_knows_every_code_whatever_is_imported() -> None:
    """A lane's error reaches the driver as its code, and `class_of` sees the classes of loaded modules alone."""
    at_home = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert ERRORS.keys() - at_home == set()


def test_the_classes_are_found() -> None:
    assert len(ERRORS) >= 30
    assert {"OptionError", "RowsRejected", "JobLedgerMissing", "StateNotWritten"} <= ERRORS.keys()


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_a_code_and_a_summary_of_its_own(name: str) -> None:
    code, summary = attribute(ERRORS[name], "code"), attribute(ERRORS[name], "summary")
    assert code.isidentifier()
    assert code.islower()
    assert summary[:1].isupper()
    assert summary.endswith(".")
    assert summary.count(". ") == 0, "one sentence"
    assert "contract" not in summary.lower()


@pytest.mark.parametrize("name", ["code", "summary"])
def test_no_two_errors_share_it(name: str) -> None:
    counts = Counter(attribute(node, name) for node in ERRORS.values())
    assert [value for value, count in counts.items() if count > 1] == []


def test_a_class_of_errors_without_a_summary_is_noticed() -> None:
    node = ast.parse('class Lost(StarRocksSinkError):\n    code = "lost"').body[0]
    assert isinstance(node, ast.ClassDef)
    assert (attribute(node, "code"), attribute(node, "summary")) == ("lost", "")


def test_no_text_for_users_is_made_of_a_docstring() -> None:
    cut = [
        "/".join(file.parts[-2:])
        for file in python_files()
        if any(word in file.read_text(encoding="utf-8") for word in ("__doc__", "getdoc", "get_docstring"))
    ]
    assert cut == ["options/sink_options.py"]  # which goes the other way: the options complete their docstring


@pytest.mark.parametrize("escape", ["\x1b[2J", "\x07", "\x9b1m", "\u202e", "\u2028", "\r", "\x00"])
def test_no_error_moves_the_terminal(escape: str) -> None:
    error = StarRocksSinkError(f"said {escape}x", hint=f"do {escape}y", label=f"a{escape}b\nc", table="t")
    for text in (str(error), str(pickle.loads(pickle.dumps(error))), error.args[0]):
        assert escape not in text
    assert "\n" not in str(error)
    assert error.context["label"] == f"a{escape}b\nc", "values stay as they are; only texts are escaped"
