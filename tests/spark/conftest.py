"""One small local Spark for all tests of this folder."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import recommended_conf
from tests.support.assembling_shop import AssemblingShop
from tests.support.debezium_shop import DebeziumShop
from tests.support.depth import is_deep
from tests.support.exactly_once_shop import Shop
from tests.support.spark_conf import ROCKSDB


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two threads, two shuffle partitions and the RocksDB state store; it ends with the test run."""
    home = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Xss16m -Dderby.system.home={home}",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.metricsEnabled": "false",
        **{name: value for name, value in recommended_conf(preload=True).items() if name.startswith("spark.python.")},
        # ICU's tables for lower() cost each JVM three seconds; the deep profile takes them, as Spark does by default.
        "spark.sql.icu.caseMappings.enabled": str(is_deep()).lower(),
        # Without checksums there are half as many files, and Hadoop starts a process (chmod) for each one.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in options.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        callbacks = session.sparkContext._gateway.gateway_property.pool  # type: ignore[union-attr]
        session.stop()
        callbacks.clear()  # else DuckDB reports as leaked what they hold of emulators


@pytest.fixture
def bare_shop(server: Emulator, tmp_path: Path) -> Iterator[Shop]:
    """A shop for tests without a session; nothing may be open in it at the end."""
    new_shop = Shop(None, server, tmp_path)
    yield new_shop
    assert new_shop.open_labels() == []


@pytest.fixture
def shop(spark: SparkSession, bare_shop: Shop) -> Iterator[Shop]:
    """The shop with the session, whose queries end with the test."""
    bare_shop.session = spark
    yield bare_shop
    assert bare_shop.open_labels() == []  # before the stop of a query rolls its labels back
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def assembling(
    spark: SparkSession, server: Emulator, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[AssemblingShop]:
    """A shop of TxnEvents, as lines or, with the parameter `events`, parsed."""
    new_shop = AssemblingShop(spark, server, tmp_path)
    new_shop.raw = getattr(request, "param", "lines") == "lines"
    yield new_shop
    assert new_shop.open_labels() == []


@pytest.fixture
def debezium(spark: SparkSession, server: Emulator, tmp_path: Path) -> Iterator[DebeziumShop]:
    """A shop of Debezium's messages."""
    shop = DebeziumShop(spark, server, tmp_path)
    yield shop
    assert shop.open_labels() == []


@pytest.fixture
def data_source(spark: SparkSession) -> None:
    """The format `starrocks_txn`, which needs Spark 4."""
    from starrocks_txn_sink import StarRocksDataSource

    spark.dataSource.register(StarRocksDataSource)
