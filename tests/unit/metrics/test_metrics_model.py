"""What the model makes of events: counts that come once, levels, jobs, the sentence and the lights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.errors import CommitFailed, InputError
from starrocks_txn_sink.metrics.catalogue import BY_NAME, OTHER, TABLES
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.series import POINTS, SLOT_SECONDS, SLOTS, History
from starrocks_txn_sink.metrics.source_lag import SourceLag
from starrocks_txn_sink.metrics.spark_progress import progress_events, read_progress
from starrocks_txn_sink.metrics.state import dashboard_state
from starrocks_txn_sink.metrics.verdict import Light, health_status, lights, readiness
from starrocks_txn_sink.sink.batch_events import receipt_events
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import (
    BOUNDS,
    Durations,
    LaneCost,
    LaneReport,
    LaneTrouble,
    LaneWork,
    SentError,
    TableLoads,
)
from tests.support.manual_clock import ManualClock

LIMIT = 60.0


class Told:
    """A model, and the events of a sink told to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.model = Model(self.clock)
        self.tell("sink.made", buffer_bytes=1000, timeout=100, version="1", spark="4")

    def tell(self, event: str, /, **fields: Any) -> None:
        self.model.record(Event(event, fields))

    def batch(self, batch_id: int, *receipts: Receipt, report: LaneReport | None = None, query: str = "q") -> None:
        self.tell("batch.started", job="shop", batch_id=batch_id, lanes=2, query=query)
        if report is not None:
            self.tell("lane.reported", report=report)
        for receipt in receipts:
            self.tell("receipt.collected", receipt=receipt)
        self.tell("batch.completed", job="shop", batch_id=batch_id, seconds=0.5, receipts=len(receipts))

    def fail(self, batch_id: int, code: str = "commit_failed", report: LaneReport | None = None) -> None:
        self.tell("batch.started", job="shop", batch_id=batch_id, lanes=2, query="q")
        self.tell("batch.failed", job="shop", batch_id=batch_id, seconds=0.5, code=code, report=report)

    def value(self, name: str, *labels: str) -> float:
        """A metric of the job `shop`, or with other `labels`."""
        labels = labels or (("shop",) if "sink_job" in BY_NAME[name].labels else ())
        return self.model.metrics.value(name, *labels)

    @property
    def sentence(self) -> str:
        return health_status(self.model, self.clock.wall(), LIMIT).text

    @property
    def light(self) -> Light:
        return self.lit()

    def lit(self) -> Light:
        return health_status(self.model, self.clock.wall(), LIMIT).light

    @property
    def ready(self) -> bool:
        return readiness(self.model, self.clock.wall(), LIMIT).ready


def receipt(feed: Told, batch_id: int = 0, rows: int = 10, **changes: Any) -> Receipt:
    base_receipt = Receipt(
        label=f"shop-e-0-{batch_id}-1_0",
        txn_id=7,
        job="shop",
        batch_id=batch_id,
        regions=(RegionCount("0", "orders", rows, rows * 100), RegionCount("0", "items", 1, 50)),
        positions=(PositionSpan("0", 1, 9, 3),),
        loads=2,
        attempts=1,
        retries=0,
        recycled=False,
        phase_seconds={"begin": 0.01, "load": 0.2, "commit": 0.03, "publish": 0.07},
        committed_at=feed.clock.wall(),
        open_seconds=50.0,
    )
    return replace(base_receipt, **changes)


def test_a_committed_batch_is_counted_once_by_table_and_operation() -> None:
    feed = Told()
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
    feed = Told()
    feed.batch(0, report=LaneReport("shop", 0, 0, cost=LaneCost(buffer_peak=900)))
    feed.tell("batch.started", job="shop", batch_id=1, query="q")
    assert feed.value("buffer_bytes") == 900
    assert feed.value("open_starrocks_transactions") == 1
    feed.tell("lane.reported", report=LaneReport("shop", 0, 1, cost=LaneCost(buffer_peak=100)))
    feed.tell("lane.reported", report=LaneReport("shop", 1, 1, cost=LaneCost(buffer_peak=200)))
    assert feed.value("buffer_bytes") == 200


