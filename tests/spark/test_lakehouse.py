"""The page of Delta's feed and Iceberg's changelog, with real tables of both formats."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.kafka.jars import POMS, NoMaven, fetched

pytestmark = [pytest.mark.spark, pytest.mark.deep, pytest.mark.matrix]


@pytest.mark.skipif(not pyspark.__version__.startswith("4.0."), reason="both formats have releases for Spark 4.0")
@pytest.mark.timeout(400)
def test_commits_of_real_tables_are_written_whole_and_once(tmp_path: Path) -> None:
    try:
        fetched(POMS / "lakehouse.xml")
    except NoMaven as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.spark.lakehouse", str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-6000:]
