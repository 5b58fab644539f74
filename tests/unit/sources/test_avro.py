"""Messages of Avro as JSON: what fastavro writes is read, with the loop and without; what does not fit is refused."""

from __future__ import annotations

import base64
import io
import json
import math
import random
import struct
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink.compiled.library import is_available
from starrocks_txn_sink.compiled.rewrites import write_avro
from starrocks_txn_sink.sources.formats import avro
from starrocks_txn_sink.sources.formats.avro_schemas import Schema, read_schema
from tests.support.both_ways import both_ways
from tests.support.depth import scaled

HEAD = b"\0" + struct.pack(">i", 17)
TEXTS = ("", "plain", 'q"\\/\b\f\n\r\t\x00\x1f\x7f', "größe €", "𝄞 x", "a" * 70, "\u2028")
VALUES: dict[str, Sequence[Any]] = {
    "null": (None,),
    "boolean": (True, False),
    "int": (0, -1, 64, 2**31 - 1, -(2**31)),
    "long": (0, 127, -(2**63), 2**63 - 1, 2**59 + 12345),
    "double": (0.1, 1e22, 5.0, -0.0, 1e-7, 123456789012345680.0, math.inf, -math.inf, math.nan),
    "string": TEXTS,
}
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


class Feed:
    """Random schemas of Avro with values for them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0

    def schema(self, depth: int = 0) -> Any:
        kinds = [*PRIMITIVES, "fixed", "enum"] + ["record", "array", "map", "union"] * (depth < 3)
        kind = self.random.choice(kinds)
        if kind in PRIMITIVES:
            return self.random.choice((kind, {"type": kind}))
        if kind == "array":
            return {"type": "array", "items": self.schema(depth + 1)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth + 1)}
        if kind == "union":
            return ["null", self.of_another_kind(depth + 1)]
        self.names += 1
        name = {"type": kind, "name": f"T{self.names}", "namespace": self.random.choice(("", "shop.public"))}
        if kind == "fixed":
            return name | {"size": self.random.randrange(5)}
        if kind == "enum":
            return name | {"symbols": [f"S{number}" for number in range(self.random.randint(1, 4))]}
        fields = [{"name": f"f{number}", "type": self.schema(depth + 1)} for number in range(self.random.randrange(5))]
        return name | {"fields": fields}

    def of_another_kind(self, depth: int) -> Any:
        """A type that may be next to null in a union."""
        while True:
            schema = self.schema(depth)
            if not isinstance(schema, list) and (schema if isinstance(schema, str) else schema["type"]) != "null":
                return schema

    def value(self, schema: Any) -> tuple[Any, Any]:
        """A value for fastavro, and what its JSON means."""
        if isinstance(schema, list):
            branch = self.random.choice(schema)
            return (None, None) if branch == "null" else self.value(branch)
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "array":
                pairs = [self.value(schema["items"]) for _ in range(self.random.randrange(4))]
                return [value for value, _ in pairs], [expected for _, expected in pairs]
            case "map":
                names = {self.random.choice(TEXTS) for _ in range(self.random.randrange(4))}
                items = {name: self.value(schema["values"]) for name in sorted(names)}
            case "record":
                items = {field["name"]: self.value(field["type"]) for field in schema["fields"]}
            case "bytes" | "fixed":
                content = self.random.randbytes(schema["size"] if kind == "fixed" else self.random.randrange(9))
                return content, base64.b64encode(content).decode()
            case "float":
                number = struct.unpack("<f", self.random.randbytes(4))[0]
                return number, _meant(float(str(np.float32(number))))
            case _:
                value = self.random.choice(schema["symbols"] if kind == "enum" else VALUES[kind])
                return value, _meant(value) if kind == "double" else value
        return {name: value for name, (value, _) in items.items()}, {
            name: expected for name, (_, expected) in items.items()
        }


def _meant(number: float) -> Any:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def message(schema: Any, value: Any) -> bytes:
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), value)
    return HEAD + content.getvalue()


def written(messages: list[bytes], schema: Schema) -> list[str | None]:
    """The JSON of messages; None for one that does not fit."""

    def texts() -> list[str | None]:
        texts, fits = avro.write_json(pa.array(messages, pa.binary()), [schema], np.zeros(len(messages), np.int32))
        return [text if fit else None for text, fit in zip(texts.to_pylist(), fits.tolist(), strict=True)]

    return both_ways(texts)


@pytest.mark.parametrize("seed", range(scaled(200)))
def test_what_fastavro_writes_is_read(seed: int) -> None:
    feed = Feed(seed)
    schema = feed.schema()
    pairs = [feed.value(schema) for _ in range(20)]
    read = read_schema(json.dumps(schema), wrapped=False)
    texts = written([message(schema, value) for value, _ in pairs], read)
    assert [json.loads(text or "?") for text in texts] == [expected for _, expected in pairs]


@pytest.mark.parametrize("seed", range(scaled(100)))
def test_the_loop_and_python_judge_alike(seed: int) -> None:
    """Messages with wrong bytes, cut ones, and those with more behind them."""
    if not is_available():
        pytest.skip("without the compiled loops there is nothing to compare")
    feed = Feed(seed)
    schema = {"type": "record", "name": "Whole", "fields": [{"name": "a", "type": feed.schema()}]}
    read = read_schema(json.dumps(schema), wrapped=False)
    for _ in range(40):
        content = bytearray(message(schema, feed.value(schema)[0]))
        for _ in range(feed.random.randrange(3)):
            content.insert(feed.random.randrange(5, len(content) + 1), feed.random.randrange(256))
        wrong = bytes(content[: feed.random.randrange(5, len(content) + 1)])
        result = write_avro(pa.array([wrong]), [read.flat], np.zeros(1, np.int32), lambda _: b"asked")
        assert result is not None
        by_python = avro.message_json(wrong, read)
        assert result[0][0].as_py() == ("asked" if by_python is None else by_python.decode())


def test_a_deep_value_is_python_s() -> None:
    """Deeper than the loop goes: it asks Python, which reads up to 300 levels."""
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "inner", "type": ["null", "Tree"]}]}
    read = read_schema(json.dumps(tree), wrapped=False)
    for depth, fits in ((20, True), (100, True), (400, False)):
        (text,) = written([HEAD + b"\x02" * depth + b"\x00"], read)
        assert (text is not None) is fits, depth


def test_many_rows_need_more_room_than_expected() -> None:
    schema = read_schema('"bytes"', wrapped=False)
    contents = [bytes([number % 256]) * number for number in range(3000)]
    messages = [message("bytes", content) for content in contents]
    assert [base64.b64decode(orjson.loads(text or "")) for text in written(messages, schema)] == contents
    control = [message("string", "\x01" * 4000)] * 50  # six bytes each
    texts = written(control, read_schema('"string"', wrapped=False))
    assert [orjson.loads(text or "") for text in texts] == ["\x01" * 4000] * 50


def test_connect_s_schema_is_made_of_avro_s() -> None:
    """By the attributes that Connect's AvroData writes, and by logical types without them."""
    decimal = {
        "type": "bytes", "scale": 2, "precision": 10, "logicalType": "decimal", "connect.version": 1,
        "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
        "connect.name": "org.apache.kafka.connect.data.Decimal",
    }  # fmt: skip
    date = {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}
    fields = [
        {"name": "id", "type": "long"},
        {"name": "small", "type": ["null", {"type": "int", "connect.type": "int16"}], "default": None},
        {"name": "price", "type": ["null", decimal], "default": None},
        {"name": "day", "type": date},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "stock", "type": [{"type": "int", "connect.default": 7}, "null"], "default": 7},
    ]
    value = {"type": "record", "name": "Value", "fields": fields}
    envelope = {
        "type": "record", "name": "Envelope", "namespace": "shop.public.orders",
        "fields": [{"name": "before", "type": ["null", value]}, {"name": "after", "type": ["null", "Value"]}],
        "connect.version": 1, "connect.name": "shop.public.orders.Envelope",
    }  # fmt: skip
    before = read_schema(json.dumps(envelope), wrapped=True).before
    assert before.endswith(b',"payload":')
    connect = json.loads(before[len(b'{"schema":') : -len(b',"payload":')])
    row, again = connect["fields"]
    assert connect["name"] == "shop.public.orders.Envelope"
    assert again == {**row, "field": "after"}
    assert (row["type"], row["optional"], row["name"]) == ("struct", True, "shop.public.orders.Value")
    assert row["fields"] == [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "small", "type": "int16", "optional": True},
        {
            "field": "price", "type": "bytes", "optional": True, "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "10"},
        },
        {"field": "day", "type": "int32", "optional": False, "name": "io.debezium.time.Date"},
        {"field": "at", "type": "int64", "optional": False, "name": "io.debezium.time.MicroTimestamp"},
        {
            "field": "tags", "type": "array", "optional": False,
            "items": {"type": "string", "optional": True},
        },
        {"field": "stock", "type": "int32", "optional": True, "default": 7},
    ]  # fmt: skip