def test_a_failed_batch_tells_what_its_lane_did() -> None:
    feed = Told()
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
    feed = Told()
    feed.fail(1, "fenced")
    assert feed.value("errors_total", "fenced") == 1


def test_what_is_in_doubt_shows_until_a_take_over_has_settled_it() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    feed.fail(
        1, "outcome_unknown", LaneReport("shop", 0, 1, trouble=LaneTrouble(Counter(outcome_unknown=1), unsettled=1))
    )
    feed.clock.advance(5)
    assert feed.value("in_doubt_transactions") == 1
    assert feed.value("commits_total", "unknown") == 1
    assert "1 StarRocks transaction in doubt for 5.0 s" in feed.sentence
    assert not feed.ready
    feed.tell("session.opened", job="shop", exactly_once=True)
    assert feed.value("in_doubt_transactions") == 0


def test_without_a_ledger_a_take_over_settles_nothing() -> None:
    feed = Told()
    feed.fail(1, "outcome_unknown", LaneReport("shop", 0, 1, trouble=LaneTrouble(unsettled=1)))
    feed.tell("session.opened", job="shop", exactly_once=False)
    assert feed.value("in_doubt_transactions") == 1


def test_a_repeated_task_is_a_retry_and_its_rows_count_once() -> None:
    feed = Told()
    cost = LaneCost(retries={"task": Counter(failed=1)})
    feed.batch(0, receipt(feed), report=LaneReport("shop", 0, 0, LaneWork(replayed_transactions=5), cost))
    assert feed.value("retries_total", "task", "failed") == 1
    assert feed.value("source_transactions_total", "replayed") == 5
    assert feed.value("rows_total", "orders", "upsert") == 10


def test_the_sentence_from_the_first_second_to_a_stalled_job() -> None:
    feed = Told()
    assert (feed.sentence, feed.light) == ("Waiting for the first micro-batch for 0.0 s.", Light.NONE)
    assert not feed.ready
    feed.tell("batch.started", job="shop", batch_id=0, lanes=1, query="q")
    assert feed.sentence == "No commit yet; nothing in doubt."
    feed.batch(0, receipt(feed))
    feed.clock.advance(1.2)
    assert (feed.sentence, feed.light, feed.ready) == ("Committed 1.2 s ago; nothing in doubt.", Light.OK, True)
    feed.clock.advance(70)
    assert (feed.sentence, feed.light) == ("No progress for 71 s.", Light.BAD)
    assert not feed.ready
    feed.tell("query.idle", query="q")
    assert (feed.sentence, feed.ready) == ("Committed 71 s ago; nothing in doubt; the source is quiet.", True)


def test_a_stopped_query_is_no_failure_and_a_failed_one_is() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    feed.tell("query.ended", query="q", failed=False)
    assert feed.lit() is Light.NONE
    feed.batch(1, receipt(feed, 1))
    feed.tell("query.ended", query="q", failed=True)
    assert feed.lit() is Light.BAD
    assert not feed.ready


def test_a_batch_write_is_not_expected_to_go_on() -> None:
    feed = Told()
    feed.batch(0, receipt(feed), query="")
    feed.clock.advance(1000)
    assert feed.ready
    assert feed.value("last_progress_timestamp_seconds") == 0  # nothing for an alert to wait for
    assert feed.value("last_commit_timestamp_seconds") > 0


def test_a_stop_in_the_middle_of_a_micro_batch_is_no_failure() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    feed.fail(1, "spark")
    assert feed.lit() is Light.BAD
    feed.tell("query.ended", query="q", failed=False)
    assert feed.sentence == "The query was stopped; last committed 0.0 s ago; nothing in doubt."


def test_a_query_that_was_stopped_does_not_hold_the_others_back() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    feed.tell("query.ended", query="q", failed=False)
    feed.clock.advance(100)
    feed.tell("batch.started", job="other", batch_id=0, lanes=1, query="p")
    feed.tell("batch.completed", job="other", batch_id=0, seconds=1, receipts=0)
    assert feed.ready
    assert feed.value("last_progress_timestamp_seconds") == 0
    assert feed.value("last_progress_timestamp_seconds", "other") == feed.clock.wall()


