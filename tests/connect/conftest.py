"""One server of Spark Connect for all tests of this folder, and a session of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.standalone import HOME, Daemon
from tests.spark.conftest import bare_shop, shop
from tests.support.spark_conf import ROCKSDB

__all__ = ["bare_shop", "shop"]

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.driver.host": "127.0.0.1",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",  # no process for a chmod
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.icu.caseMappings.enabled": "false",  # whose tables cost a JVM three seconds
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.ui.enabled": "false",
}
_ENTRY = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="session")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's address."""
    conf = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    words = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--class", _ENTRY, *conf, "spark-internal"]
    python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    folder = tmp_path_factory.mktemp("connect") / "server"
    server = Daemon(folder, *words, PYSPARK_PYTHON=sys.executable, PYTHONPATH=python_path)
    try:
        yield "sc://" + server.wait_for(r"Spark Connect server started at: (127\.0\.0\.1:\d+)")
    finally:
        server.stop()


@pytest.fixture(scope="session")
def spark(remote: str) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(remote).getOrCreate()
    yield session
    session.stop()
