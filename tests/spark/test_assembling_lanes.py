"""The sink assembles: raw events in, whole source transactions out, what is open carried in the checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from starrocks_txn_sink import StarRocksSink, TransactionAssembly, TxnEventLines
from tests.support.assembling_shop import IN_JSON, AssemblingShop, script
from tests.support.debezium_shop import DebeziumShop
from tests.support.log_records import records_of

pytestmark = pytest.mark.spark


# What comes after parsing is the same; the plain profile tries it with raw lines.
either = pytest.mark.parametrize("assembling", ["lines", pytest.param("events", marks=pytest.mark.deep)], indirect=True)


@either
def test_open_transactions_are_carried_over_batches_and_a_restart(assembling: AssemblingShop) -> None:
    assembling.put(script("p-0", "B D D E B D"), script("p-1", "B D"))
    assembling.put(script("p-0", "D", 7))
    assert [(r.batch_id, r.rows) for r in assembling.go()] == [(0, 2)]
    assembling.put(script("p-0", "D E", 8), script("p-1", "E B D D", 3))
    assembling.put(script("p-1", "E", 7))
    assert [(r.batch_id, r.rows) for r in assembling.go()] == [(2, 4), (3, 2)]
    assert assembling.notes() == [
        ("p-0", 2), ("p-0", 3), ("p-0", 6), ("p-0", 7), ("p-0", 8), ("p-1", 2), ("p-1", 5), ("p-1", 6)
    ]  # fmt: skip


def test_topics_that_the_query_does_not_show_stay_apart(debezium: DebeziumShop) -> None:
    """Their partitions have the same numbers, and the second topic's offsets are below those of the first."""
    debezium.assembly = lambda reader: TransactionAssembly(lines=TxnEventLines(reader=reader))
    for number, (topic, first) in enumerate((("a", 1000), ("b", 0)), 1):
        row = json.dumps({"part": "shop", "position": number, "seq": 1, "note": "x"})
        events = [{"type": "BEGIN"}, {"type": "DATA", "table": "items", "row": row}, {"type": "END"}]
        texts = [json.dumps({**event, "txn_id": str(number)}) for event in events]
        debezium.files += 1
        debezium.put_file(
            [{"topic": topic, "partition": 0, "offset": at, "value": text} for at, text in enumerate(texts, first)]
        )
    debezium.go()
    assert debezium.rows() == [(1, 1), (2, 1)]
    assert debezium.positions() == {"a-0": 1002, "b-0": 2}


# --- checkpoints ---


def open_tail(shop: AssemblingShop) -> None:
    """Three micro-batches; p-0 is open after each of the first two."""
    shop.put(script("p-0", "B D D E B D"))
    shop.put(script("p-0", "D D", 7), script("p-1", "B D E"))
    shop.put(script("p-0", "D E", 9))


def test_a_replayed_micro_batch_starts_from_the_same_state_and_writes_nothing_twice(assembling: AssemblingShop) -> None:
    open_tail(assembling)
    assert [r.rows for r in assembling.go()] == [2, 1, 4]
    for batch in (2, 1):
        assembling.forget_commit(batch)
    assert assembling.go() == []
    assert assembling.written() == (7, 7)


@pytest.mark.deep
def test_a_checkpoint_restored_from_an_older_copy_brings_its_state_along(assembling: AssemblingShop) -> None:
    files: list[Path] = []
    for texts in (["B D D E B D"], ["D D"], ["D E"]):
        files.append(assembling.put(script("p-0", texts[0], 1 + sum(_lines(file) for file in files))))
        assembling.go()
        if len(files) == 1:
            shutil.copytree(assembling.checkpoint(), assembling.checkpoint("copy"))
    shutil.rmtree(assembling.checkpoint())
    assembling.checkpoint("copy").rename(assembling.checkpoint())
    assert assembling.go() == []
    assert assembling.written() == (6, 6)


@pytest.mark.deep
def test_a_recreated_topic_under_the_same_job_is_an_error_before_anything_is_lost(assembling: AssemblingShop) -> None:
    assembling.put(script("p-0", "B D D E B D E"))
    assembling.put(script("p-0", "B D E", 8))
    assembling.go()
    assembling.files = 0  # the same files with other events
    assembling.put(script("p-0", "B D E B D D E B", txn="new"))
    assembling.put(script("p-0", "D D E", 9, txn="new"))
    with pytest.raises(StreamingQueryException, match=r"SourceChanged.*to position 11 .*position 10,.*another `job`"):
        assembling.go("new")
    assert assembling.written() == (4, 4)