def test_a_violation_outshines_everything() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    feed.tell("integrity.violated", kind="torn")
    feed.batch(1, receipt(feed, 1))
    assert feed.lit() is Light.BAD
    assert "1 integrity violation" in feed.sentence
    assert lights(feed.model, feed.clock.wall(), LIMIT)["right"] is Light.BAD


def test_a_source_that_changed_is_a_violation_too() -> None:
    feed = Told()
    feed.fail(0, "source_changed")
    assert feed.value("integrity_violations_total", "source_changed") == 1


def test_repeated_attempts_warn_and_then_calm_down() -> None:
    feed = Told()
    feed.batch(
        0, receipt(feed), report=LaneReport("shop", 0, 0, trouble=LaneTrouble(Counter(load_failed=2), aborted=2))
    )
    assert feed.lit() is Light.WARN
    assert "2 attempts failed in the last minute" in feed.sentence
    feed.clock.advance(400)
    feed.batch(1, receipt(feed, 1))
    assert feed.lit() is Light.OK
    assert lights(feed.model, feed.clock.wall(), LIMIT)["errors"] is Light.OK


def test_each_job_has_gauges_of_its_own_and_the_readiness_is_that_of_the_hindmost() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    first = feed.clock.wall()
    feed.clock.advance(30)
    feed.tell("batch.started", job="other", batch_id=0, lanes=1, query="p")
    assert feed.value("last_commit_timestamp_seconds", "other") == 0
    feed.tell("receipt.collected", receipt=receipt(feed, job="other"))
    feed.tell("batch.completed", job="other", batch_id=0, seconds=1, receipts=1)
    assert feed.value("last_commit_timestamp_seconds") == first
    feed.clock.advance(45)
    assert not feed.ready
    assert feed.sentence.startswith("shop: No progress")


def test_progress_of_a_query_that_writes_elsewhere_is_not_ours() -> None:
    feed = Told()
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
    feed = Told()
    spans = tuple(PositionSpan(name, 1, 9, 1) for name in lags)
    feed.batch(0, receipt(feed, positions=spans))
    read, latest = ({topic: {"0": at} for topic in topics} for at in (10, 15))
    progress = read_progress({"sources": [{"numInputRows": 1, "endOffset": read, "latestOffset": latest}]})
    feed.tell("query.progressed", query="q", progress=progress)
    document = dashboard_state(feed.model, feed.clock.wall(), LIMIT)
    assert {partition["partition"]: partition["lag"] for partition in document["partitions"]["shown"]} == lags
    assert document["fresh"]["lag"] == 5 * len(topics)


def test_a_balanced_source_tells_its_skew_and_others_do_not_touch_it() -> None:
    feed = Told()
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
    feed = Told()
    feed.batch(0, receipt(feed))
    counts = {"events": 9, "open": 2, "open_rows": 5, "state_bytes": 70, "abandoned": 1, "oldest_open": 11.0}
    feed.tell("assembler.counted", query="q", name="q/a", counts=counts)
    feed.tell("assembler.counted", query="q", name="q/a", counts=dict.fromkeys(counts, 0))
    assert feed.value("open_source_transactions") == 2
    assert feed.value("oldest_open_transaction_timestamp_seconds") == 11.0
    assert feed.value("source_transactions_total", "abandoned") == 1
    feed.tell("assembler.counted", query="q", name="q/a", counts={"repeats": 7, "unknown_repeats": 2})
    assert [feed.value("repeated_events_total", content) for content in ("same", "unknown")] == [5, 2]
    feed.tell("assembler.counted", query="q", name="q/a", counts={**counts, "open": 0})
    assert feed.value("oldest_open_transaction_timestamp_seconds") == 0


def test_an_assembling_stage_is_shown_with_its_job_only_where_there_are_several() -> None:
    feed = Told()
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
    feed = Told()
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


