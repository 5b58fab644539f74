"""`compact` on real Spark, into a stand-in that applies the rows of a transaction in an arbitrary order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.errors import PythonException, SparkRuntimeException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import RowOrder, Settings
from starrocks_txn_sink import StarRocksSink, TableRoute
from starrocks_txn_sink.errors import InputError, OptionError, SourceChanged
from starrocks_txn_sink.sink import compaction
from starrocks_txn_sink.sink.compaction import KeyColumn, KeyType, _normal_form
from tests.support.exactly_once_shop import SCHEMA, Shop
from tests.support.key_forms import normal_form

pytestmark = pytest.mark.spark

Row = tuple[Any, ...]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    with Emulator(tmp_path / "emulator", Settings(row_order=RowOrder.ARBITRARY, row_order_seed=5)) as server:
        made = Shop(spark, server, tmp_path)
        made.ask(
            "CREATE TABLE shop.accounts (id BIGINT NOT NULL, balance BIGINT, moved BIGINT) PRIMARY KEY(id)"
            " DISTRIBUTED BY HASH(id)"
        )
        yield made
        assert made.open_labels() == []


def change(partition: str, position: int, seq: int, table: str, row: dict[str, Any], *, end: bool = False) -> Row:
    return (partition, position, seq, table, orjson.dumps(row).decode(), end)


def deposits(partition: str, positions: Sequence[int], keys: int = 10) -> list[Row]:
    """Source transactions that each set all accounts of a partition, and tell of it in a table without a key."""
    offset = 1000 * int(partition.rsplit("-", 1)[1])
    rows = []
    for position in positions:
        sets = [{"id": offset + key, "balance": 100 * position + key, "moved": position} for key in range(keys)]
        rows += [change(partition, position, seq, "accounts", row) for seq, row in enumerate(sets)]
        rows.append(
            change(partition, position, keys, "items", {"part": partition, "position": position, "seq": 0}, end=True)
        )
    return rows


def balances(shop: Shop) -> set[tuple[int, int]]:
    """The positions that accounts show, by partition: one each as long as the last row of a key wins."""
    return set(shop.ask("SELECT CAST(floor(id / 1000) AS BIGINT), moved FROM shop.accounts"))


# --- the result ---


def test_the_last_row_of_a_key_wins_in_any_order_and_counts_add_up(shop: Shop) -> None:
    rows = deposits("p-0", [1, 2, 3]) + deposits("p-1", [1, 2])
    (receipt,) = StarRocksSink(shop.options(compact=True)).write(shop.frame(rows))
    assert balances(shop) == {(0, 3), (1, 2)}
    assert (receipt.rows, receipt.compacted) == (10 + 10 + 5, 20 + 10)
    assert receipt.rows + receipt.compacted == len(rows)
    assert receipt.source_transactions == 5
    compacted = {(region.partition, region.table): region.compacted for region in receipt.regions}
    assert compacted == {("p-0", "accounts"): 20, ("p-0", "items"): 0, ("p-1", "accounts"): 10, ("p-1", "items"): 0}
    assert shop.written()[0] == 5  # the table without a primary key has all of its rows


def test_without_it_an_arbitrary_order_decides(shop: Shop) -> None:
    (receipt,) = StarRocksSink(shop.options()).write(shop.frame(deposits("p-0", [1, 2, 3])))
    assert receipt.compacted == 0
    assert len(balances(shop)) > 1


def test_a_transaction_that_loses_all_its_rows_still_moves_the_position(shop: Shop) -> None:
    rows = [change("p-0", position, 0, "accounts", {"id": 1, "balance": position}, end=True) for position in (1, 2, 3)]
    (receipt,) = StarRocksSink(shop.options(compact=True)).write(shop.frame(rows))
    assert (receipt.rows, receipt.compacted, receipt.source_transactions) == (1, 2, 3)
    assert [(span.first, span.last) for span in receipt.positions] == [(1, 3)]
    assert shop.ask("SELECT position FROM shop._starrocks_txn_sink_ledger WHERE kind = 'position'") == [(3,)]


def test_deletes_and_rows_that_come_back(shop: Shop) -> None:
    sink = StarRocksSink(shop.options(compact=True))
    rows = [
        ("p-0", 1, 0, "accounts", '{"id":1,"balance":1}', False, "upsert"),
        ("p-0", 1, 1, "accounts", '{"id":2,"balance":1}', False, "upsert"),
        ("p-0", 1, 2, "accounts", '{"id":1,"balance":1}', False, "delete"),
        ("p-0", 1, 3, "accounts", '{"id":2,"balance":1}', False, "delete"),
        ("p-0", 1, 4, "accounts", '{"id":2,"balance":2}', True, "upsert"),
    ]
    frame = shop.spark.createDataFrame(rows, f"{SCHEMA}, op string")
    (receipt,) = sink.write(frame)
    assert (receipt.rows, receipt.compacted) == (2, 3)
    assert shop.ask("SELECT id, balance FROM shop.accounts") == [(2, 2)]


def test_each_lane_and_micro_batch_is_one_starrocks_transaction(shop: Shop) -> None:
    rows = [row for part in range(4) for row in deposits(f"p-{part}", range(1, 6))]
    sink = StarRocksSink(shop.options(compact=True, lanes=2, commit_interval=0.001))
    receipts = sink.write(shop.frame(rows).repartition(3))
    assert sorted(receipt.lane for receipt in receipts) == [0, 1]
    assert not any(receipt.recycled for receipt in receipts)
    assert balances(shop) == {(part, 5) for part in range(4)}
    assert sum(receipt.rows + receipt.compacted for receipt in receipts) == len(rows)


# --- keys ---


def test_keys_are_compared_by_the_columns_type(shop: Shop) -> None:
    shop.ask(
        "CREATE TABLE shop.typed (n BIGINT NOT NULL, d DECIMAL(10,2) NOT NULL, t DATETIME NOT NULL,"
        " s VARCHAR(20) NOT NULL, v INT) PRIMARY KEY(n, d, t, s) DISTRIBUTED BY HASH(n)"
    )
    same = [
        '{"n":1,"d":1.5,"t":"2026-01-02 03:04:05","s":"a","v":1}',
        '{"v":2,"n":"1","d":"1.50","t":"2026-01-02 03:04:05.000","s":"a"}',
        '{"n":1.0,"d":"01.5","t":"2026/1/2 3:4:5","s":"a","v":3}',
    ]
    other = [
        '{"n":1,"d":1.5,"t":"2026-01-02 03:04:05","s":"A","v":4}',
        '{"n":1,"d":1.51,"t":"2026-01-02 03:04:05","s":"a","v":5}',
        '{"n":1,"d":1.5,"t":"2026-01-02 03:04:06","s":"a","v":6}',
        '{"n":-1,"d":1.5,"t":"2026-01-02 03:04:05","s":"a","v":7}',
    ]
    rows = [("p-0", 1, seq, "typed", row, False) for seq, row in enumerate([*other, *same])]
    rows[-1] = (*rows[-1][:5], True)
    (receipt,) = StarRocksSink(shop.options(compact=True)).write(shop.frame(rows))
    assert (receipt.rows, receipt.compacted) == (5, 2)
    assert shop.ask("SELECT v FROM shop.typed ORDER BY v") == [(3,), (4,), (5,), (6,), (7,)]


def test_typed_columns_and_other_names_in_the_frame(shop: Shop) -> None:
    sink = StarRocksSink(
        shop.options(compact=True), routes=[TableRoute("accounts", {"ID": "account", "balance": "amount"})]
    )
    numbers = F.col("id")
    frame = shop.spark.range(40).select(
        F.lit("p-0").alias("source_partition"),
        F.floor(numbers / 10).alias("position"),
        (numbers % 10).alias("seq"),
        ((numbers % 10) == 9).alias("transaction_end"),
        (numbers % 4).cast("decimal(12,0)").alias("account"),
        numbers.alias("amount"),
    )
    (receipt,) = sink.write(frame)
    assert (receipt.rows, receipt.compacted) == (4, 36)
    assert shop.ask("SELECT id, balance FROM shop.accounts ORDER BY id") == [(0, 36), (1, 37), (2, 38), (3, 39)]


def test_a_key_that_the_server_computes_is_refused(shop: Shop) -> None:
    columns = {"accounts": {"columns": "raw, balance, `id` = raw + 1, moved = 2"}}
    with pytest.raises(OptionError, match="columns of accounts computes its key column id"):
        StarRocksSink(shop.options(compact=True, tables=columns)).write(shop.frame(deposits("p-0", [1])))
    plain = {"accounts": {"columns": "id, balance, moved"}}
    StarRocksSink(shop.options(compact=True, tables=plain)).write(shop.frame(deposits("p-0", [1])))


def test_rows_without_a_key_are_sent_and_judged_by_the_server(shop: Shop) -> None:
    shop.ask(
        "CREATE TABLE shop.defaults (id BIGINT NOT NULL DEFAULT '7', v INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
    )
    rows = [change("p-0", 1, 0, "defaults", {"v": 1}), change("p-0", 1, 1, "defaults", {"v": 1}, end=True)]
    with pytest.raises(PythonException, match=r"rejected 2 rows of defaults.*NULL in a NOT NULL column, column id"):
        StarRocksSink(shop.options(compact=True)).write(shop.frame(rows))
    assert shop.ask("SELECT id, v FROM shop.defaults") == []


def test_a_key_that_cannot_be_compared_fails_with_its_place_and_not_its_content(shop: Shop) -> None:
    rows = [change("p-0", 4, 0, "accounts", {"id": "secret"}, end=True)]
    sink = StarRocksSink(shop.options(compact=True))
    with pytest.raises(SparkRuntimeException) as caught:
        sink.write(shop.frame(rows))
    said = str(caught.value)
    assert "compact: the table accounts has a key that cannot be compared: its column id needs a whole number" in said
    assert "met at source partition p-0, position 4" in said
    assert "secret" not in said


def test_a_table_that_came_later_fails_clearly(shop: Shop) -> None:
    sink = StarRocksSink(shop.options(compact=True))
    sink.write(shop.frame(deposits("p-0", [1])))
    shop.ask("CREATE TABLE shop.later (id BIGINT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    rows = [change("p-0", 2, 0, "later", {"id": 1}, end=True)]
    with pytest.raises(SparkRuntimeException, match="the table later did not exist when the query started"):
        sink.write(shop.frame(rows))
    sink.write(shop.frame(rows))  # the next session knows it
    assert shop.ask("SELECT id FROM shop.later") == [(1,)]


def test_rows_without_positions_have_no_last_one(shop: Shop) -> None:
    sink = StarRocksSink(shop.options(compact=True))
    with pytest.raises(InputError, match=r"the rows have no positions, and compact is on.*to_starrocks_ops"):
        sink.write(shop.frame(deposits("p-0", [1])).select("table", "row"))


TEXTS = [
    *("1", "1.0", " 1 ", "+1", "-1", "-0", "0.00", "007", "1.5", ".5", "5.", "1e3", "true", "FALSE", "", "-", "x"),
    *("12345678901234567890123456789012345678901", "-0012.3400", "2.", "2026-13-45", "\u0663", "é", "\t3\t", "3\n"),
    *("2026-01-02", "2026/1/2", "20260102", " 20260102 ", "20260102030405", "2026-01-02 03:04", " 2026-1-2 "),
    *("2026-01-02T3:4:5.6", "2026-01-02 03:04:05.0000001", "2026-01-02 03:04:05.123456", "2026-01-02 03:04:05Z"),
]


def test_the_jvm_and_the_rule_agree_on_every_text(spark: SparkSession) -> None:
    rng = random.Random(7)
    alphabet = "0123456789+-. :/Te"
    texts = TEXTS + ["".join(rng.choices(alphabet, k=rng.randrange(12))) for _ in range(2000)]
    columns = [KeyColumn("k", family, scale) for family in KeyType for scale in (None, 0, 2)]
    frame = spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1)
    forms = frame.select(*(_normal_form(column, F.col("text")) for column in columns)).collect()
    for text, row in zip(texts, forms, strict=True):
        assert list(row) == [normal_form(column, text) for column in columns], text


# --- exactly once ---


def test_a_replay_after_a_crash_between_commit_and_checkpoint_writes_nothing_twice(shop: Shop) -> None:
    shop.feed(deposits("p-0", [1, 2]))
    shop.feed(deposits("p-0", [3, 4]) + deposits("p-1", [1]))
    shop.run(compact=True)
    shop.forget_commit(1)
    assert shop.run(compact=True) == []
    assert balances(shop) == {(0, 4), (1, 1)}
    assert shop.written() == (5, 5)


def test_a_replay_that_is_cut_differently_is_exact(shop: Shop) -> None:
    """Old rows are visible already: they are skipped, and stand for no row that is still to be written."""
    shop.feed(deposits("p-0", [1, 2]))
    shop.feed(deposits("p-0", [3, 4]))
    shop.run(compact=True)
    shop.forget_batches()
    shop.feed(deposits("p-0", [5, 6]) + deposits("p-1", [1, 2]))
    (receipt,) = shop.run(compact=True, files=None)  # one micro-batch of all that
    assert receipt.batch_id == 0
    assert (receipt.rows, receipt.compacted) == (10 + 2 + 10 + 2, 20)
    assert balances(shop) == {(0, 6), (1, 2)}
    assert shop.written() == (8, 8)


def test_rows_of_a_key_that_two_partitions_write(shop: Shop) -> None:
    """p-1 is visible already, so its row must not make p-0's new one disappear."""

    def shared(partition: str, position: int) -> list[Row]:
        return [change(partition, position, 0, "accounts", {"id": 1, "moved": 10 * position}, end=True)]

    sink = StarRocksSink(shop.options(compact=True))
    sink.write(shop.frame(shared("p-1", 1)))
    (receipt,) = StarRocksSink(shop.options(compact=True)).write(shop.frame(shared("p-1", 1) + shared("p-0", 2)))
    assert (receipt.rows, receipt.compacted) == (1, 0)
    assert shop.ask("SELECT moved FROM shop.accounts") == [(20,)]