def _lines(file: Path) -> int:
    return len(file.read_bytes().splitlines())


@pytest.mark.deep
def test_micro_batches_that_start_at_0_again_take_no_state_from_before(assembling: AssemblingShop) -> None:
    open_tail(assembling)
    assembling.go()
    assembling.forget_batches()
    assembling.put(script("p-0", "B D E", 11))
    assert sum(r.rows for r in assembling.go(files=2)) == 1
    assert assembling.written() == (8, 8)


def test_lost_state_is_an_error_that_says_what_to_do(assembling: AssemblingShop) -> None:
    open_tail(assembling)
    assembling.go()
    for file in (assembling.checkpoint() / "starrocks_txn_sink" / "batches").glob("*2-*"):
        file.unlink()
    assembling.put(script("p-0", "B D E", 11))
    with pytest.raises(StreamingQueryException, match=r"state after micro-batch 2 .*Restore the folder"):
        assembling.go()


@pytest.mark.deep
def test_rows_of_an_open_transaction_that_are_gone_are_an_error(assembling: AssemblingShop) -> None:
    assembling.put(script("p-0", "B" + " D" * 600))
    assembling.put(script("p-0", "E", 602))
    query, _, _ = assembling.begin(assembly={"state_dir": str(assembling.folder / "state")})
    assert query.awaitTermination(60)
    assert assembling.written() == (600, 600)
    assembling.forget_commit(1)
    for file in (assembling.folder / "state").glob("*/rows/*"):
        file.unlink()
    with pytest.raises(StreamingQueryException, match="Rows of an open source transaction are missing"):
        assembling.go(assembly={"state_dir": str(assembling.folder / "state")})


@pytest.mark.deep
@either
def test_the_number_of_lanes_may_change_while_transactions_are_open(assembling: AssemblingShop) -> None:
    parts = [f"p-{n}" for n in range(5)]
    for first, text in ((1, "B D D"), (4, "D E B D"), (8, "E")):
        assembling.put(*(script(part, text, first) for part in parts))
        assembling.go(lanes=first)
    assert assembling.written() == (20, 20)
    assert len(assembling.state("batches")) == 3


@pytest.mark.deep
def test_state_is_kept_as_long_as_sparks_own_and_no_longer(assembling: AssemblingShop) -> None:
    assembling.spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    try:
        assembling.put(script("p-0", "B" + " D" * 600))
        for number in range(5):
            assembling.put(script("p-0", "D " * 300, 602 + 300 * number))
        assembling.put(script("p-0", "E", 2102))
        for _ in range(4):
            assembling.put(script("p-1", "B D E", 3 * assembling.files))
        assembling.go()
    finally:
        assembling.spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    assert assembling.written() == (2104, 2104)
    assert [name[8:12] for name in assembling.state("batches")] == ["0009", "0010"]
    assert assembling.state("rows") == []


# --- order, errors ---


