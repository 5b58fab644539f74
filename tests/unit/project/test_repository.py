"""The files around the code agree: versions of Python and StarRocks, the repository's address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from integration.starrocks import TAG

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEXTS = (
    "*.md",
    ".github/**/*.md",
    ".github/**/*.yml",
    "docs/**/*.md",
    "docs/*.py",
    "tools/*.py",
    "starrocks_txn_sink/**/*.py",
)


def jobs() -> dict[str, Any]:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    return dict(workflow["jobs"])


def test_every_python_that_the_package_names_is_tried() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = ["3." + each.removeprefix(prefix) for each in PROJECT["classifiers"] if each.startswith(prefix)]
    tried = set(jobs()["test"]["strategy"]["matrix"]["python"])
    assert sorted(tried | {each["python"] for each in jobs()["spark"]["strategy"]["matrix"]["include"]}) == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_usual_starrocks_is_among_those_that_are_tried() -> None:
    assert TAG in jobs()["integration"]["strategy"]["matrix"]["starrocks"]


def make_commands(text: str) -> dict[str, str]:
    """Target of each `make` in a script or a job's steps → its variables, ARGS left out."""
    found: dict[str, str] = {}
    for words in re.findall(r"\bmake ((?:[\w=.-]+ ?)+)", re.sub(r"#.*", "", text)):
        variables = " ".join(word for word in words.split() if "=" in word and not word.startswith("ARGS="))
        found |= {word: variables for word in words.split() if "=" not in word}
    return found


def test_the_script_runs_what_the_workflow_runs() -> None:
    """But what CONTRIBUTING.md leaves out: Docker, `make matrix`, `make crash`."""
    steps = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    workflow = make_commands("\n".join(steps))
    script = make_commands((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert workflow.keys() - script.keys() == {"test", "matrix", "crash", "integration"}
    assert script.keys() - workflow.keys() == {"setup", "browser"}
    assert {target: script[target] for target in script if target.startswith("prove")} == {
        target: workflow[target] for target in workflow if target.startswith("prove")
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"prove"} == set(re.findall(r"^(prove[\w-]*):", makefile, re.M))
    assert "prove" in script


def test_no_text_but_pyproject_has_the_address_of_the_repository() -> None:
    address = PROJECT["urls"]["Repository"].removeprefix("https://")
    files = {file for pattern in TEXTS for file in ROOT.glob(pattern)}
    assert [file.name for file in files if address in file.read_text(encoding="utf-8")] == []
