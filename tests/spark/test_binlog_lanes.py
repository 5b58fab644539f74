"""Messages of Maxwell and Canal in the sink, from Spark to the server's tables and its ledger."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from starrocks_txn_sink import CanalAssembly, MaxwellAssembly, StarRocksSink, TableOptions
from tests.support.canal_feed import flat
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
    assert maxwell.positions() == {"maxwell-0": 4001}


def test_topics_that_the_query_does_not_show_stay_apart(maxwell: DebeziumShop) -> None:
    """Their partitions have the same numbers, and the second topic's offsets are below those of the first."""
    put(maxwell, *items(1, 2))
    messages = enumerate(items(2, 2))
    maxwell.files += 1
    maxwell.put_file(
        [{"topic": "b", "partition": 0, "offset": at, "value": json.dumps(message)} for at, message in messages]
    )
    maxwell.go()
    assert maxwell.rows() == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert maxwell.positions() == {"maxwell-0": 1001, "b-0": 1}


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


@pytest.fixture
def canal(debezium: DebeziumShop) -> DebeziumShop:
    """A shop of Canal's messages."""
    debezium.assembly = CanalAssembly
    debezium.ask("CREATE TABLE shop.orders (id INT NOT NULL, note STRING) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    return debezium


def put_flat(shop: DebeziumShop, *messages: Message) -> None:
    shop.put_texts("canal", *((None, json.dumps(message)) for message in messages))


def test_canals_messages_are_written_once_over_replays(canal: DebeziumShop) -> None:
    """Its values are texts; the rows of a message are one unit at the message's offset."""
    rows: list[dict[str, str | None]] = [
        {"part": "shop", "position": "1", "seq": str(seq), "note": None} for seq in range(1, 5)
    ]
    put_flat(canal, flat("INSERT", rows[:3], table="items"), flat("INSERT", [{"id": "1", "note": "a"}]))
    put_flat(canal, flat("INSERT", rows[3:], table="items"), flat("UPDATE", [{"id": "2", "note": "a"}], [{"id": "1"}]))
    assert [r.rows for r in canal.go()] == [4, 3]
    for batch in (1, 0):
        canal.forget_commit(batch)
    assert canal.go() == []
    assert canal.rows() == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert canal.ask("SELECT id, note FROM shop.orders") == [(2, "a")]
    assert canal.positions() == {"canal-0": 2001}


def test_canals_truncate_stops_the_query_or_is_told(canal: DebeziumShop) -> None:
    put_flat(canal, flat("INSERT", [{"id": "1"}]), flat("TRUNCATE", None, isDdl=True))
    with pytest.raises(StreamingQueryException, match="emptied a table with TRUNCATE"):
        canal.go()
    canal.go(on_truncate="ignore")
    assert [event.fields["table"] for event in canal.told if event.name == "truncate.ignored"] == ["orders"]


def test_tables_follow_new_columns_by_the_values_and_keep_the_types_that_they_have(canal: DebeziumShop) -> None:
    """Canal's texts say nothing about types: INT stays, and a new column is a text unless its type is declared."""
    canal.ask("ALTER TABLE shop.orders ADD COLUMN amount INT")
    put_flat(
        canal, flat("INSERT", [{"id": "1", "amount": "7"}]), flat("INSERT", [{"id": "2", "note": "a", "size": "9"}])
    )
    types = {"orders": TableOptions(types={"weight": "INT"})}
    put_flat(canal, flat("INSERT", [{"id": "3", "weight": "4"}]))
    canal.go(schema_changes="apply", sink_tables=types)
    assert canal.ask("SELECT id, amount, size, weight FROM shop.orders ORDER BY id") == [
        (1, 7, None, None),
        (2, None, "9", None),
        (3, None, None, 4),
    ]


def test_maxwells_new_columns_have_the_types_of_their_values(maxwell: DebeziumShop) -> None:
    put(
        maxwell,
        row("insert", {"id": 1, "note": "a", "amount": 7, "at": "2016-10-21 05:33:37"}, table="keyed", commit=True),
    )
    maxwell.go(schema_changes="apply")
    assert maxwell.ask("SELECT id, amount FROM shop.keyed") == [(1, 7)]