@pytest.fixture
def nothing_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every micro-batch is so large that its events are not put in order by the lane itself."""
    monkeypatch.setattr("starrocks_txn_sink.sink.events_writer.SMALL_ROWS", 0)


def out_of_order(shop: AssemblingShop) -> None:
    """Spark reads the larger of two files first, so their order is not that of the positions."""
    shop.put(script("p-0", "B D E B D"))
    shop.put(script("p-0", "D D D D D D E", 6))


@either
def test_the_order_of_a_small_micro_batch_does_not_matter(assembling: AssemblingShop) -> None:
    out_of_order(assembling)
    assert [r.rows for r in assembling.go(files=2, shuffle=False)] == [8]
    assert assembling.written() == (8, 8)


@either
@pytest.mark.usefixtures("nothing_small")
def test_events_out_of_order_are_sorted_after_nothing_was_committed(assembling: AssemblingShop) -> None:
    out_of_order(assembling)
    assert [r.rows for r in assembling.go(files=2)] == [8]
    assert assembling.written() == (8, 8)


@pytest.mark.deep
@pytest.mark.usefixtures("nothing_small")
def test_rows_that_arrive_long_before_their_begin_are_sorted_too(assembling: AssemblingShop) -> None:
    """The rules see the beginning of the first file alone, where a BEGIN seems to be missing."""
    assembling.put(script("p-0", "B D"))
    assembling.put(script("p-0", "D " * 31_000 + "E", 3))
    assert [r.rows for r in assembling.go(files=2)] == [31_001]


@pytest.mark.usefixtures("nothing_small")
def test_without_a_shuffle_events_out_of_order_are_an_error(assembling: AssemblingShop) -> None:
    out_of_order(assembling)
    with pytest.raises(StreamingQueryException, match=r'1 came after 12.*Nothing was committed.*Set shuffle to "auto"'):
        assembling.go(files=2, shuffle=False)
    assert assembling.written() == (0, 0)


def test_broken_source_transactions_fail_with_their_place_or_are_dropped(assembling: AssemblingShop) -> None:
    assembling.put(script("p-0", "D E B D E"))
    with pytest.raises(StreamingQueryException, match=r"BEGIN was never seen.*partition=p-0, position=1"):
        assembling.go()
    assert assembling.written() == (0, 0)
    query, _, events = assembling.begin("other", assembly={"missing_begin": "drop"}, job="other")
    assert query.awaitTermination(60)
    assert assembling.notes() == [("p-0", 4)]
    (notice,) = [event for event in events if event.name == "transaction.without_begin"]
    assert notice.fields["rows"] == 1


@pytest.mark.deep
@either
def test_a_plain_frame_is_assembled_as_a_whole(assembling: AssemblingShop) -> None:
    assembling.put(script("p-0", "B D E B D"), script("p-1", "B D D E"))
    assembling.put(script("p-0", "D E B D", 6))
    frame = assembling.events(assembling.spark.read)
    assemble = TransactionAssembly(lines=IN_JSON if assembling.raw else None)
    for row_count in (5, 0):
        receipts = StarRocksSink(assembling.options(), assemble=assemble).write(frame)
        assert sum(receipt.rows for receipt in receipts) == row_count
    assert assembling.written() == (5, 5)


def test_counters_and_levels_reach_the_listener(assembling: AssemblingShop) -> None:
    assembling.put(script("p-0", "B D D E B D"), script("p-1", "B D"))
    assembling.put(script("p-0", "B D D E B D"), script("p-0", "D", 7))
    query, _, events = assembling.begin("check point %41")
    assert query.awaitTermination(60)
    assert (assembling.checkpoint("check point %41") / "starrocks_txn_sink" / "batches").is_dir()
    counted_fields = [event.fields for event in events if event.name == "assembler.counted"]
    first, second = [fields["counts"] for fields in counted_fields]
    assert {(place["partition"], place["position"]) for place in counted_fields[0]["oldest"]} == {
        ("p-0", 5),
        ("p-1", 1),
    }
    assert (first["events"], first["released"], first["rows"], first["open"], first["open_rows"]) == (8, 1, 2, 2, 2)
    assert (second["repeats"], second["repeated_rows"], second["data"], second["open_rows"]) == (6, 3, 4, 3)
    assert second["oldest_open"] > 1.7e9


# --- lanes that read Kafka ---

DIRECT = TxnEventLines(reader="librdkafka")


def test_lanes_read_no_other_source_than_kafka(assembling: AssemblingShop) -> None:
    assembling.put(script("p-0", "B D E"))
    with pytest.raises(StreamingQueryException, match="nothing else: there is") as failure:
        assembling.go(assembly={"lines": DIRECT})
    assert "Spark then reads the topic" in str(failure.value)
    assert assembling.notes() == []


def test_spark_reads_the_topic_of_a_batch_frame(assembling: AssemblingShop, caplog: pytest.LogCaptureFixture) -> None:
    assembling.put(script("p-0", "B D D E"), script("p-1", "B D E B D"))
    topic = assembling.events(assembling.spark.read).selectExpr(
        "value",
        "get_json_object(value, '$.source_partition') AS partition",
        "CAST(get_json_object(value, '$.position') AS BIGINT) AS offset",
    )
    sink = StarRocksSink(assembling.options(job="direct"), assemble=TransactionAssembly(lines=DIRECT))
    assert [receipt.rows for receipt in sink.write(topic)] == [3]
    assert assembling.notes() == [("p-0", 2), ("p-0", 3), ("p-1", 2)]
    (warning,) = records_of(caplog, "option.without_effect")
    assert "option=reader" in warning.getMessage()
