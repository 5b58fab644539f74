"""Several queries and sinks in one process, their triggers, and what happens in a notebook: cells that are run twice,
interrupted, or run after `spark.stop()`. Every test compares the rows with those that the source has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_txn_sink import StarRocksSink, TransactionAssembly
from starrocks_txn_sink.spark_version import SPARK
from tests.support.assembling_shop import IN_JSON, AssemblingShop, script
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

POLLING = {"processingTime": "100 milliseconds"}


def begin(
    shop: Shop, sink: StarRocksSink, checkpoint: str = "checkpoint", *, where: str = "true", **trigger: Any
) -> Any:
    """A query of `sink` over the shop's files, one a micro-batch."""
    rows = shop.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(shop.source))
    writer = (
        rows.where(where).writeStream.foreachBatch(sink).option("checkpointLocation", str(shop.checkpoint(checkpoint)))
    )
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def assert_whole(shop: Shop, *parts: str, upto: int) -> None:
    """Each source transaction of `parts` is there, once."""
    rows = shop.ask("SELECT part, position, seq FROM shop.items ORDER BY 1, 2, 3")
    assert rows == [(part, at, seq) for part in sorted(parts) for at in range(1, upto + 1) for seq in range(2)]


def feed(shop: Shop, first: int, last: int) -> None:
    for position in range(first, last + 1):
        shop.feed(rows_of("p-0", [position]) + rows_of("p-1", [position]))


OF = "source_partition = '{}'"


# --- several queries ---