def test_other_content_is_noticed_also_where_it_was_left_out(shop: Shop) -> None:
    rows = [change("p-0", 1, seq, "accounts", {"id": 1, "moved": seq}, end=seq == 1) for seq in (0, 1)]
    shop.feed(rows)
    shop.run(compact=True)
    shop.forget_batches()
    shop.write_file("1.json", [change("p-0", 1, 0, "accounts", {"id": 1, "moved": 9}), rows[1]])
    with pytest.raises(StreamingQueryException, match=SourceChanged.__name__):
        shop.run(compact=True)


def test_a_lane_that_is_tried_again_compacts_alike(shop: Shop) -> None:
    shop.fault({"operation": "load", "times": 2, "action": "drop", "when": "before"})
    (receipt,) = StarRocksSink(shop.options(compact=True)).write(shop.frame(deposits("p-0", [1, 2, 3])))
    assert receipt.attempts > 1
    assert (receipt.rows, receipt.compacted) == (13, 20)
    assert balances(shop) == {(0, 3)}


def test_key_columns_that_the_server_does_not_tell_are_an_error(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "PRIMARY_KEYS", "DUP_KEYS")
    with pytest.raises(OptionError, match="names no key column of items"):
        StarRocksSink(shop.options(compact=True)).write(shop.frame(deposits("p-0", [1])))
