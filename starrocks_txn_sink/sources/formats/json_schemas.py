"""JSON Schema as Kafka Connect's schema of the same values.

Confluent's `JsonSchemaConverter` leaves in it what it needs to make Connect's again: `connect.type`, `connect.index`,
`connect.parameters`, and the name of a logical type as `title`. The values stand as Connect's own converter of JSON
spells them. Of other schemas the types alone count; what Connect has no form for is a JSON value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from starrocks_txn_sink.sources.formats.schema_text import MOST_PARTS, too_large

_BY_TYPE: Final = {"boolean": "boolean", "integer": "int64", "number": "double", "string": "string"}
_BY_CONNECT: Final = {"float32": "float", "float64": "double"}
_ANY: Final = {"type": "struct", "optional": True}
_DEEPEST: Final = 100


def connect_schema(text: str) -> bytes:
    """Connect's schema (JSON) of the values of a JSON Schema; ValueError for a text that is none."""
    try:
        document = orjson.loads(text)
        return orjson.dumps(_Document(document).of(document, 0))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no JSON Schema that can be read ({error or type(error).__name__})") from None


class _Document:
    """A JSON Schema, whose parts may refer to other parts of it."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._parts = 0

    def of(self, schema: Any, depth: int) -> dict[str, Any]:
        """Connect's schema of a part."""
        if depth > _DEEPEST:
            raise ValueError("it refers to itself, which Connect has no form for")
        self._parts += 1  # counted while they are made: parts that each name the next one twice never end
        if self._parts > MOST_PARTS:
            raise too_large()
        if not isinstance(schema, Mapping):  # `true` and `false` are schemas
            return _ANY
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]), depth)
        branches, optional = _without_null(schema)
        if branches is not None:
            return self.of(branches[0], depth + 1) | {"optional": optional} if len(branches) == 1 else _ANY
        kinds = schema.get("type", "object" if "properties" in schema else "string" if "enum" in schema else ())
        names = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
        if len(names) != 1:
            return _ANY
        return _described(self._typed(names[0], schema, depth), schema, optional=not isinstance(kinds, str))

    def _referred(self, place: str, depth: int) -> dict[str, Any]:
        """Connect's schema of another part; of another document's it is any value."""
        if not place.startswith("#"):
            return _ANY
        part = self._document
        for name in place[1:].split("/")[1:]:
            part = part[name.replace("~1", "/").replace("~0", "~")]
        return self.of(part, depth + 1)

    def _typed(self, kind: str, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        own = schema.get("connect.type", "")
        if own == "map":
            return self._map(kind, schema, depth)
        if kind in _BY_TYPE:
            return {"type": _BY_CONNECT.get(own, own or _BY_TYPE[kind])}
        if kind == "array":
            items = schema.get("items")
            return {"type": "array", "items": self.of(items, depth + 1)} if isinstance(items, Mapping) else dict(_ANY)
        if kind != "object":
            raise KeyError(kind)
        members = sorted(schema.get("properties", {}).items(), key=lambda member: _place(member[1]))
        fields = [{**self.of(member, depth + 1), **_default(member), "field": name} for name, member in members]
        return {"type": "struct", "fields": fields}

    def _map(self, kind: str, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """A map: an object of its values, or an array of keys with values."""
        if kind == "array":
            return {"type": "map", "keys": _ANY, "values": _ANY}
        values = self.of(schema["additionalProperties"], depth + 1)
        return {"type": "map", "keys": {"type": "string", "optional": False}, "values": values}


def _without_null(schema: Mapping[str, Any]) -> tuple[Sequence[Any] | None, bool]:
    """The branches of a choice but null, and whether null is one of them; None without a choice."""
    for name in ("oneOf", "anyOf"):
        if name in schema:
            branches = [branch for branch in schema[name] if branch != {"type": "null"}]
            return branches, len(branches) < len(schema[name])
    return None, False


def _place(member: Any) -> int:
    """The place among the fields; those without one stay in the schema's order."""
    return int(member.get("connect.index", 0)) if isinstance(member, Mapping) else 0


def _default(member: Any) -> dict[str, Any]:
    """The default of a field, which stands beside a choice or in its branch."""
    if not isinstance(member, Mapping):
        return {}
    if member.get("default") is not None:
        return {"default": member["default"]}
    branches = _without_null(member)[0] or ()
    return _default(branches[0]) if len(branches) == 1 else {}


def _described(connect: dict[str, Any], schema: Mapping[str, Any], *, optional: bool) -> dict[str, Any]:
    parameters = {key: str(value) for key, value in (schema.get("connect.parameters") or {}).items()}
    described = {**connect, "optional": optional}
    described |= {"name": schema["title"]} if isinstance(schema.get("title"), str) else {}
    return described | ({"parameters": parameters} if parameters else {})
