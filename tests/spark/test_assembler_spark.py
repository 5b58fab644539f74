"""One behaviour suite over both state operators, and what a batch DataFrame adds."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from starrocks_txn_sink import assemble_transactions
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sink.rows_writer import StageClock
from starrocks_txn_sink.sink.spark_jobs import batch_time
from tests.support.folder_stream import FolderStream

pytestmark = pytest.mark.spark

SCHEMA = (
    "source_partition INT, position BIGINT, type STRING, txn_id STRING, database STRING, table STRING, op STRING, "
    "row STRING, at TIMESTAMP, price DECIMAL(30, 3)"
)


def event(partition: int, position: int, kind: str, txn: str | None = "t", **fields: Any) -> dict[str, Any]:
    base = {"source_partition": partition, "position": position, "type": kind, "txn_id": txn}
    if kind == "DATA":
        base |= {"table": f"t{position % 2}", "row": json.dumps({"k": position})}
    return base | fields


def script(partition: int, text: str, first: int = 1) -> list[dict[str, Any]]:
    kinds = {"B": "BEGIN", "D": "DATA", "E": "END"}
    return [event(partition, n, kinds[word[0]], word[1:] or "t") for n, word in enumerate(text.split(), first)]


class Stream(FolderStream):
    def start(self, *, available_now: bool = False, **options: Any) -> StreamingQuery:
        events = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder))
        return self.run(assemble_transactions(events, **options), available_now=available_now)

    def all(self, *batches: list[dict[str, Any]], **options: Any) -> Counter[str]:
        """Run these micro-batches in a query of their own; the sum of what was observed."""
        query = self.start(**options)
        for batch in batches:
            self.put_lines(batch)
            query.processAllAvailable()
        query.stop()
        return observed(query)

    def places(self) -> list[tuple[Any, ...]]:
        return [(r.source_partition, r.position, r.seq, r.transaction_end, json.loads(r.row)["k"]) for r in self.out]


def observed(query: StreamingQuery) -> Counter[str]:
    metrics: Counter[str] = Counter()
    for progress in query.recentProgress:
        if progress.numInputRows:
            metrics.update(progress.observedMetrics["assemble_transactions"].asDict())
    return +metrics


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    with Stream(spark, tmp_path) as running:
        yield running


def test_whole_transactions_over_batches_partitions_and_a_restart(stream: Stream) -> None:
    """Two partitions, out of order inside a batch, repeats, a BEGIN that abandons, a restart in the middle."""
    before = stream.all(
        [*reversed(script(1, "B D D")), *script(2, "B D E B D")], script(1, "D D", 3) + script(2, "B D E", 6)
    )
    assert sorted(stream.places()) == [(2, 3, 0, True, 2), (2, 8, 0, True, 7)]
    assert before == Counter(
        events=13, data=7, released=2, rows=2, repeats=1, repeated_rows=1, abandoned=1, abandoned_rows=1,
        open=before["open"], open_rows=before["open_rows"], state_bytes=before["state_bytes"],
        oldest_open=before["oldest_open"],
    )  # fmt: skip
    stream.out.clear()
    after = stream.all(list(reversed(script(1, "D E B D E", 5))))
    assert stream.places() == [
        (1, 6, 0, False, 2), (1, 6, 1, False, 3), (1, 6, 2, False, 4), (1, 6, 3, True, 5), (1, 9, 0, True, 8)
    ]  # fmt: skip
    assert after == Counter(events=5, data=2, released=2, rows=5)


@pytest.mark.deep
def test_interleaved_transactions_survive_their_neighbours_end(stream: Stream) -> None:
    stream.all(script(1, "Ba Bb Da Db"), script(1, "Da Eb", 5), script(1, "Da Ea", 7), interleaved=True)
    assert [(r.txn_id, r.position, json.loads(r.row)["k"]) for r in stream.out] == [
        ("b", 6, 4), ("a", 8, 3), ("a", 8, 5), ("a", 8, 7)
    ]  # fmt: skip


@pytest.mark.deep
def test_values_pass_unchanged(stream: Stream) -> None:
    """NULL stays NULL, no string becomes another, further columns keep their type."""
    awkward = ["nan", "", "ü\u0000\u2028", "None", "null"]
    rows = [
        event(1, n, "DATA", row=text, op=None, price="12345678901234567890.125") for n, text in enumerate(awkward, 2)
    ]
    rows[0] |= {"database": "shop", "op": "nan", "at": "2024-05-06T07:08:09.123456Z"}
    stream.all([*script(1, "B"), *rows], script(1, "E", 9), passthrough=["at", "price"])
    assert [row.row for row in stream.out] == awkward
    assert [(row.database, row.op) for row in stream.out] == [("shop", "nan"), *[(None, None)] * 4]
    assert [str(row["at"]) for row in stream.out] == ["2024-05-06 07:08:09.123456", *["None"] * 4]
    assert {str(row.price) for row in stream.out} == {"12345678901234567890.125"}
    assert stream.out[0].__fields__ == [
        "source_partition", "position", "seq", "database", "table", "op", "row", "transaction_end", "txn_id", "at",
        "price",
    ]  # fmt: skip


@pytest.mark.deep
def test_a_source_transaction_that_cannot_be_whole_stops_the_query(stream: Stream) -> None:
    with pytest.raises(PySparkException, match=r"BEGIN was never seen.*partition=1, position=7, txn_id=t"):
        stream.all(script(1, "D E", 7))
    assert stream.out == []


@pytest.mark.deep
def test_open_too_long_is_dropped_whole_and_the_next_one_comes(stream: Stream) -> None:
    """Events of another source partition move the time on, and the timer fires with no event of the open one."""
    query = stream.start(open_timeout="1ms", on_open_timeout="drop")
    stream.put_lines(script(1, "B D"))
    query.processAllAvailable()
    assert dropped(query) == 0
    stream.put_lines(script(2, "B D E"))
    query.processAllAvailable()
    assert dropped(query) == 1
    stream.put_lines(script(1, "D E B D E", 3))
    query.processAllAvailable()
    query.stop()
    assert stream.places() == [(2, 3, 0, True, 2), (1, 7, 0, True, 6)]


def dropped(query: StreamingQuery) -> int:
    counts = [progress.observedMetrics.get("assemble_transactions") for progress in query.recentProgress]
    return sum(row.dropped for row in counts if row is not None)  # an idle trigger counts nothing


@pytest.mark.deep  # in the plain profile with Debezium's messages
def test_available_now_ends_with_an_open_transaction_that_the_next_run_completes(stream: Stream) -> None:
    stream.put_lines(script(1, "B D"))
    query = stream.start(available_now=True, open_timeout="10 min")
    assert query.awaitTermination(60)
    assert stream.out == []
    stream.put_lines(script(1, "D E", 3))
    query = stream.start(available_now=True, open_timeout="10 min")
    assert query.awaitTermination(60)
    assert stream.places() == [(1, 4, 0, False, 2), (1, 4, 1, True, 3)]


@pytest.mark.deep
def test_available_now_gives_up_in_a_later_run(stream: Stream) -> None:
    for events in (script(1, "B D"), script(2, "B D E")):
        stream.put_lines(events)
        query = stream.start(available_now=True, open_timeout="1ms", on_open_timeout="drop")
        assert query.awaitTermination(60)
    assert dropped(query) == 1
    assert stream.places() == [(2, 3, 0, True, 2)]


@pytest.mark.deep
def test_a_query_plans_one_empty_micro_batch_after_events_and_none_while_it_is_idle(stream: Stream) -> None:
    query = stream.start(open_timeout="10 min")
    for events in (script(1, "B D E B D"), script(2, "B D E"), script(1, "E", 6)):
        stream.put_lines(events)
        query.processAllAvailable()
    query.processAllAvailable()  # Spark looks once more, and finds nothing to do
    query.stop()
    planned = [
        (progress.batchId, progress.numInputRows)
        for progress in query.recentProgress
        if "addBatch" in progress.durationMs
    ]
    assert planned == [(0, 5), (1, 0), (2, 3), (3, 0), (4, 1), (5, 0)]


class ToldStream(Stream):
    """Its micro-batches are told the time of the run's clock, as the sink tells those whose rows it writes."""

    clock = StageClock()

    def take(self, rows: DataFrame, batch: int) -> None:
        query = self.spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        self.clock.tell(rows.sparkSession, query, batch)
        super().take(rows, batch)


