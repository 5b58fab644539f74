"""The files around the code agree: versions of Python and StarRocks, the repository's address."""

from __future__ import annotations

import re
import subprocess
import sys
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
    "starrocks_txn_ops/**/*.py",
    "starrocks_spark_stages/**/*.py",
)


def jobs(workflow: str = "ci") -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text)["jobs"])


def test_every_python_that_the_package_names_is_tried() -> None:
    prefix = "Programming Language :: Python :: 3."
    versions = ["3." + name.removeprefix(prefix) for name in PROJECT["classifiers"] if name.startswith(prefix)]
    tested_versions = set(jobs()["test"]["strategy"]["matrix"]["python"])
    assert (
        sorted(tested_versions | {pair["python"] for pair in jobs()["spark"]["strategy"]["matrix"]["include"]})
        == versions
    )
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_the_usual_starrocks_is_among_those_that_are_tried() -> None:
    assert TAG in jobs()["integration"]["strategy"]["matrix"]["starrocks"]


def test_each_wheel_that_a_release_attaches_is_installed_on_its_platform() -> None:
    wheels, publish = jobs("wheels"), jobs("release")["publish"]
    assert jobs("release")["wheels"]["uses"] == jobs()["wheels"]["uses"] == "./.github/workflows/wheels.yml"
    assert jobs("release")["wheels"]["needs"] == "tag"
    assert publish["needs"] == "wheels"
    assert publish["permissions"] == {"contents": "write"}
    checked = wheels["check"]["strategy"]["matrix"]
    assert checked["os"] == wheels["build"]["strategy"]["matrix"]["os"]
    assert set(checked["python"]) <= set(jobs()["test"]["strategy"]["matrix"]["python"])
    programs = re.findall(r'python -c "([^"]+)"', str(wheels))
    assert len(programs) == 2
    for program in set(programs):
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_readme_installs_from_the_repository() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"pip install 'starrocks-txn-sink[spark,kafka] @ git+{PROJECT['urls']['Repository']}'" in readme


def test_no_text_but_pyproject_and_the_readme_have_the_address_of_the_repository() -> None:
    address = PROJECT["urls"]["Repository"].removeprefix("https://")
    files = {file for pattern in TEXTS for file in ROOT.glob(pattern)}
    assert [file.name for file in files if address in file.read_text(encoding="utf-8")] == ["README.md"]
