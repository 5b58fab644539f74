"""A package of --py-files may keep state in RocksDB only where the processes of Spark's JVM find it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink import spark_version
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.spark_version import STATE_BY_KEY, refuse_hidden_package

pytestmark = pytest.mark.skipif(not STATE_BY_KEY.works, reason="needs Spark 4.0")


def context_with(path: str | None) -> Any:
    """A SparkContext whose JVM has `path` as its PYTHONPATH."""
    system = SimpleNamespace(getenv={"PYTHONPATH": path}.get)
    return SimpleNamespace(_jvm=SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system))))


@pytest.mark.parametrize(
    ("context", "of_python", "refused"),
    [
        (context_with(None), "ARCHIVE", True),  # spark-submit --py-files
        (context_with(f"/elsewhere{os.pathsep}ARCHIVE"), "ARCHIVE", False),  # PYTHONPATH=sink.zip spark-submit
        (context_with(None), "", True),  # spark.submit.pyFiles in a session's builder
        (None, "", True),
        (None, "ARCHIVE", False),
    ],
)
def test_the_jvm_decides_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: Any, of_python: str, refused: bool
) -> None:
    archive = tmp_path / "sink.zip"
    archive.touch()
    if context is not None and (path := context._jvm.java.lang.System.getenv("PYTHONPATH")):
        context = context_with(path.replace("ARCHIVE", str(archive)))
    monkeypatch.setenv("PYTHONPATH", of_python.replace("ARCHIVE", str(archive)))
    monkeypatch.setattr(spark_version, "__file__", str(archive / "starrocks_txn_sink" / "spark_version.py"))
    monkeypatch.setattr(spark_version, "active_context", lambda: context)
    with pytest.raises(OptionError, match=r"comes from sink\.zip") if refused else contextlib.nullcontext():
        refuse_hidden_package()
