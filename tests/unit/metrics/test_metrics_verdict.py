"""The sentence, the lights and the readiness that the model makes of events."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from starrocks_txn_sink.coordinator.model import Action
from starrocks_txn_sink.metrics.jobs import STEPS
from starrocks_txn_sink.metrics.source_lag import SourceLag
from starrocks_txn_sink.metrics.verdict import Light, lights, readiness
from starrocks_txn_sink.writer.messages import LaneReport, LaneTrouble
from tests.support.metrics_feed import LIMIT, MetricsFeed, receipt


def test_what_is_in_doubt_shows_until_a_take_over_has_settled_it() -> None:
    feed = MetricsFeed()
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
    feed = MetricsFeed()
    feed.fail(1, "outcome_unknown", LaneReport("shop", 0, 1, trouble=LaneTrouble(unsettled=1)))
    feed.tell("session.opened", job="shop", exactly_once=False)
    assert feed.value("in_doubt_transactions") == 1


def test_the_sentence_from_the_first_second_to_a_stalled_job() -> None:
    feed = MetricsFeed()
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
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.tell("query.ended", query="q", failed=False)
    assert feed.lit() is Light.NONE
    feed.batch(1, receipt(feed, 1))
    feed.tell("query.ended", query="q", failed=True)
    assert feed.lit() is Light.BAD
    assert not feed.ready


def test_a_batch_write_is_not_expected_to_go_on() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed), query="")
    feed.clock.advance(1000)
    assert feed.ready
    assert feed.value("last_progress_timestamp_seconds") == 0  # nothing for an alert to wait for
    assert feed.value("last_commit_timestamp_seconds") > 0


def test_a_stop_in_the_middle_of_a_micro_batch_is_no_failure() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.fail(1, "spark")
    assert feed.lit() is Light.BAD
    feed.tell("query.ended", query="q", failed=False)
    assert feed.sentence == "The query was stopped; last committed 0.0 s ago; nothing in doubt."


def test_a_query_that_was_stopped_does_not_hold_the_others_back() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.tell("query.ended", query="q", failed=False)
    feed.clock.advance(100)
    feed.tell("batch.started", job="other", batch_id=0, lanes=1, query="p")
    feed.tell("batch.completed", job="other", batch_id=0, seconds=1, receipts=0)
    assert feed.ready
    assert feed.value("last_progress_timestamp_seconds") == 0
    assert feed.value("last_progress_timestamp_seconds", "other") == feed.clock.wall()


def test_a_violation_outshines_everything() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.tell("integrity.violated", kind="torn")
    feed.batch(1, receipt(feed, 1))
    assert feed.lit() is Light.BAD
    assert "1 integrity violation" in feed.sentence
    assert lights(feed.model, feed.clock.wall(), LIMIT)["right"] is Light.BAD


def test_a_source_that_changed_is_a_violation_too() -> None:
    feed = MetricsFeed()
    feed.fail(0, "source_changed")
    assert feed.value("integrity_violations_total", "source_changed") == 1


def test_repeated_attempts_warn_and_then_calm_down() -> None:
    feed = MetricsFeed()
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
    feed = MetricsFeed()
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


def test_an_outage_is_a_pause_that_everybody_sees() -> None:
    feed = MetricsFeed()
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


def test_a_hold_is_a_pause_and_no_failure() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.tell("batch.started", job="shop", batch_id=1, lanes=1, query="q")
    feed.tell("outage.met", job="shop", batch_id=1, code="job_held", seconds=0.0, report=None)
    feed.clock.advance(20)
    assert feed.sentence == "A command (verify or resync) has held the job for 20 s; it goes on by itself."
    reason = readiness(feed.model, feed.clock.wall(), LIMIT).reason
    assert reason == "Job shop is held by a command for 20 s."
    assert feed.value("errors_total", "job_held") == 0
    assert {entry["outcome"] for entry in feed.model.recent} == {"committed"}
    assert lights(feed.model, feed.clock.wall(), LIMIT)["errors"] is Light.OK
    feed.clock.advance(500)
    assert feed.light is Light.WARN
    feed.tell("outage.met", job="shop", batch_id=1, code="not_sent", seconds=520.0, report=None)
    assert feed.sentence.startswith("Waiting for StarRocks")


def test_a_job_that_waits_does_not_hide_another_one_that_has_failed() -> None:
    feed = MetricsFeed()
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
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.tell("source.lagged", query="q", lags={"orders": SourceLag(9, 299.0)}, partitions={"0": 9})
    assert feed.lit() is Light.OK
    lags = {"orders": SourceLag(303_460, 720.0), "items": SourceLag(1, 2.0)}
    feed.tell("source.lagged", query="q", lags=lags, partitions={"0": 303_461})
    assert feed.lit() is Light.WARN
    assert feed.sentence == "303,460 rows of orders wait, the oldest one for 12 min; last committed 0.0 s ago."
    assert lights(feed.model, feed.clock.wall(), LIMIT)["fresh"] is Light.WARN
    feed.tell("query.ended", query="q", failed=False)
    assert "wait" not in feed.sentence


def test_brokers_that_have_ceased_to_answer_are_said_before_the_limit_of_progress() -> None:
    """Spark only waits for them: no micro-batch fails, and none begins."""
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.tell("source.unknown", query="q")
    assert feed.lit() is Light.OK, "nothing has answered yet"
    feed.tell("source.lagged", query="q", lags={"orders": SourceLag(0, 0.0)}, partitions={"0": 0})
    for seconds in (0, 12):
        feed.clock.advance(seconds)
        feed.tell("source.unknown", query="q")
    sentence = "The source's brokers have not answered for 12 s; last committed 12 s ago."
    assert (feed.lit(), feed.sentence) == (Light.WARN, sentence)
    assert readiness(feed.model, feed.clock.wall(), LIMIT).reason == sentence
    feed.tell("source.lagged", query="q", lags={"orders": SourceLag(0, 0.0)}, partitions={"0": 0})
    assert (feed.lit(), feed.ready) == (Light.OK, True)
    feed.tell("source.unknown", query="q")
    feed.tell("query.ended", query="q", failed=False)
    assert "brokers" not in feed.sentence


def test_the_wait_for_an_alter_is_named_until_it_ends() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.tell("batch.started", job="shop", batch_id=1, lanes=1, query="q")
    feed.clock.advance(61)
    feed.tell("schema.waiting", job="shop", table="items", seconds=60.0, alter="9", state="RUNNING")
    feed.clock.advance(3)
    assert feed.lit() is Light.WARN
    assert feed.sentence == "Waiting for ALTER of table items, state RUNNING, for 63 s; nothing is lost."
    assert readiness(feed.model, feed.clock.wall(), LIMIT).reason == (
        "Job shop waits for ALTER of table items, state RUNNING, for 63 s."
    )
    feed.tell("schema.waited", job="shop", table="items", seconds=63.0)
    assert "ALTER" not in feed.sentence
    feed.tell("schema.waiting", job="shop", table="items", seconds=0.0)
    feed.tell("batch.failed", job="shop", batch_id=1, seconds=9, code="deadline", report=None)
    assert "ALTER" not in feed.sentence


def test_a_long_step_of_the_driver_is_named_until_it_ends() -> None:
    feed = MetricsFeed()
    feed.batch(0, receipt(feed))
    feed.tell("batch.started", job="shop", batch_id=1, lanes=1, query="q")
    feed.tell("step.started", job="shop", step="commit", label="l")
    feed.clock.advance(20)
    feed.tell("step.failed", job="shop", step="commit", label="l", seconds=20.0, code="outcome_unknown")
    feed.tell("step.started", job="shop", step="recover", label="l")
    feed.clock.advance(42)
    assert readiness(feed.model, feed.clock.wall(), LIMIT).reason == (
        "Job shop made its last progress 62 s ago, asking what became of a commit for 42 s; the limit is 60 s."
    )
    assert feed.sentence == (
        "No progress for 62 s; a micro-batch has been running for 62 s, asking what became of a commit for 42 s."
    )
    feed.tell("step.completed", job="shop", step="recover", label="l", seconds=42.0)
    assert "asking" not in feed.sentence
    feed.tell("step.started", job="shop", step="lanes", label="l")
    feed.tell("batch.failed", job="shop", batch_id=1, seconds=9, code="deadline", report=None)
    assert "lanes" not in feed.sentence


def test_every_step_has_words() -> None:
    actions = {kind.__name__.removesuffix("Action").lower() for kind in get_args(Action)}
    assert {*STEPS} == actions | {"take_over", "lanes"}


def test_a_query_that_runs_again_has_not_ended() -> None:
    feed = MetricsFeed()
    feed.fail(0, "query_failed")
    feed.tell("query.ended", query="q", failed=True)
    assert feed.lit() is Light.BAD
    feed.clock.advance(120)
    feed.batch(0, receipt(feed))
    assert feed.light is Light.OK, feed.sentence


def test_a_restart_of_the_query_is_counted_and_clears_what_ended_it() -> None:
    feed = MetricsFeed()
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
