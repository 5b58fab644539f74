"""The data source on real Spark with batch frames as they are: whole or not at all, and never twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, functions as F, types as T

from starrocks_txn_sink import StarRocksSink, TableRoute
from starrocks_txn_sink.errors import InputError, OptionError, TaskRepeated
from starrocks_txn_sink.sink.plain_frames import PlainFrameWriter
from tests.support.exactly_once_shop import Shop, rows_of
from tests.support.log_records import records_of
from tests.support.plain_frame_driver import ROWS
from tests.support.servers import place_of, program_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("data_source"),
    pytest.mark.emulator("CREATE TABLE shop.plain (id BIGINT NOT NULL, name VARCHAR(9)) DUPLICATE KEY(id)"),
]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "data-source.md"
COMMITTED = (
    "SELECT count(*) FROM information_schema.loads"
    " WHERE DB_NAME = 'shop' AND STATE <> 'CANCELLED' AND LABEL LIKE '%frame%'"
)
PLAIN = T.StructType([T.StructField("id", T.LongType()), T.StructField("name", T.StringType())])


def addresses(shop: Shop) -> dict[str, str]:
    return place_of(shop.server)


def save(shop: Shop, frame: DataFrame, table: str | None = "plain", mode: str = "append", **options: str) -> None:
    settings = {**addresses(shop), **({} if table is None else {"table": table}), **options}
    frame.write.format("starrocks_txn").options(**settings).mode(mode).save()


def numbers(shop: Shop, rows: int = 3000, tasks: int = 3) -> DataFrame:
    return shop.spark.range(0, rows, 1, tasks).selectExpr("id", "cast(id as string) AS name")


def count(shop: Shop, table: str = "plain") -> tuple[int, int]:
    ((rows, different),) = shop.ask(f"SELECT count(*), count(DISTINCT id) FROM shop.{table}")
    return int(rows), int(different)


# --- what is written ---

KINDS = """
    id BIGINT NOT NULL, flag BOOLEAN, flag_number TINYINT, tiny TINYINT, small SMALLINT, whole INT, large LARGEINT,
    single FLOAT, twice DOUBLE, amount DECIMAL(18,6), `text` VARCHAR(64), bytes VARBINARY(16), day DATE,
    moment DATETIME, wall DATETIME, free JSON, missing INT
"""
VALUES = """
    id, id % 2 = 0 AS flag, id % 3 = 0 AS flag_number, cast(id % 100 AS tinyint) AS tiny,
    cast(-id AS smallint) AS small, cast(id * 7 AS int) AS whole, id * 1000000007 AS large,
    cast(id / 7 AS float) AS single, cast(id / 7 AS double) AS twice, cast(id / 1000 AS decimal(12,4)) AS amount,
    concat('ä"\\\\', cast(id AS string), decode(unhex('0A'), 'UTF-8')) AS text, unhex(lpad(hex(id), 4, '0')) AS bytes,
    date_add(date'1969-12-30', cast(id AS int)) AS day, timestamp_micros(id * 1234567890123) AS moment,
    cast(timestamp_micros(id * 12345678901) AS timestamp_ntz) AS wall, cast(id AS double) AS free,
    cast(nullif(id % 4, 0) AS int) AS missing
