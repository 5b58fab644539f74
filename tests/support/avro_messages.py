"""Messages of Debezium and of a producer in Avro, by the schemas of a registry in memory."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro

from starrocks_txn_sink.errors import UnknownSchema

DATE = {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}
PRICE = {
    "type": "bytes", "scale": 2, "precision": 10, "logicalType": "decimal", "connect.version": 1,
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
    "connect.name": "org.apache.kafka.connect.data.Decimal",
}  # fmt: skip


def envelope(*more: dict[str, Any]) -> dict[str, Any]:
    columns = [{"name": "id", "type": "long"}, {"name": "day", "type": DATE}, {"name": "price", "type": PRICE}, *more]
    value = {"type": "record", "name": "Value", "fields": columns}
    texts = ("name", "db", "schema", "table")
    source = {
        "type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql",
        "fields": [
            *({"name": name, "type": "string"} for name in texts), {"name": "lsn", "type": ["null", "long"]},
            {"name": "snapshot", "type": ["null", "string"], "default": None},
        ],
    }  # fmt: skip
    return {
        "type": "record", "name": "Envelope", "namespace": "shop.public.orders",
        "connect.name": "shop.public.orders.Envelope",
        "fields": [
            {"name": "before", "type": ["null", value]}, {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": source}, {"name": "op", "type": "string"},
        ],
    }  # fmt: skip


KEY = {"type": "record", "name": "Key", "namespace": "shop.public.orders", "fields": [{"name": "id", "type": "long"}]}
EVENT = {
    "type": "record", "name": "TxnEvent",
    "fields": [{"name": name, "type": ["null", "string"]} for name in ("type", "txn_id", "table", "row")],
}  # fmt: skip
SCHEMAS = {
    1: envelope(),
    2: envelope({"name": "note", "type": ["null", "string"], "default": None}),
    3: KEY,
    4: EVENT,
}


class Schemas:
    """A registry in memory that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.questions: list[tuple[int, bool]] = []  # with whether they were patient

    def schema(
        self, number: int, *, apicurio: bool = False, patient: bool = True
    ) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        assert not apicurio
        self.asked.append(number)
        self.questions.append((number, patient))
        if number not in SCHEMAS:
            raise UnknownSchema(f"The schema registry does not know schema {number}.", hint="Check it.")
        return "AVRO", json.dumps(SCHEMAS[number]), ()


def framed(number: int, value: Any) -> bytes:
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(SCHEMAS.get(number, KEY)), value)
    return b"\0" + struct.pack(">i", number) + content.getvalue()


def change(number: int, schema: int = 1, op: str = "c", snapshot: str | None = None, **more: Any) -> bytes:
    row = {"id": number, "day": number, "price": number.to_bytes(4, "big", signed=True), "note": None, **more}
    rows = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    source = {"name": "shop", "db": "shop", "schema": "public", "table": "orders", "lsn": number, "snapshot": snapshot}
    return framed(schema, {**rows, "source": source, "op": op})
