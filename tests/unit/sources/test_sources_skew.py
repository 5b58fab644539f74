from __future__ import annotations

import json

from starrocks_txn_sink.metrics.spark_progress import read_progress
from starrocks_txn_sink.sources.kafka.skew import skew_of

END = {"a": {"0": 5, "1": 7}, "@time": 2500}
LATEST = {"a": {"0": 9, "1": 7}, "b": {"0": 3}, "@time": -1, "@newest": {"a": {"0": 9000, "1": 2500}}}


def test_skew_and_rows_held_back_by_partition() -> None:
    for source in ({"endOffset": END, "latestOffset": LATEST},
                   {"endOffset": json.dumps(END), "latestOffset": json.dumps(LATEST)}):  # fmt: skip
        skew = skew_of(source)
        assert (skew.read_until, skew.seconds, skew.held_back_rows) == (2.5, 6.5, 4)
        assert skew.newest == {"a-0": 9.0, "a-1": 2.5}
        assert skew.held_back == {"a-0": 4, "a-1": 0, "b-0": 0}


def test_before_anything_was_read_there_is_no_skew() -> None:
    skew = skew_of({"endOffset": None, "latestOffset": None})
    assert (skew.read_until, skew.seconds, skew.held_back_rows) == (None, 0.0, 0)


def test_the_metrics_show_its_lag_as_that_of_sparks_own_source() -> None:
    assert read_progress({"sources": [{"endOffset": END, "latestOffset": LATEST}]}).lags == {"a/0": 4, "a/1": 0}
