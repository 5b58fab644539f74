"""The packages of the product: the sink, and its neighbours that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("starrocks_txn_sink", "starrocks_txn_ops", "starrocks_spark_stages")


def python_files() -> list[Path]:
    """Every module's file."""
    return [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
