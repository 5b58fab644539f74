"""State of the changelog functions over a restart, with either state store provider: it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from starrocks_txn_sink.changelog import from_changelog, to_changelog, to_starrocks_ops, upsert_materializer
from starrocks_txn_sink.spark_version import STATE_BY_KEY
from tests.support.changelog_feed import Feed, FileTime, running

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.spark

UPSERT = {"upsert": "INSERT, UPDATE_BEFORE, UPDATE_AFTER", "delete": "DELETE"}
PAIRS = {"INSERT": "c", "UPDATE_BEFORE, UPDATE_AFTER": "u", "DELETE": "d"}

Rows = list[tuple[Any, ...]]


NEWER = pytest.mark.skipif(not STATE_BY_KEY.works, reason="needs a newer Spark")


def at(clock: str) -> str:
    return f"2026-01-01T{clock}:00Z"


@pytest.mark.deep
def test_rows_that_wait_for_the_watermark_wait_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path, "op string, id int, name string, at timestamp")

    def ordered() -> DataFrame:
        events = feed.frame.withWatermark("at", "5 minutes")
        return from_changelog(events, partition_by="id", order_by="at", uid="ordered").select("row_kind", "id", "name")

    with running(ordered(), tmp_path) as query:
        feed.add({"op": "UPDATE_AFTER", "id": 5, "name": "second", "at": at("09:57")})
        feed.add({"op": "INSERT", "id": 5, "name": "first", "at": at("09:56")})
        assert query.new() == []
    with running(ordered(), tmp_path) as query:
        feed.add({"op": "INSERT", "id": 6, "name": "later", "at": at("10:02")})
        assert query.new() == [("+I", 5, "first"), ("+U", 5, "second")]  # the watermark is exactly at the second
        feed.add({"op": "INSERT", "id": 7, "name": "late", "at": at("09:50")})
        feed.add({"op": "INSERT", "id": 8, "name": "now", "at": at("10:30")})
        assert query.new() == [("+I", 6, "later")]
        assert query.observed("ordered-order", "late") == 1


@pytest.mark.deep
@pytest.mark.matrix
@NEWER
def test_previous_rows_outlive_a_restart_and_not_their_time(spark: SparkSession, tmp_path: Path) -> None:
    feed, time = Feed(spark, tmp_path, "op string, id int, name string"), FileTime(tmp_path / "time")

    def unzipped() -> DataFrame:
        return from_changelog(
            feed.frame, partition_by="id", state_ttl="5 minutes", op_mapping=UPSERT, clock=time.clock()
        )

    def event(op: str, name: str) -> dict[str, Any]:
        return {"op": op, "id": 1, "name": name}

    with running(unzipped(), tmp_path) as query:
        feed.add(event("upsert", "a"))
        assert query.until(1) == [("+I", 1, "a")]
    time.advance(minutes=4)
    with running(unzipped(), tmp_path) as query:
        feed.add(event("upsert", "b"))
        assert query.until(2) == [("-U", 1, "a"), ("+U", 1, "b")]
    time.advance(minutes=6)
    with running(unzipped(), tmp_path) as query:
        feed.add(event("upsert", "c"))
        assert query.until(1) == [("+I", 1, "c")]
        feed.add(event("delete", "c"))
        assert query.until(1) == [("-D", 1, "c")]


@pytest.mark.deep
@NEWER
def test_available_now_ends_with_a_state_ttl(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path, "op string, id int, name string")
    feed.add({"op": "upsert", "id": 1, "name": "a"})
    changes = from_changelog(feed.frame, partition_by="id", state_ttl="5 minutes", op_mapping=UPSERT)
    writer = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()


@pytest.mark.deep
@pytest.mark.matrix
@NEWER
def test_a_before_image_waits_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path, "row_kind string, id int, val int")

    def exported() -> DataFrame:
        return to_changelog(
            feed.frame, before="before", after="after", partition_by="id", op_mapping=PAIRS, uid="export"
        )

    with running(exported(), tmp_path) as query:
        feed.add({"row_kind": "-U", "id": 1, "val": 10}, {"row_kind": "+I", "id": 2, "val": 5})
        assert query.new() == [("c", None, (2, 5))]
        assert query.observed("export", "waiting") == 1
    with running(exported(), tmp_path) as query:
        feed.add({"row_kind": "+U", "id": 1, "val": 20}, {"row_kind": "-D", "id": 2, "val": 5})
        assert sorted(query.new()) == [("d", (2, 5), None), ("u", (1, 10), (1, 20))]
        assert query.observed("export", "waiting") == -1


@pytest.mark.deep
@pytest.mark.matrix
@NEWER
def test_the_rows_of_a_sink_key_are_remembered_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path, "seq long, row_kind string, id int, level int")

    def materialized() -> DataFrame:
        changes = upsert_materializer(feed.frame, sink_key="id", sequence="seq", uid="table")
        return to_starrocks_ops(changes, sink_key="id", sequence="seq").select("op", "id", "level")

    with running(materialized(), tmp_path) as query:
        feed.add({"seq": 1, "row_kind": "+I", "id": 1, "level": 10}, {"seq": 2, "row_kind": "+U", "id": 1, "level": 20})
        assert query.new() == [("upsert", 1, 20)]
    with running(materialized(), tmp_path) as query:
        feed.add({"seq": 3, "row_kind": "-U", "id": 1, "level": 10})
        assert query.new() == []
        feed.add({"seq": 4, "row_kind": "-D", "id": 1, "level": 99})
        assert query.new() == []
        assert query.observed("table", "swallowed") == 1
        feed.add({"seq": 5, "row_kind": "-D", "id": 1, "level": 20})
        assert query.new() == [("delete", 1, 20)]


def exported(changes: DataFrame) -> DataFrame:
    return to_changelog(
        changes,
        before="before",
        after="after",
        partition_by="id",
        op_mapping=PAIRS,
        sequence="seq",
        passthrough=("id", "seq"),
    )


def settled(changes: DataFrame) -> DataFrame:
    return upsert_materializer(changes, sink_key="id", sequence="seq")


@pytest.mark.deep
@pytest.mark.parametrize("call", [exported, settled])
def test_a_batch_gives_what_the_stream_gave(
    spark: SparkSession, tmp_path: Path, call: Callable[[DataFrame], DataFrame]
) -> None:
    random, schema = Random(6), "seq long, row_kind string, id int, level int"
    feed = Feed(spark, tmp_path, schema)
    for batch in range(3):
        rows = [
            {"seq": 30 * batch + place, "row_kind": kind, "id": random.randrange(4), "level": random.randrange(3)}
            for place, kind in enumerate(random.choices(["+I", "-U", "+U", "-D"], k=30))
        ]
        random.shuffle(rows)
        feed.add(*rows)
    with running(call(feed.frame), tmp_path) as query:
        streamed = query.new()
    again = call(spark.read.schema(schema).json(str(tmp_path / "feed"))).collect()
    assert sorted(map(str, streamed)) == sorted(str(tuple(row)) for row in again)
    assert len(streamed) > 10


@pytest.mark.deep
def test_order_and_state_in_one_call(spark: SparkSession, tmp_path: Path) -> None:
    """Two state operators behind each other, the first of them by event time."""
    feed = Feed(spark, tmp_path, "op string, id int, name string, at timestamp")
    events = feed.frame.withWatermark("at", "5 minutes")
    call: Callable[[], DataFrame] = lambda: from_changelog(  # noqa: E731
        events, partition_by="id", order_by="at", op_mapping=UPSERT
    ).select("row_kind", "name")
    with running(call(), tmp_path) as query:
        feed.add({"op": "upsert", "id": 1, "name": "b", "at": at("09:57")})
        feed.add({"op": "upsert", "id": 1, "name": "a", "at": at("09:56")})
        feed.add({"op": "upsert", "id": 2, "name": "c", "at": at("10:30")})
        assert query.new() == [("+I", "a"), ("-U", "a"), ("+U", "b")]
