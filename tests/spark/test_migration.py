"""The snippets of docs/migration.md run, and leave in the tables what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from starrocks_emulator.server import Emulator
from tests.support.query_port import query

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DDL = """CREATE TABLE test.score_board (id INT NOT NULL, name VARCHAR(65533) NULL DEFAULT '',
score INT NOT NULL DEFAULT '0') PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"""


def test_the_pages_snippets(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARROCKS_PASSWORD", "x")
    with Emulator(tmp_path / "emulator") as server:
        query(server, "CREATE DATABASE test")
        query(server, DDL)
        addresses = {"fe_http_url": server.load_url, "fe_jdbc_url": f"jdbc:{server.query_url}"}
        names: dict[str, Any] = {"spark": spark, **addresses}
        shown = []
        for kind, content in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if kind == "python":
                exec(content, names)
                continue
            head, *lines = (line.split() for line in content.splitlines())
            found = query(server, f"SELECT {', '.join(head)} FROM test.score_board ORDER BY id")
            assert lines == [[str(value) for value in row] for row in found]
            shown.append(found)
        assert [len(rows) for rows in shown] == [2, 2]
