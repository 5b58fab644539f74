"""The changelog functions on streams: state and its expiry, event-time order, and that a batch gives the same."""

from __future__ import annotations

import datetime
import decimal
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_txn_sink.changelog import from_changelog, to_changelog, to_starrocks_ops, upsert_materializer
from tests.support.changelog_feed import Feed, FileTime, as_dicts, running

pytestmark = pytest.mark.spark

UPSERT = {"upsert": "INSERT, UPDATE_BEFORE, UPDATE_AFTER", "delete": "DELETE"}


@pytest.mark.deep
def test_an_upsert_stream_with_a_state_ttl_unzips_as_the_document_says(spark: SparkSession, tmp_path: Path) -> None:
    """4.1.2.2.2, to the minute."""
    feed, time = Feed(spark, tmp_path, "op string, id int, name string"), FileTime(tmp_path / "time")
    frame = from_changelog(
        feed.frame, partition_by="id", state_ttl="5 minutes", op_mapping=UPSERT, uid="unzip", clock=time.clock()
    )

    def event(op: str, name: str) -> list[tuple[Any, ...]]:
        feed.add({"op": op, "id": 99, "name": name})
        return query.new()

    with running(frame, tmp_path) as query:
        assert event("upsert", "Orphan") == [("+I", 99, "Orphan")]
        time.advance(minutes=3)
        assert event("upsert", "Orphan Updated") == [("-U", 99, "Orphan"), ("+U", 99, "Orphan Updated")]
        time.advance(minutes=2)
        assert event("delete", "Orphan Updated") == [("-D", 99, "Orphan Updated")]
        time.advance(minutes=5)
        assert event("upsert", "Resurrected") == [("+I", 99, "Resurrected")]
        time.advance(minutes=50)
        assert event("upsert", "Back again") == [("+I", 99, "Back again")]


def at(clock: str, day: int = 1) -> str:
    return f"2026-01-0{day}T{clock}:00Z"


@pytest.mark.deep
def test_event_time_order_waits_sorts_compacts_and_counts_what_is_late(spark: SparkSession, tmp_path: Path) -> None:
    """4.1.2.2.3, and 4.1.2.2.1 a day later: rows wait for the watermark, five minutes behind the highest time seen."""
    feed = Feed(spark, tmp_path, "op string, id int, name string, event_time timestamp")
    events = feed.frame.withWatermark("event_time", "5 minutes")
    frame = from_changelog(events, partition_by="id", order_by="event_time", compact=True, uid="ordered")

    def event(op: str, key: int, name: str, clock: str, day: int = 1) -> dict[str, Any]:
        return {"op": op, "id": key, "name": name, "event_time": at(clock, day)}

    with running(frame.select("row_kind", "id", "name"), tmp_path) as query:
        feed.add(event("INSERT", 5, "A", "09:55"))
        feed.add(event("UPDATE_AFTER", 5, "Updated A", "09:57"))
        feed.add(event("UPDATE_AFTER", 5, "Between updates A", "09:56"))
        assert query.new() == []  # the watermark is at 9:52
        feed.add(event("INSERT", 6, "B", "10:20"))
        assert query.new() == [("+I", 5, "Updated A")]  # 10:15: the window of key 5, as its net effect
        feed.add(event("INSERT", 8, "at the watermark", "10:15"), event("INSERT", 9, "below it", "09:00"))
        feed.add(event("UPDATE_AFTER", 5, "Later A", "10:16"))
        assert query.new() == []
        feed.add(event("INSERT", 7, "C", "10:30"))
        assert sorted(query.new()) == [("+I", 6, "B"), ("+U", 5, "Later A")]
        assert query.observed("ordered-order", "late") == 2
        feed.add(event("INSERT", 6, "A", "10:05", day=2))
        assert query.new() == [("+I", 7, "C")]  # 10:00: Record A is buffered
        feed.add(event("INSERT", 5, "B", "09:55", day=2))
        feed.add(event("INSERT", 7, "C", "10:11", day=2))
        assert query.new() == [("+I", 6, "A")]  # 10:06: Record A is emitted, Record C is buffered
        assert query.observed("ordered-order", "late") == 3  # Record B was dropped


