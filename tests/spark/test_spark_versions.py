"""Each way into StarRocks, on the version of Spark at hand, judged row by row by the generator's truth.

`make matrix` runs this module, and what else is marked `matrix`, in an environment for each version of Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_demo import verdict
from starrocks_demo.reader import SqlClient
from starrocks_demo.workload import Feed, Workload, WorkloadOptions
from starrocks_emulator.process import EmulatorProcess
from starrocks_txn_sink import (
    SinkOptions,
    StarRocksSink,
    TableRoute,
    TransactionAssembly,
    TxnEventLines,
    assemble_transactions,
)
from starrocks_txn_sink.errors import SparkTooOld
from starrocks_txn_sink.sources import parse_txn_events
from starrocks_txn_sink.spark_version import BALANCED_READING, DATA_SOURCE, STATE_BY_KEY, SparkFeature
from tests.support.manual_clock import ManualClock
from tests.support.spark_conf import HDFS, PROVIDER, ROCKSDB

pytestmark = [pytest.mark.spark, pytest.mark.deep, pytest.mark.matrix]

FILES = 3
IN_JSON = TxnEventLines(source_partition=None, position=None)


def least(feature: SparkFeature) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not feature.works, reason=f"needs Spark {feature.least}")


def too_old(feature: SparkFeature) -> pytest.MarkDecorator:
    return pytest.mark.skipif(feature.works, reason="this Spark has it")


@dataclass
class Orders:
    """The demo's shop: a folder of events, one file a micro-batch, and empty tables."""

    spark: SparkSession
    server: EmulatorProcess
    folder: Path
    workload: Workload

    def options(self, **more: Any) -> SinkOptions:
        addresses = {"load_url": self.server.load_url, "query_url": self.server.query_url}
        return SinkOptions(**{**addresses, "database": verdict.DATABASE, "job": "shop", **more})

    def lines(self, *, stream: bool = True) -> DataFrame:
        source = str(self.folder / "events")
        reader = self.spark.readStream.option("maxFilesPerTrigger", 1) if stream else self.spark.read
        return reader.text(source)

    def events(self, *, stream: bool = True) -> DataFrame:
        return parse_txn_events(self.lines(stream=stream), source_partition=None, position=None)

    def rows(self, *, stream: bool = True) -> DataFrame:
        return assemble_transactions(self.events(stream=stream), by="source_partition")

    def start(self, writer: Any) -> None:
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(240)

    def judge(self) -> None:
        client = SqlClient(self.server.query_port)
        contents = {name: verdict.read_all(table, client) for name, table in verdict.TABLES.items()}
        outcome = verdict.judge_tables(self.workload.truth(), contents, samples=1, torn_samples=0)
        client.close()
        assert outcome.differences == []


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Iterator[Orders]:
    before = spark.conf.get(PROVIDER, HDFS) or HDFS
    workload = Workload(WorkloadOptions(partitions=4, bulk_every=0))
    (tmp_path / "events").mkdir()
    feed = Feed(workload, tmp_path / "events", rate=1, clock=ManualClock())
    for _ in range(FILES):
        feed.write(400)
    feed.finish()
    for number, file in enumerate(sorted((tmp_path / "events").glob("*.jsonl"))):
        os.utime(file, (number, number))
    with EmulatorProcess(tmp_path / "starrocks") as server:
        client = SqlClient(server.query_port)
        verdict.create_tables(client)
        client.close()
        yield Orders(spark, server, tmp_path, workload)
    spark.conf.set(PROVIDER, before)


# --- streams through foreachBatch ---


@pytest.mark.parametrize(("raw", "lanes"), [(True, 1), (False, 2)], ids=["lines", "events"])
def test_the_sink_assembles(orders: Orders, raw: bool, lanes: int) -> None:
    assembly = TransactionAssembly(lines=IN_JSON) if raw else TransactionAssembly()
    sink = StarRocksSink(orders.options(lanes=lanes), assemble=assembly)
    orders.start((orders.lines() if raw else orders.events()).writeStream.foreachBatch(sink))
    orders.judge()