def test_open_timeout_of_a_stage_stands_while_the_query_is_down_or_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of all micro-batches is shifted, so that an hour passes at once."""
    shift, reached, wall, stage = 0, True, time.time, "starrocks_txn_sink.sink.rows_writer."
    monkeypatch.setattr(stage + "batch_time", lambda *place: (batch_time(*place) or 0) + shift)
    monkeypatch.setattr(stage + "SystemClock.wall", lambda _: wall() + shift)
    monkeypatch.setattr(stage + "ReadToEnd.is_reached", lambda *_: reached)

    def dropped_after(seconds: int, events: list[dict[str, Any]]) -> int:
        nonlocal shift
        shift += seconds
        stream.put_lines(events)
        query.processAllAvailable()
        return dropped(query)

    with ToldStream(spark, tmp_path) as stream:
        query = stream.start(open_timeout="10 min", on_open_timeout="drop")
        assert dropped_after(0, script(1, "B D")) == 0
        assert dropped_after(540, script(2, "B")) == 0
        query.stop()
        stream.clock = StageClock()
        query = stream.start(open_timeout="10 min", on_open_timeout="drop")
        assert dropped_after(3600, script(2, "D", 2)) == 0, "the query was down"
        reached = False
        assert dropped_after(100, script(2, "D", 3)) == 0, "not all is read, perhaps not its END"
        reached = True
        assert dropped_after(0, script(2, "D E", 4)) == 1
    assert [place[:2] for place in stream.places()] == [(2, 5)] * 3


@pytest.mark.deep
def test_open_too_long_fails_with_the_place(stream: Stream) -> None:
    query = stream.start(open_timeout=0.001)
    stream.put_lines(script(1, "B D"))
    query.processAllAvailable()
    stream.put_lines(script(2, "B"))
    with pytest.raises(PySparkException, match=r"longer than open_timeout.*partition=1, position=1"):
        query.awaitTermination(60)


@pytest.mark.parametrize(
    "kind", ["BIGINT", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("INT", "STRING"))]
)
def test_a_batch_frame_gives_what_a_stream_gives_after_all(spark: SparkSession, kind: str) -> None:
    events = [*script(2, "B D D E B D"), *script(1, "B D B D E"), *script(1, "B D", 1)]
    names = ["source_partition", "position", "type", "txn_id", "table", "row"]
    values = [tuple(event.get(name) for name in names) for event in events]
    frame = spark.createDataFrame(values, ", ".join(part for part in SCHEMA.split(", ") if part.split()[0] in names))
    frame = frame.selectExpr(f"CAST(source_partition AS {kind}) AS shard", "position", "type", "txn_id", "table", "row")
    rows = assemble_transactions(frame.repartition(5), by="shard")
    assert rows.schema["source_partition"].dataType.simpleString() == kind.lower()
    places = [(int(r.source_partition), r.position, r.seq, r.transaction_end, r.op) for r in rows.collect()]
    assert sorted(places) == [(1, 5, 0, True, None), (2, 4, 0, False, None), (2, 4, 1, True, None)]


@pytest.mark.deep
def test_a_batch_frame_of_many_rows_stays_in_order(spark: SparkSession) -> None:
    """More rows than an Arrow batch holds, in one source transaction."""
    frame = spark.range(0, 50_002, 1, 4).selectExpr(
        "'p' AS source_partition", "id AS position", "'t' AS txn_id", "'x' AS table", "CAST(id AS STRING) AS row",
        "CASE WHEN id = 0 THEN 'begin' WHEN id = 50001 THEN 'end' ELSE 'data' END AS type",
    )  # fmt: skip
    rows = assemble_transactions(frame).collect()
    assert [(int(r.row), r.seq, r.position) for r in rows] == [(n + 1, n, 50_001) for n in range(50_000)]
    assert [r.seq for r in rows if r.transaction_end] == [49_999]


def test_a_null_source_partition_is_named_by_its_position(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None, 5, "BEGIN", "t", None, None)], "source_partition INT, position BIGINT, type STRING, txn_id STRING, table STRING, row STRING")  # noqa: E501  # fmt: skip
    with pytest.raises(PySparkException, match=r"no source partition.*position=5"):
        assemble_transactions(frame).collect()


def test_what_is_wrong_with_the_frame_is_said_at_once(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("id AS position", "'BEGIN' AS type", "named_struct('a', 1) AS row")
    with pytest.raises(
        InputError, match=r"lack the column source_partition, txn_id, table.*They have position, type, row"
    ):
        assemble_transactions(frame)
    full = frame.selectExpr("*", "1 AS p", "'t' AS txn_id", "'x' AS table")
    with pytest.raises(InputError, match=r"row is struct<a:int>.*to_json"):
        assemble_transactions(full, by="p")
    with pytest.raises(OptionError, match="passthrough names row"):
        assemble_transactions(full, by="p", passthrough=["row"])
    with pytest.raises(OptionError, match="missing_begin"):
        assemble_transactions(full, by="p", missing_begin="ignore")  # type: ignore[arg-type]
