"""JSON rows that name columns which their table lacks: refused, or with `schema_changes` ignore said by name."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import MetricsServer, SinkOptions, StarRocksSink, TableRoute, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.errors import UnknownColumn
from starrocks_txn_sink.options import TableOptions
from starrocks_txn_sink.telemetry import Event
from tests.support.query_port import query
from tests.support.servers import place_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        *(
            f"CREATE TABLE shop.{table} (id BIGINT NOT NULL, name VARCHAR(9), note VARCHAR(9),"
            " place INT DEFAULT '7') PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
            for table in ("people", "pets")
        )
    ),
]

SCHEMA = (
    "source_partition string, position long, seq long, op string, table string, row string, transaction_end boolean"
)
RIGHT = {"id": 1, "name": "Ann", "note": None}


def options(server: Emulator, **changes: Any) -> SinkOptions:
    values = {**place_of(server), "job": "test"}
    return SinkOptions(**{**values, **changes})


def frame(spark: SparkSession, position: int, *rows: tuple[str, str, dict[str, Any]]) -> DataFrame:
    """One source transaction of (op, table, row)."""
    texts = [(op, table, json.dumps(row)) for op, table, row in rows]
    return spark.createDataFrame(
        [("p", position, seq, *text, seq == len(texts) - 1) for seq, text in enumerate(texts)], SCHEMA
    )


def said(events: list[Event]) -> list[tuple[str, str, Any, Any]]:
    """Name, table, unknown and unnamed columns of each event about columns."""
    about = [event for event in events if event.name.startswith("columns.")]
    assert all(event.fields["job"] == "test" for event in about)
    return [
        (event.name, event.fields["table"], event.fields.get("unknown"), event.fields.get("unnamed")) for event in about
    ]


def test_a_column_that_appears_while_the_query_runs_stops_it_before_the_load(
    spark: SparkSession, server: Emulator
) -> None:
    """Whatever rows came before; and after the ALTER TABLE that the error names, the rows are written whole."""
    sink = StarRocksSink(options(server, on_bad_rows="quarantine"))
    sink.write(frame(spark, 1, *(("u", "people", {"id": number, "name": "x"}) for number in range(150))))
    late = frame(spark, 2, ("u", "people", {"id": 200, "name": "y"}), ("u", "people", {"id": 201, "email": "secret"}))
    with pytest.raises(
        UnknownColumn, match="table people does not have at source partition p, position 2: email"
    ) as no:
        sink.write(late)
    assert "ALTER TABLE `people` ADD COLUMN `email`" in str(no.value)
    assert "secret" not in str(no.value)
    assert query(server, "SELECT count(*) FROM shop.people") == [(150,)]
    query(server, "ALTER TABLE shop.people ADD COLUMN email VARCHAR(9)")
    sink.write(late)
    assert query(server, "SELECT id, email FROM shop.people WHERE id > 199 ORDER BY id") == [
        (200, None),
        (201, "secret"),
    ]


def test_rows_that_are_only_upserts_without_positions_are_checked_too(spark: SparkSession, server: Emulator) -> None:
    rows = spark.createDataFrame([("people", json.dumps({"id": 1, "nmae": "Ann"}))], "table string, row string")
    with pytest.raises(UnknownColumn, match="people does not have: nmae"):
        StarRocksSink(options(server, delivery="at-least-once")).write(rows)


def test_an_ignored_column_is_said_once_a_session_also_if_it_appears_later(
    spark: SparkSession, server: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    with MetricsServer(0) as metrics:
        ignoring = options(server, lanes=2, schema_changes="ignore")
        sink = StarRocksSink(ignoring, listener=events.append, metrics=metrics)
        sink.write(
            frame(spark, 1, ("d", "pets", {"id": 9}), ("u", "people", {"id": 1, "nmae": "Ann", "NOTE": "secret"}))
        )
        assert query(server, "SELECT id, name, note, place FROM shop.people") == [(1, None, None, 7)]
        assert said(events) == [("columns.unknown", "people", "NOTE, nmae", "name, note")]
        late = frame(
            spark, 2, ("u", "pets", {"id": 1, "nmae": "Rex"}), ("u", "people", {"id": 2, "naem": "Bo", "nmae": "Bo"})
        )
        sink.write(late)
        assert said(events)[1:] == [
            ("columns.unknown", "people", "naem", None), ("columns.unknown", "pets", "nmae", "name, note")
        ]  # fmt: skip
        sink.write(frame(spark, 3, ("u", "people", {"id": 3, "naem": "Bo"})))
        assert len(said(events)) == 3
        counts = metrics.model.metrics.values("unknown_columns_total")
    assert counts == {("people",): 3.0, ("pets",): 1.0}
    lines = [record for record in caplog.records if "columns.unknown" in record.getMessage()]
    assert {line.levelname for line in lines} == {"WARNING"}
    assert all("add the columns" in line.getMessage() and "secret" not in line.getMessage() for line in lines)


def test_a_column_that_rows_do_not_name_any_more_is_said_once(
    spark: SparkSession, server: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    sink = StarRocksSink(options(server), listener=events.append)
    sink.write(frame(spark, 1, ("u", "people", RIGHT)))
    for position in (2, 3):
        sink.write(frame(spark, position, ("u", "people", {"id": position, "name": "Bo"})))
    (notice,) = [event for event in events if event.name == "columns.gone"]
    assert (notice.fields["table"], notice.fields["gone"]) == ("people", "note")
    assert [record.levelname for record in caplog.records if "columns.gone" in record.getMessage()] == ["WARNING"]


def test_rows_that_leave_a_column_out_are_no_alarm(
    spark: SparkSession, server: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    sink = StarRocksSink(options(server), listener=events.append)
    with caplog.at_level(logging.INFO, "starrocks_txn_sink"):
        sink.write(
            frame(spark, 1, ("u", "people", RIGHT), ("u", "pets", {"id": 1}), ("u", "pets", {"id": 2, "note": "n"}))
        )
    assert said(events) == [("columns.unnamed", "pets", None, "name")]
    (line,) = [record for record in caplog.records if "columns." in record.getMessage()]
    assert line.levelname == "INFO"


@pytest.mark.deep
def test_names_that_mean_something_else_are_not_compared(spark: SparkSession, server: Emulator) -> None:
    events: list[Event] = []
    columns = TableOptions(properties={"columns": "id, nmae, name=nmae"})
    renamed = StarRocksSink(options(server, tables={"people": columns}), listener=events.append)
    renamed.write(frame(spark, 1, ("u", "people", {"id": 1, "nmae": "Ann"})))
    assert query(server, "SELECT name FROM shop.people") == [("Ann",)]
    typed = StarRocksSink(options(server), listener=events.append, routes=[TableRoute("people", {"id": "key"})])
    typed.write(spark.createDataFrame([(2,)], "key long"))
    assert query(server, "SELECT count(*) FROM shop.people") == [(2,)]
    without = {"query_url": None, "delivery": "at-least-once"}
    StarRocksSink(options(server, **without), listener=events.append).write(
        frame(spark, 1, ("u", "pets", {"id": 1, "nmae": "Rex"}))
    )
    assert said(events) == []


def test_assembled_events_are_compared(spark: SparkSession, server: Emulator) -> None:
    events: list[Event] = []
    lines = [
        {"type": "BEGIN", "txn_id": "t"},
        {"type": "DATA", "txn_id": "t", "table": "people", "op": "u", "row": {"id": 1, "nmae": "Ann"}},
        {"type": "END", "txn_id": "t"},
    ]
    texts = [("p", at, json.dumps(line)) for at, line in enumerate(lines)]
    raw = spark.createDataFrame(texts, "source_partition string, position long, value string").coalesce(1)
    assembly = TransactionAssembly(lines=TxnEventLines(source_partition="source_partition", position="position"))
    changes = {"delivery": "at-least-once"}  # the names are compared without a ledger, too
    with pytest.raises(UnknownColumn, match="position 2: nmae"):
        StarRocksSink(options(server, **changes), assemble=assembly).write(raw)
    changes["schema_changes"] = "ignore"
    StarRocksSink(options(server, **changes), assemble=assembly, listener=events.append).write(raw)
    assert said(events) == [("columns.unknown", "people", "nmae", "name, note")]
