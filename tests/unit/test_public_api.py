"""The public names and their signatures change only on purpose: `make api`, and a news fragment."""

from __future__ import annotations

import re
from pathlib import Path

from public_api import SNAPSHOT, render

import starrocks_txn_sink
from starrocks_txn_sink.cli import version

ROOT = Path(__file__).parents[2]


def test_the_public_names_are_those_of_the_snapshot() -> None:
    assert render() == SNAPSHOT.read_text(encoding="utf-8"), "Run `make api` if this change is meant, and add news."


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\.\. auto\w+:: (\w+)", page, re.MULTILINE)
    assert sorted(shown) == sorted(set(starrocks_txn_sink.__all__) - {"__version__"})


def test_the_version_is_told_in_one_way() -> None:
    assert starrocks_txn_sink.__version__ == version()
    assert f"## {version()}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