@pytest.mark.deep
def test_a_before_image_waits_for_its_after_image_over_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    """4.2.1.3.1: paired two minutes later; expired after five, the update leaves as an insert."""
    feed, time = Feed(spark, tmp_path, "row_kind string, id int, val int"), FileTime(tmp_path / "time")
    codes = {"INSERT": "c", "DELETE": "d", "UPDATE_BEFORE, UPDATE_AFTER": "u"}
    frame = to_changelog(
        feed.frame,
        before="before",
        after="after",
        partition_by="id",
        state_ttl="5 minutes",
        op_mapping=codes,
        clock=time.clock(),
    )
    with running(frame, tmp_path) as query:
        feed.add({"row_kind": "-U", "id": 1, "val": 10})
        assert query.new() == []
        time.advance(minutes=2)
        feed.add({"row_kind": "+U", "id": 1, "val": 20})
        assert query.new() == [("u", (1, 10), (1, 20))]
        feed.add({"row_kind": "-U", "id": 1, "val": 20})
        assert query.new() == []
        time.advance(minutes=6)
        feed.add({"row_kind": "+U", "id": 1, "val": 30})
        assert query.new() == [("c", None, (1, 30))]


@pytest.mark.deep
def test_a_changelog_compacted_between_watermarks_and_exported(spark: SparkSession, tmp_path: Path) -> None:
    """4.2.1.3.2: the net effect per key between two watermarks, as pairs with images."""
    feed = Feed(spark, tmp_path, "row_kind string, id int, name string, event_time timestamp")
    pairs = {"INSERT": "c", "UPDATE_BEFORE, UPDATE_AFTER": "u", "DELETE": "d"}
    frame = to_changelog(
        feed.frame.withWatermark("event_time", "5 minutes"),
        before="before",
        after="after",
        op_mapping=pairs,
        partition_by="id",
        passthrough="event_time",
        compact=True,
    )

    def change(kind: str, key: int, name: str, clock: str) -> dict[str, Any]:
        return {"row_kind": kind, "id": key, "name": name, "event_time": at(clock)}

    with running(frame.drop("event_time"), tmp_path) as query:
        feed.add(
            change("+I", 5, "Alice", "10:05"),
            change("-U", 5, "Alice", "10:06"),
            change("+U", 5, "Alice Updated", "10:06"),
        )
        assert query.new() == []
        feed.add(change("+I", 6, "Bob", "10:30"))
        assert query.new() == [("c", None, (5, "Alice Updated"))]
        feed.add(change("-U", 5, "Alice Updated", "10:50"), change("+U", 5, "Alice Final", "10:50"))
        assert query.new() == [("c", None, (6, "Bob"))]
        feed.add(change("+I", 7, "Carol", "11:10"))
        assert query.new() == [("u", (5, "Alice Updated"), (5, "Alice Final"))]


TYPED = (
    "op string, id bigint, lsn bigint, amount decimal(38,10), at timestamp, day date, ratio double, flag boolean,"
    " text string, tags array<int>, extra struct<x:bigint,y:string>"
)


def typed_event(random: Random, lsn: int) -> dict[str, Any]:
    """An event with values that do not survive pandas or carelessly written JSON, and with many NULLs."""

    def perhaps(value: Any) -> Any:
        return None if random.random() < 0.3 else value

    return {
        "op": random.choice(["upsert", "upsert", "delete"]),
        "id": 2**53 + random.randrange(6),
        "lsn": lsn,
        "amount": perhaps(f"1234567890123456789012345678.{random.randrange(10**10):010d}"),
        "at": perhaps(f"1880-01-02T03:04:05.{random.randrange(10**6):06d}Z"),
        "day": perhaps("0001-01-01"),
        "ratio": perhaps(random.choice([0.1, 1e300, -0.0])),
        "flag": perhaps(True),
        "text": perhaps(random.choice(['quo"te\\', "", "null", "😀\u2028\n", "NaN"])),
        "tags": perhaps([1, None]),
        "extra": perhaps({"x": 2**62 + 1, "y": None}),
    }


