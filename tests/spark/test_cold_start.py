"""What makes a start faster: `recommended_conf()`, the archive of Spark's classes, workers with the modules loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from starrocks_txn_sink import recommended_conf
from starrocks_txn_sink.class_archive import END, spark_home
from starrocks_txn_sink.writer.daemon import prefer_installed_pyspark
from tests import jvm

_SESSION = """
import sys
sys.prefix = sys.argv[1]
from pyspark.sql import SparkSession
from starrocks_txn_sink import recommended_conf
from starrocks_txn_sink.class_archive import END
conf = recommended_conf()
conf["spark.driver.extraJavaOptions"] += f" -Xlog:class+load=info:file={sys.argv[2]}"
conf |= {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
assert spark.range(3).count() == 3
jvm = spark.sparkContext._gateway
spark.stop()
jvm.shutdown()
jvm.proc.stdin.close()
jvm.proc.wait(120)
"""
_COMMAND = """
import sys
sys.prefix = sys.argv[1]
from starrocks_txn_ops import cli
sys.exit(cli.main(["class-archive"]))
"""
ENVIRONMENT = {**os.environ, "JDK_JAVA_OPTIONS": jvm.QUICK}  # without the archive of the tests
MAPPED = "shared objects file (top)"  # the archive on top of the JDK's own


def session(environment: Path) -> str:
    """Run a session with `recommended_conf()` in a Python environment; the log of its classes."""
    classes = environment.parent / "classes.log"
    process = subprocess.run(
        [sys.executable, "-c", _SESSION, str(environment), str(classes)],
        env=ENVIRONMENT | {"SPARK_LOCAL_DIRS": str(environment / "spark")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert "[cds" not in process.stdout + process.stderr
    return classes.read_text(errors="replace")


@pytest.mark.parametrize("name", ["spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"])
def test_the_jvm_knows_the_options(name: str) -> None:
    options = recommended_conf()[name].replace("-XX:+IgnoreUnrecognizedVMOptions", "").split()
    process = subprocess.run(["java", *options, "-version"], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout) == (0, ""), process.stderr


def test_spark_has_what_it_does_not_fetch_with_its_kafka_source() -> None:
    jars = [file.name for file in (spark_home() / "jars").iterdir()]
    modules = [module.partition(":")[2] for module in recommended_conf()["spark.jars.excludes"].split(",")]
    assert modules
    assert not [name for name in modules if not any(jar.startswith(f"{name}-") for jar in jars)]


@pytest.mark.spark
def test_a_preloaded_worker_starts_with_the_modules(spark: SparkSession) -> None:
    def modules(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        loaded = "starrocks_txn_sink.writer.task" in sys.modules
        for _ in batches:
            yield pa.record_batch({"loaded": [loaded], "pyspark": [str(sys.modules["pyspark"].__file__)]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(modules, "loaded boolean, pyspark string").collect()
    assert row.loaded
    assert ".zip" not in row.pyspark


@pytest.mark.parametrize("same", [True, False], ids=["pip's pyspark", "another Spark next to it"])
def test_only_the_zip_of_the_installed_pyspark_leaves_the_path(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site" / "pyspark"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    (tmp_path / "link").symlink_to(installed.parent)  # an environment that is reached by a link
    home = installed if same else tmp_path / "spark"
    path = [f"{home}/python/lib/pyspark.zip", f"{home}/python/lib/py4j-src.zip", str(tmp_path / "link")]
    monkeypatch.setattr(sys, "path", path.copy())
    prefer_installed_pyspark()
    assert sys.path == (path[1:] if same else path)


@pytest.mark.spark
@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_driver_maps_the_archive_that_the_command_wrote(tmp_path: Path) -> None:
    """And starts without a damaged one; one that was cut never comes to a JVM (tests/unit/test_class_archive.py)."""
    environment = tmp_path / "the team's environment"  # whose name Spark has to quote
    environment.mkdir()
    command = [sys.executable, "-c", _COMMAND, str(environment)]
    writer = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
    assert writer.returncode == 0, writer.stderr
    (archive,) = (environment / "share" / "starrocks-txn-sink").iterdir()
    assert session(environment).count(MAPPED) > 5000
    archive.write_bytes(bytes(archive.stat().st_size - len(END)) + END)
    assert MAPPED not in session(environment)
