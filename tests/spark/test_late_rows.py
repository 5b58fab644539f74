"""Rows that come late: a label's time counts from the first load, and not while a source or a shuffle is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from starrocks_txn_sink import SinkOptions, StarRocksSink
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of

pytestmark = pytest.mark.spark

TIMEOUT = 10  # the least that the option takes


def silent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A source that says nothing for longer than a label lives, and then everything."""
    time.sleep(TIMEOUT + 1)
    yield from batches


def options(shop: Shop, **changes: object) -> SinkOptions:
    return shop.options(timeout=TIMEOUT, batch_deadline=30.0 * TIMEOUT, max_attempts=1, **changes)


@pytest.mark.parametrize(("lanes", "shuffle"), [(2, "auto"), (2, True), (1, "auto")])
def test_a_source_that_is_silent_for_longer_than_a_label_lives_is_written_with_one_label(
    shop: Shop, lanes: int, shuffle: bool | str
) -> None:
    """By the source's own tasks, behind a shuffle that waits for them, and by one task."""
    rows = [row for part in range(2) for row in rows_of(f"p-{part}", range(1, 6))]
    frame = shop.spark.createDataFrame(shop.spark.sparkContext.parallelize(rows, lanes), SCHEMA)
    first = [row for part in range(2) for row in rows_of(f"w-{part}", [1])]  # Python's workers start, at times slowly
    StarRocksSink(shop.options(lanes=2)).write(shop.spark.createDataFrame(first, SCHEMA))
    shop.count_requests()
    sink = StarRocksSink(options(shop, lanes=lanes, shuffle=shuffle))
    (receipt,) = sink.write(frame.mapInArrow(silent, SCHEMA))
    assert (receipt.attempts, receipt.retries, receipt.rows) == (1, 0, 20)
    assert receipt.open_seconds < TIMEOUT
    requests = shop.requests()
    assert (requests["begin"], requests["rollback"]) == (1, 0)
    assert (shop.written(), shop.open_labels()) == ((24, 24), [])


def test_what_is_visible_already_begins_no_label(shop: Shop) -> None:
    rows = [row for part in range(2) for row in rows_of(f"p-{part}", range(1, 6))]
    frame = shop.spark.createDataFrame(shop.spark.sparkContext.parallelize(rows, 2), SCHEMA)
    sink = StarRocksSink(shop.options(lanes=2))
    assert len(sink.write(frame)) == 1
    shop.count_requests()
    assert sink.write(frame) == []
    assert shop.requests() == dict.fromkeys(shop.requests(), 0)
