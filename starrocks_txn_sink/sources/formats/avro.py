"""Messages of Avro behind a schema's number of a registry, written as the JSON that Connect's own converter writes.

So all that reads JSON reads Avro too: the values stand as that converter spells them (bytes in base64, a decimal as its
bytes), and Connect's schema in front says what they are. The compiled loop writes a batch, and asks Python about each
message that is not plain; both write the same. A message is read by the schema that wrote it (Avro 1.11, "Binary
Encoding"; `frames` knows what stands in front).
"""

from __future__ import annotations

import base64
import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from starrocks_txn_sink.compiled.layout import AvroKind
from starrocks_txn_sink.compiled.rewrites import write_avro
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.avro_schemas import Schema, Type

_DEEPEST: Final = 300  # levels of one value; Python's own limit is 1000 calls
_LEAST_JSON: Final = 1 << 20
_MOST_GROWTH: Final = 100


def write_json(
    messages: pa.Array, schemas: Sequence[Schema], schema_numbers: np.ndarray[Any, np.dtype[np.int32]]
) -> tuple[pa.Array, Bools]:
    """The messages as JSON by their schemas (`schema_numbers`, -1: empty), and a mask of those that fit them."""

    def judge(number: int) -> bytes | None:
        return message_json(messages[number].as_buffer().to_pybytes(), schemas[schema_numbers[number]])

    return write_avro(messages, [schema.flat for schema in schemas], schema_numbers, judge)


def message_json(message: bytes, schema: Schema) -> bytes | None:
    """One message as JSON; None if it does not fit its schema, or would be more than JsonRoom has."""
    reader = _Reader(message, schema.types, schema.header, JsonRoom.of(message))
    try:
        text = reader.value(schema.types[0], 0)
    except (IndexError, ValueError, struct.error):
        return None
    if reader.at != len(message):
        return None
    return schema.before + text + b"}" if schema.before else text


@dataclass(slots=True)
class JsonRoom:
    """How much JSON a message may still become: items and names of a few bytes, or of none, may stand for any size."""

    left: int

    @classmethod
    def of(cls, message: bytes) -> JsonRoom:
        """That of a message; the compiled loop leaves what is longer to Python (MOST_JSON)."""
        return cls(_LEAST_JSON + _MOST_GROWTH * len(message))

    def taken(self, text: bytes) -> bytes:
        """The text, whose room is taken; raises ValueError without room."""
        self.left -= len(text)
        if self.left < 0:
            raise ValueError(self.left)
        return text


@dataclass(slots=True)
class _Reader:
    """Reads one message; raises IndexError, ValueError or struct.error for one that does not fit."""

    message: bytes
    types: Sequence[Type]
    at: int
    room: JsonRoom

    def value(self, kind: Type, depth: int) -> bytes:
        """The JSON of the next value."""
        if depth > _DEEPEST:
            raise ValueError(depth)
        match kind.kind:
            case AvroKind.UNION:
                return self.value(self._part(kind), depth + 1)
            case AvroKind.ARRAY | AvroKind.MAP:
                return self._items(kind, depth + 1)
            case AvroKind.RECORD:
                fields = self.types[kind.first : kind.first + kind.count]
                self.room.taken(b"{}")
                members = (self.room.taken(field.text) + self.value(field, depth + 1) for field in fields)
                return b"{" + b",".join(members) + b"}"
            case AvroKind.BYTES | AvroKind.FIXED:
                size = kind.count if kind.kind is AvroKind.FIXED else self.number()
                return self.room.taken(b'"' + base64.b64encode(self._bytes(size)) + b'"')
            case _:
                return self.room.taken(self._scalar(kind))

    def _scalar(self, kind: Type) -> bytes:
        match kind.kind:
            case AvroKind.BOOLEAN:
                return (b"false", b"true")[self._bytes(1)[0]]
            case AvroKind.LONG:
                return b"%d" % self.number()
            case AvroKind.FLOAT:
                return real(struct.unpack("<f", self._bytes(4))[0], narrow=True)
            case AvroKind.DOUBLE:
                return real(struct.unpack("<d", self._bytes(8))[0], narrow=False)
            case AvroKind.STRING:
                return orjson.dumps(self._bytes(self.number()).decode())
            case AvroKind.ENUM:
                return self._part(kind).text
            case _:
                return b"null"

    def number(self) -> int:
        """A whole number of up to 64 bits."""
        bits = 0
        for shift in range(0, 70, 7):
            byte = self._bytes(1)[0]
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                if bits >= 1 << 64:
                    break
                return bits >> 1 ^ -(bits & 1)
        raise ValueError(bits)

    def _bytes(self, size: int) -> bytes:
        if not 0 <= size <= len(self.message) - self.at:
            raise IndexError(size)
        self.at += size
        return self.message[self.at - size : self.at]

    def _part(self, kind: Type) -> Type:
        number = self.number()
        if not 0 <= number < kind.count:
            raise IndexError(number)
        return self.types[kind.first + number]

    def _items(self, kind: Type, depth: int) -> bytes:
        is_map, pieces = kind.kind is AvroKind.MAP, list[bytes]()
        self.room.taken(b"[]")
        while count := self.number():
            if count < 0:
                self.number()  # the bytes of the block
            for _ in range(abs(count)):
                name = orjson.dumps(self._bytes(self.number()).decode()) + b":" if is_map else b""
                pieces.append(self.room.taken(name) + self.value(self.types[kind.first], depth))
        return (b"{%b}" if is_map else b"[%b]") % b",".join(pieces)


def real(number: float, *, narrow: bool) -> bytes:
    """The shortest spelling that reads as the same number, as the compiled loop writes it."""
    if not math.isfinite(number):
        return b'"NaN"' if math.isnan(number) else b'"Infinity"' if number > 0 else b'"-Infinity"'
    digits = range(6, 10) if narrow else range(15, 18)
    same: Callable[[str], float] = (lambda text: ctypes.c_float(float(text)).value) if narrow else float
    text = next((text for count in digits if same(text := f"{number:.{count}g}") == number), f"{number:.{digits[-1]}g}")
    return (text if "." in text or "e" in text else text + ".0").encode()
