"""Maxwell's messages in the sink, from Spark to the server's tables and its ledger."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from starrocks_txn_sink import MaxwellAssembly, StarRocksSink
from tests.support.debezium_shop import DebeziumShop
from tests.support.maxwell_feed import Message, key, row, transaction

pytestmark = pytest.mark.spark


@pytest.fixture
def maxwell(debezium: DebeziumShop) -> DebeziumShop:
    """A shop of Maxwell's messages, all of one topic, for a table that keeps each row and one with a key."""
    debezium.assembly = MaxwellAssembly
    debezium.ask("CREATE TABLE shop.keyed (id INT NOT NULL, note STRING) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    return debezium


def put(shop: DebeziumShop, *messages: Message) -> None:
    shop.put_texts("maxwell", *((key(message), json.dumps(message)) for message in messages))


def items(xid: int, count: int) -> list[Message]:
    rows = [("insert", {"part": "shop", "position": xid, "seq": seq, "note": "x"}) for seq in range(1, count + 1)]
    return transaction(xid, *rows, table="items")


def test_transactions_are_written_whole_and_once_over_replays_and_a_restart(maxwell: DebeziumShop) -> None:
    put(maxwell, *items(1, 2), *items(2, 3)[:1])
    put(maxwell, *items(2, 3)[1:2])
    put(maxwell, *items(2, 3)[2:], *items(3, 1))
    assert [(r.batch_id, r.rows) for r in maxwell.go()] == [(0, 2), (2, 4)]
    for batch in (2, 1, 0):
        maxwell.forget_commit(batch)
    assert maxwell.go() == []
    put(maxwell, *items(4, 2))
    assert [r.rows for r in maxwell.go()] == [2]
    assert maxwell.rows() == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (4, 2)]
    assert maxwell.written() == (8, 8)
    assert maxwell.positions() == {"0": 4001}


def test_a_changed_key_leaves_no_row_behind(maxwell: DebeziumShop) -> None:
    put(
        maxwell,
        row("insert", {"id": 1, "note": "a"}, table="keyed", xid=1, commit=True),
        row("update", {"id": 2, "note": "b"}, old={"id": 1, "note": "a"}, table="keyed", xid=2, commit=True),
        row("insert", {"id": 3, "note": "c"}, table="keyed", xid=3, commit=True),
        row("delete", {"id": 3, "note": "c"}, table="keyed", xid=4, commit=True),
    )
    maxwell.go()
    assert maxwell.ask("SELECT id, note FROM shop.keyed") == [(2, "b")]


def test_change_by_change_needs_no_numbers_and_is_written_once(maxwell: DebeziumShop) -> None:
    rows = [row("insert", message["data"], table="items", xid=None) for message in items(1, 3)]
    put(maxwell, *rows[:2])
    put(maxwell, rows[2])
    assert [r.rows for r in maxwell.go(transactions="none")] == [2, 1]
    maxwell.forget_commit(1)
    assert maxwell.go(transactions="none") == []
    assert maxwell.written() == (3, 3)
    assert maxwell.positions() == {"maxwell-0": 2000}


def test_a_lost_row_stops_the_query_before_anything_of_its_transaction_is_written(maxwell: DebeziumShop) -> None:
    put(maxwell, *items(1, 2), *items(2, 4)[:1], *items(2, 4)[2:])
    with pytest.raises(StreamingQueryException, match=r"Row 2 of a source transaction does not follow.*txn_id=2"):
        maxwell.go()
    assert maxwell.written() == (0, 0)


def test_a_rejected_row_takes_its_whole_transaction_to_the_dead_letters(maxwell: DebeziumShop) -> None:
    good, bad, last = items(1, 1), items(2, 2), items(3, 1)
    bad[1]["data"]["position"] = "no number"
    put(maxwell, *good, *bad, *last)
    maxwell.go(on_bad_rows="quarantine")
    assert maxwell.rows() == [(1, 1), (3, 1)]


def test_a_batch_frame_gives_what_a_stream_gives(maxwell: DebeziumShop, spark: SparkSession) -> None:
    put(maxwell, *items(1, 2), *items(2, 2)[:1])
    frame = maxwell.messages(spark.read.text(str(maxwell.source)))
    receipts = StarRocksSink(maxwell.options(), assemble=MaxwellAssembly(reader="spark")).write(frame)
    assert [r.rows for r in receipts] == [2]
