"""The sink from a client of Spark Connect: what works is judged row by row, what cannot work says so.

Tests that know nothing of the session's kind are those of `tests.spark`, here with a session of the server's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_txn_sink import (
    MetricsServer,
    RestartPolicy,
    StarRocksSink,
    TransactionAssembly,
    assemble_debezium,
    recommended_conf,
)
from starrocks_txn_sink.changelog import from_changelog, to_changelog
from starrocks_txn_sink.errors import SparkTooOld
from starrocks_txn_sink.sink.supervisor import ExitCode, run_forever
from starrocks_txn_sink.sources import parse_debezium, parse_debezium_transactions
from starrocks_txn_sink.spark_version import STATE_ON_CONNECT
from tests.spark.test_changelog_examples import test_the_documents_example
from tests.spark.test_changelog_sink import test_the_tables_equal_the_source
from tests.spark.test_spark_versions import (
    IN_JSON,
    Orders,
    orders,
    test_a_batch_frame_of_events,
    test_a_batch_frame_of_ready_rows,
    test_the_data_source_writes_batch_frames,
    test_typed_rows,
)
from tests.support.debezium_feed import KAFKA, change, marker, postgres
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of
from tests.support.waiting import wait_until

__all__ = [
    "orders",
    "test_a_batch_frame_of_events",
    "test_a_batch_frame_of_ready_rows",
    "test_the_data_source_writes_batch_frames",
    "test_the_documents_example",
    "test_the_tables_equal_the_source",
    "test_typed_rows",
]

pytestmark = pytest.mark.spark

POLLING = {"processingTime": "100 milliseconds"}


def begin(shop: Shop, sink: StarRocksSink, checkpoint: str = "checkpoint", **trigger: Any) -> Any:
    rows = shop.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(shop.source))
    return start(rows, sink, shop.checkpoint(checkpoint), **trigger)


def start(frame: DataFrame, sink: StarRocksSink, checkpoint: Path, **trigger: Any) -> Any:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(**(trigger or {"availableNow": True}))
    for tries_left in (3, 2, 1, 0):
        try:
            return writer.start()
        except PySparkException as error:  # Spark waits ten seconds for a process, and others may use the machine
            if "Python worker failed to connect back" not in str(error) or not tries_left:
                raise
    raise AssertionError


# --- streams through foreachBatch ---


def test_the_sink_assembles_in_two_lanes(orders: Orders) -> None:
    assembly = TransactionAssembly(lines=IN_JSON, state_dir=str(orders.folder / "state"))
    sink = StarRocksSink(orders.options(lanes=2), assemble=assembly)
    assert start(orders.lines(), sink, orders.folder / "checkpoint").awaitTermination(240)
    orders.judge()


has_state = pytest.mark.skipif(not STATE_ON_CONNECT.works, reason="its clients have no transformWithState")


@pytest.mark.skipif(STATE_ON_CONNECT.works, reason="its clients have transformWithState")
def test_state_of_streams_is_refused_by_a_sentence(orders: Orders) -> None:
    with pytest.raises(SparkTooOld, match=r"client of Spark Connect needs Spark 4\.1"):
        orders.rows()


@has_state
def test_the_sink_writes_ready_rows_of_a_stage(orders: Orders) -> None:
    sink = StarRocksSink(orders.options())
    assert start(orders.rows(), sink, orders.folder / "checkpoint").awaitTermination(240)
    orders.judge()


@has_state
def test_transactions_of_debezium_are_assembled(shop: Shop) -> None:
    table = postgres("items", 90)
    changes = [
        change(table, f"{txn}:9", seq, {"part": "p", "position": txn, "seq": seq}) for txn in (5, 6) for seq in (1, 2)
    ]
    ends = [marker("BEGIN", "5:89"), marker("END", "5:99", {"public.items": 2})]  # the other one stays open
    lines = [
        {
            "topic": "shop.transaction" if "status" in value else "items",
            "partition": 0,
            "offset": n,
            "value": json.dumps(value),
        }
        for n, value in enumerate([*changes, *ends])
    ]
    (shop.source / "1.txt").write_text("\n".join(map(json.dumps, lines)))
    text = shop.spark.readStream.text(str(shop.source))
    kafka = text.select(F.from_json("value", KAFKA.replace("BINARY", "STRING")).alias("m")).select("m.*")
    rows = parse_debezium(kafka.where("topic = 'items'"))
    markers = parse_debezium_transactions(kafka.where("topic = 'shop.transaction'"))
    query = start(assemble_debezium(rows, markers), StarRocksSink(shop.options()), shop.checkpoint())
    assert query.awaitTermination(240)
    assert shop.ask("SELECT position, seq FROM shop.items ORDER BY seq") == [(5, 1), (5, 2)]


def test_a_query_that_was_stopped_in_a_micro_batch_goes_on_and_is_replaced(shop: Shop) -> None:
    """The server ends the process of the sink, which rolls its label back."""
    sink = StarRocksSink(shop.options(), metrics=MetricsServer(0))  # which is of no use here, and does no harm
    shop.feed(rows_of("p-0", [1]))
    shop.fault({"operation": "commit", "action": "delay", "when": "before", "seconds": 3, "times": 1})
    stopped = begin(shop, sink, **POLLING)
    wait_until(lambda: shop.server.faults.report()["rules"][0]["applied"])
    stopped.stop()
    wait_until(lambda: not shop.open_labels())
    older = begin(shop, sink, **POLLING)
    wait_until(lambda: shop.written() == (2, 2))
    newer = begin(shop, sink, **POLLING)
    shop.feed(rows_of("p-0", [2]))
    wait_until(lambda: shop.written() == (4, 4))
    assert (older.isActive, older.exception(), newer.isActive) == (False, None, True)


def test_the_older_of_two_queries_under_one_job_ends(shop: Shop) -> None:
    sink = StarRocksSink(shop.options())
    shop.feed(rows_of("p-0", [1]))
    older = begin(shop, sink, **POLLING)
    wait_until(lambda: shop.written() == (2, 2))
    assert begin(shop, sink, "newer").awaitTermination(60)
    shop.feed(rows_of("p-0", [2]))
    with pytest.raises(PySparkException, match=r"Fenced.*taken over by another writer"):
        older.awaitTermination(60)
    assert begin(shop, sink, "newer").awaitTermination(60)
    assert shop.written() == (4, 4)


def test_a_query_is_started_again_until_it_cannot_go_on(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    """The kinds of failures are read from the text of Spark's exception."""
    shop.feed(rows_of("p-0", [1]))
    shop.feed([("p-0", 2, 0, "items", '{"part": "p-0", "position": "no number"}', True)])
    shop.fault({"operation": "begin", "action": "answer", "status": 503, "body": "", "times": 2})
    sink = StarRocksSink(shop.options(max_attempts=1))
    policy = RestartPolicy(first=0.1, longest=0.1, most_unknown=0)
    assert run_forever(lambda: begin(shop, sink), policy=policy) == ExitCode.TERMINAL
    assert shop.written() == (2, 2)
    output = capfd.readouterr().err
    assert "(transient)" in output
    assert output.rstrip().endswith("the query stays down (exit code 78)")


