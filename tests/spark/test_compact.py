"""`compact` on real Spark, into an emulator that applies the rows of a transaction in an arbitrary order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import orjson
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from starrocks_emulator.settings import RowOrder
from starrocks_txn_sink import StarRocksSink, TableRoute, TransactionAssembly, assemble_transactions
from starrocks_txn_sink.errors import RowsRejected, SourceChanged
from starrocks_txn_sink.rows.columns import TRANSACTION_COLUMNS
from starrocks_txn_sink.sources import parse_txn_events
from tests.support.assembling_shop import IN_JSON
from tests.support.exactly_once_shop import SCHEMA, Shop

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.accounts (id BIGINT NOT NULL, balance BIGINT, moved BIGINT) PRIMARY KEY(id)"
        " DISTRIBUTED BY HASH(id)",
        row_order=RowOrder.ARBITRARY,
        row_order_seed=5,
    ),
]

Row = tuple[Any, ...]


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
    (receipt,) = StarRocksSink(shop.options()).write(shop.frame(rows))
    assert balances(shop) == {(0, 3), (1, 2)}
    assert (receipt.rows, receipt.compacted) == (10 + 10 + 5, 20 + 10)
    assert receipt.rows + receipt.compacted == len(rows)
    assert receipt.source_transactions == 5
    compacted = {(region.partition, region.table): region.compacted for region in receipt.regions}
    assert compacted == {("p-0", "accounts"): 20, ("p-0", "items"): 0, ("p-1", "accounts"): 10, ("p-1", "items"): 0}
    assert shop.written()[0] == 5  # the table without a primary key has all of its rows


def test_without_it_an_arbitrary_order_decides(shop: Shop) -> None:
    (receipt,) = StarRocksSink(shop.options(compact=False)).write(shop.frame(deposits("p-0", [1, 2, 3])))
    assert receipt.compacted == 0
    assert len(balances(shop)) > 1


def test_a_transaction_that_loses_all_its_rows_still_moves_the_position(shop: Shop) -> None:
    rows = [change("p-0", position, 0, "accounts", {"id": 1, "balance": position}, end=True) for position in (1, 2, 3)]
    (receipt,) = StarRocksSink(shop.options()).write(shop.frame(rows))
    assert (receipt.rows, receipt.compacted, receipt.source_transactions) == (1, 2, 3)
    assert [(span.first, span.last) for span in receipt.positions] == [(1, 3)]
    assert shop.ask("SELECT position FROM shop._starrocks_txn_sink_ledger WHERE kind = 'position'") == [(3,)]


def test_deletes_and_rows_that_come_back(shop: Shop) -> None:
    sink = StarRocksSink(shop.options())
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


@pytest.mark.deep
def test_several_lanes_and_commits_leave_the_last_row_of_a_key(shop: Shop) -> None:
    rows = [row for part in range(4) for row in deposits(f"p-{part}", range(1, 6))]
    sink = StarRocksSink(shop.options(lanes=2, shuffle=True, commit_interval=0.001))
    receipts = sink.write(shop.frame(rows).repartition(3))
    assert balances(shop) == {(part, 5) for part in range(4)}
    assert sum(receipt.rows + receipt.compacted for receipt in receipts) == len(rows)


# --- keys ---


def test_keys_are_compared_by_the_columns_type(shop: Shop) -> None:
    shop.ask(
        "CREATE TABLE shop.typed (n BIGINT NOT NULL, d LARGEINT NOT NULL, t DATETIME NOT NULL,"
        " s VARCHAR(20) NOT NULL, v INT) PRIMARY KEY(n, d, t, s) DISTRIBUTED BY HASH(n)"
    )
    same = [
        '{"n":1,"d":15,"t":"2026-01-02 03:04:05","s":"a","v":1}',
        '{"v":2,"n":"1","d":"15","t":"2026-01-02 03:04:05.000","s":"a"}',
        '{"n":1.0,"d":"015","t":"2026/1/2 3:4:5","s":"a","v":3}',
    ]
    unequal = [
        '{"n":1,"d":15,"t":"2026-01-02 03:04:05","s":"A","v":4}',
        '{"n":1,"d":16,"t":"2026-01-02 03:04:05","s":"a","v":5}',
        '{"n":1,"d":15,"t":"2026-01-02 03:04:06","s":"a","v":6}',
        '{"n":-1,"d":15,"t":"2026-01-02 03:04:05","s":"a","v":7}',
    ]
    rows = [("p-0", 1, seq, "typed", row, False) for seq, row in enumerate([*unequal, *same])]
    rows[-1] = (*rows[-1][:5], True)
    (receipt,) = StarRocksSink(shop.options()).write(shop.frame(rows))
    assert (receipt.rows, receipt.compacted) == (5, 2)
    assert shop.ask("SELECT v FROM shop.typed ORDER BY v") == [(3,), (4,), (5,), (6,), (7,)]


def test_typed_columns_and_other_names_in_the_frame(shop: Shop) -> None:
    sink = StarRocksSink(shop.options(), routes=[TableRoute("accounts", {"ID": "account", "balance": "amount"})])
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


@pytest.mark.deep
def test_tables_whose_rows_may_not_replace_each_other_get_them_all(shop: Shop) -> None:
    computed = {"accounts": {"columns": "raw, balance, `id` = raw + 1, moved = 2"}}
    rows = [change("p-0", 1, seq, "accounts", {"raw": 1, "balance": 1}, end=seq == 1) for seq in (0, 1)]
    for number, properties in enumerate((computed, {"accounts": {"where": "id > 0", "columns": "id = 1, balance"}})):
        sink = StarRocksSink(shop.options(tables=properties, job=f"job-{number}"))
        (receipt,) = sink.write(shop.frame(rows))
        assert (receipt.rows, receipt.compacted) == (2, 0)
    plain = {"accounts": {"columns": "id, balance, moved"}}
    (receipt,) = StarRocksSink(shop.options(tables=plain)).write(shop.frame(deposits("p-0", [2, 3])))
    assert receipt.compacted == 10


def test_rows_without_a_key_are_judged_by_the_server_or_get_its_default(shop: Shop) -> None:
    shop.ask(
        "CREATE TABLE shop.defaults (id BIGINT NOT NULL DEFAULT '7', v INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
    )
    rows = [change("p-0", 1, 0, "defaults", {"v": 1}), change("p-0", 1, 1, "defaults", {"v": 1}, end=True)]
    with pytest.raises(RowsRejected, match=r"rejected 2 rows of defaults.*the server does not say why"):
        StarRocksSink(shop.options(check_values=False)).write(shop.frame(rows))
    assert shop.ask("SELECT id, v FROM shop.defaults") == []
    (receipt,) = StarRocksSink(shop.options()).write(shop.frame(rows))
    assert (receipt.rows, receipt.compacted) == (1, 1)
    assert shop.ask("SELECT id, v FROM shop.defaults") == [(7, 1)]


@pytest.mark.deep
def test_a_table_that_came_later_gets_all_rows_until_the_next_session(shop: Shop) -> None:
    sink = StarRocksSink(shop.options())
    sink.write(shop.frame(deposits("p-0", [1])))
    shop.ask("CREATE TABLE shop.later (id BIGINT NOT NULL, v INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")

    def twice(position: int) -> Any:
        return shop.frame([change("p-0", position, seq, "later", {"id": 1, "v": seq}, end=seq == 1) for seq in (0, 1)])

    assert [receipt.compacted for receipt in sink.write(twice(2))] == [0]
    assert [receipt.compacted for receipt in StarRocksSink(shop.options()).write(twice(3))] == [1]


def test_rows_without_positions_have_no_last_one(shop: Shop) -> None:
    sink = StarRocksSink(shop.options(delivery="at-least-once"))
    (receipt,) = sink.write(shop.frame(deposits("p-0", [1, 2])).select("table", "row"))
    assert receipt.compacted == 0


# --- each way in ---

MANY = [1, 2, 3, 4, 5, 6]
SMALL_LOADS = {"chunk_bytes": 400, "load_bytes": 1, "buffer_bytes": 2000}


@pytest.mark.parametrize(
    "limits", [{}, pytest.param(SMALL_LOADS, marks=pytest.mark.deep)], ids=["one load", "many loads"]
)
@pytest.mark.parametrize(
    "way",
    [
        *("ready", "lines"),
        *(pytest.param(way, marks=pytest.mark.deep) for way in ("events", "stage", "typed")),
    ],
)
def test_each_way_in_sends_one_row_per_key(shop: Shop, way: str, limits: dict[str, int]) -> None:
    rows = deposits("p-0", MANY, keys=20)
    write(shop, way, rows, limits)
    assert balances(shop) == {(0, 6)}
    assert shop.ask("SELECT count(*) FROM shop.accounts") == [(20,)]
    if way != "typed":  # it writes one table
        assert shop.written() == (6, 6)


def write(shop: Shop, way: str, rows: list[Row], changes: dict[str, Any]) -> None:
    """Write the rows of one partition, or of its accounts alone, as this way wants them."""
    options, frame = shop.options(**changes), shop.frame(rows)
    lines = shop.spark.createDataFrame([(line,) for line in events_of(rows)], "value string").coalesce(1)
    parsed = parse_txn_events(lines, source_partition=None, position=None)
    match way:
        case "ready":
            StarRocksSink(options).write(frame)
        case "lines":
            StarRocksSink(options, assemble=TransactionAssembly(lines=IN_JSON)).write(lines)
        case "events":
            StarRocksSink(options, assemble=TransactionAssembly()).write(parsed)
        case "stage":
            StarRocksSink(options).write(assemble_transactions(parsed))
        case _:
            accounts = [(*row[:5], row[2] == 19) for row in rows if row[3] == "accounts"]
            numbers = F.from_json("row", "id long, balance long, moved long")
            typed = shop.frame(accounts).withColumn("row", numbers).select(*TRANSACTION_COLUMNS, "row.*")
            StarRocksSink(options, routes=[TableRoute("accounts", ["id", "balance", "moved"])]).write(typed)


def events_of(rows: list[Row]) -> Iterator[str]:
    """Lines of TxnEvents that make `rows`, at positions of their own."""
    position = 0
    for (partition, number), group in groupby(rows, key=lambda row: row[:2]):
        events = [{"type": "BEGIN"}]
        events += [{"type": "DATA", "database": "shop", "table": row[3], "op": "c", "row": row[4]} for row in group]
        for event in [*events, {"type": "END"}]:
            position += 1
            place = {"source_partition": partition, "position": position, "txn_id": str(number)}
            yield orjson.dumps(place | event).decode()


# --- exactly once ---


@pytest.mark.deep
def test_a_replay_after_a_crash_between_commit_and_checkpoint_writes_nothing_twice(shop: Shop) -> None:
    shop.feed(deposits("p-0", [1, 2]))
    shop.feed(deposits("p-0", [3, 4]) + deposits("p-1", [1]))
    shop.run()
    shop.forget_commit(1)
    assert shop.run() == []
    assert balances(shop) == {(0, 4), (1, 1)}
    assert shop.written() == (5, 5)


@pytest.mark.deep
def test_a_replay_that_is_cut_differently_is_exact(shop: Shop) -> None:
    """Old rows are visible already: they are skipped, and stand for no row that is still to be written."""
    shop.feed(deposits("p-0", [1, 2]))
    shop.feed(deposits("p-0", [3, 4]))
    shop.run()
    shop.forget_batches()
    shop.feed(deposits("p-0", [5, 6]) + deposits("p-1", [1, 2]))
    (receipt,) = shop.run(files=None)  # one micro-batch of all that
    assert receipt.batch_id == 0
    assert (receipt.rows, receipt.compacted) == (10 + 2 + 10 + 2, 20)
    assert balances(shop) == {(0, 6), (1, 2)}
    assert shop.written() == (8, 8)


@pytest.mark.deep
def test_rows_of_a_key_that_two_partitions_write(shop: Shop) -> None:
    """p-1 is visible already, so its row must not make p-0's new one disappear."""

    def shared(partition: str, position: int) -> list[Row]:
        return [change(partition, position, 0, "accounts", {"id": 1, "moved": 10 * position}, end=True)]

    sink = StarRocksSink(shop.options())
    sink.write(shop.frame(shared("p-1", 1)))
    (receipt,) = StarRocksSink(shop.options()).write(shop.frame(shared("p-1", 1) + shared("p-0", 2)))
    assert (receipt.rows, receipt.compacted) == (1, 0)
    assert shop.ask("SELECT moved FROM shop.accounts") == [(20,)]


@pytest.mark.deep
def test_other_content_is_noticed_also_where_it_was_left_out(shop: Shop) -> None:
    rows = [change("p-0", 1, seq, "accounts", {"id": 1, "moved": seq}, end=seq == 1) for seq in (0, 1)]
    shop.feed(rows)
    shop.run()
    shop.forget_batches()
    shop.write_file("1.json", [change("p-0", 1, 0, "accounts", {"id": 1, "moved": 9}), rows[1]])
    with pytest.raises(StreamingQueryException, match=SourceChanged.__name__):
        shop.run()


def test_a_lane_that_is_tried_again_compacts_alike(shop: Shop) -> None:
    shop.fault({"operation": "load", "times": 2, "action": "drop", "when": "after"})
    (receipt,) = StarRocksSink(shop.options()).write(shop.frame(deposits("p-0", [1, 2, 3])))
    assert receipt.attempts > 1
    assert (receipt.rows, receipt.compacted) == (13, 20)
    assert balances(shop) == {(0, 3)}
