"""Freshness with Spark: pauses behind commits, what ends them, and what the server shows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from starrocks_txn_sink import StarRocksSink
from starrocks_txn_sink.telemetry import Event
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


class Told:
    """The events of a query over the shop's folder that has no trigger, with the time of each."""

    def __init__(self, shop: Shop, freshness: float) -> None:
        self.shop, self.fed = shop, 0
        self.events = list[tuple[float, Event]]()
        self.sink = StarRocksSink(shop.options(freshness=freshness), listener=self.take)

    def take(self, event: Event) -> None:
        self.events.append((time.monotonic(), event))

    def named(self, name: str) -> list[tuple[float, Event]]:
        return [pair for pair in self.events if pair[1].name == name]

    def pauses(self) -> list[float]:
        return [event.fields["pause"] for _, event in self.named("commits.paced")]

    def feed(self) -> None:
        self.fed += 1
        self.shop.feed(rows_of("p-0", [self.fed]))

    @contextmanager
    def running(self, **trigger: Any) -> Iterator[Any]:
        rows = self.shop.spark.readStream.schema(SCHEMA).json(str(self.shop.source))
        writer = rows.writeStream.foreachBatch(self.sink).option("checkpointLocation", str(self.shop.checkpoint()))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        try:
            yield query
        finally:
            query.stop()

    def wait_for(self, micro_batches: int) -> None:
        wait_until(lambda: len(self.named("commits.paced")) >= micro_batches)

    def feed_until_it_pauses(self, seconds: float, micro_batches: int = 20) -> None:
        """Give each micro-batch a source transaction, until a pause is longer than so many seconds."""
        for number in range(1, micro_batches):
            self.feed()
            self.wait_for(number)
            if self.pauses()[-1] > seconds:
                return
        raise AssertionError(self.pauses())


def test_a_stop_ends_a_pause_at_once_and_nothing_is_written_again(shop: Shop) -> None:
    told = Told(shop, 300.0)
    with told.running() as query:
        told.feed_until_it_pauses(30.0)
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 20
        assert query.exception() is None
    batches = len(told.named("batch.completed"))
    assert shop.written() == (2 * told.fed, 2 * told.fed)
    assert shop.open_labels() == []
    assert (shop.checkpoint() / "commits" / str(batches - 1)).exists()  # Spark knows that it is written
    assert shop.run() == []


def test_rows_that_come_in_a_pause_are_one_commit_and_the_pause_is_kept(shop: Shop) -> None:
    told = Told(shop, 8.0)
    with told.running():
        told.feed_until_it_pauses(3.0)
        paused_at, pause = told.named("commits.paced")[-1][0], told.pauses()[-1]
        before = len(told.named("receipt.collected"))
        for _ in range(5):
            told.feed()
        wait_until(lambda: len(told.named("receipt.collected")) > before)
        started_at = told.named("batch.started")[-1][0]
        wait_until(lambda: shop.written() == (2 * told.fed, 2 * told.fed))
    assert started_at - paused_at >= pause
    assert len(told.named("receipt.collected")) == before + 1


def test_a_query_that_ends_by_itself_does_not_pause(shop: Shop) -> None:
    told = Told(shop, 300.0)
    for _ in range(3):
        told.feed()
    with told.running(availableNow=True) as query:
        assert query.awaitTermination(120)
    assert told.named("commits.paced") == []
    assert shop.written() == (6, 6)


def test_a_tablet_with_many_rowsets_gets_fewer_commits(shop: Shop) -> None:
    answers = {
        "be_configs": {"columns": ["VALUE"], "rows": [["1000"]]},
        "be_tablets": {"columns": ["TABLE_NAME", "max"], "rows": [["items", 720]]},
    }
    rule = {"operation": "query", "action": "answer"}
    shop.fault(*({**rule, "label": sql, "body": json.dumps(body)} for sql, body in answers.items()))
    told = Told(shop, 1.0)
    with told.running():
        told.feed()
        wait_until(lambda: told.named("tablets.measured"))
        for number in range(2, 6):
            told.feed()
            told.wait_for(number)
    assert told.named("commits.paced")[-1][1].fields["reason"] == "rowsets"