# --- what is hidden, and what cannot be ---


def test_one_sentence_asks_for_what_is_hidden(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1]))
    assembling = StarRocksSink(shop.options(job=None), assemble=TransactionAssembly(lines=IN_JSON))
    with pytest.raises(PySparkException, match=r"OptionError: Spark Connect hides .* job and state_dir are not set"):
        begin(shop, assembling).awaitTermination(60)
    assert shop.ask("SHOW TABLES FROM shop") == [("items",)]


def test_several_lanes_claim_their_rows(shop: Shop) -> None:
    (receipt,) = StarRocksSink(shop.options(lanes=2)).write(shop.frame(rows_of("p-0", [1]) + rows_of("p-1", [1])))
    assert receipt.rows == 4
    assert shop.open_labels() == []


def test_a_key_that_only_the_plan_knows_is_asked_for(spark: SparkSession) -> None:
    events = spark.createDataFrame([("u", 1, "a")], "op string, id long, name string")
    changes = from_changelog(events, op_mapping={"u": "UPDATE_AFTER", "d": "DELETE"}, partition_by="id")
    images: dict[str, Any] = {"before": "b", "after": "a", "op_mapping": {"UPDATE_BEFORE, UPDATE_AFTER": "u"}}
    with pytest.raises(ValueError, match=r"Spark Connect hides the plan.*key of from_changelog \(id\)"):
        to_changelog(changes, **images)
    assert to_changelog(changes, partition_by="id", **images).columns == ["op", "b", "a"]
    assert to_changelog(changes).columns == ["op", "id", "name"]


def test_the_recommended_settings_except_for_the_servers_own(remote: str) -> None:
    settings: dict[str, Any] = {**recommended_conf(2)}
    with pytest.warns(UserWarning, match="CANNOT_MODIFY_CONFIG"):
        session = SparkSession.builder.remote(remote).config(map=settings).create()
    settings = {name: value for name, value in settings.items() if name.startswith("spark.sql.")}
    assert {name: session.conf.get(name) for name in settings} == settings
