"""JSON Schema as Connect's schema: what Confluent's converter leaves in it, and what other writers write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from starrocks_txn_sink.sources.formats.json_schemas import connect_schema

DECIMAL = {
    "type": "number", "title": "org.apache.kafka.connect.data.Decimal", "connect.type": "bytes",
    "connect.version": 1, "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}  # fmt: skip
DATE = {"type": "integer", "title": "io.debezium.time.Date", "connect.type": "int32", "connect.version": 1}


def optional(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]}


@pytest.mark.parametrize(
    ("schema", "connect"),
    [
        ({"type": "boolean"}, {"type": "boolean", "optional": False}),
        ({"type": "integer", "connect.type": "int16"}, {"type": "int16", "optional": False}),
        ({"type": "integer"}, {"type": "int64", "optional": False}),
        ({"type": "number", "connect.type": "float32"}, {"type": "float", "optional": False}),
        ({"type": "number", "connect.type": "float64"}, {"type": "double", "optional": False}),
        ({"type": "string", "connect.type": "bytes"}, {"type": "bytes", "optional": False}),
        (
            optional(DECIMAL),
            {
                "type": "bytes", "optional": True, "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "2", "connect.decimal.precision": "10"},
            },
        ),
        (DATE, {"type": "int32", "optional": False, "name": "io.debezium.time.Date"}),
        ({"enum": ["a", "b"]}, {"type": "string", "optional": False}),
        ({"type": ["null", "string"]}, {"type": "string", "optional": True}),
        (
            {"type": "array", "items": DATE},
            {
                "type": "array", "optional": False,
                "items": {"type": "int32", "optional": False, "name": "io.debezium.time.Date"},
            },
        ),
        (
            {"type": "object", "connect.type": "map", "additionalProperties": {"type": "boolean"}},
            {
                "type": "map", "optional": False, "keys": {"type": "string", "optional": False},
                "values": {"type": "boolean", "optional": False},
            },
        ),
        (
            {
                "type": "object", "title": "V",
                "properties": {
                    "b": {"type": "string", "connect.index": 1},
                    "a": {**optional({"type": "integer", "default": 7}), "connect.index": 0},
                    "c": {**optional({"type": "integer"}), "connect.index": 2, "default": 0},
                },
            },
            {
                "type": "struct", "optional": False, "name": "V",
                "fields": [
                    {"type": "int64", "optional": True, "default": 7, "field": "a"},
                    {"type": "string", "optional": False, "field": "b"},
                    {"type": "int64", "optional": True, "default": 0, "field": "c"},
                ],
            },
        ),
        (
            {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
            {"type": "string", "optional": False},
        ),
    ],
)  # fmt: skip
def test_schemas(schema: Any, connect: Any) -> None:
    assert json.loads(connect_schema(json.dumps(schema))) == connect


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": ["string", "integer"]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"$ref": "x.json"},
    ],
)
def test_what_connect_has_no_form_for_is_any_value(schema: Any) -> None:
    assert json.loads(connect_schema(json.dumps(schema))) == {"type": "struct", "optional": True}


def test_what_is_no_schema() -> None:
    for text in ("", "{", '{"type": "date"}', '{"$ref": "#/missing"}', '{"type": "object", "properties": 3}'):
        with pytest.raises(ValueError, match="no JSON Schema"):
            connect_schema(text)
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    with pytest.raises(ValueError, match="refers to itself"):
        connect_schema(json.dumps(tree))


def test_names_that_stand_for_names_are_refused_while_they_are_written_out() -> None:
    """Forty parts, each with two of the next one."""
    parts = {f"p{number}": {name: {"$ref": f"#/definitions/p{number + 1}"} for name in "ab"} for number in range(40)}
    definitions = {name: {"type": "object", "properties": members} for name, members in parts.items()}
    document = {"$ref": "#/definitions/p0", "definitions": {**definitions, "p40": {"type": "string"}}}
    with pytest.raises(ValueError, match="too large: it has more than 300,000 parts"):
        connect_schema(json.dumps(document))