def test_schemas_refer_to_others() -> None:
    address = '{"type": "record", "name": "shop.Address", "fields": [{"name": "city", "type": "string"}]}'
    person = '{"type": "record", "name": "shop.Person", "fields": [{"name": "home", "type": "Address"}]}'
    (text,) = written([HEAD + b"\x08Oslo"], read_schema(person, (address,), wrapped=False))
    assert text == '{"home":{"city":"Oslo"}}'


@pytest.mark.parametrize(
    "text",
    ["", "{}", '"unknown"', '{"type": "record", "name": "R"}', '{"type": "decimal", "name": "x"}', "[1]", "17"],
)
def test_what_is_no_schema_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no schema of Avro"):
        read_schema(text, wrapped=True)


def test_a_recursive_schema_has_no_form_in_connect() -> None:
    tree = '{"type": "record", "name": "Tree", "fields": [{"name": "inner", "type": ["null", "Tree"]}]}'
    with pytest.raises(ValueError, match="no schema of Avro"):
        read_schema(tree, wrapped=True)


def number_of_items(count: int) -> bytes:
    """A count as Avro writes it."""
    content, rest = b"", count << 1
    while rest >= 128:
        content, rest = content + bytes([rest & 127 | 128]), rest >> 7
    return content + bytes([rest])


