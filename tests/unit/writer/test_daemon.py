"""The daemon that Spark's Python workers fork from."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WORKER = """
import socket, sys, types
from pyspark import daemon
from starrocks_txn_sink.writer.daemon import quiet

ours, jvm = socket.socketpair()

def main(infile, outfile):
    outfile.write(b"a result")
    if sys.argv[2] == "gone":
        jvm.close()
    else:
        outfile.flush = lambda: 1 / 0

sys.modules["pyspark_task"] = types.SimpleNamespace(main=main)
quiet()
daemon.worker(ours, True)
"""


@pytest.mark.parametrize(("how", "said"), [("gone", False), ("broken", True)])
def test_a_task_that_spark_ended_early_leaves_no_traceback_and_a_broken_one_does(how: str, said: bool) -> None:
    command = [sys.executable, "-c", _WORKER, "pyspark_task", how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ("failed to flush" in ended.stderr) is said, ended.stderr
