"""From a DataFrame to rows in StarRocks, with real PySpark: the guarantees that only a real server can confirm."""

from __future__ import annotations

import datetime
import decimal
import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.conftest import Target
from starrocks_txn_ops import cli
from starrocks_txn_sink import StarRocksDataSource, StarRocksSink, TableRoute
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE

pytestmark = pytest.mark.spark

ROWS = "source_partition string, position long, seq long, table string, op string, row string, transaction_end boolean"


def transfers(spark: SparkSession, count: int, first: int = 1, bad: frozenset[int] = frozenset()) -> DataFrame:
    """Source transactions that move money between two tables: the sum over both is always 0."""
    rows: list[tuple[Any, ...]] = []
    for position in range(first, first + count):
        amount = "null" if position in bad else str(position)
        rows.append(("p-0", position, 0, "debits", None, f'{{"id": {position}, "amount": -{position}}}', False))
        rows.append(("p-0", position, 1, "credits", None, f'{{"id": {position}, "amount": {amount}}}', True))
    return spark.createDataFrame(rows, ROWS)


@pytest.fixture
def bank(target: Target) -> Target:
    target.table("debits", "id BIGINT NOT NULL, amount BIGINT NOT NULL", "DUPLICATE KEY(id)")
    target.table("credits", "id BIGINT NOT NULL, amount BIGINT NOT NULL", "DUPLICATE KEY(id)")
    return target


def test_a_replay_writes_nothing_a_second_time(spark: SparkSession, bank: Target) -> None:
    for _ in range(2):
        StarRocksSink(bank.options()).write(transfers(spark, 200))
    assert bank.sql(f"SELECT count(*), count(DISTINCT id) FROM {bank.database}.debits") == [(200, 200)]
    assert bank.sql(f"SELECT count(*), count(DISTINCT id) FROM {bank.database}.credits") == [(200, 200)]


def test_no_reader_sees_a_torn_transfer(spark: SparkSession, bank: Target) -> None:
    """Wire contract 4.11: a planner that takes no lock may read the two tables at two moments."""
    total = (
        f"SELECT sum(amount) FROM (SELECT amount FROM {bank.database}.debits"
        f" UNION ALL SELECT amount FROM {bank.database}.credits) AS both_tables"
    )
    totals: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            totals.append(bank.sql(total)[0][0] or 0)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        sink = StarRocksSink(bank.options())
        for number in range(5):
            sink.write(transfers(spark, 50, first=1 + number * 50))
    finally:
        stop.set()
        reader.join()
    assert len(totals) > 5
    assert set(map(int, totals)) == {0}


def test_typed_values_come_back_as_they_went(spark: SparkSession, target: Target) -> None:
    target.table(
        "typed",
        "id BIGINT NOT NULL, li LARGEINT, de DECIMAL(38,18), d DOUBLE, dt DATETIME, s STRING, vb VARBINARY, bo BOOLEAN,"
        " j JSON, ar ARRAY<INT>, dflt VARCHAR(9) DEFAULT 'there'",
    )
    row = (
        1,
        decimal.Decimal("9" * 38),
        decimal.Decimal("12345678901234567890.123456789012345678"),
        0.1,
        datetime.datetime(2026, 1, 2, 3, 4, 5, 678901),
        'quo"te\\ 😀\n\x01',
        bytearray(b"\x00\xff"),
        True,
        '{"a": [1, null]}',
        [1, None],
    )
    schema = (
        "id long, li decimal(38,0), de decimal(38,18), d double, dt timestamp_ntz, s string, vb binary, bo boolean,"
        " j string, ar array<int>"
    )
    frame = spark.createDataFrame([row], schema)
    StarRocksSink(target.options(), routes=[TableRoute("typed", frame.columns)]).write(frame)
    ((*values,),) = target.sql(f"SELECT id, li, de, d, dt, s, hex(vb), bo, dflt FROM {target.database}.typed")
    assert [int(values[1]), values[2], values[3], values[4], values[5], values[6], int(values[7]), values[8]] == [
        int(row[1]),
        row[2],
        row[3],
        row[4],
        row[5],
        "00FF",
        1,
        "there",
    ]


