"""The document behind the page, the last hour's series and percentiles: bounded, and right."""

from __future__ import annotations

from collections import Counter

import orjson
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.errors import CommitFailed, InputError
from starrocks_txn_sink.metrics.series import POINTS, SLOT_SECONDS, SLOTS, History
from starrocks_txn_sink.metrics.state import dashboard_state
from starrocks_txn_sink.writer.messages import BOUNDS, Durations, LaneReport, LaneTrouble
from tests.support.metrics_feed import LIMIT, MetricsFeed, receipt


def test_the_pages_document_can_be_written_as_json_at_any_moment() -> None:
    feed = MetricsFeed()
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


def test_the_pages_document_is_bounded() -> None:
    feed = MetricsFeed()
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
