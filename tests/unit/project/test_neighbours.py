"""The sink without its neighbours: what it is made of imports neither the command line nor the stages, at any time."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
sys.modules["starrocks_txn_ops"] = sys.modules["starrocks_spark_stages"] = None
import starrocks_txn_sink
for module in pkgutil.walk_packages(starrocks_txn_sink.__path__, "starrocks_txn_sink."):
    if module.name.rpartition(".")[2] not in ("__main__", "daemon", "_compiled"):  # two work at once, one is C
        importlib.import_module(module.name)
for package in (starrocks_txn_sink, starrocks_txn_sink.sources, starrocks_txn_sink.changelog):
    for name in package.__all__:
        try:
            getattr(package, name)
        except ModuleNotFoundError as error:
            print(name, error.name)
"""
OPERATIONS = {"wait_for_position"}
STAGES = {
    "BalancedKafka",
    "ChangelogWarning",
    "TXN_EVENT_SCHEMA",
    "assemble_debezium",
    "assemble_transactions",
    "balanced_merge",
    "from_changelog",
    "parse_debezium",
    "parse_debezium_transactions",
    "parse_txn_events",
    "to_changelog",
    "to_starrocks_ops",
    "upsert_materializer",
}
"""The public names that are not the sink's own, but for OPERATIONS."""


def test_the_sink_does_without_its_neighbours() -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    missing = dict(line.split() for line in process.stdout.splitlines())
    assert missing.keys() == STAGES | OPERATIONS
    assert all(module.startswith("starrocks_spark_stages") for name, module in missing.items() if name in STAGES)
    assert all(missing[name].startswith("starrocks_txn_ops") for name in OPERATIONS)
