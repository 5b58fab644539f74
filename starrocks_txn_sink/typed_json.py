"""Dataclasses as JSON, and JSON as dataclasses: the one codec of states, manifests and messages.

JSON has a dataclass as an object, a tuple as a list, and bytes as base64. `reader` makes the values of a type again: of
dataclasses, tuples, mappings and optional values of these. All other values are JSON's own.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import orjson

Value = TypeVar("Value")
Reader = Callable[[Any], Any]

_NOTHING: Final = type(None)


def dumps(value: Any) -> bytes:
    """`value` as JSON."""
    return orjson.dumps(value, default=_base64)


def _base64(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, as they are."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def read(kind: type[Value], members: Mapping[str, Any], **values: Any) -> Value:
    """The dataclass `kind` with `members` in JSON's types and `values` fields; what is missing has its default.

    A member that `kind` has not is of a later release, and left out. Raises TypeError for one that is missing and has
    no default.
    """
    value: Value = _dataclass_reader(kind)(members, **values)  # type: ignore[arg-type] # a class is hashable
    return value


@cache
def _dataclass_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = [(field.name, _reader(hints[field.name])) for field in fields(kind)]

    def made(members: Mapping[str, Any], **more: Any) -> Any:
        for name, reader in readers:
            if name in members:
                more[name] = members[name] if reader is None else reader(members[name])
        return kind(**more)

    return made


def _reader(kind: Any) -> Reader | None:
    """What makes a value of the type `kind` from JSON's; None: JSON's is the value."""
    if kind is bytes:
        return base64.b64decode
    if is_dataclass(kind):
        return _dataclass_reader(kind)  # type: ignore[arg-type]
    args = get_args(kind)
    if get_origin(kind) is tuple:
        return _tuple_reader([_reader(arg) for arg in args if arg is not ...], any_length=args[-1] is ...)
    if _NOTHING in args:
        of_value = _reader(next(arg for arg in args if arg is not _NOTHING))
        return of_value and (lambda value: None if value is None else of_value(value))
    if get_origin(kind) in (dict, Mapping):
        of_item = _reader(args[1])
        return of_item and (lambda value: {key: of_item(item) for key, item in value.items()})
    return None


def _tuple_reader(readers: list[Reader | None], *, any_length: bool) -> Reader:
    if not any(readers):
        return tuple
    if any_length:
        return lambda value: tuple(map(readers[0], value))  # type: ignore[arg-type]
    return lambda value: tuple(
        item if reader is None else reader(item) for reader, item in zip(readers, value, strict=True)
    )
