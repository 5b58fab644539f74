"""Avro's schemas: the types by which a message is read, and Kafka Connect's schema of the same values.

Connect's own converter leaves in Avro's schema what it needs to make Connect's again (`connect.name`,
`connect.parameters`); of other schemas the logical types say what their numbers are (Avro 1.11, "Logical Types").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from starrocks_txn_sink.compiled.layout import AvroKind
from starrocks_txn_sink.compiled.rewrites import AvroSchema
from starrocks_txn_sink.sources.formats.schema_text import schema_text

_CONNECT: Final = "org.apache.kafka.connect.data."
_TIME: Final = "io.debezium.time."

_PRIMITIVES: Final = {
    "null": (AvroKind.NULL, ""),
    "boolean": (AvroKind.BOOLEAN, "boolean"),
    "int": (AvroKind.LONG, "int32"),
    "long": (AvroKind.LONG, "int64"),
    "float": (AvroKind.FLOAT, "float"),
    "double": (AvroKind.DOUBLE, "double"),
    "bytes": (AvroKind.BYTES, "bytes"),
    "string": (AvroKind.STRING, "string"),
}
"""The kind of a primitive type, and Connect's name of it."""

_LOGICAL: Final = {
    ("int", "date"): _CONNECT + "Date",
    ("int", "time-millis"): _CONNECT + "Time",
    ("long", "time-micros"): _TIME + "MicroTime",
    ("long", "timestamp-millis"): _CONNECT + "Timestamp",
    ("long", "timestamp-micros"): _TIME + "MicroTimestamp",
    ("long", "timestamp-nanos"): _TIME + "NanoTimestamp",
    ("bytes", "decimal"): _CONNECT + "Decimal",
    ("fixed", "decimal"): _CONNECT + "Decimal",
}
"""Connect's name of a logical type. Local timestamps have none: they stay numbers, as they have no zone."""


@dataclass(slots=True)
class Type:
    """A type; its parts (fields, branches, items or symbols) are `count` ones from number `first` on.

    `text` stands in front of a field, or is a symbol. A fixed has `count` bytes.
    """

    kind: AvroKind = AvroKind.NULL
    first: int = 0
    count: int = 0
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class Schema:
    """The types of a schema, of which number 0 is the whole; `before` is the start of the object around a value.

    A message has `header` bytes in front of its value.
    """

    types: tuple[Type, ...]
    before: bytes = b""
    header: int = 5

    @property
    def flat(self) -> AvroSchema:
        """The schema for `compiled.rewrites.write_avro`."""
        return [(type.kind, type.first, type.count, type.text) for type in self.types], self.before, self.header


