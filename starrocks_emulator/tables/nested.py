"""Values of ARRAY, MAP and STRUCT, which the store keeps as JSON text: as the query port writes them, and as JSON.

The server writes them in a form of its own, which is no JSON when a text has control characters (wire contract 5.12).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """A type with its parts: the element of an ARRAY, key and value of a MAP, the named fields of a STRUCT."""

    kind: str
    parts: tuple[tuple[str, Shape], ...] = ()
    scale: int = 0


@lru_cache(maxsize=256)
def shape_of(text: str) -> Shape:
    """The shape of a type as DDL writes it: `map<varchar(10),array<int>>`."""
    head, _, inside = text.strip().partition("<")
    kind = head.partition("(")[0].strip().lower()
    if not inside:
        numbers = [part.strip() for part in head.partition("(")[2].rstrip(") ").split(",")]
        return Shape(kind, scale=int(numbers[1]) if kind.startswith("decimal") and len(numbers) > 1 else 0)
    parts = list(_parts(inside.rstrip()[:-1]))
    if kind != "struct":
        return Shape(kind, tuple(("", shape_of(part)) for part in parts))
    fields = [part.strip().partition(" ") for part in parts]
    return Shape(kind, tuple((name.strip("`"), shape_of(field)) for name, _, field in fields))


def _parts(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def sorted_json(text: str) -> str:
    """A JSON value as the server shows it: keys in order, a space after each comma and colon (wire contract 5.11)."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except ValueError:  # DuckDB may evaluate what a CASE leaves out
        return text


def nested_text(value: str, kind: str) -> str:
    """A value as the query port writes it: in texts the quote and the backslash alone are escaped."""
    return _written(_read(value), shape_of(kind))


def nested_json(value: str, kind: str) -> str:
    """A value as JSON, as a function of the server makes it: a DECIMAL is a text, a BOOLEAN 1 or 0."""
    return sorted_json(json.dumps(_document(_read(value), shape_of(kind)), ensure_ascii=False))


def _read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _quoted(text: str, quote: str = '"') -> str:
    return quote + text.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote


def _written(value: Any, shape: Shape) -> str:
    if value is None:
        return "null"
    if shape.kind == "array" and isinstance(value, list):
        return f"[{','.join(_written(element, shape.parts[0][1]) for element in value)}]"
    if shape.kind == "map" and isinstance(value, dict):
        (_, key), (_, of_key) = shape.parts
        return "{" + ",".join(f"{_written(name, key)}:{_written(part, of_key)}" for name, part in value.items()) + "}"
    if shape.kind == "struct" and isinstance(value, dict):
        fields = [f"{_quoted(name)}:{_written(value.get(name), field)}" for name, field in shape.parts]
        return "{" + ",".join(fields) + "}"
    if shape.kind == "json":
        return _quoted(sorted_json(json.dumps(value, ensure_ascii=False, default=float)), "'")
    return _number(value, shape) or _quoted(str(value))


def _number(value: Any, shape: Shape) -> str:
    """A value of a number's or BOOLEAN's type as the server writes it; empty for another type, or what is none."""
    if shape.kind == "boolean" or isinstance(value, bool):
        return str(int(value in (True, 1, "true", "1")))
    if shape.kind.startswith("decimal"):
        try:
            return f"{Decimal(str(value)):.{shape.scale}f}"
        except InvalidOperation:
            return ""
    if shape.kind in ("float", "double"):
        return str(float(value)) if isinstance(value, (int, Decimal)) else str(value)
    return str(value) if shape.kind.endswith("int") else ""


def _document(value: Any, shape: Shape) -> Any:
    if value is None:
        return None
    if shape.kind == "array" and isinstance(value, list):
        return [_document(element, shape.parts[0][1]) for element in value]
    if shape.kind == "map" and isinstance(value, dict):
        return {name: _document(part, shape.parts[1][1]) for name, part in value.items() if name}  # no empty name [S]
    if shape.kind == "struct" and isinstance(value, dict):
        return {name: _document(value.get(name), field) for name, field in shape.parts}
    if shape.kind == "json":
        return json.loads(json.dumps(value, default=float))
    number = _number(value, shape)
    if shape.kind.startswith("decimal") or shape.kind == "largeint":
        return number or str(value)
    return json.loads(number) if number and not isinstance(value, str) else value
