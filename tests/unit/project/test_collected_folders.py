"""`make test` names its folders, because three of them start real servers; no other one may be forgotten."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_folder_with_tests_is_collected_but_those_with_real_servers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = {Path(each).name for each in settings["tool"]["pytest"]["ini_options"]["testpaths"]}
    there = {each.parent.name for each in (ROOT / "tests").glob("*/test_*.py")}
    assert there - named == {"kafka", "cdc", "cluster", "connect"}


def test_every_file_that_the_mutation_testing_names_exists() -> None:
    mutmut = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    named = [*mutmut["only_mutate"], *mutmut["pytest_add_cli_args_test_selection"]]
    assert [each for each in named if not (ROOT / each).exists()] == []