@least(STATE_BY_KEY)
def test_a_stage_assembles(orders: Orders) -> None:
    orders.spark.conf.set(PROVIDER, ROCKSDB)
    orders.start(orders.rows().writeStream.foreachBatch(StarRocksSink(orders.options(lanes=2))))
    orders.judge()


@too_old(STATE_BY_KEY)
def test_a_stage_says_what_it_needs(orders: Orders) -> None:
    orders.spark.conf.set(PROVIDER, ROCKSDB)
    with pytest.raises(SparkTooOld, match=r"assemble_transactions.* needs Spark 4\.0; this is 3\.5"):
        orders.rows()


# --- batch frames ---


def test_a_batch_frame_of_ready_rows(orders: Orders) -> None:
    sink = StarRocksSink(orders.options(lanes=2))
    for _ in range(2):
        sink.write(orders.rows(stream=False), batch_id=0)
    orders.judge()


def test_a_batch_frame_of_events(orders: Orders) -> None:
    StarRocksSink(orders.options(), assemble=TransactionAssembly()).write(orders.events(stream=False))
    orders.judge()


def test_typed_rows(orders: Orders) -> None:
    for name, frame in typed_frames(orders):
        options = orders.options(job=name)
        columns = {column: f"{column}_" for column in frame.columns}
        renamed = frame.withColumnsRenamed(columns).withColumn("table", F.lit(name))
        StarRocksSink(options, routes=[TableRoute(name, columns)]).write(renamed)
    orders.judge()


def typed_frames(orders: Orders) -> Iterator[tuple[str, DataFrame]]:
    """The rows of each table, as typed columns."""
    truth = orders.workload.truth()
    rows = {"orders": truth.orders, "order_items": truth.order_items, "order_events": truth.order_events}
    for name, table in verdict.TABLES.items():
        money = [column for column in table.columns if column in verdict._MONEY]
        values = [
            tuple(
                Decimal(value).scaleb(-2) if column in money and value is not None else value
                for column, value in zip(table.columns, tuple(rows[name][key]), strict=True)
            )
            for key in rows[name]
        ]
        types = dict(_types(table.ddl))
        yield (
            name,
            orders.spark.createDataFrame(values, ", ".join(f"{column} {types[column]}" for column in table.columns)),
        )


def _types(ddl: str) -> Iterator[tuple[str, str]]:
    for line in ddl.splitlines():
        if line.startswith("  `"):
            _, column, tail = line.split("`", 2)
            kind = tail.split()[0].rstrip(",")
            yield column, "string" if kind.startswith("VARCHAR") else kind


# --- the data source, and what needs a newer Spark ---


@least(DATA_SOURCE)
def test_the_data_source_writes_batch_frames(orders: Orders) -> None:
    from starrocks_txn_sink import StarRocksDataSource

    orders.spark.dataSource.register(StarRocksDataSource)
    addresses = {"load_url": orders.server.load_url, "query_url": orders.server.query_url}
    for name, frame in typed_frames(orders):
        writer = frame.repartition(2).write.format("starrocks_txn").options(**addresses, database=verdict.DATABASE)
        writer.option("table", name).mode("append").save()
    orders.judge()


@pytest.mark.parametrize(
    ("name", "module", "feature"),
    [
        pytest.param(name, module, feature, marks=too_old(feature))
        for name, module, feature in (
            ("StarRocksDataSource", "starrocks_txn_sink", DATA_SOURCE),
            ("BalancedKafka", "starrocks_spark_stages.balanced.reader", BALANCED_READING),
        )
    ],
)
def test_a_name_says_what_it_needs(name: str, module: str, feature: SparkFeature) -> None:
    run: Callable[[str], None] = exec
    with pytest.raises(SparkTooOld, match="needs Spark 4") as failure:
        run(f"from {module} import {name}")
    assert failure.value.advice == feature.instead
