"""The quick starts without Kafka run as printed; the others are in tests/kafka and tests/cdc."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from starrocks_emulator.process import EmulatorProcess
from tests.support.quick_start import Pipeline, Warehouse, blocks, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.deep]


@pytest.mark.own_emulator("the page starts it")
@pytest.mark.parametrize(
    ("page", "folder"), [("docs/start/files.md", "events"), ("docs/start/changelog.md", "changes")]
)
def test_a_quick_start_with_files(page: str, folder: str, tmp_path: Path) -> None:
    tables, select = blocks(page, "sql")
    *client, program = blocks(page, "python")
    (events,), (table_text,) = blocks(page, "json"), blocks(page, "text")
    file = tmp_path / "home" / folder / "1.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(events, encoding="utf-8")
    with EmulatorProcess(tmp_path / "starrocks") as server:
        starrocks = Warehouse(server)
        starrocks.run(tables)
        addresses = {
            "http://127.0.0.1:8030": server.load_url,
            "mysql://127.0.0.1:9030": server.query_url,
        }
        with Pipeline(program, tmp_path / "home", addresses) as pipeline:
            pipeline.wait(starrocks.shows(select, table_text))
        for text in client:  # the page's own MySQL client
            port = f"port={server.query_port}"
            words = [sys.executable, "-c", text.replace("port=9030", port)]
            process = subprocess.run(
                words, input=select, stdout=subprocess.PIPE, text=True, timeout=60, check=True
            ).stdout
            assert [line.split() for line in process.splitlines()] == rows_of(table_text)
