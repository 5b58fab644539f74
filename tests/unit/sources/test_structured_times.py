"""Dates in parts, as Debezium writes them with `time.precision.mode=structured`: every reader names them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink import DebeziumAssembly
from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.errors import UnfitValue
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.sources.formats.connect_types import columns_of
from starrocks_txn_sink.sources.formats.raw_format import ParsedMessages
from starrocks_txn_sink.writer.value_checks import ValueChecks
from tests.support import avro_messages, connect_schema
from tests.support.message_batches import parse, rows_of

pytestmark = pytest.mark.usefixtures("loop")

PARTS = {"year": 2024, "month": 2, "day": 29, "specialValue": None}
NAME = "io.debezium.time.StructuredDate"


def with_schema(_: pytest.MonkeyPatch) -> ParsedMessages:
    parts = [connect_schema.field("int32", field_name=name) for name in ("year", "month", "day")]
    fields = {
        "id": connect_schema.field("int64"),
        "paid": {
            **connect_schema.field("struct", NAME),
            "fields": [*parts, connect_schema.field("string", field_name="specialValue")],
        },
    }
    return parse(changes(), [connect_schema.change("orders", fields, {"id": 1, "paid": PARTS})])


def bare(_: pytest.MonkeyPatch) -> ParsedMessages:
    source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "table": "orders", "lsn": 1}
    value = {"before": None, "after": {"id": 1, "paid": PARTS}, "source": source, "op": "c"}
    return parse(changes(), [json.dumps(value).encode()])


def in_avro(monkeypatch: pytest.MonkeyPatch) -> ParsedMessages:
    fields: list[dict[str, Any]] = [{"name": name, "type": "int"} for name in ("year", "month", "day")]
    fields.append({"name": "specialValue", "type": ["null", "string"], "default": None})
    paid = {"type": "record", "name": "StructuredDate", "connect.name": NAME, "fields": fields}
    schema = avro_messages.envelope({"name": "paid", "type": ["null", paid], "default": None})
    monkeypatch.setitem(avro_messages.SCHEMAS, 6, schema)
    return parse(changes(avro_messages.Schemas()), [avro_messages.change(1, schema=6, paid=PARTS)])


def in_protobuf(monkeypatch: pytest.MonkeyPatch) -> ParsedMessages:
    pytest.importorskip("grpc_tools")
    from tests.support import protobuf_messages

    parts = "message Paid { int32 year = 1; int32 month = 2; int32 day = 3; optional string specialValue = 4; }"
    text = protobuf_messages.TEXTS[2].replace("optional string note = 4;", f"optional Paid paid = 4;\n{parts}")
    monkeypatch.setitem(protobuf_messages.TEXTS, 6, text)
    paid = {name: part for name, part in PARTS.items() if part is not None}
    return parse(changes(protobuf_messages.Schemas()), [protobuf_messages.change(1, schema=6, paid=paid)])


def changes(registry: Any = None) -> Any:
    return DebeziumAssembly(transactions="none", registry=registry).lines


READERS = [with_schema, bare, in_avro, in_protobuf]


@pytest.mark.parametrize("kind", ["date", "datetime", "array<date>"])
@pytest.mark.parametrize("reader", READERS)
def test_an_error_names_the_column_the_setting_and_the_way_on(
    reader: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = rows_of(reader(monkeypatch))
    assert json.loads(row)["paid"] == PARTS
    if kind.startswith("array"):
        row = json.dumps({**json.loads(row), "paid": [PARTS]})
    with pytest.raises(UnfitValue, match=r"column paid of table orders at .*position 7: it .*object") as error:
        checks(paid=kind)(lane_row(row))
    assert "time.precision.mode=structured: set another one (isostring)" in error.value.message
    assert "resync the table" in error.value.message
    assert 'on_bad_rows = "quarantine"' in error.value.advice


@pytest.mark.parametrize("reader", READERS)
def test_a_column_of_documents_keeps_the_parts(reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows_of(reader(monkeypatch))
    assert checks(paid="json")(lane_row(row)).column("payload").to_pylist() == [SEPARATOR + row]


@pytest.mark.parametrize("reader", [with_schema, in_avro])
def test_the_plan_of_a_new_table_says_which_setting_gives_dates(reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (schema,) = reader(monkeypatch).schemas["orders"]
    (column,) = (column for column in columns_of(schema) if column.name == "paid")
    assert (column.type, "another time.precision.mode than structured" in column.note) == ("JSON", True)


def checks(**columns: str) -> ValueChecks:
    of_table = tuple(TargetColumn(name, parse_type(kind)) for name, kind in columns.items())
    return ValueChecks(lambda *_: of_table)


def lane_row(row: str) -> pa.RecordBatch:
    names = ["source_partition", "position", "table", "transaction_end", "payload"]
    values = [["orders-0"], pa.array([7], pa.int64()), ["orders"], [True], [SEPARATOR + row]]
    return pa.RecordBatch.from_arrays([pa.array(value) for value in values], names)
