"""What the model counts of events: each thing once, by table, operation, code and job."""

from __future__ import annotations

from collections import Counter

import pytest

from starrocks_txn_sink.coordinator.model import RegionCount
from starrocks_txn_sink.metrics.catalogue import OTHER, TABLES
from starrocks_txn_sink.metrics.verdict import Light
from starrocks_txn_sink.sink.batch_events import receipt_events
from starrocks_txn_sink.writer.messages import (
    Durations,
    LaneCost,
    LaneReport,
    LaneTrouble,
    LaneWork,
    SentError,
    TableLoads,
)
from tests.support.metrics_feed import MetricsFeed, receipt


def test_a_committed_batch_is_counted_once_by_table_and_operation() -> None:
    feed = MetricsFeed()
    latency = Durations()
    latency.add(0.4)
    times = Durations()
    times.add(0.02)
    work = LaneWork(
        loads={"orders": TableLoads("none", 1002, times)},
        deletes={"orders": 4},
        latency=latency,
        event_times={"0": 5.0, "1": 2.0},
    )
    cost = LaneCost({"load": Counter(OK=2), "commit": Counter(OK=1)}, buffer_peak=900, inflight_peak=2)
    feed.batch(0, receipt(feed), report=LaneReport("shop", 0, 0, work, cost))
    metrics = feed.model.metrics
    assert metrics.values("rows_total") == {
        ("orders", "upsert"): 6.0,
        ("orders", "delete"): 4.0,
        ("items", "upsert"): 1.0,
        ("items", "delete"): 0.0,
    }
    assert feed.value("commits_total", "committed") == 1
    assert feed.value("source_transactions_total", "committed") == 3
    assert feed.value("bytes_total", "orders", "none") == 1002
    assert feed.value("requests_total", "load", "OK") == 2
    assert metrics.histogram("load_duration_seconds", "orders").count == 1
    assert metrics.histogram("commit_duration_seconds").total == pytest.approx(0.1)
    assert metrics.histogram("end_to_end_latency_seconds").count == 1
    assert feed.value("event_time_skew_seconds") == 3.0
    assert feed.value("buffer_bytes") == 900
    assert feed.value("transaction_age_ratio") == 0.5
    assert feed.value("last_committed_batch_id") == 0
    assert metrics.values("partition_position") == {("0",): 9}
    assert feed.value("open_starrocks_transactions") == 0


def test_levels_are_those_of_the_last_batch_and_stay_while_the_next_one_runs() -> None:
    feed = MetricsFeed()
    feed.batch(0, report=LaneReport("shop", 0, 0, cost=LaneCost(buffer_peak=900)))
    feed.tell("batch.started", job="shop", batch_id=1, query="q")
    assert feed.value("buffer_bytes") == 900
    assert feed.value("open_starrocks_transactions") == 1
    feed.tell("lane.reported", report=LaneReport("shop", 0, 1, cost=LaneCost(buffer_peak=100)))
    feed.tell("lane.reported", report=LaneReport("shop", 1, 1, cost=LaneCost(buffer_peak=200)))
    assert feed.value("buffer_bytes") == 200


def test_a_failed_batch_tells_what_its_lane_did() -> None:
    feed = MetricsFeed()
    cost = LaneCost(retries={"commit": Counter(commit_failed=1)})
    trouble = LaneTrouble(Counter(commit_failed=2), aborted=2, failure=SentError("commit_failed"))
    report = LaneReport("shop", 0, 4, cost=cost, trouble=trouble)
    feed.fail(4, report=report)
    assert feed.value("errors_total", "commit_failed") == 2
    assert feed.value("commits_total", "aborted") == 2
    assert feed.value("commits_total", "committed") == 0  # receipts come as events of their own
    assert feed.value("retries_total", "commit", "commit_failed") == 1
    assert feed.value("failed_batches_total") == 1
    assert feed.lit() is Light.BAD
    assert feed.sentence == "The last micro-batch failed 0.0 s ago (commit_failed); no commit yet."
    (failed,) = feed.model.recent
    assert (failed["outcome"], failed["code"], failed["batch_id"]) == ("failed", "commit_failed", 4)


def test_an_error_without_a_report_is_counted_by_its_code() -> None:
    feed = MetricsFeed()
    feed.fail(1, "fenced")
    assert feed.value("errors_total", "fenced") == 1


def test_a_repeated_task_is_a_retry_and_its_rows_count_once() -> None:
    feed = MetricsFeed()
    cost = LaneCost(retries={"task": Counter(failed=1)})
    feed.batch(0, receipt(feed), report=LaneReport("shop", 0, 0, LaneWork(replayed_transactions=5), cost))
    assert feed.value("retries_total", "task", "failed") == 1
    assert feed.value("source_transactions_total", "replayed") == 5
    assert feed.value("rows_total", "orders", "upsert") == 10


def test_too_many_tables_are_counted_together() -> None:
    feed = MetricsFeed()
    dead = tuple(RegionCount("0", f"t{number}", 1, 9) for number in range(TABLES + 50))
    for event in receipt_events([receipt(feed, regions=(), dead_lettered=dead)]):
        feed.model.record(event)
    values = feed.model.metrics.values("dead_letter_rows_total")
    assert len(values) == TABLES + 1
    assert values[(OTHER, "rejected")] == 50


def test_an_event_that_moves_no_metric_is_ignored() -> None:
    MetricsFeed().tell("transaction.abandoned", count=1)


def test_a_job_is_known_with_its_database() -> None:
    feed = MetricsFeed()
    feed.tell("batch.started", job="shop", batch_id=0, lanes=1, query="q", database="sales")
    assert feed.value("job_info", "shop", "sales") == 1


def test_columns_that_rows_do_not_name_any_more_are_among_the_changes() -> None:
    feed = MetricsFeed()
    feed.tell("columns.gone", job="shop", table="orders", gone="age, note", advice="")
    (entry,) = feed.model.schema_changes
    assert (entry["table"], entry["statement"].startswith("rows do not name age, note any more")) == ("orders", True)
