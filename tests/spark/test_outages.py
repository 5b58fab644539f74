"""Outages of the emulator under a running query: it pauses, goes on by itself, and can be stopped meanwhile."""

from __future__ import annotations

import json
import time

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.depth import is_deep
from tests.support.exactly_once_shop import Shop, rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

AWAY = {"action": "answer", "status": 503, "body": ""}


def tries(shop: Shop) -> int:
    return sum(int(rule["matched"]) for rule in shop.server.faults.report()["rules"])


@pytest.mark.deep
@pytest.mark.parametrize(
    "operation", [*(pytest.param(name, marks=pytest.mark.deep) for name in ("begin", "load")), "commit"]
)
def test_a_query_goes_on_after_an_outage_and_writes_every_row_once(shop: Shop, operation: str) -> None:
    shop.feed(rows_of("p-0", [1]))
    query, receipts = shop.start(forever=True, max_attempts=1)
    wait_until(lambda: shop.written() == (2, 2))
    shop.fault({"operation": operation, **AWAY})
    shop.feed(rows_of("p-0", [2]))
    wait_until(lambda: tries(shop) >= (3 if is_deep() else 2))  # one attempt a try: the micro-batch was written again
    shop.fault()
    wait_until(lambda: [span.last for receipt in receipts for span in receipt.positions] == [1, 2])
    assert shop.written() == (4, 4)
    assert query.isActive
    query.stop()
    assert shop.open_labels() == []


def test_labels_that_reach_their_timeout_one_after_the_other_are_waited_out(shop: Shop) -> None:
    """A commit is so answered after loads that were too slow, or a driver that has slept (wire contract 4.12)."""
    shop.feed(rows_of("p-0", [1]))
    query, _ = shop.start(forever=True, max_attempts=1)
    wait_until(lambda: shop.written() == (2, 2))
    too_late = {"Status": "FAILED", "Message": "Load timeout. Increase the timeout and retry"}
    shop.fault({"operation": "commit", "action": "answer", "body": json.dumps(too_late)})
    shop.feed(rows_of("p-0", [2]))
    wait_until(lambda: tries(shop) >= 2)
    shop.fault()
    wait_until(lambda: shop.written() == (4, 4))
    assert query.isActive
    query.stop()


def test_a_stop_during_an_outage_ends_the_query_at_once(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1]))
    query, _ = shop.start(forever=True, max_attempts=1)
    wait_until(lambda: shop.written() == (2, 2))
    shop.fault({"operation": "begin", **AWAY})
    shop.feed(rows_of("p-0", [2]))
    wait_until(lambda: tries(shop) >= 2)
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 60  # an outage is waited for much longer
    assert not query.isActive


def test_an_outage_in_its_first_micro_batch_is_waited_out_once_a_transaction_was_begun(shop: Shop) -> None:
    shop.fault({"operation": "load", **AWAY})
    shop.feed(rows_of("p-0", [1]))
    query, _ = shop.start(forever=True, max_attempts=1)
    wait_until(lambda: tries(shop) >= 2)
    shop.fault()
    wait_until(lambda: shop.written() == (2, 2))
    assert query.isActive
    query.stop()


def test_a_start_without_a_live_backend_is_waited_out(shop: Shop) -> None:
    shop.server.end_backends()
    shop.feed(rows_of("p-0", [1]))
    shop.fault({"operation": "query", "label": "tables_config", "action": "delay", "seconds": 0})
    query, _ = shop.start(max_attempts=1)
    wait_until(lambda: tries(shop) >= 2)
    assert query.isActive
    shop.server.start_backends()
    query.awaitTermination(60)
    assert shop.written() == (2, 2)


def test_before_its_first_transaction_a_query_fails_at_once(shop: Shop) -> None:
    shop.fault({"operation": "begin", **AWAY})
    shop.feed(rows_of("p-0", [1]))
    query, _ = shop.start(max_attempts=1)
    with pytest.raises(StreamingQueryException, match=r"BadReply|BeginFailed"):
        query.awaitTermination(60)
