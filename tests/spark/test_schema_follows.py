"""`schema_changes` apply for JSON rows: tables get the columns that rows need, between two StarRocks transactions."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import DebeziumAssembly, SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.errors import UnfitValue, UnknownColumn
from starrocks_txn_sink.options import TableOptions
from starrocks_txn_sink.sink import events_writer
from starrocks_txn_sink.sink.schema import changes
from starrocks_txn_sink.sources import parse_debezium
from starrocks_txn_sink.telemetry import Event
from tests.support.debezium_feed import KAFKA, change, message, postgres
from tests.support.query_port import query
from tests.support.servers import place_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.people (id BIGINT NOT NULL, name VARCHAR(9)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
        alter_seconds=0.7,
    ),
]

ASSEMBLY = TransactionAssembly(lines=TxnEventLines(source_partition="source_partition", position="position"))


def options(server: Emulator, **changes: Any) -> SinkOptions:
    values = {**place_of(server), "job": "test"}
    return SinkOptions(**{**values, "schema_changes": "apply", **changes})


def sink(server: Emulator, events: list[Event] | None = None, **changes: Any) -> StarRocksSink:
    return StarRocksSink(
        options(server, **changes), assemble=ASSEMBLY, listener=events.append if events is not None else lambda _: None
    )


def transactions(spark: SparkSession, first: int, *rows: tuple[str, dict[str, Any]], partition: str = "p") -> DataFrame:
    """A source transaction for each row (table, row), as raw values."""
    lines = []
    for number, (table, row) in enumerate(rows):
        lines += [
            {"type": "BEGIN", "txn_id": f"t{first + number}"},
            {"type": "DATA", "txn_id": f"t{first + number}", "table": table, "op": "u", "row": row},
            {"type": "END", "txn_id": f"t{first + number}"},
        ]
    texts = [(partition, 3 * first + at, json.dumps(line)) for at, line in enumerate(lines)]
    return spark.createDataFrame(texts, "source_partition string, position long, value string").coalesce(1)


def statements(events: list[Event]) -> list[str]:
    return [event.fields["statement"] for event in events if event.name == "schema.changed"]


def test_a_column_that_appears_is_added_before_its_first_row(spark: SparkSession, server: Emulator) -> None:
    """With the type of all its values in the micro-batch; the rows before have NULL."""
    events: list[Event] = []
    writer = sink(server, events, lanes=2)
    writer.write(transactions(spark, 1, ("people", {"id": 1, "name": "Ann"})))
    late = [("people", {"id": number, "name": "Bo", "age": number, "score": number / 2}) for number in range(2, 5)]
    first_frame = transactions(spark, 2, *late, ("people", {"id": 5, "tags": ["a"], "age": None}))
    right = transactions(spark, 1, ("people", {"id": 6, "score": 7, "on": True}), partition="q")
    (receipt,) = writer.write(first_frame.union(right))
    assert receipt.rows == 5
    assert query(server, "SELECT * FROM shop.people ORDER BY id")[0] == (1, "Ann", None, None, None, None)
    rows = query(server, "SELECT id, age, score, `on` FROM shop.people WHERE id > 1 ORDER BY id")
    assert rows == [(2, 2, 1.0, None), (3, 3, 1.5, None), (4, 4, 2.0, None), (5, None, None, None), (6, None, 7.0, 1)]
    described = query(server, "SELECT COLUMN_TYPE FROM information_schema.columns WHERE TABLE_NAME = 'people'")
    kinds = ["bigint(20)", "varchar(9)", "bigint(20)", "double", "json", "tinyint(1)"]
    assert [kind for (kind,) in described] == kinds  # id, name, age, score, tags, on
    (statement,) = statements(events)
    assert statement.startswith("ALTER TABLE `shop`.`people` ADD COLUMN `age` BIGINT NULL")


def test_a_column_without_a_type_stops_the_query_by_name_and_a_declared_type_lets_it_go_on(
    spark: SparkSession, server: Emulator
) -> None:
    mixed = transactions(spark, 1, ("people", {"id": 1, "code": "a"}), ("people", {"id": 2, "code": 7}))
    with pytest.raises(UnknownColumn, match=r"column code .* integers up to 2\^53, texts"):
        sink(server).write(mixed)
    assert query(server, "SELECT count(*) FROM shop.people") == [(0,)]
    sink(server, tables={"people": TableOptions(types={"code": "VARCHAR(20)"})}).write(mixed)
    assert query(server, "SELECT id, code FROM shop.people ORDER BY id") == [(1, "a"), (2, "7")]


def test_a_new_table_is_created_with_the_declared_key_and_refused_without(
    spark: SparkSession, server: Emulator
) -> None:
    rows = transactions(spark, 1, ("pets", {"name": "Rex", "id": 1}), ("people", {"id": 1, "name": "Ann"}))
    with pytest.raises(UnknownColumn, match=r"no table pets, .* nothing names its primary key"):
        sink(server).write(rows)
    assert query(server, "SELECT count(*) FROM shop.people") == [(0,)]
    events: list[Event] = []
    sink(server, events, tables={"pets": TableOptions(keys=["id"])}).write(rows)
    assert query(server, "SELECT id, name FROM shop.pets") == [(1, "Rex")]
    assert query(server, "SELECT count(*) FROM shop.people") == [(1,)]
    assert len(statements(events)) == 1


def test_a_column_that_is_always_null_waits_and_is_not_called_lost(spark: SparkSession, server: Emulator) -> None:
    events: list[Event] = []
    writer = sink(server, events)
    writer.write(transactions(spark, 1, ("people", {"id": 1, "name": "Ann", "age": None})))
    assert statements(events) == []
    notices = [(event.name, event.fields["unknown"]) for event in events if event.name.startswith("columns.")]
    assert notices == [("columns.waiting", "age")]
    writer.write(transactions(spark, 2, ("people", {"id": 2, "name": "Bo", "age": 3})))
    assert len(statements(events)) == 1
    assert query(server, "SELECT id, age FROM shop.people ORDER BY id") == [(1, None), (2, 3)]


def test_quarantine_takes_bad_rows_and_no_new_columns(spark: SparkSession, server: Emulator) -> None:
    rows = [("people", {"id": number, "name": "x" * number, "age": number}) for number in (1, 2, 30)]
    sink(server, on_bad_rows="quarantine").write(transactions(spark, 1, *rows))
    assert query(server, "SELECT id, age FROM shop.people ORDER BY id") == [(1, 1), (2, 2)]
    with pytest.raises(UnfitValue, match="column age of table people"):
        sink(server, job="other").write(transactions(spark, 1, ("people", {"id": 4, "age": "old"})))


# --- a driver that ends in between ---


class DriverEnds(BaseException):
    """Nothing after it is done, as with a killed process."""


def ends_while_the_change_is_under_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "changed", ended)


def ends_before_the_load(patch: pytest.MonkeyPatch) -> None:
    right = changes.add_missing

    def add_and_end(*values: Any, **more: Any) -> None:
        right(*values, **more)
        ended()

    patch.setattr(events_writer, "add_missing", add_and_end)


def ended(*_: Any) -> Any:
    raise DriverEnds


@pytest.mark.parametrize(
    "ending", [pytest.param(ends_while_the_change_is_under_way, marks=pytest.mark.deep), ends_before_the_load]
)
def test_a_driver_that_ends_between_the_change_and_the_load_leaves_the_rest_to_the_next(
    spark: SparkSession, server: Emulator, ending: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """The next one neither asks for the change again nor writes a row twice or never."""
    rows = transactions(spark, 1, *(("people", {"id": number, "age": number}) for number in (1, 2, 3)))
    with pytest.MonkeyPatch.context() as patch:
        ending(patch)
        with pytest.raises(DriverEnds):
            sink(server).write(rows)
    assert query(server, "SELECT count(*) FROM shop.people") == [(0,)]
    events: list[Event] = []
    writer = sink(server, events)
    (receipt,) = writer.write(rows)
    assert (receipt.rows, statements(events)) == (3, [])
    assert query(server, "SELECT id, age FROM shop.people ORDER BY id") == [(1, 1), (2, 2), (3, 3)]
    assert len(query(server, "SHOW ALTER TABLE COLUMN FROM shop")) == 1
    again = sink(server).write(rows)
    assert sum(receipt.rows for receipt in again) == 0


# --- Debezium's events ---


def explained(value: Any) -> dict[str, Any]:
    """A value with the converter's schema."""
    kinds: dict[str, dict[str, Any]] = {
        "id": {"type": "int64"},
        "price": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
        "born": {"type": "int32", "name": "io.debezium.time.Date"},
    }
    fields = [{"field": name, **kind} for name, kind in kinds.items()]
    rows = [{"field": name, "type": "struct", "fields": fields} for name in ("before", "after")]
    return {"schema": {"type": "struct", "fields": rows}, "payload": value}


