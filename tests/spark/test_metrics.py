"""The metrics of a real query: lanes' figures reach the driver, failures count once, Spark's own progress is there."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from starrocks_txn_sink import MetricsServer, StarRocksSink, TableRoute, TransactionAssembly
from starrocks_txn_sink.metrics.spark_progress import ProgressWatch
from starrocks_txn_sink.telemetry import Event
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

REFUSED = {"operation": "commit", "action": "answer", "body": '{"Status": "FAILED", "Message": "quorum"}'}
FOR_GOOD = {**REFUSED, "body": '{"Status": "FAILED", "Message": "too many filtered rows"}'}


@pytest.fixture
def metrics() -> Iterator[MetricsServer]:
    before = set(threading.enumerate())
    with MetricsServer(0) as server:
        yield server
    assert not [thread for thread in set(threading.enumerate()) - before if "metrics" in thread.name]


def start(shop: Shop, metrics: MetricsServer, **changes: Any) -> Any:
    sink = StarRocksSink(shop.options(**changes), metrics=metrics)
    rows = shop.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(shop.source))
    rows = rows.withColumn("event_time", F.timestamp_seconds(F.lit(1_700_000_000) + F.col("position")))
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(shop.checkpoint()))
    return writer.trigger(availableNow=True).start()


def get(metrics: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(metrics.url + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def values(metrics: MetricsServer) -> dict[str, float]:
    """Every sample by its name and labels, without the prefix."""
    lines = [line for line in get(metrics, "metrics")[1].splitlines() if not line.startswith("#")]
    return {
        name.removeprefix("starrocks_txn_sink_"): float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
    }


def test_a_query_that_repeats_an_attempt_counts_every_row_once(shop: Shop, metrics: MetricsServer) -> None:
    repeat_an_attempt(shop, metrics)


def repeat_an_attempt(shop: Shop, metrics: MetricsServer) -> None:
    shop.feed(rows_of("p-0", [1, 2]) + rows_of("p-1", [7]))
    shop.fault({**REFUSED, "nth": 1})
    assert start(shop, metrics).awaitTermination(120)
    # Spark tells it a little later, and counts what the lanes of the second attempt read again.
    wait_until(lambda: values(metrics)["spark_input_rows_total"] == 12)
    good = values(metrics)
    assert good['rows_total{op="upsert",table="items"}'] == 6
    assert good['source_transactions_total{outcome="committed"}'] == 3
    assert (good['commits_total{outcome="committed"}'], good['commits_total{outcome="aborted"}']) == (1, 1)
    assert good['retries_total{operation="commit",reason="commit_failed"}'] == 1
    assert good['errors_total{code="commit_failed"}'] == 1
    assert good['partition_position{partition="p-1"}'] == 7
    assert good["end_to_end_latency_seconds_count"] == 3
    assert good["event_time_skew_seconds"] == 5
    assert good['bytes_total{encoding="none",table="items"}'] > 0
    assert good['spark_phase_duration_seconds{phase="addBatch"}'] > 0
    wait_until(lambda: get(metrics, "readyz")[0] == 503)  # availableNow: the query has ended, as Spark tells later


def test_nothing_is_being_told_once_a_watch_is_closed(shop: Shop) -> None:
    """Spark prints a stack trace if the process ends in the middle of it."""
    begun, ended = threading.Event(), threading.Event()

    def slowly(event: Event) -> None:
        if event.name == "query.progressed" and not begun.is_set():
            begun.set()
            time.sleep(0.5)
            ended.set()

    rows = shop.spark.readStream.format("rate").load()
    watch = ProgressWatch(shop.spark, slowly)
    query = rows.writeStream.format("noop").option("checkpointLocation", str(shop.checkpoint())).start()
    assert begun.wait(60)
    query.stop()
    watch.close()
    assert ended.is_set()


@pytest.mark.deep
def test_a_query_that_fails_and_starts_again_counts_every_row_once(shop: Shop, metrics: MetricsServer) -> None:
    repeat_an_attempt(shop, metrics)
    shop.feed(rows_of("p-0", [3]))
    shop.fault(FOR_GOOD)
    with pytest.raises(StreamingQueryException):
        start(shop, metrics, max_attempts=2).awaitTermination(120)
    bad = values(metrics)
    assert bad['failed_batches_total{sink_job="test"}'] == 1
    assert (bad['errors_total{code="commit_failed"}'], bad['errors_total{code="rows_rejected"}']) == (1, 1)
    assert bad['commits_total{outcome="aborted"}'] == 2
    assert bad['rows_total{op="upsert",table="items"}'] == 6
    assert '"light":"bad"' in get(metrics, "api/state")[1]

    shop.fault()
    assert start(shop, metrics).awaitTermination(120)
    healed = values(metrics)
    assert healed['rows_total{op="upsert",table="items"}'] == 8
    assert healed['commits_total{outcome="committed"}'] == 2
    assert healed['query_restarts_total{sink_job="test"}'] == 2
    assert healed['job_info{database="shop",sink_job="test"}'] == 1
    assert shop.written() == (8, 8)

    shop.forget_commit(1)
    assert start(shop, metrics).awaitTermination(120)
    again = values(metrics)
    assert again['rows_total{op="upsert",table="items"}'] == 8
    assert again['source_transactions_total{outcome="replayed"}'] == 1


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.deep)])
def test_deletes_are_counted_where_rows_may_be_some(shop: Shop, metrics: MetricsServer, shuffle: bool) -> None:
    shop.ask("CREATE TABLE shop.orders (id BIGINT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    rows = [("p-0", key, 0, "orders", f'{{"id": {key}}}', True, op) for key, op in enumerate(["insert", "delete"])]
    frame = shop.spark.createDataFrame(rows, SCHEMA + ", op string").coalesce(1)
    sink = StarRocksSink(shop.options(shuffle=shuffle), metrics=metrics)
    sink.write(frame)
    metric_values = values(metrics)
    assert (
        metric_values['rows_total{op="upsert",table="orders"}'],
        metric_values['rows_total{op="delete",table="orders"}'],
    ) == (1, 1)
    sink.write(frame.drop("op").withColumn("position", F.col("position") + 10))  # now both are rows to keep
    metric_values = values(metrics)
    assert (
        metric_values['rows_total{op="upsert",table="orders"}'],
        metric_values['rows_total{op="delete",table="orders"}'],
    ) == (3, 1)


@pytest.mark.deep
def test_deletes_of_typed_rows_and_of_assembled_events_are_counted_too(shop: Shop, metrics: MetricsServer) -> None:
    shop.ask("CREATE TABLE shop.orders (id BIGINT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    marks = [("p-0", key, 0, key, True, op) for key, op in enumerate(["insert", "delete", "D"])]
    typed = "source_partition string, position bigint, seq int, id bigint, transaction_end boolean, op string"
    routed = StarRocksSink(shop.options(), routes=[TableRoute("orders", ["id"])], metrics=metrics)
    routed.write(shop.spark.createDataFrame(marks, typed))
    assert values(metrics)['rows_total{op="delete",table="orders"}'] == 2
    data = [("p-1", key, "DATA", "t", "orders", f'{{"id": {key}}}', op) for key, op in enumerate(["c", "d"], 1)]
    events = [("p-1", 0, "BEGIN", "t", None, None, None), *data, ("p-1", 3, "END", "t", None, None, None)]
    fields = "source_partition string, position bigint, type string, txn_id string, table string, row string, op string"
    in_lanes = StarRocksSink(shop.options(), assemble=TransactionAssembly(), metrics=metrics)
    in_lanes.write(shop.spark.createDataFrame(events, fields))
    metric_values = values(metrics)
    assert (
        metric_values['rows_total{op="upsert",table="orders"}'],
        metric_values['rows_total{op="delete",table="orders"}'],
    ) == (2, 3)


def test_a_delete_that_a_later_row_replaces_is_none(shop: Shop, metrics: MetricsServer) -> None:
    shop.ask("CREATE TABLE shop.orders (id BIGINT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    changes = [(1, "delete"), (1, "insert"), (2, "insert"), (2, "delete"), (3, "insert")]
    rows = [("p-0", at, 0, "orders", f'{{"id": {key}}}', True, op) for at, (key, op) in enumerate(changes)]
    frame = shop.spark.createDataFrame(rows, SCHEMA + ", op string").coalesce(1)
    (receipt,) = StarRocksSink(shop.options(), metrics=metrics).write(frame)
    metric_values = values(metrics)
    assert (receipt.rows, receipt.compacted) == (3, 2)
    assert (
        metric_values['rows_total{op="upsert",table="orders"}'],
        metric_values['rows_total{op="delete",table="orders"}'],
    ) == (2, 1)
