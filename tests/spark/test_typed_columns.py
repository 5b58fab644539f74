"""Typed columns on real Spark: what was written is what is read, and what cannot be written is named."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute
from starrocks_txn_sink.errors import InputError
from tests.support.query_port import query
from tests.support.servers import place_of
from tests.support.typed_values import NESTED, PAIRS, expected, floats_alike, one_row, sink

pytestmark = pytest.mark.spark

ROWS = 120


@pytest.mark.deep
@pytest.mark.parametrize("seed", [random.randrange(10**6)], ids=lambda seed: f"seed={seed}")
def test_what_was_written_is_what_is_read(spark: SparkSession, server: Emulator, seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        (number, *(make(rng) if number and rng.random() < 0.9 else None for _, _, make, _ in PAIRS.values()))
        for number in range(ROWS)
    ]
    columns = ", ".join(f"{name} {kind}" for name, (_, kind, _, _) in PAIRS.items())
    query(server, f"CREATE TABLE shop.t (id BIGINT NOT NULL, {columns}) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    schema = ", ".join(["id bigint", *(f"{name} {kind}" for name, (kind, _, _, _) in PAIRS.items())])
    frame = spark.createDataFrame(rows, schema)
    (receipt,) = sink(server, ["id", *PAIRS], timestamp_zone="Asia/Tokyo").write(frame)
    assert receipt.rows == ROWS
    rows_read = query(server, f"SELECT id, {', '.join(PAIRS)} FROM shop.t ORDER BY id")
    for row, read in zip(rows, rows_read, strict=True):
        for name, was, stored in zip(PAIRS, row[1:], read[1:], strict=True):
            parsed_value = json.loads(stored, strict=False) if name in NESTED and stored is not None else stored
            alike = floats_alike(was, parsed_value) if name == "f" else parsed_value == expected(name, was)
            assert alike, (name, was, stored)


TABLE = """CREATE TABLE shop.t (id BIGINT NOT NULL, v VARCHAR(4) NOT NULL, d DOUBLE, n INT NOT NULL DEFAULT '7',
 w VARCHAR(9) DEFAULT 'there', a ARRAY<DOUBLE>, day DATE, j JSON) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"""


def test_left_out_columns_take_their_default(spark: SparkSession, server: Emulator) -> None:
    query(server, TABLE)
    sink(server, ["id", "v"]).write(one_row(spark))
    assert query(server, "SELECT v, n, w, d FROM shop.t") == [("ok", 7, "there", None)]


def test_a_counter_may_be_left_out(spark: SparkSession, server: Emulator) -> None:
    """Only SHOW CREATE TABLE tells that the server numbers the rows."""
    query(server, "CREATE TABLE shop.t (id BIGINT, seq BIGINT NOT NULL AUTO_INCREMENT, v VARCHAR(4)) PRIMARY KEY(id)")
    sink(server, ["id", "v"]).write(one_row(spark))
    ((number, text),) = query(server, "SELECT seq, v FROM shop.t")
    assert number is not None
    assert text == "ok"


FAULTS: dict[str, tuple[str, Callable[[], Column]]] = {
    "NaN or infinite": ("d", lambda: F.lit(float("nan"))),
    "column d of table t is NaN or infinite": ("d", lambda: F.lit(float("-inf"))),
    "longer than 4 bytes": ("v", lambda: F.lit("ééé")),
    "column v of table t is NULL, but the column is NOT NULL": ("v", lambda: F.lit(None).cast("string")),
    "no valid UTF-8": ("v", lambda: F.unhex(F.lit("FF")).cast("string")),
    "has an element that is NaN": ("a", lambda: F.array(F.lit(1.0), F.lit(None), F.lit(float("inf")))),
    "outside of the years 1 to 9999": ("day", lambda: F.date_add(F.lit("9999-12-31").cast("date"), 1)),
    "a text that is not JSON": ("j", lambda: F.lit("{")),
}


@pytest.mark.deep
def test_values_that_the_server_would_reject_or_change_fail_with_their_place(
    spark: SparkSession, server: Emulator
) -> None:
    query(server, TABLE)
    for message, (name, make) in FAULTS.items():
        frame = one_row(spark, **{name: make()})
        with pytest.raises(Exception, match=f"{message}.* at source partition p, position 5"):
            sink(server, list(dict.fromkeys(["id", "v", name]))).write(frame)
    assert query(server, "SELECT count(*) FROM shop.t") == [(0,)]


def test_columns_are_compared_with_the_tables_before_the_first_load(spark: SparkSession, server: Emulator) -> None:
    query(server, TABLE)
    frame = one_row(spark, big=F.lit(1).cast("long"))
    with pytest.raises(InputError, match=r"column v is NOT NULL.*column n: bigint does not fit into INT.*no column x"):
        sink(server, {"id": "id", "n": "big", "x": "v"}).write(frame)
    with pytest.raises(InputError, match="column v is NOT NULL without a DEFAULT"):
        sink(server, ["id"]).write(frame)
    assert query(
        server, "SELECT count(*) FROM information_schema.loads WHERE DB_NAME = 'shop' AND TABLE_NAME = 't'"
    ) == [(0,)]


def test_without_sql_access_rows_go_by_their_own_types(spark: SparkSession, server: Emulator) -> None:
    query(server, TABLE)
    sink(server, ["id", "v"], query_url=None, delivery="at-least-once").write(one_row(spark))
    assert query(server, "SELECT v, n FROM shop.t") == [("ok", 7)]


@pytest.mark.deep
def test_tables_follow_the_frame_between_two_micro_batches(spark: SparkSession, server: Emulator) -> None:
    query(server, "CREATE TABLE shop.t (id BIGINT NOT NULL, n INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    query(server, "INSERT INTO shop.t VALUES (7, 70)")
    frame = one_row(spark, n=F.lit(1 << 40), note=F.lit("new"))
    columns = ["id", "n", "note"]
    with pytest.raises(InputError, match=r"column n: bigint does not fit into INT.*the table has no column note"):
        sink(server, columns).write(frame)
    events: list[Any] = []
    options = {"schema_changes": "apply", "ledger_replication": None}
    applying = sink(server, columns, **options)
    (statement,) = applying.schema_changes(frame)
    assert re.findall(r"COLUMN (`.*?NULL)", statement) == ["`note` VARCHAR(1048576) NULL", "`n` BIGINT NULL"]
    assert len(query(server, "SELECT * FROM shop.t")[0]) == 2  # planned only
    listening = StarRocksSink(applying.options, routes=applying.routes, listener=events.append)
    listening.write(frame)
    listening.write(one_row(spark, n=F.lit(1), note=F.lit("x")).withColumn("position", F.lit(6)))
    assert query(server, "SELECT id, n, note FROM shop.t ORDER BY id") == [(1, 1, "x"), (7, 70, None)]
    assert [event.fields["table"] for event in events if event.name == "schema.changed"] == ["t"]


@pytest.mark.deep
def test_new_tables_and_ignored_columns(spark: SparkSession, server: Emulator) -> None:
    values: dict[str, Any] = {
        **place_of(server),
        "job": "test",
    }
    frame = one_row(spark, note=F.lit("new"))
    route = TableRoute("fresh", ["note", "id"], keys=["id"])
    StarRocksSink(SinkOptions(**values, schema_changes="apply"), routes=[route]).write(frame)
    assert query(server, "SELECT id, note FROM shop.fresh") == [(1, "new")]
    query(server, "ALTER TABLE shop.fresh DROP COLUMN note")
    later = frame.withColumns({"position": F.lit(6), "id": F.lit(2).cast("long")})
    StarRocksSink(SinkOptions(**values, schema_changes="ignore"), routes=[route]).write(later)
    assert query(server, "SELECT id FROM shop.fresh ORDER BY id") == [(1,), (2,)]


def test_sets_are_filled_by_functions_and_deleted_by_their_key(spark: SparkSession, server: Emulator) -> None:
    query(
        server,
        "CREATE TABLE shop.tags (id INT NOT NULL, users BITMAP NOT NULL, words BITMAP NOT NULL) PRIMARY KEY(id)"
        " DISTRIBUTED BY HASH(id)",
    )
    options: dict[str, Any] = {**place_of(server)}
    schema = (
        "source_partition string, position long, seq long, transaction_end boolean, op string,"
        " id int, users long, words string"
    )

    def write(job: str, *changes: tuple[Any, ...]) -> None:
        rows = [("p", position, 0, True, *change) for position, change in enumerate(changes, 1)]
        sink_options = SinkOptions(**options, job=job)
        StarRocksSink(sink_options, routes=[TableRoute("tags", ["id", "users", "words"])]).write(
            spark.createDataFrame(rows, schema)
        )

    write("first", ("upsert", 1, 2**40, "hello"), ("upsert", 2, 5, None), ("upsert", 3, 6, "x"))
    write("second", ("delete", 3, None, None))
    texts = "SELECT id, bitmap_to_string(users), bitmap_to_string(words) FROM shop.tags ORDER BY id"
    assert query(server, texts) == [(1, str(2**40), "1321743225"), (2, "5", "")]
    with pytest.raises(InputError, match="column users of table tags is negative"):
        write("third", ("upsert", 4, -1, "x"))
    with pytest.raises(InputError, match="column users of table tags is NULL"):
        write("fourth", ("upsert", 4, None, "x"))
    assert len(query(server, texts)) == 2