def test_sets_are_made_of_numbers_and_texts(spark: SparkSession, target: Target) -> None:
    target.table(
        "visits",
        "id INT NOT NULL, users BITMAP BITMAP_UNION, words BITMAP BITMAP_UNION NOT NULL,"
        " devices HLL HLL_UNION NOT NULL",
        "AGGREGATE KEY(id)",
    )
    rows = [(1, 13, "hello", "a"), (1, 2**40, "hello", "b"), (2, None, None, None)]
    frame = spark.createDataFrame(rows, "id int, users long, words string, devices string")
    StarRocksSink(target.options(), routes=[TableRoute("visits", frame.columns)]).write(frame, batch_id=1)
    rows_read = target.sql(
        "SELECT id, bitmap_count(bitmap_union(users)), bitmap_to_string(bitmap_union(words)), hll_union_agg(devices)"
        f" FROM {target.database}.visits GROUP BY id ORDER BY id"
    )
    assert rows_read == [(1, 2, "1321743225", 2), (2, 0, "", 0)]


def test_a_partial_and_a_conditional_update(spark: SparkSession, target: Target) -> None:
    target.table("scores", "id INT NOT NULL, name VARCHAR(9), score INT NOT NULL DEFAULT '0'")
    target.sql(f"INSERT INTO {target.database}.scores VALUES (1, 'one', 100), (2, 'two', 100)")
    names = spark.createDataFrame([(1, "uno"), (3, "tres")], "id int, name string")
    options = target.options(properties={"partial_update": "true"})
    StarRocksSink(options, routes=[TableRoute("scores", names.columns)]).write(names, batch_id=1)
    scores = spark.createDataFrame([(1, "late", 99), (2, "newer", 101)], "id int, name string, score int")
    options = target.options(properties={"merge_condition": "score"})
    StarRocksSink(options, routes=[TableRoute("scores", scores.columns)]).write(scores, batch_id=2)
    rows = target.sql(f"SELECT id, name, score FROM {target.database}.scores ORDER BY id")
    assert rows == [(1, "uno", 100), (2, "newer", 101), (3, "tres", 0)]


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4_frame", "zstd"])
def test_each_compression_is_understood(spark: SparkSession, bank: Target, compression: str) -> None:
    StarRocksSink(bank.options(compression=compression)).write(transfers(spark, 20))
    assert bank.sql(f"SELECT count(*) FROM {bank.database}.credits") == [(20,)]


def test_the_data_source_writes_a_frame(spark: SparkSession, bank: Target) -> None:
    spark.dataSource.register(StarRocksDataSource)
    addresses = {"load_url": bank.load_url, "query_url": bank.query_url, "database": bank.database}
    rows = transfers(spark, 50).select("table", "row").repartition(2)
    rewrites = ",".join(f"{address}={reached}" for address, reached in bank.rewrites.items())
    writer = rows.write.format("starrocks_txn").options(**addresses, redirect_map=rewrites)
    writer.mode("append").save()
    assert bank.sql(f"SELECT count(*), count(DISTINCT id) FROM {bank.database}.debits") == [(50, 50)]


def test_rejected_source_transactions_are_dead_lettered_and_replayed(spark: SparkSession, bank: Target) -> None:
    sink = StarRocksSink(bank.options(on_bad_rows="quarantine"))
    receipts = sink.write(transfers(spark, 40, bad=frozenset({7, 23})))
    assert sum(receipt.dead_lettered_rows for receipt in receipts) == 4
    assert bank.sql(f"SELECT count(*) FROM {bank.database}.debits") == [(38,)]
    bank.sql(
        f'UPDATE {bank.database}.{DEAD_LETTER_TABLE} SET content = \'{{"id": 7, "amount": 7}}\''
        " WHERE position = 7 AND table_name = 'credits'"
    )
    words = ["--query-url", bank.query_url, "--load-url", bank.load_url, "--database", bank.database]
    words += [part for source, to in bank.rewrites.items() for part in ("--option", f"redirect_map={source}={to}")][:2]
    where = ["--job", "integration", "--source-partition", "p-0", "--position", "7"]
    assert cli.main(["dead-letter", "replay", *words, *where]) == 0
    assert bank.sql(f"SELECT amount FROM {bank.database}.credits WHERE id = 7") == [(7,)]
    assert bank.sql(f"SELECT count(*) FROM {bank.database}.{DEAD_LETTER_TABLE}") == [(2,)]
