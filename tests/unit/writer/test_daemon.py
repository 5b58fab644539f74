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


def test_what_the_daemon_has_loaded_is_left_alone_by_the_collections_of_its_workers() -> None:
    """A collection writes to every object that it visits, and a page that is written to is no longer shared."""
    program = (
        "import gc, sys; from starrocks_txn_sink.writer.daemon import preload; preload(); "
        "print(gc.isenabled(), gc.get_freeze_count() > 10 * len(gc.get_objects()), 'numpy.ma' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert ended.stdout.split() == ["True", "True", "True"]