def test_too_many_tables_are_counted_together() -> None:
    feed = Told()
    dead = tuple(RegionCount("0", f"t{number}", 1, 9) for number in range(TABLES + 50))
    for event in receipt_events([receipt(feed, regions=(), dead_lettered=dead)]):
        feed.model.record(event)
    values = feed.model.metrics.values("dead_letter_rows_total")
    assert len(values) == TABLES + 1
    assert values[(OTHER, "rejected")] == 50


def test_an_event_that_moves_no_metric_is_ignored() -> None:
    Told().tell("transaction.abandoned", count=1)


def test_the_pages_document_can_be_written_as_json_at_any_moment() -> None:
    feed = Told()
    orjson.dumps(dashboard_state(feed.model, feed.clock.wall(), LIMIT))
    feed.batch(0, receipt(feed), report=LaneReport("shop", 0, 0, trouble=LaneTrouble(Counter(input=1))))
    feed.fail(1)
    feed.clock.advance(3)
    document = orjson.loads(orjson.dumps(dashboard_state(feed.model, feed.clock.wall(), LIMIT)))
    assert {code["runbook"] for code in document["errors"]["codes"]} == {
        "runbook#error-input",
        "runbook#error-commit_failed",
    }
    assert {code["code"]: (code["meaning"], code["advice"]) for code in document["errors"]["codes"]} == {
        kind.code: (kind.summary, kind.hint) for kind in (InputError, CommitFailed)
    }
    assert document["partitions"]["shown"][0]["position"] == 9
    assert sum(value or 0 for value in document["series"]["rows"]) * document["series"]["step"] == pytest.approx(11)


@given(st.lists(st.floats(0.0, 4000.0), min_size=1, max_size=60), st.sampled_from([300, 900, 3600]))
def test_the_series_of_the_last_hour_loses_and_doubles_nothing(times: list[float], seconds: int) -> None:
    history = History(0.0)
    for time in sorted(times):
        history.slot(time).counts["n"] += 1
    now = max(times)
    start, step, windows = history.series(now, seconds)
    assert len(windows) <= POINTS
    inside = [time for time in times if start <= time - time % SLOT_SECONDS < start + step * len(windows)]
    assert sum(window.counts["n"] for window in windows) == len(inside)


def test_the_history_is_bounded() -> None:
    history = History(0.0)
    for time in range(20_000):
        history.slot(float(time)).counts["n"] += 1
    assert history.since(0.0).counts["n"] == SLOTS * SLOT_SECONDS


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_within_a_bucket_of_the_true_one(values: list[float], share: float) -> None:
    durations = Durations()
    for value in values:
        durations.add(value)
    percentile = durations.percentile(share)
    true = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    assert percentile is not None
    higher = [bound for bound in BOUNDS if true <= bound]
    assert percentile <= (higher[0] if higher else BOUNDS[-1]) + 1e-9


def test_an_outage_is_a_pause_that_everybody_sees() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    feed.tell("batch.started", job="shop", batch_id=1, lanes=1, query="q")
    outage = {"job": "shop", "batch_id": 1, "code": "not_sent", "seconds": 0.0, "report": None}
    feed.tell("outage.met", **outage)
    since = feed.clock.wall()
    feed.clock.advance(100)
    feed.tell("outage.met", **outage)
    assert feed.sentence == "Waiting for StarRocks for 100 s (not_sent); nothing is lost."
    assert (feed.light, feed.ready) == (Light.WARN, False)
    assert feed.value("outage_start_timestamp_seconds") == since
    assert feed.value("errors_total", "not_sent") == 2
    assert lights(feed.model, feed.clock.wall(), LIMIT)["errors"] is Light.WARN
    feed.clock.advance(300)
    assert feed.light is Light.BAD
    feed.tell("outage.ended", job="shop", batch_id=1, seconds=400.0)
    feed.tell("batch.completed", job="shop", batch_id=1, seconds=400.0, receipts=0)
    assert (feed.ready, feed.value("outage_start_timestamp_seconds")) == (True, 0)