"""


@pytest.mark.parametrize("zone", [pytest.param(None, marks=pytest.mark.deep), "Asia/Tokyo"])
def test_typed_columns_are_those_that_the_sink_writes(shop: Shop, zone: str | None) -> None:
    for table in ("kinds", "expected"):
        shop.ask(f"CREATE TABLE shop.{table} ({KINDS}) DUPLICATE KEY(id)")
    frame = shop.spark.sql(f"SELECT {VALUES} FROM range(0, 200, 1, 3)")
    StarRocksSink(shop.options(timestamp_zone=zone), routes=[TableRoute("expected", frame.columns)]).write(frame)
    save(shop, frame, "kinds", **({} if zone is None else {"timestamp_zone": zone}))
    rows, expected = (shop.ask(f"SELECT * FROM shop.{table} ORDER BY id") for table in ("kinds", "expected"))
    assert len(rows) == 200
    assert rows == expected
    assert shop.ask(COMMITTED) == [(1,)]


def test_ready_rows_and_deletes_of_several_tables(shop: Shop) -> None:
    shop.ask("CREATE TABLE shop.keyed (id BIGINT NOT NULL, name VARCHAR(9) NOT NULL) PRIMARY KEY(id)")
    row = F.to_json(F.struct("id", "name")).alias("row")
    both_tables = F.explode(F.array(F.lit("plain"), F.lit("keyed"))).alias("table")
    save(shop, numbers(shop, 10, 2).select(row, both_tables), None)
    deletes = shop.spark.createDataFrame([("keyed", '{"id":3}', "delete"), ("keyed", '{"id":11,"name":"x"}', None)])
    save(shop, deletes.toDF("table", "row", "op").repartition(2), None)
    assert (count(shop), count(shop, "keyed")) == ((10, 10), (10, 10))
    assert shop.ask("SELECT name FROM shop.keyed WHERE id IN (3, 11)") == [("x",)]
    typed = shop.spark.createDataFrame([(4, None, "d"), (12, "y", "u")], "id bigint, name string, op string")
    save(shop, typed, "keyed")
    assert shop.ask("SELECT id FROM shop.keyed WHERE id IN (4, 12)") == [(12,)]


def test_every_call_writes_once_and_frames_may_be_empty(shop: Shop) -> None:
    for _ in range(2):
        save(shop, numbers(shop))
    save(shop, numbers(shop).where("id < 0"))
    save(shop, numbers(shop).repartition(2).where("id = 7"))
    assert count(shop) == (6001, 3000)
    assert shop.ask(COMMITTED) == [(3,)]


def test_the_python_of_the_page_runs(shop: Shop) -> None:
    shop.ask("CREATE TABLE shop.orders (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)")
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {"spark": shop.spark, "orders": shop.spark.range(7), **addresses(shop)}
    exec(compile(program_for(shop.server, snippet), PAGE.name, "exec"), names)
    assert count(shop, "orders") == (7, 7)


# --- what is refused, and leaves nothing behind ---


def test_columns_and_options_that_do_not_fit_are_named(shop: Shop) -> None:
    frame = numbers(shop)
    for table, bad, words in (
        ("plain", frame.withColumnRenamed("name", "nmae"), "the table has no column nmae"),
        ("plain", frame.drop("id"), "column id is NOT NULL without a DEFAULT"),
        ("plian", frame, "There is no table plian"),
        ("plain", frame.withColumn("name", F.col("id")), "there is no way from bigint to VARCHAR"),
        (None, frame, "lacks the columns table, row, and no option names its table"),
    ):
        with pytest.raises(AnalysisException, match=words):
            save(shop, bad, table)
    shop.ask("CREATE TABLE shop.nested (id BIGINT, parts ARRAY<INT>) DUPLICATE KEY(id)")
    with pytest.raises(AnalysisException, match=r"parts \(array<int> into ARRAY<INT>\) need the JVM"):
        save(shop, shop.spark.createDataFrame([(1, [2])], "id bigint, parts array<int>"), "nested")
    for options, words in (
        ({"tabel": "plain"}, "no option 'tabel'. Did you mean table?"),
        ({"delivery": "exactly-once"}, "a write that is called again writes its rows again"),
        ({"batch_id": "1"}, "There is no option 'batch_id'"),
        ({"mode": "overwrite"}, "it never empties one"),
    ):
        with pytest.raises(AnalysisException, match=words):
            save(shop, frame, **options)
    assert count(shop) == (0, 0)


def test_rows_of_source_transactions_are_for_the_sink(shop: Shop) -> None:
    rows = shop.frame(rows_of("p-0", [1, 2]))
    with pytest.raises(AnalysisException, match=r"columns of source transactions \(source_partition, .*StarRocksSink"):
        save(shop, rows, None)
    with pytest.raises(AnalysisException, match=r"source transactions \(position\)"):
        save(shop, rows.select("table", "row", "position"), None)
    shop.ask("CREATE TABLE shop.places (id BIGINT, position BIGINT) DUPLICATE KEY(id)")
    save(shop, rows.select(F.col("position").alias("id"), "position"), "places")  # columns of the table
    assert (shop.written(), count(shop, "places")) == ((0, 0), (4, 2))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("repeat('x', 10)", "Column name of table plain is longer than 9 bytes"),
        ("raise_error('by the source')", "by the source"),
    ],
)
def test_a_task_that_fails_leaves_nothing_visible(shop: Shop, column: str, words: str) -> None:
    frame = shop.spark.range(0, 3000, 1, 2).selectExpr("id", f"if(id = 2990, {column}, 'fine') AS name")
    with pytest.raises(Exception, match=words):
        save(shop, frame)
    assert count(shop) == (0, 0)
    save(shop, numbers(shop))
    assert count(shop) == (3000, 3000)


def test_a_load_that_the_server_refuses_leaves_nothing_visible(shop: Shop) -> None:
    shop.fault({"operation": "load", "table": "plain", "nth": 2, "action": "drop", "when": "after"})
    with pytest.raises(AnalysisException, match="LoadFailed"):
        save(shop, numbers(shop))
    assert count(shop) == (0, 0)


# --- tries of Spark ---


def run_driver(shop: Shop, when: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tests.support.plain_frame_driver", shop.server.load_url, shop.server.query_url]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*words, when, str(shop.folder)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )


@pytest.mark.deep
def test_a_task_that_failed_after_rows_fails_the_write(bare_shop: Shop) -> None:
    process = run_driver(bare_shop, "late")
    assert process.returncode
    assert "TaskRepeated" in process.stderr
    assert "Another try of Spark at lane 0 may have loaded rows" in process.stderr
    assert count(bare_shop) == (0, 0)


@pytest.mark.deep
def test_a_task_that_failed_before_its_rows_is_run_again(bare_shop: Shop) -> None:
    process = run_driver(bare_shop, "early")
    assert not process.returncode, process.stderr
    assert count(bare_shop) == (ROWS, ROWS)


def batches(first: int, rows: int = 10) -> Iterator[pa.RecordBatch]:
    ids = range(first, first + rows)
    yield pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "name": pa.array(map(str, ids))})


def writer_of(shop: Shop, **options: str) -> PlainFrameWriter:
    return PlainFrameWriter.begin(PLAIN, {**addresses(shop), "table": "plain", **options})


def test_two_tries_without_a_number_are_told_apart_by_the_server(bare_shop: Shop) -> None:
    """A stage that runs again counts its tries from 0, and a task of its first run may still load."""
    writer = replace(writer_of(bare_shop), abort_seconds=0.5)
    first_write = writer.write(batches(0))
    batches_later: list[pa.RecordBatch] = []

    def read() -> Iterator[pa.RecordBatch]:
        for batch in [*batches(0), *batches(10)]:
            batches_later.append(batch)
            yield batch

    again = writer.write(read())
    assert len(batches_later) == 2  # the source's own failure would show
    assert not any(getattr(message, "loaded", ()) for message in again.messages)
    with pytest.raises(TaskRepeated, match="Another try of Spark at lane 0"):
        writer.commit([again])
    writer.abort([again])
    assert count(bare_shop) == (0, 0)
    del first_write


def test_a_task_without_a_message_ends_the_write(bare_shop: Shop) -> None:
    writer = replace(writer_of(bare_shop), abort_seconds=0.5)
    message = writer.write(batches(0))
    with pytest.raises(InputError, match="1 of 2 tasks sent no message"):
        writer.commit([message, None])
    writer.abort([message, None])
    assert count(bare_shop) == (0, 0)


def test_without_the_query_port(bare_shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    values = {name: text for name, text in addresses(bare_shop).items() if name != "query_url"}
    writer = PlainFrameWriter.begin(PLAIN, {**values, "table": "plain", "find_leader": "false", "lanes": "2"})
    writer.commit([writer.write(batches(0))])
    option_names = {record.getMessage().split()[1] for record in records_of(caplog, "option.without_effect")}
    assert option_names == {"option=find_leader", "option=lanes"}
    assert count(bare_shop) == (10, 10)
    rows: list[Any] = bare_shop.ask("SELECT name FROM shop.plain WHERE id = 7")
    assert rows == [("7",)]


def test_a_table_gets_the_columns_that_the_frame_has_more(bare_shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    schema = T.StructType([*PLAIN, T.StructField("size", T.IntegerType())])
    writer = PlainFrameWriter.begin(schema, {**addresses(bare_shop), "table": "plain", "schema_changes": "apply"})
    types = pa.schema({"id": pa.int64(), "name": pa.string(), "size": pa.int32()})
    rows = pa.RecordBatch.from_pylist([{"id": 1, "name": "x", "size": 5}], schema=types)
    writer.commit([writer.write(iter([rows]))])
    assert bare_shop.ask("SELECT id, name, size FROM shop.plain") == [(1, "x", 5)]
    assert "ADD COLUMN" in records_of(caplog, "schema.changed")[0].getMessage()


def test_no_table_gets_columns_that_only_rows_name(bare_shop: Shop) -> None:
    texts = T.StructType([T.StructField("table", T.StringType()), T.StructField("row", T.StringType())])
    with pytest.raises(OptionError, match="only the rows say which tables"):
        PlainFrameWriter.begin(texts, {**addresses(bare_shop), "schema_changes": "apply"})


def test_names_in_rows_that_are_no_columns_are_logged_at_the_end(
    bare_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    schema = T.StructType([T.StructField("table", T.StringType()), T.StructField("row", T.StringType())])
    writer = PlainFrameWriter.begin(schema, {**addresses(bare_shop), "schema_changes": "ignore"})
    rows = pa.RecordBatch.from_pydict({"table": ["plain"], "row": ['{"id":1,"nmae":"x"}']})
    writer.commit([writer.write(iter([rows]))])
    assert count(bare_shop) == (1, 1)
    (line,) = records_of(caplog, "columns.unknown")
    assert "table=plain count=1 unknown=nmae unnamed=name" in line.getMessage()