def read_schema(text: str, dependencies: Sequence[str] = (), *, wrapped: bool, header: int = 5) -> Schema:
    """The schema whose JSON is `text`; `dependencies` has the JSON of the schemas that it refers to.

    `wrapped`: the messages get Connect's schema. Raises ValueError for a schema that is none or, wrapped, recursive or
    too large.
    """
    reader = _SchemaReader()
    try:
        for dependency in dependencies:
            reader.read(orjson.loads(dependency))
        connect = reader.read(_loads(text))
        if not wrapped:
            return Schema(tuple(reader.types_of_last()), header=header)
        if reader.recursive:
            raise ValueError("it refers to itself, which Connect has no form for")
        prefix = b'{"schema":' + schema_text(connect) + b',"payload":'
    except (LookupError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ValueError(f"no schema of Avro that can be read ({error or type(error).__name__})") from None
    return Schema(tuple(reader.types_of_last()), prefix, header)


def _loads(text: str) -> Any:
    """A schema's JSON; a primitive type may stand there without quotes."""
    return text if text in _PRIMITIVES else orjson.loads(text)


@dataclass(slots=True)
class _SchemaReader:
    """Reads schemas one after the other; names that one defines are known to the next ones."""

    types: list[Type] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    connect: dict[str, dict[str, Any]] = field(default_factory=dict)
    last: int = 0
    recursive: bool = False

    def read(self, schema: Any) -> dict[str, Any]:
        """Take in a schema; returns Connect's."""
        self.types.append(Type())
        self.last = len(self.types) - 1
        return self._fill(self.last, schema, "")

    def types_of_last(self) -> list[Type]:
        """The types with that of the last schema as number 0; the others keep their numbers."""
        if not self.last:
            return self.types
        last, first = self.types[self.last], self.types[0]
        self.types.append(first)  # what referred to number 0 is a copy by now
        return [last, *self.types[1:]]

    def _fill(self, number: int, schema: Any, namespace: str) -> dict[str, Any]:
        """Set type `number`; returns Connect's schema."""
        if isinstance(schema, list):
            return self._union(number, schema, namespace)
        if isinstance(schema, str):
            return self._named(number, schema, namespace)
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self._fill(number, kind, namespace)
        if kind in _PRIMITIVES:
            self.types[number].kind, own = _PRIMITIVES[kind]
            return _described({"type": schema.get("connect.type", own)}, schema, kind)
        if kind == "array":
            return _described(self._items(number, AvroKind.ARRAY, schema["items"], namespace), schema)
        if kind == "map":
            return _described(self._items(number, AvroKind.MAP, schema["values"], namespace), schema)
        return self._definition(number, schema, namespace)

    def _named(self, number: int, name: str, namespace: str) -> dict[str, Any]:
        if name in _PRIMITIVES:
            self.types[number].kind, own = _PRIMITIVES[name]
            return {"type": own, "optional": False}
        full = name if "." in name or f"{namespace}.{name}" not in self.numbers else f"{namespace}.{name}"
        defined = self.types[self.numbers[full]]
        self.types[number].kind, self.types[number].first, self.types[number].count = (
            defined.kind,
            defined.first,
            defined.count,
        )
        connect = self.connect[full]
        self.recursive |= connect["type"] == "struct" and "fields" not in connect
        return connect

    def _union(self, number: int, branches: Sequence[Any], namespace: str) -> dict[str, Any]:
        first = self._parts(number, AvroKind.UNION, len(branches))
        inner = [self._fill(first + place, branch, namespace) for place, branch in enumerate(branches)]
        types = [branch for branch in inner if branch["type"]]
        if len(types) != 1:  # Connect has no name for a choice of several types
            return {"type": "string", "optional": True}
        return types[0] | {"optional": len(types) < len(branches)}

    def _items(self, number: int, kind: AvroKind, items: Any, namespace: str) -> dict[str, Any]:
        inner = self._fill(self._parts(number, kind, 1), items, namespace)
        if kind is AvroKind.ARRAY:
            return {"type": "array", "items": inner}
        return {"type": "map", "keys": {"type": "string", "optional": False}, "values": inner}

    def _definition(self, number: int, schema: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        """A type with a name, which the schema may refer to from here on."""
        name = schema["name"]
        namespace = name.rpartition(".")[0] if "." in name else schema.get("namespace", namespace)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        self.numbers[full] = number
        kind = schema["type"]
        if kind == "fixed":
            self.types[number].kind, self.types[number].count = AvroKind.FIXED, int(schema["size"])
            connect = _described({"type": "bytes"}, schema, kind)
        elif kind == "enum":
            first = self._parts(number, AvroKind.ENUM, len(schema["symbols"]))
            for place, symbol in enumerate(schema["symbols"]):
                self.types[first + place].text = orjson.dumps(symbol)
            connect = _described({"type": "string"}, schema)
        elif kind in ("record", "error"):
            connect = _described({"type": "struct"}, {"connect.name": full, **schema})
            self.connect[full] = connect
            connect["fields"] = self._fields(number, schema["fields"], namespace)
        else:
            raise KeyError(kind)
        self.connect[full] = connect
        return connect

    def _fields(self, number: int, fields: Sequence[Mapping[str, Any]], namespace: str) -> list[dict[str, Any]]:
        first = self._parts(number, AvroKind.RECORD, len(fields))
        described = []
        for place, member in enumerate(fields):
            self.types[first + place].text = orjson.dumps(member["name"]) + b":"
            default = {} if member.get("default") is None else {"default": member["default"]}
            described.append(
                {**self._fill(first + place, member["type"], namespace), **default, "field": member["name"]}
            )
        return described

    def _parts(self, number: int, kind: AvroKind, count: int) -> int:
        """Make room for the parts of type `number`; returns the number of the first one."""
        first = len(self.types)
        self.types += (Type() for _ in range(count))
        self.types[number].kind, self.types[number].first, self.types[number].count = kind, first, count
        return first


def _described(connect: dict[str, Any], schema: Mapping[str, Any], kind: str = "") -> dict[str, Any]:
    """Connect's schema with the name and the parameters that Connect's converter has left in Avro's."""
    name = schema.get("connect.name") or _LOGICAL.get((kind, schema.get("logicalType", "")))
    parameters = {key: str(value) for key, value in (schema.get("connect.parameters") or {}).items()}
    if name == _CONNECT + "Decimal":
        parameters["scale"] = str(schema.get("scale", parameters.get("scale", 0)))
    described = {**connect, "optional": False}
    return described | ({"name": name} if name else {}) | ({"parameters": parameters} if parameters else {})
