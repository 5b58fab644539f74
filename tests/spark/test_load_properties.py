"""Stream-load properties of tables, on real Spark, through the emulator: what each does to the rows."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute
from starrocks_txn_sink.errors import OptionError, RowsRejected, UnfitValue
from tests.support.query_port import query
from tests.support.servers import place_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.t (id BIGINT NOT NULL, a INT, b VARCHAR(9) DEFAULT 'new') PRIMARY KEY(id)"
        " DISTRIBUTED BY HASH(id)",
        "INSERT INTO shop.t VALUES (1, 10, 'old'), (2, 20, 'old')",
    ),
]


def write(server: Emulator, frame: DataFrame, properties: dict[str, str], **changes: Any) -> None:
    """Write typed rows into `t` with `properties`; columns as in the frame."""
    options = SinkOptions(
        **place_of(server),
        job="test",
        tables={"t": properties},
        **changes,
    )
    StarRocksSink(options, routes=[TableRoute("t", frame.columns)]).write(frame)


def rows(server: Emulator) -> list[tuple[Any, ...]]:
    return query(server, "SELECT id, a, b FROM shop.t ORDER BY id")


@pytest.mark.parametrize("mode", ["row", "column"])
def test_a_partial_update_changes_only_what_the_route_names(spark: SparkSession, server: Emulator, mode: str) -> None:
    frame = spark.createDataFrame([(1, 11), (3, 33)], "id long, a int")
    write(server, frame, {"partial_update": "true", "partial_update_mode": mode})
    assert rows(server) == [(1, 11, "old"), (2, 20, "old"), (3, 33, "new")]


def test_a_merge_condition_keeps_the_newer_row(spark: SparkSession, server: Emulator) -> None:
    frame = spark.createDataFrame([(1, 9, "x"), (2, 21, "x")], "id long, a int, b string")
    write(server, frame, {"merge_condition": "a"}, compression="zstd")
    assert rows(server) == [(1, 10, "old"), (2, 21, "x")]


def test_where_columns_timezone_and_compression_of_a_table(spark: SparkSession, server: Emulator) -> None:
    frame = spark.createDataFrame([(4, 4, "x"), (5, 5, "x")], "id long, a int, b string")
    own = {"where": "id > 4", "columns": "id,a,b", "timezone": "UTC", "compression": "lz4_frame"}
    write(server, frame, own)
    assert rows(server)[2:] == [(5, 5, "x")]


@pytest.mark.deep
def test_a_value_that_does_not_fit_fails_the_load_unless_strict_mode_is_off(
    spark: SparkSession, server: Emulator
) -> None:
    frame = spark.createDataFrame([("t", '{"id": 9, "a": "five"}')], "table string, row string")
    common: dict[str, Any] = {**place_of(server)}
    with pytest.raises(UnfitValue, match="column a of table t: it is a text that is no number"):
        StarRocksSink(SinkOptions(**common, job="strict")).write(frame)
    with pytest.raises(RowsRejected, match=r"The server rejected 1 row of t.*does not say why"):
        StarRocksSink(SinkOptions(**common, job="trusting", check_values=False)).write(frame)
    assert (9, None, None) not in rows(server)
    StarRocksSink(SinkOptions(**common, job="lenient", properties={"strict_mode": "false"})).write(frame)
    assert (9, None, None) in rows(server)


def test_a_partial_update_of_rows_without_a_route_is_refused_at_once(server: Emulator) -> None:
    options = SinkOptions(
        load_url=server.load_url, delivery="at-least-once", database="shop", tables={"t": {"partial_update": "true"}}
    )
    with pytest.raises(OptionError, match="partial_update needs a list of columns"):
        StarRocksSink(options)
