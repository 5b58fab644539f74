"""Tests of the files around the code."""

PROJECT_FOLDERS = (
    "starrocks_txn_sink",
    "starrocks_txn_ops",
    "starrocks_spark_stages",
    "starrocks_emulator",
    "starrocks_demo",
    "tools",
    "tests",
    "integration",
    "benchmarks",
    "docker",
    "docs",
    ".ci",
)
"""Those with texts of the project."""
