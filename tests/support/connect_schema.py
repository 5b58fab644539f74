"""Messages with the schema of Kafka Connect's JSON converter, as Debezium writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TIME, DATA, CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."
Field = dict[str, Any]
_NESTED = ("items", "keys", "values")


def field(kind: str, name: str | None = None, *, field_name: str = "x", **parameters: Any) -> Field:
    """A field; `parameters` are those of its schema, `source_type`, `source_length` and `source_scale` the source's."""
    texts = {
        key.replace("source_", "__debezium.source.column.").replace("precision", "connect.decimal.precision"): str(
            value
        )
        for key, value in parameters.items()
        if key not in _NESTED
    }
    return {
        "type": kind,
        "optional": True,
        "field": field_name,
        **({"name": name} if name else {}),
        **({"parameters": texts} if texts else {}),
        **{name: parameters[name] for name in _NESTED if name in parameters},
    }


def decimal(scale: int, precision: int | None = None, **more: Any) -> Field:
    parameters: dict[str, Any] = {"precision": precision} if precision else {}
    return field("bytes", CONNECT + "Decimal", scale=scale, **parameters, **more)


def schema(fields: Sequence[Field]) -> dict[str, Any]:
    row = {"type": "struct", "fields": list(fields), "optional": True, "name": "shop.Value"}
    envelope = [{**row, "field": "before"}, {**row, "field": "after"}, field("string", field_name="op")]
    return {"type": "struct", "fields": envelope, "optional": False, "name": "shop.Envelope"}


def change(
    table: str,
    fields: Mapping[str, Field],
    row: Mapping[str, Any] | None = None,
    *,
    transaction: Any = None,
    lsn: int = 1,
    op: str = "c",
) -> bytes:
    """The value of a change event of PostgreSQL's table public.`table`, with its schema."""
    source = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "table": table, "lsn": lsn}
    payload = {"before": None, "after": row, "source": source, "op": op, "ts_ms": 1, "transaction": transaction}
    named_fields = [{**of, "field": name} for name, of in fields.items()]
    return json.dumps({"schema": schema(named_fields), "payload": payload}).encode()


def key(fields: Mapping[str, Field], row: Mapping[str, Any] | None = None) -> bytes:
    named_fields = [{**of, "field": name, "optional": False} for name, of in fields.items()]
    return json.dumps(
        {"schema": {"type": "struct", "fields": named_fields, "name": "shop.Key"}, "payload": row or {}}
    ).encode()
