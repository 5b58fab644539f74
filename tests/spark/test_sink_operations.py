"""What operators get from a real pipeline: the auditor next to the sink, progress, log lines."""

from __future__ import annotations

import io
import json
import logging
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import DataFrame, SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import (
    Audit,
    LineageListener,
    MetricsServer,
    SinkOptions,
    SpanListener,
    StarRocksSink,
    configure_logging,
    telemetry,
)
from starrocks_txn_sink.sink.spark_jobs import is_running
from starrocks_txn_sink.telemetry import Event
from tests.support.query_port import query
from tests.support.servers import database_of, place_of
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE DATABASE bank",
        *(
            f"CREATE TABLE bank.{table} (id BIGINT NOT NULL, cents BIGINT, note VARCHAR(99)) PRIMARY KEY(id)"
            " DISTRIBUTED BY HASH(id)"
            for table in "ab"
        ),
    ),
]

ROWS = "source_partition string, position long, seq long, table string, row string, transaction_end boolean"
MONEY = (
    "SELECT * FROM (SELECT (SELECT coalesce(sum(cents), 0) FROM bank.a) + (SELECT coalesce(sum(cents), 0) FROM bank.b)"
    " AS total) t WHERE total <> 0"
)


def options(server: Emulator, **changes: Any) -> SinkOptions:
    values = {**place_of(server, "bank"), "job": "move"}
    return SinkOptions(**{**values, **changes})


def moves(spark: SparkSession, first: int, count: int, note: str = "") -> DataFrame:
    """Source transactions that move a cent from one table to the other: the sum over both stays."""
    rows = [
        ("p-0", position, seq, table, f'{{"id": {position}, "cents": {cents}, "note": "{note}"}}', seq == 1)
        for position in range(first, first + count)
        for seq, (table, cents) in enumerate((("a", 1), ("b", -1)))
    ]
    return spark.createDataFrame(rows, ROWS)


def test_an_audit_next_to_the_sink_sees_nothing_torn_and_shows_what_is(spark: SparkSession, server: Emulator) -> None:
    events: list[Event] = []
    metrics, money = MetricsServer(0), MONEY.replace("bank.", f"{database_of(server, 'bank')}.")
    sink = StarRocksSink(options(server), listener=events.append, audit=Audit(money, interval=0.02), metrics=metrics)
    assert sink.auditing is not None
    sink.write(moves(spark, 1, 20))
    auditor = sink.auditing.auditor
    assert auditor.samples > 0
    assert auditor.violations == 0
    query(server, "INSERT INTO bank.a (id, cents) VALUES (999, 7)")
    sink.write(moves(spark, 21, 20))
    sink.auditing.stop()
    assert auditor.first is not None
    assert auditor.first.rows == (("7",),)
    violated = [event.fields for event in events if event.name == "integrity.violated"]
    assert violated[0]["kind"] == "torn"
    assert len(violated) == auditor.violations
    counter = f'integrity_violations_total{{kind="torn"}} {float(auditor.violations)}'
    with metrics, urllib.request.urlopen(metrics.url + "metrics", timeout=10) as answer:
        assert counter in answer.read().decode()


def test_lineage_spans_and_the_server_s_limits_of_a_real_write(
    spark: SparkSession, server: Emulator, tmp_path: Path
) -> None:
    events: list[Event] = []
    client = OpenLineageClient(transport=FileTransport(FileConfig(str(tmp_path / "runs"), append=True)))
    lineage = LineageListener(options(server), client=client, topics=["moves"])
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = SpanListener(tracer_provider=provider)

    def listen(event: Event) -> None:
        events.append(event)
        lineage(event)
        spans(event)

    with MetricsServer(0) as metrics:
        sink = StarRocksSink(options(server), listener=listen, metrics=metrics)
        sink.write(moves(spark, 1, 20))
        wait_until(lambda: "server.measured" in [event.name for event in events])
    (room,) = (event.fields["room"] for event in events if event.name == "server.measured")
    assert room.limit == 1000
    lineage.close()
    start, complete = (json.loads(line) for line in (tmp_path / "runs").read_text().splitlines())
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    row_counts = {table["name"]: table["outputFacets"]["outputStatistics"]["rowCount"] for table in complete["outputs"]}
    assert row_counts == {f"{database_of(server, 'bank')}.{table}": 20 for table in "ab"}
    ended = exporter.get_finished_spans()
    batch = ended[-1]
    steps = [span.name for span in ended if span.parent is not None and span.parent.span_id == batch.context.span_id]
    assert (batch.name, steps) == ("batch", ["take_over", "lanes", "load", "check", "commit"])
    requests = [span.name for span in ended if span.parent is not None and span.name not in steps]
    assert "get_load_state" in requests
    assert batch.attributes is not None
    assert batch.attributes["starrocks_txn_sink.rows"] == 40

    columns = [column["name"] for column in complete["outputs"][0]["facets"]["schema"]["fields"]]
    assert columns == ["id", "cents", "note"]
    (position,) = complete["inputs"][0]["inputFacets"]["starrocks_txn_sink"]["positions"]
    assert (position["first"], position["last"], position["sourceTransactions"]) == (1, 20, 20)


CANARY = "canary-of-a-row"


@pytest.mark.deep
def test_a_pipelines_lines_name_every_step_once_and_no_row(spark: SparkSession, server: Emulator) -> None:
    stream = io.StringIO()
    logger = logging.getLogger("starrocks_txn_sink")
    before = list(logger.handlers), logger.level, logger.propagate
    configure_logging("DEBUG", form="json", stream=stream)
    try:
        sink = StarRocksSink(options(server))
        (first,) = sink.write(moves(spark, 1, 5, CANARY))
        (second,) = sink.write(moves(spark, 6, 5, CANARY))
    finally:
        logger.handlers[:], logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
        telemetry._executor_settings = None
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert CANARY not in stream.getvalue()
    receipt_lines = [
        (line["label"], line["rows"], line["job"]) for line in lines if line["event"] == "receipt.collected"
    ]
    assert receipt_lines == [(first.label, 10, "move"), (second.label, 10, "move")]
    for event, count in (("session.opened", 1), ("batch.started", 2), ("batch.completed", 2)):
        assert [line["event"] for line in lines].count(event) == count
    lanes = spark.sparkContext.defaultParallelism  # a lane reports even without rows, and the driver what it did itself
    assert [line["event"] for line in lines].count("lane.reported") == 2 * (lanes + 1)


def test_a_query_of_any_session_counts_as_running_until_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.newSession().readStream.format("rate").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    assert is_running(spark, query.id)
    query.stop()
    assert not is_running(spark, query.id)
