"""Messages of Debezium and of a producer in Protobuf, by a registry in memory, made by Google's package."""

from __future__ import annotations

import base64
import struct
from functools import cache
from typing import Any

from google.protobuf import json_format, message_factory

from starrocks_txn_sink.errors import UnknownSchema
from starrocks_txn_sink.sources.formats.protobuf_files import compile_file

_HEAD = 'syntax = "proto3";\n'
_ENVELOPE = (
    _HEAD
    + """package shop.public.orders;
import "google/type/date.proto";
import "confluent/type/decimal.proto";
message Envelope {
  optional Value before = 1;
  optional Value after = 2;
  Source source = 3;
  string op = 4;
  optional int64 ts_ms = 5;
  message Value {
    int64 id = 1;
    optional google.type.Date day = 2;
    optional confluent.type.Decimal price = 3 [(confluent.field_meta) = {
      params: [{ key: "scale", value: "2" }, { key: "precision", value: "10" }]
    }];
%s  }
  message Source { string name = 1; string db = 2; string schema = 3; string table = 4; optional int64 lsn = 5; }
}
"""
)
TEXTS = {
    1: _ENVELOPE % "",
    2: _ENVELOPE % "    optional string note = 4;\n",
    3: _HEAD + "package shop.public.orders;\nmessage Key { int64 id = 1; }\n",
    4: _HEAD
    + 'import "shop/row.proto";\n'
    + "message Other { int32 x = 1; }\n"
    + "message TxnEvent { optional string type = 1; optional string txn_id = 2; optional string table = 3;"
    + " shop.Row row = 4; message Inner { int32 x = 1; } }\n",
    5: _ENVELOPE.replace("optional int64 ts_ms", "int64 ts_ms") % "",
}
ROW = (
    "shop/row.proto",
    _HEAD
    + 'package shop;\nimport "google/protobuf/timestamp.proto";\nimport "confluent/type/decimal.proto";\n'
    + "message Row { int64 id = 1; google.protobuf.Timestamp at = 2; confluent.type.Decimal price = 3; }\n",
)


class Schemas:
    """A registry in memory that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def schema(self, number: int, **_: bool) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        self.asked.append(number)
        if number not in TEXTS:
            raise UnknownSchema(f"The schema registry does not know schema {number}.", hint="Check it.")
        return "PROTOBUF", TEXTS[number], (ROW,) if number == 4 else ()


@cache
def class_of(number: int, place: int = 0) -> Any:
    """Google's class of a message at the top of a schema's file."""
    file = compile_file(TEXTS[number], (ROW,) if number == 4 else ())
    return message_factory.GetMessageClass(file.messages[place])


def head(number: int, front: bytes = b"\0") -> bytes:
    return b"\0" + struct.pack(">i", number) + front


def framed(number: int, value: dict[str, Any], place: int = 0, front: bytes = b"\0") -> bytes:
    content: bytes = json_format.ParseDict(value, class_of(number, place)()).SerializeToString()
    return head(number, front) + content


def change(number: int, schema: int = 1, op: str = "c", **more: Any) -> bytes:
    price = base64.b64encode(number.to_bytes(4, "big", signed=True)).decode()
    row = {
        "id": number,
        "day": {"year": 1970, "month": 1, "day": 1 + abs(number)},
        "price": {"value": price, "scale": 2},
    }
    source = {"name": "shop", "db": "shop", "schema": "public", "table": "orders", "lsn": number}
    return framed(schema, {"before" if op == "d" else "after": row | more, "source": source, "op": op, "ts_ms": 1})