def plain(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("wrap", "price", "born"),
    [
        (explained, base64.b64encode((1250).to_bytes(2, "big")).decode(), 19723),
        pytest.param(plain, "12.50", "2024-01-01", marks=pytest.mark.deep),
    ],
)
def test_debeziums_rows_bring_their_columns(
    spark: SparkSession, server: Emulator, wrap: Callable[[Any], Any], price: object, born: object
) -> None:
    """With a schema in front and without; decimals and dates are texts then, until their types are declared."""
    inserted = change(postgres("people", 90), "5:90", 1, {"id": 1, "price": price, "born": None})
    updated = change(postgres("people", 91), "6:91", 1, {"id": 1, "price": price, "born": born}, {"id": 1}, "u")
    deleted = change(postgres("pets", 92), "7:92", 1, None, {"id": 9, "price": price, "born": None}, "d")
    messages = [message(at, wrap(value)) for at, value in enumerate((inserted, updated, deleted))]
    rows = parse_debezium(spark.createDataFrame(messages, KAFKA))
    rows = rows.withColumns({"seq": F.lit(0).cast("long"), "transaction_end": F.lit(True)}).coalesce(1)
    tables = {
        "people": TableOptions(types={"price": "DECIMAL(12,2)"}),
        "pets": TableOptions(keys=["id"], types={"price": "DECIMAL(12,2)", "born": "DATE"}),
    }
    StarRocksSink(options(server, tables=tables)).write(rows)
    (row,) = query(server, "SELECT id, CAST(price AS VARCHAR), born FROM shop.people")
    assert row == (1, "12.50", "2024-01-01")
    kinds = query(server, "SELECT COLUMN_TYPE FROM information_schema.columns WHERE TABLE_NAME = 'people'")
    assert [kind for (kind,) in kinds] == ["bigint(20)", "varchar(9)", "decimal(12, 2)", "varchar(1048576)"]
    assert query(server, "SELECT count(*) FROM shop.pets") == [(0,)]


