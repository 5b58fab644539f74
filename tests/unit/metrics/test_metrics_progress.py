"""What Spark, the sources, the assembler and the first snapshot report, as levels."""

from __future__ import annotations

from typing import Any

import pytest

from starrocks_txn_sink.coordinator.model import PositionSpan
from starrocks_txn_sink.metrics.spark_progress import progress_events, read_progress
from starrocks_txn_sink.metrics.state import dashboard_state
from tests.support.metrics_feed import LIMIT, MetricsFeed, receipt


def test_progress_of_a_query_that_writes_elsewhere_is_not_ours() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    progress = read_progress({"sources": [{"numInputRows": 5}]})
    feed.tell("query.progressed", query="stranger", progress=progress)
    feed.tell("query.progressed", query="q", progress=progress)
    assert feed.value("spark_input_rows_total") == 5


def test_sparks_progress_is_read_from_its_json() -> None:
    document = {
        "id": "q",
        "durationMs": {"addBatch": 250, "triggerExecution": 300},
        "eventTime": {"watermark": "1970-01-01T00:01:00.000Z"},
        "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 100}, {"numRowsTotal": 4, "memoryUsedBytes": 50}],
        "sources": [
            {
                "numInputRows": 7,
                "endOffset": '{"orders":{"0":10,"1":20}}',
                "latestOffset": '{"orders":{"0":15,"1":20}}',
            },
            {"numInputRows": -1, "endOffset": "12", "latestOffset": None},
        ],
    }
    read = read_progress(document)
    assert (read.input_rows, read.phases, read.watermark) == (7, {"addBatch": 0.25}, 60.0)
    assert (read.state_rows, read.state_bytes) == (7, 150)
    assert read.lags == {"0": 5, "1": 0}
    assert [event.name for event in progress_events(document, {"mine": {"a": 1}})] == ["query.progressed"]


@pytest.mark.parametrize(
    ("topics", "lags"),
    [(["a-b"], {"0": 5, "a-b-0": 5, "9": None}), (["a-b", "c"], {"0": None, "a-b-0": 5, "c-0": 5})],
)
def test_a_partitions_lag_is_found_under_both_names_that_jobs_use(topics: list[str], lags: dict[str, object]) -> None:
    feed = MetricsFeed()
    spans = tuple(PositionSpan(name, 1, 9, 1) for name in lags)
    feed.batch(0, receipt(feed, positions=spans))
    read, latest = ({topic: {"0": at} for topic in topics} for at in (10, 15))
    progress = read_progress({"sources": [{"numInputRows": 1, "endOffset": read, "latestOffset": latest}]})
    feed.tell("query.progressed", query="q", progress=progress)
    document = dashboard_state(feed.model, feed.clock.wall(), LIMIT)
    assert {partition["partition"]: partition["lag"] for partition in document["partitions"]["shown"]} == lags
    assert document["fresh"]["lag"] == 5 * len(topics)


def test_a_balanced_source_tells_its_skew_and_others_do_not_touch_it() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    read = {"a": {"0": 5, "1": 7}, "@time": 2500}
    latest = {"a": {"0": 9, "1": 7}, "@time": -1, "@newest": {"a": {"0": 9000, "1": 2500}}}
    for source in ({"endOffset": read, "latestOffset": latest}, {"endOffset": {"a": {"0": 5}}, "latestOffset": None}):
        feed.tell("query.progressed", query="q", progress=read_progress({"sources": [source]}))
        assert feed.value("source_skew_seconds") == 6.5
        assert feed.value("source_held_back_rows") == 4
        assert feed.value("source_read_until_timestamp_seconds") == 2.5
        times = feed.model.metrics.values("source_partition_timestamp_seconds")
        assert times == {("a-0",): 9.0, ("a-1",): 2.5}