@pytest.mark.parametrize("sinks", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_two_queries_at_the_same_time(shop: Shop, sinks: int) -> None:
    """Of one sink without a job, and of two sinks with a job each."""
    feed(shop, 1, 3)
    jobs = [None] if sinks == 1 else ["first", "second"]
    sinks_made = [StarRocksSink(shop.options(job=job)) for job in jobs]
    queries = [
        begin(shop, sinks_made[number % sinks], f"of-{part}", where=OF.format(part), **POLLING)
        for number, part in enumerate(("p-0", "p-1"))
    ]
    wait_until(lambda: shop.written()[0] >= 12)
    feed(shop, 4, 5)
    wait_until(lambda: shop.written()[0] >= 20)
    assert [query.exception() for query in queries] == [None, None]
    assert all(query.isActive for query in queries)
    for query in queries:
        query.stop()
    assert_whole(shop, "p-0", "p-1", upto=5)


@pytest.mark.deep
def test_two_queries_of_one_sink_under_one_job_are_refused(shop: Shop) -> None:
    feed(shop, 1, 1)
    sink = StarRocksSink(shop.options())
    older = begin(shop, sink, "older", where=OF.format("p-0"), **POLLING)
    wait_until(lambda: shop.written() == (2, 2))
    newer = begin(shop, sink, "newer", where=OF.format("p-1"), **POLLING)
    wait_until(lambda: shop.written() == (4, 4))
    feed(shop, 2, 2)
    with pytest.raises(StreamingQueryException, match=r"Fenced.*which uses the same sink.*set another `job`"):
        older.awaitTermination(60)
    wait_until(lambda: shop.written() == (6, 6))
    newer.stop()
    begin(shop, sink, "older", where=OF.format("p-0")).awaitTermination(60)
    assert_whole(shop, "p-0", "p-1", upto=2)


# --- again in the same process ---


@pytest.mark.deep
@pytest.mark.parametrize("failing", ["begin", "commit"])
def test_a_query_goes_on_with_the_same_sink_after_an_exception(shop: Shop, failing: str) -> None:
    feed(shop, 1, 3)
    sink = StarRocksSink(shop.options(max_attempts=1))
    shop.fault({"operation": failing, "action": "answer", "when": "before", "status": 413, "body": "<html>"})
    with pytest.raises(StreamingQueryException):
        begin(shop, sink).awaitTermination(60)
    shop.fault()
    feed(shop, 4, 4)
    begin(shop, sink).awaitTermination(60)
    assert_whole(shop, "p-0", "p-1", upto=4)


@pytest.mark.deep
def test_a_sink_that_assembles_goes_on_after_an_exception(assembling: AssemblingShop) -> None:
    sink = StarRocksSink(assembling.options(), assemble=TransactionAssembly(lines=IN_JSON))

    def run() -> None:
        lines = assembling.events(assembling.spark.readStream.option("maxFilesPerTrigger", 1))
        writer = lines.writeStream.foreachBatch(sink).option("checkpointLocation", str(assembling.checkpoint()))
        writer.trigger(availableNow=True).start().awaitTermination(60)

    assembling.put(script("p-0", "B D E B D"))
    file = assembling.put(script("p-0", "D E", first=6))
    whole = file.read_text()

    def put(text: str) -> None:
        file.write_text(text)
        os.utime(file, (2, 2))

    put(whole.replace('"END"', '"WHAT"'))
    with pytest.raises(StreamingQueryException, match="InputError"):
        run()
    put(whole)
    run()
    assembling.put(script("p-0", "B D E", first=8))
    run()
    assert assembling.notes() == [("p-0", at) for at in (2, 5, 6, 9)]


@pytest.mark.parametrize(
    "same", [pytest.param(True, id="same-sink"), pytest.param(False, id="new-sink", marks=pytest.mark.deep)]
)
def test_a_cell_that_is_run_twice_replaces_its_query(shop: Shop, same: bool) -> None:
    """Spark stops the running query of a checkpoint when it is started again (stopActiveRunOnRestart)."""
    feed(shop, 1, 2)
    sink = StarRocksSink(shop.options())
    older = begin(shop, sink, **POLLING)
    wait_until(lambda: shop.written() == (8, 8))
    newer = begin(shop, sink if same else StarRocksSink(shop.options()), **POLLING)
    feed(shop, 3, 4)
    wait_until(lambda: shop.written()[0] >= 16)
    assert (older.isActive, older.exception(), newer.isActive) == (False, None, True)
    newer.stop()
    assert_whole(shop, "p-0", "p-1", upto=4)


@pytest.mark.deep
def test_a_cell_that_is_run_twice_in_the_middle_of_a_micro_batch(shop: Shop) -> None:
    feed(shop, 1, 1)
    sink = StarRocksSink(shop.options())
    shop.fault({"operation": "commit", "action": "delay", "when": "before", "seconds": 5, "times": 1})
    older = begin(shop, sink, **POLLING)
    wait_until(lambda: shop.server.faults.report()["rules"][0]["applied"])
    newer = begin(shop, sink, **POLLING)
    feed(shop, 2, 2)
    wait_until(lambda: shop.written()[0] >= 8)
    assert not older.isActive
    newer.stop()
    assert_whole(shop, "p-0", "p-1", upto=2)


@pytest.mark.deep
def test_a_second_query_of_a_name_is_refused_by_spark(shop: Shop) -> None:
    feed(shop, 1, 1)
    sink = StarRocksSink(shop.options())
    rows = shop.spark.readStream.schema(SCHEMA).json(str(shop.source))
    writer = rows.writeStream.queryName("shop").foreachBatch(sink).option("checkpointLocation", str(shop.checkpoint()))
    query = writer.trigger(**POLLING).start()
    with pytest.raises(
        PySparkException, match="Cannot start query with name shop as a query with that name is already"
    ):
        writer.start()
    wait_until(lambda: shop.written() == (4, 4))
    query.stop()
    assert_whole(shop, "p-0", "p-1", upto=1)


@pytest.mark.deep
def test_an_interrupted_cell_and_a_session_after_spark_stop(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.spark.notebook", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]


# --- triggers ---


@pytest.mark.parametrize(
    "trigger",
    [
        pytest.param({"availableNow": True}, id="available-now", marks=pytest.mark.deep),
        pytest.param({"once": True}, id="once"),
        pytest.param(POLLING, id="processing-time", marks=pytest.mark.deep),
        pytest.param(None, id="default", marks=pytest.mark.deep),
    ],
)
@pytest.mark.filterwarnings("ignore:.*once.*:FutureWarning")
def test_triggers_with_micro_batches(shop: Shop, trigger: dict[str, Any] | None) -> None:
    sink = StarRocksSink(shop.options())
    for upto in (2, 4):
        feed(shop, upto - 1, upto)
        rows = shop.spark.readStream.schema(SCHEMA).json(str(shop.source))
        writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(shop.checkpoint()))
        query = writer.trigger(**trigger).start() if trigger else writer.start()
        query.processAllAvailable()
        query.stop()
        assert_whole(shop, "p-0", "p-1", upto=upto)


def ticks(spark: SparkSession) -> DataFrame:
    """A source that continuous processing and real-time mode can read."""
    source = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    row = F.to_json(F.struct(F.lit("p").alias("part"), "position"))
    rows = source.select(F.lit("p").alias("source_partition"), F.col("value").alias("position"))
    return rows.select("*", F.lit(0).alias("seq"), F.lit("items").alias("table"), row.alias("row")).withColumn(
        "transaction_end", F.lit(True)
    )


REAL_TIME = pytest.mark.skipif(SPARK < (4, 1), reason="this Spark has no real-time mode")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        ({"continuous": "1 second"}, "'foreachBatch' is not supported with continuous trigger"),
        pytest.param({"realTime": "5 seconds"}, "not in the sink allowlist", marks=REAL_TIME),
    ],
)
def test_triggers_without_micro_batches_are_refused(shop: Shop, trigger: dict[str, Any], message: str) -> None:
    writer = ticks(shop.spark).writeStream.foreachBatch(StarRocksSink(shop.options()))
    with pytest.raises(PySparkException, match=message):
        writer.option("checkpointLocation", str(shop.checkpoint())).trigger(**trigger).start().awaitTermination(60)
    assert shop.written() == (0, 0)