@pytest.mark.deep
def test_a_batch_gives_what_the_stream_gives_after_all_input(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(4)
    events = [typed_event(random, lsn) for lsn in range(120)]
    feed = Feed(spark, tmp_path, TYPED)
    feed.add({"op": "merge", "id": 1, "lsn": 0}, {"op": None, "id": 1, "lsn": 0})
    for start in range(0, len(events), 40):
        block = events[start : start + 40]
        random.shuffle(block)  # within a micro-batch the sequence decides
        feed.add(*block)

    def call(frame: Any) -> Any:
        return from_changelog(
            frame, partition_by="id", op_mapping=UPSERT, sequence="lsn", uid="typed", invalid_op_handling="SKIP"
        )

    with running(call(feed.frame), tmp_path) as query:
        streamed = query.new()
        assert query.observed("typed", "invalid_ops") == 2
    static = spark.read.schema(TYPED).json(str(tmp_path / "feed"))
    batch = call(static)
    assert by_key(streamed) == by_key([tuple(row) for row in batch.collect()])
    adds = batch.filter("row_kind in ('+I', '+U')").drop("row_kind")
    assert adds.exceptAll(static.filter("op = 'upsert'").drop("op")).count() == 0  # every value as it came
    assert adds.count() == sum(event["op"] == "upsert" for event in events)
    changes = by_key([tuple(row) for row in batch.collect()])
    assert {type(value) for rows in changes.values() for row in rows for value in row} >= {
        decimal.Decimal,
        datetime.datetime,
        datetime.date,
    }


def by_key(rows: list[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    groups = defaultdict(list)
    for row in rows:
        groups[row[1]].append(row)
    return dict(groups)


LEVELS = "op string, seq long, id int, level int"
ATTRIBUTES = "op string, aid int, attr string"
OLD, MOVED = (1, 10, "a1"), (1, 20, "b1")


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["auto", "none"])
def test_a_join_of_two_cdc_streams_whose_rows_arrive_out_of_order(
    spark: SparkSession, tmp_path: Path, mode: Any
) -> None:
    """The join of the document, shuffled on `level` over two tasks: the row of level 20 finds its partner first.

    With the materializer the table ends as the source; without it the late -U deletes the row.
    """
    task = F.pmod(F.hash(F.col("id").cast("int")), F.lit(2))
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.range(10, 21, 10).select(task).distinct().count() == 2  # the two levels are joined by different tasks
    levels, attributes = Feed(spark, tmp_path / "s1", LEVELS), Feed(spark, tmp_path / "s2", ATTRIBUTES)
    inserts = from_changelog(attributes.frame).filter("row_kind = '+I'").drop("row_kind")
    joined = (
        from_changelog(levels.frame, consume_full_deletes=True)
        .join(inserts, F.col("level") == F.col("aid"))
        .drop("aid")
    )
    changes = upsert_materializer(joined, sink_key="id", sequence="seq", mode=mode, uid="joined")
    assert (changes is joined) == (mode == "none")
    table: dict[int, Any] = {}
    with running(to_starrocks_ops(changes, sink_key="id", sequence="seq"), tmp_path) as query:
        levels.add(
            *as_dicts(
                ["seq", "op", "id", "level"],
                [(1, "INSERT", 1, 10), (2, "UPDATE_BEFORE", 1, 10), (2, "UPDATE_AFTER", 1, 20), (3, "INSERT", 2, 10)],
            )
        )
        for attribute in ({"aid": 20, "attr": "b1"}, {"aid": 10, "attr": "a1"}):
            attributes.add({"op": "INSERT", **attribute})
            for op, _, key, *row in query.new():
                table[key] = (key, *row) if op == "upsert" else None
    assert table == {1: MOVED if mode == "auto" else None, 2: (2, 10, "a1")}


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param([("+I", OLD), ("-U", OLD), ("+U", MOVED)], id="in order", marks=pytest.mark.deep),
        pytest.param([("+U", MOVED), ("+I", OLD), ("-U", OLD)], id="update first"),
        pytest.param([("+I", OLD), ("+U", MOVED), ("-U", OLD)], id="retraction last", marks=pytest.mark.deep),
    ],
)
def test_the_three_arrival_orders_end_alike(spark: SparkSession, arrivals: list[tuple[str, Any]]) -> None:
    rows = [(kind, *row, place) for place, (kind, row) in enumerate(arrivals)]
    frame = spark.createDataFrame(rows, "row_kind string, id int, level int, attr string, place int")
    changes = upsert_materializer(frame, sink_key="id", sequence="place")
    last = to_starrocks_ops(changes, sink_key="id", sequence="place").drop("place")
    assert [tuple(row) for row in last.collect()] == [("upsert", *MOVED)]


@pytest.mark.deep
def test_rows_that_swap_their_keys_need_the_materializer(spark: SparkSession) -> None:
    """For a moment two rows claim each key; a retraction of the one that leaves must not delete the other."""
    rows = [
        ("+I", 1, "a", 1),
        ("+I", 2, "b", 2),
        ("-U", 1, "a", 3),
        ("+U", 2, "a", 3),
        ("-U", 2, "b", 4),
        ("+U", 1, "b", 4),
    ]
    changes = spark.createDataFrame(rows, "row_kind string, id int, name string, lsn int")

    def table(frame: DataFrame) -> dict[int, str]:
        last = to_starrocks_ops(frame, sink_key="id", sequence="lsn").collect()
        return {row["id"]: row["name"] for row in last if row["op"] == "upsert"}

    assert table(upsert_materializer(changes, sink_key="id", sequence="lsn")) == {1: "b", 2: "a"}
    assert table(changes) == {1: "b"}
