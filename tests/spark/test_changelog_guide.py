"""The guide's snippets run, and print what the guide says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from starrocks_emulator.server import Emulator
from tests.support.query_port import query
from tests.support.servers import program_for

pytestmark = pytest.mark.spark

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "changelog.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.deep
@pytest.mark.emulator(
    "CREATE TABLE shop.customers (id BIGINT NOT NULL, name VARCHAR(64)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
)
def test_the_guides_snippets(spark: SparkSession, server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"spark": spark, "load_url": server.load_url, "query_url": server.query_url}
    checked = 0
    for kind, content in BLOCK.findall(GUIDE.read_text()):
        if kind == "python":
            capsys.readouterr()
            exec(program_for(server, content), names)
        else:
            checked += 1
            assert capsys.readouterr().out.strip() == content.strip()
    assert checked == 6
    assert query(server, "SELECT id, name FROM shop.customers") == [(7, "Bob")]
