"""Rows as CSV on real Spark, through the emulator: what was written is what is read, deletes, and what has no form."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.errors import InputError
from tests.support.query_port import query
from tests.support.typed_values import NESTED, PAIRS, expected, floats_alike, one_row, sink

pytestmark = pytest.mark.spark

ROWS = 80
DOCUMENTS = ("jt", "js")
COLUMNS = [name for name in PAIRS if name not in NESTED or name in DOCUMENTS]
CSV = {"format": "csv"}


def writable(value: Any) -> Any:
    """Texts without what separates fields and rows."""
    if not isinstance(value, str):
        return value
    return "x" if value == r"\N" else value.replace("\x01", "").replace("\x02", "")


@pytest.mark.parametrize("seed", [random.randrange(10**6)], ids=lambda seed: f"seed={seed}")
def test_what_was_written_is_what_is_read(spark: SparkSession, server: Emulator, seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        (number, *(writable(PAIRS[name][2](rng)) if number and rng.random() < 0.9 else None for name in COLUMNS))
        for number in range(ROWS)
    ]
    columns = ", ".join(f"{name} {PAIRS[name][1]}" for name in COLUMNS)
    query(server, f"CREATE TABLE shop.t (id BIGINT NOT NULL, {columns}) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    schema = ", ".join(["id bigint", *(f"{name} {PAIRS[name][0]}" for name in COLUMNS)])
    frame = spark.createDataFrame(rows, schema)
    changes = {"timestamp_zone": "Asia/Tokyo", "properties": CSV, "compression": rng.choice(["none", "zstd", "gzip"])}
    (receipt,) = sink(server, ["id", *COLUMNS], **changes).write(frame)
    assert receipt.rows == ROWS
    rows_read = query(server, f"SELECT id, {', '.join(COLUMNS)} FROM shop.t ORDER BY id")
    for row, read in zip(rows, rows_read, strict=True):
        for name, was, stored in zip(COLUMNS, row[1:], read[1:], strict=True):
            parsed_value = json.loads(stored) if name in DOCUMENTS and stored is not None else stored
            alike = floats_alike(was, parsed_value) if name == "f" else parsed_value == expected(name, was)
            assert alike, (name, was, stored)


@pytest.mark.deep
def test_deletes_and_defaults_in_order(spark: SparkSession, server: Emulator) -> None:
    query(
        server,
        "CREATE TABLE shop.t (id BIGINT NOT NULL, v VARCHAR(4), n INT NOT NULL DEFAULT '7') PRIMARY KEY(id)"
        " DISTRIBUTED BY HASH(id)",
    )
    frame = spark.range(400).select(
        F.lit("p").alias("source_partition"),
        (F.col("id") + 1).alias("position"),
        F.lit(0).alias("seq"),
        F.lit(True).alias("transaction_end"),
        (F.col("id") % 100).alias("id"),
        F.lit("v").alias("v"),
        F.when(F.col("id").between(300, 349), "delete").alias("op"),
    )
    (receipt,) = sink(server, ["id", "v"], properties=CSV, compact=False).write(frame)
    assert receipt.rows == 400
    assert query(server, "SELECT count(*), min(id), min(v), max(n) FROM shop.t") == [(50, 50, "v", 7)]


@pytest.mark.deep
def test_what_csv_has_no_form_for_is_named(spark: SparkSession, server: Emulator) -> None:
    query(
        server,
        "CREATE TABLE shop.t (id BIGINT NOT NULL, v VARCHAR(4), a ARRAY<INT>, j JSON) PRIMARY KEY(id)"
        " DISTRIBUTED BY HASH(id)",
    )
    frame = one_row(spark, a=F.array(F.lit(1)), j=F.current_date())
    with pytest.raises(InputError, match=r"column a: arrays, maps.*column j: only documents"):
        sink(server, ["id", "a", "j"], properties=CSV).write(frame)
    with pytest.raises(InputError, match="one column may be empty"):
        sink(server, ["id"], properties=CSV).write(frame)
    with pytest.raises(InputError, match="writes the property columns itself"):
        sink(server, ["id", "v"], properties={**CSV, "columns": "v,id"}).write(frame)
    for text in ("a\x01", "\x02", r"\N"):
        with pytest.raises(Exception, match=r"column v of table t holds a separator of CSV"):
            sink(server, ["id", "v"], properties=CSV).write(one_row(spark, v=F.lit(text)))
    assert query(server, "SELECT * FROM shop.t") == []