def test_the_assembler_keeps_its_levels_while_nothing_comes() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    counts = {"events": 9, "open": 2, "open_rows": 5, "state_bytes": 70, "abandoned": 1, "oldest_open": 11.0}
    feed.tell("assembler.counted", query="q", name="q/a", counts=counts)
    feed.tell("assembler.counted", query="q", name="q/a", counts=dict.fromkeys(counts, 0))
    assert feed.value("open_source_transactions") == 2
    assert feed.value("oldest_open_transaction_timestamp_seconds") == 11.0
    assert feed.value("source_transactions_total", "abandoned") == 1
    feed.tell("assembler.counted", query="q", name="q/a", counts={"repeats": 7, "unknown_repeats": 2})
    assert [feed.value("repeated_events_total", content) for content in ("same", "unknown")] == [5, 2]
    feed.tell("assembler.counted", query="q", name="q/a", counts={"quarantined": 1, "late": 3})
    assert feed.value("source_transactions_total", "dropped") == 1
    assert feed.value("repeated_events_total", "late") == 3
    feed.tell("assembler.counted", query="q", name="q/a", counts={"malformed": 2})
    assert feed.value("malformed_messages_total") == 2
    feed.tell("assembler.counted", query="q", name="q/a", counts={**counts, "open": 0})
    assert feed.value("oldest_open_transaction_timestamp_seconds") == 0


def test_an_assembling_stage_is_shown_with_its_job_only_where_there_are_several() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    counts = {"events": 9, "open": 2, "open_rows": 5, "state_bytes": 70, "oldest_open": feed.clock.wall() - 4}
    feed.tell("assembler.counted", query="q", name="q/assemble", counts=counts)

    def shown() -> list[dict[str, Any]]:
        stages: list[dict[str, Any]] = dashboard_state(feed.model, feed.clock.wall(), LIMIT)["assembler"][
            "open_transactions"
        ]
        return stages

    (stage,) = shown()
    assert (stage["stage"], stage["open"], stage["rows"], feed.clock.wall() - stage["since"]) == ("assemble", 2, 5, 4)
    feed.tell("batch.started", job="other", batch_id=0, lanes=1, query="p")
    feed.tell("assembler.counted", query="p", name="p/lanes", counts={**counts, "oldest_open": 1.0})
    assert [stage["stage"] for stage in shown()] == ["other: lanes", "shop: assemble"]  # the oldest first


def test_open_source_transactions_are_shown_one_by_one_by_age_and_the_others_together() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    now = feed.clock.wall()
    counts = {"events": 9, "open": 3, "open_rows": 9, "state_bytes": 70, "oldest_open": now - 40}
    oldest = [
        {"partition": "p-1", "position": 70, "since": now - 8, "rows": 2, "bytes": 20},
        {"partition": "p-0", "position": 12, "since": now - 40, "rows": 4, "bytes": 30},
    ]

    def shown() -> list[tuple[Any, ...]]:
        stages = dashboard_state(feed.model, feed.clock.wall(), LIMIT)["assembler"]["open_transactions"]
        return [
            (stage["place"], stage["open"], stage["rows"], stage["bytes"], now - stage["since"]) for stage in stages
        ]

    feed.tell("assembler.counted", query="q", name="q/lanes", counts=counts, oldest=oldest)
    assert shown() == [("p-0 at 12", 1, 4, 30, 40), ("p-1 at 70", 1, 2, 20, 8), ("all others", 1, 3, 20, 8)]
    feed.tell("assembler.counted", query="q", name="q/lanes", counts={**counts, "open": 2}, oldest=oldest)
    assert [place for place, *_ in shown()] == ["p-0 at 12", "p-1 at 70"]
    feed.tell("assembler.counted", query="q", name="q/lanes", counts={**counts, "open": 0}, oldest=[])
    assert shown() == []


def test_the_first_snapshot_has_levels_and_each_tables_end_is_told_once() -> None:
    feed = MetricsFeed()
    feed.tell("snapshot.progressed", job="shop", tables=3, over=0, text="0 of 3 tables", tables_over=[])
    feed.tell("snapshot.progressed", job="shop", tables=3, over=1, text="1 of 3 tables", tables_over=["public.a"])
    for _ in range(2):  # each start of the query
        feed.tell("snapshot.ended", job="shop", tables=3)
    metrics = feed.model.metrics
    assert [metrics.value("snapshot_tables", "shop", state) for state in ("begun", "over")] == [3, 1]
    assert [entry["statement"] for entry in feed.model.schema_changes] == [
        "the snapshot of the table is over (1 of 3 tables)",
        "the snapshot is over: 3 tables",
    ]
