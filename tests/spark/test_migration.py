"""The snippets of docs/guides/migration.md run, and leave in the tables what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from starrocks_emulator.server import Emulator
from tests.support.query_port import query
from tests.support.servers import database_of

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "migration.md"
BLOCK = re.compile(r"^```(python|sql|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.emulator("CREATE DATABASE test")
def test_the_pages_snippets(spark: SparkSession, server: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARROCKS_PASSWORD", "x")
    addresses = {"fe_http_url": server.load_url, "fe_jdbc_url": f"jdbc:{server.query_url}"}
    names: dict[str, Any] = {"spark": spark, **addresses}
    answer: list[tuple[Any, ...]] = []
    checked = 0
    for kind, content in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            exec(content.replace('"test.', f'"{database_of(server, "test")}.'), names)
        elif kind == "sql":
            answer = query(server, content)
        else:
            checked += 1
            assert [line.split() for line in content.splitlines()[1:]] == [list(map(str, row)) for row in answer]
    assert checked == 1