NULLS = ",".join(f'{{"name":"column_{number}","type":"null"}}' for number in range(1000))
BOMBS = (
    '"null"',
    '{"type":"record","name":"e","fields":[]}',
    '{"type":"fixed","name":"f","size":0}',
    f'{{"type":"record","name":"w","fields":[{{"name":"a","type":["null","int"]}},{NULLS}]}}',
)


@pytest.mark.parametrize("items", BOMBS, ids=["null", "empty", "fixed", "wide"])
def test_a_short_message_that_would_be_a_text_without_bounds_does_not_fit(items: str) -> None:
    """16 KB became 170 MB of JSON where items take no bytes, and 446 MB where an item of one byte has many names."""
    read = read_schema(f'{{"type":"array","items":{{"type":"array","items":{items}}}}}', wrapped=False)
    size = 3000
    blocks = [number_of_items(size - place) + bytes((size - place) * ("int" in items)) + b"\0" for place in range(9)]
    inner = blocks if "int" in items else blocks * (size // 9)
    bomb = HEAD + number_of_items(len(inner)) + b"".join(inner) + b"\0"
    small = HEAD + number_of_items(1) + number_of_items(3) + bytes(3 * ("int" in items)) + b"\0\0"
    texts = written([small, bomb, small], read)
    assert [text is not None for text in texts] == [True, False, True]
    assert len(json.loads(texts[0] or "")[0]) == 3


def test_a_message_may_be_many_times_as_long_as_json() -> None:
    """A wide table's rows of NULL, and six bytes for each control character, up to the bound."""
    fields = [{"name": f"column_{number}", "type": ["null", "long"]} for number in range(3000)]
    rows = {"type": "array", "items": {"type": "record", "name": "Value", "fields": fields}}
    read = read_schema(json.dumps(rows), wrapped=False)
    (text,) = written([HEAD + number_of_items(40) + bytes(40 * 3000) + b"\0"], read)
    assert len(json.loads(text or "")) == 40


def test_names_that_stand_for_names_are_refused_before_they_are_written_out() -> None:
    """Forty records, each with two of the next one: some KB, of which Connect's schema would have 2**40 parts."""
    kind: object = "null"
    for number in range(40):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"r{number - 1}" if number else "null"}]
        kind = {"type": "record", "name": f"r{number}", "fields": fields}
    with pytest.raises(ValueError, match="too large: it has more than 300,000 parts"):
        read_schema(json.dumps(kind), wrapped=True)
    assert written([HEAD], read_schema(json.dumps(kind), wrapped=False)) == [None]


def test_a_wide_table_is_no_such_schema() -> None:
    fields = [{"name": f"c{number}", "type": ["null", "string"]} for number in range(5000)]
    row = {"type": "record", "name": "Value", "fields": fields}
    both = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]}]
    read_schema(json.dumps({"type": "record", "name": "Envelope", "fields": both}), wrapped=True)