def test_a_job_that_waits_does_not_hide_another_one_that_has_failed() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    for job in ("shop", "bank"):
        feed.tell("batch.started", job=job, batch_id=1, lanes=1, query=job)
    feed.tell("outage.met", job="shop", batch_id=1, code="not_sent", seconds=0.0, report=None)
    assert feed.lit() is Light.WARN
    feed.tell("batch.failed", job="bank", batch_id=1, seconds=0.5, code="rows_rejected", report=None)
    assert feed.lit() is Light.BAD
    assert feed.sentence.startswith("bank: The last micro-batch failed")
    feed.clock.advance(LIMIT + 100)
    assert feed.sentence.startswith("bank: The last micro-batch failed")


def test_a_job_is_not_green_while_rows_have_waited_for_long() -> None:
    feed = Told()
    feed.batch(0, receipt(feed))
    feed.tell("source.lagged", query="q", lags={"orders": SourceLag(9, 299.0)}, partitions={"0": 9})
    assert feed.lit() is Light.OK
    lags = {"orders": SourceLag(303_460, 720.0), "items": SourceLag(1, 2.0)}
    feed.tell("source.lagged", query="q", lags=lags, partitions={"0": 303_461})
    assert feed.lit() is Light.WARN
    assert feed.sentence == "303,460 rows of orders wait, the oldest one for 12 min; last committed 0.0 s ago."
    assert lights(feed.model, feed.clock.wall(), LIMIT)["fresh"] is Light.WARN
    feed.tell("source.unknown", query="q")
    assert feed.lit() is Light.OK


def test_a_query_that_runs_again_has_not_ended() -> None:
    feed = Told()
    feed.fail(0, "query_failed")
    feed.tell("query.ended", query="q", failed=True)
    assert feed.lit() is Light.BAD
    feed.clock.advance(120)
    feed.batch(0, receipt(feed))
    assert feed.light is Light.OK, feed.sentence


def test_the_pages_document_is_bounded() -> None:
    feed = Told()
    for number in range(10_000):
        feed.model.metrics.add("rows_total", 1.0, f"table-{number}", "upsert")
        feed.model.metrics.set("partition_position", 1.0, str(number))
        feed.model.recent.append({"number": number})
    document = dashboard_state(feed.model, feed.clock.wall(), LIMIT)
    assert len(orjson.dumps(document)) < 500_000
    lists = [value for part in document.values() if isinstance(part, dict) for value in part.values()]
    assert max(len(entries) for entries in lists if isinstance(entries, list)) <= 721
    table_count = len(document["flow"]["tables"])
    assert table_count == 200
    assert document["left_out"]["flow.tables"] > 0
    assert len(document["partitions"]["shown"]) == 200


def test_a_restart_of_the_query_is_counted_and_clears_what_ended_it() -> None:
    feed = Told()
    feed.tell("query.started", query="q")  # nothing is known of it yet
    feed.batch(0, receipt(feed))
    first = feed.clock.wall()
    assert feed.value("query_start_timestamp_seconds") == first
    feed.fail(1, "query_failed")
    feed.tell("query.ended", query="q", failed=True)
    assert feed.lit() is Light.BAD
    feed.clock.advance(10)
    feed.tell("query.started", query="q")
    assert (feed.value("query_restarts_total"), feed.value("query_start_timestamp_seconds")) == (1, first + 10)
    feed.clock.advance(301)
    feed.batch(1, receipt(feed, 1))
    assert feed.lit() is Light.OK
    assert "ended" not in feed.sentence


def test_a_job_is_known_with_its_database() -> None:
    feed = Told()
    feed.tell("batch.started", job="shop", batch_id=0, lanes=1, query="q", database="sales")
    assert feed.value("job_info", "shop", "sales") == 1


def test_the_first_snapshot_has_levels_and_each_tables_end_is_told_once() -> None:
    feed = Told()
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


def test_columns_that_rows_do_not_name_any_more_are_among_the_changes() -> None:
    feed = Told()
    feed.tell("columns.gone", job="shop", table="orders", gone="age, note", advice="")
    (entry,) = feed.model.schema_changes
    assert (entry["table"], entry["statement"].startswith("rows do not name age, note any more")) == ("orders", True)
