"""The sink assembles Debezium's messages: the rules of the stage, its positions and its ledger, in the lane."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException

from starrocks_txn_sink import DebeziumAssembly, StarRocksSink
from starrocks_txn_sink.errors import OptionError
from tests.support.debezium_shop import DebeziumShop, begin, end, insert, read, whole

pytestmark = pytest.mark.spark


def test_rows_and_ends_meet_over_micro_batches_and_a_restart(debezium: DebeziumShop) -> None:
    debezium.put(read(1), *whole(5, 2), begin(6), insert(6, 1))
    debezium.put(end(6, 3), insert(6, 3))
    assert [(r.batch_id, r.rows) for r in debezium.go()] == [(0, 3)]
    debezium.put(insert(6, 2), insert(6, 2), *whole(7, 1))
    assert [(r.batch_id, r.rows) for r in debezium.go()] == [(2, 4)]
    assert debezium.rows() == [(1, 0), (5, 1), (5, 2), (6, 1), (6, 2), (6, 3), (7, 1)]
    assert debezium.positions() == {"shop": 7999}
    (counted,) = (event.fields for event in debezium.told if event.name == "assembler.counted")
    counts = counted["counts"]
    assert (counts["data"], counts["rows"], counts["repeated_rows"], counts["open"]) == (3, 4, 1, 0)


def test_a_replayed_micro_batch_starts_from_the_same_state_and_writes_nothing_twice(debezium: DebeziumShop) -> None:
    debezium.put(read(1), read(2), begin(5), insert(5, 2))
    debezium.put(insert(5, 1), end(5, 2), read(3), *whole(6, 1), insert(7, 1))
    debezium.put(end(7, 1))
    assert [r.rows for r in debezium.go()] == [2, 4, 1]
    for batch in (2, 1, 0):
        debezium.forget_commit(batch)
    assert debezium.go() == []
    assert debezium.written() == (7, 7)


def test_a_job_of_the_stage_goes_on_in_the_lane_without_a_row_twice(debezium: DebeziumShop) -> None:
    """Same job, same positions; the checkpoint is a new one."""
    debezium.put(read(1), *whole(5, 2), *whole(6, 1))
    debezium.go("stage", stage=True)
    staged = debezium.positions()
    debezium.put(*whole(7, 2))
    assert [r.rows for r in debezium.go("lane", files=9)] == [2]
    assert (staged, debezium.positions()) == ({"shop": 6999}, {"shop": 7999})
    assert debezium.written() == (6, 6)


def test_a_micro_batch_may_be_written_in_rounds(debezium: DebeziumShop) -> None:
    """Each round reads all messages again; the ledger leaves out what earlier rounds have written."""
    debezium.ask(
        "CREATE TABLE shop.notes (part STRING, position BIGINT, seq INT, note STRING) "
        "DUPLICATE KEY(part) DISTRIBUTED BY HASH(part)"
    )
    long = {"note": "x" * 50_000}  # the lane writes pieces of 4 MB, and a round ends behind one of them
    ended = [(*(insert(txn, row, **long) for row in (1, 2, 3)), end(txn, 3)) for txn in range(1, 100)]
    debezium.put(*(event for events in ended for event in events), insert(500, 1))
    receipts = debezium.go(commit_interval=0.001, tables={"public.items": "notes"})
    assert [receipt.recycled for receipt in receipts] == [True] * (len(receipts) - 1) + [False]
    assert len(receipts) > 1
    debezium.put(end(500, 1))
    assert [r.rows for r in debezium.go(tables={"public.items": "notes"})] == [1]
    rows = debezium.ask("SELECT count(*), count(DISTINCT concat(position, '/', seq)) FROM shop.notes")
    assert rows == [(3 * 99 + 1, 3 * 99 + 1)]


def test_an_overdue_transaction_is_quarantined_as_the_ledger_counts_it(debezium: DebeziumShop) -> None:
    debezium.ask(
        "CREATE TABLE shop.letters (txn_id STRING, total_order BIGINT, collection STRING, position BIGINT, "
        "reason STRING, op STRING, content STRING) DUPLICATE KEY(txn_id) DISTRIBUTED BY HASH(txn_id)"
    )
    debezium.put(insert(5, 1), end(5, 2), *whole(6, 1))
    debezium.put(*whole(7, 1))
    debezium.go(open_timeout="1ms", dead_letter_table="letters")
    assert debezium.rows() == [(6, 1), (7, 1)]
    assert debezium.positions() == {"shop": 7999, "shop#quarantine": 1}
    ((reason, content),) = debezium.ask("SELECT reason, content FROM shop.letters")
    assert (reason, json.loads(str(content))["position"]) == ("rows missing", 5)
    assert [event.fields["txn_id"] for event in debezium.told if event.name == "transaction.quarantined"] == ["5"]


def test_an_overdue_transaction_may_stop_the_query(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 1), end(5, 2))
    debezium.put(insert(6, 1))
    with pytest.raises(StreamingQueryException, match=r"not added up for longer than open_timeout.*txn_id=5"):
        debezium.go(open_timeout="1ms", on_open_timeout="fail")


def test_a_micro_batch_that_runs_again_has_sparks_time_of_its_first_run(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 1), end(5, 2))
    debezium.put(*whole(6, 1))
    debezium.go(open_timeout="1 hour")
    assert debezium.rows() == []
    debezium.forget_commit(1)
    debezium.set_time(1, later=7200)
    debezium.go(open_timeout="1 hour")
    assert [event.fields["txn_id"] for event in debezium.told if event.name == "transaction.quarantined"] == ["5"]
    assert debezium.rows() == [(6, 1)]


def test_lost_state_is_an_error_that_says_what_to_do(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 1))
    debezium.go()
    for file in (debezium.checkpoint() / "starrocks_txn_sink" / "batches").iterdir():
        file.unlink()
    debezium.put(*whole(6, 1))
    with pytest.raises(StreamingQueryException, match="lacks the assembler's state after micro-batch 0"):
        debezium.go()


def test_a_frame_without_kafkas_columns_is_refused(debezium: DebeziumShop) -> None:
    debezium.put(*whole(5, 1))
    frame = debezium.topics().drop("timestamp")
    sink = StarRocksSink(debezium.options(), assemble=DebeziumAssembly(reader="spark"))
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(debezium.checkpoint()))
    with pytest.raises(StreamingQueryException, match="lacks the column timestamp"):
        writer.trigger(availableNow=True).start().awaitTermination(60)


def test_a_batch_frame_gives_what_a_stream_gives(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 2), end(5, 2), insert(5, 1), insert(6, 1))
    frame = debezium.messages(debezium.spark.read.text(str(debezium.source)))
    receipts = StarRocksSink(debezium.options(), assemble=DebeziumAssembly(reader="spark")).write(frame)
    assert [r.rows for r in receipts] == [2]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tables", {}),
        ("deleted_row", "after"),
        ("reader", "kafka"),
        ("open_timeout", 0),
        ("on_unknown_table", "dead_letter"),
        ("state_dir", "relative"),
    ],
)
def test_wrong_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(OptionError):
        DebeziumAssembly(**{option: value})  # type: ignore[arg-type]
