"""The memory of all processes of a query that writes a whole topic in one micro-batch, at full speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]


def test_a_backlog_at_full_speed_takes_no_more_memory_than_lanes_and_their_jvm_may(spark_kafka: str) -> None:
    """Two lanes with their buffers, a daemon, the driver and its JVM: 1.06 GB were measured, whatever the backlog.

    A JVM with a heap that only grows takes more, as lanes do whose buffers or Kafka's queues are not bounded.
    """
    assert spark_kafka
    command = [sys.executable, "-m", "benchmarks.backlog", "--rows", "1000000", "--rounds", "1"]
    home = Path(__file__).parents[2]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1100, cwd=home)
    ((result,),) = json.loads(ended.stdout.splitlines()[-1])["runs"].values()
    assert result["pss_mb"] < 1350
