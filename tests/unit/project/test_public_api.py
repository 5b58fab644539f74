"""The public names and their signatures change only on purpose: `make api`, and a news fragment."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import starrocks_txn_sink
from starrocks_txn_sink import changelog
from starrocks_txn_sink.cli import version
from tests.unit.project.public_api import SNAPSHOT, render

ROOT = Path(__file__).parents[3]


def test_the_public_names_are_those_of_the_snapshot() -> None:
    assert render() == SNAPSHOT.read_text(encoding="utf-8"), "Run `make api` if this change is meant, and add news."


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\.\. auto\w+:: (\w+)", page, re.MULTILINE)
    assert sorted(shown) == sorted(set(starrocks_txn_sink.__all__) - {"__version__"})


def test_the_version_is_told_in_one_way() -> None:
    assert starrocks_txn_sink.__version__ == version()
    assert f"## {version()}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", [starrocks_txn_sink, changelog])
def test_type_checkers_see_the_names_that_are_there(package: ModuleType) -> None:
    """The imports that only they read, and where each name is found at run time."""
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (block,) = [node.body for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block if isinstance(node, ast.ImportFrom)]
    seen = {one.asname: node.module for node in imports for one in node.names}
    assert seen == package._MODULES
    assert set(package.__all__) - {"__version__"} == seen.keys()
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = package.nonsense


def test_options_and_errors_need_no_spark() -> None:
    code = (
        "import sys; from starrocks_txn_sink import SinkOptions, StarRocksSinkError; sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
