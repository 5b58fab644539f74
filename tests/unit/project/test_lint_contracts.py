"""A forbidden import in a new file of a package breaks the lint: the contracts name packages, not files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LINTER: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
EXTERNAL = [
    contract
    for contract in LINTER["contracts"]
    if contract["name"].startswith(("Pure packages", "Only http", "Only sql"))
]
PLANTED = sorted(
    {
        (name, module)
        for contract in EXTERNAL
        for name in contract["source_modules"]
        for module in contract["forbidden_modules"]
    }
)


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """`make lint`'s import rules, on a copy of the packages."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the linter reads."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for package in LINTER["root_packages"]:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.fixture(scope="module")
def complaints(tree: Path) -> str:
    """What the linter says when each package has a new file with what it may not import (a module has it itself)."""
    clean = lint(tree)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    for name, module in PLANTED:
        place = tree / name.replace(".", "/")
        with (place / "planted.py" if place.is_dir() else place.with_suffix(".py")).open("a") as file:
            file.write(f"import {module}\n")
    process = lint(tree)
    assert process.returncode == 1
    return process.stdout


def test_the_contracts_are_those_of_other_libraries() -> None:
    assert len(EXTERNAL) == 3
    assert {module for _, module in PLANTED} >= {
        "asyncio",
        "multiprocessing",
        "pymysql",
        "requests",
        "select",
        "subprocess",
    }


@pytest.mark.parametrize(("name", "module"), PLANTED)
def test_a_forbidden_import_breaks_the_contract(complaints: str, name: str, module: str) -> None:
    importing = f"{name}.planted" if (ROOT / name.replace(".", "/")).is_dir() else name
    assert f"{name} is not allowed to import {module}" in complaints
    assert f"{importing} -> {module} " in complaints