def test_types_of_new_columns_come_from_debeziums_schema(spark: SparkSession, server: Emulator) -> None:
    """When the lane itself reads the messages: it knows what the source calls a text."""
    price = base64.b64encode((1250).to_bytes(2, "big")).decode()
    rows = [{"id": 1, "price": None, "born": None}, {"id": 2, "price": price, "born": 19723}]
    values = [explained(change(postgres("people", 90 + at), None, None, row, op="r")) for at, row in enumerate(rows)]
    frame = spark.createDataFrame([message(at, value) for at, value in enumerate(values)], KAFKA)
    frame = frame.withColumn("timestamp", F.lit(0).cast("timestamp")).coalesce(1)
    assembly = DebeziumAssembly(reader="spark")
    with pytest.raises(UnknownColumn, match=r"ADD COLUMN `born` DATE NULL, ADD COLUMN `price` DECIMAL\(38,2\) NULL"):
        StarRocksSink(options(server, schema_changes="fail"), assemble=assembly).write(frame)
    events: list[Event] = []
    StarRocksSink(options(server, job="other"), assemble=assembly, listener=events.append).write(frame)
    assert statements(events) == [
        "ALTER TABLE `shop`.`people` ADD COLUMN `price` DECIMAL(38,2) NULL, ADD COLUMN `born` DATE NULL"
    ]
    rows_read = query(server, "SELECT id, CAST(price AS VARCHAR), CAST(born AS VARCHAR) FROM shop.people ORDER BY id")
    assert rows_read == [(1, None, None), (2, "12.50", "2024-01-01")]
