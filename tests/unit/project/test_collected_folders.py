"""`make test` names its folders, because three of them start real servers; no other one may be forgotten."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_folder_with_tests_is_collected_but_those_with_real_servers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    paths = {Path(folder).name for folder in settings["tool"]["pytest"]["ini_options"]["testpaths"]}
    folders = {module.parent.name for module in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - paths == {"kafka", "cdc", "cluster", "connect"}
