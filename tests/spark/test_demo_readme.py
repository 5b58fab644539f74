"""The README's pipeline runs as printed, with only its addresses and folders replaced."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from starrocks_demo import verdict
from starrocks_demo.reader import SqlClient
from starrocks_demo.workload import Feed, Workload, WorkloadOptions
from starrocks_emulator.process import EmulatorProcess
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.deep
def test_the_pipeline_of_the_readme_delivers(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    workload = Workload(WorkloadOptions(partitions=2, bulk_every=0))
    events = tmp_path / "events"
    events.mkdir()
    feed = Feed(workload, events, rate=1, clock=ManualClock())
    feed.write(300)
    feed.finish()
    with EmulatorProcess(tmp_path / "starrocks") as server:
        client = SqlClient(server.query_port)
        verdict.create_tables(client)
        here = {
            "http://fe:8030": server.load_url,
            "mysql://fe:9030": server.query_url,
            "/data/": f"{tmp_path}/",
            "sys.exit(run_forever(query.start))": "run = query.start(); run.processAllAvailable(); run.stop()",
            "SparkSession.builder": "SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false')"
            f".config('spark.sql.warehouse.dir', {str(tmp_path / 'warehouse')!r})",
        }
        for printed, replacement in here.items():
            assert printed in snippet
            snippet = snippet.replace(printed, replacement)
        done = subprocess.run(
            [sys.executable, "-c", f"import os, sys; os.environ['PYSPARK_PYTHON'] = sys.executable\n{snippet}"],
            capture_output=True,
            text=True,
            timeout=200,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        truth = workload.truth()
        found = {row[0]: row for row in verdict.read_all(verdict.TABLES["orders"], client)}
        client.close()
    assert found == {key: tuple(row) for key, row in truth.orders.items()}
