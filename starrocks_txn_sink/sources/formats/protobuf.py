"""Messages of Protobuf behind a schema's number of a registry, written as the JSON that Connect's own converter writes.

What Avro's module says holds here too. Behind the number stands which message of the schema's file it is: the way to it
in places, as Confluent's serializers write it, or its name, as Apicurio's do. Nothing is left out: a field that the
schema does not have, a value of another type, an enum's number without a name do not fit.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.compiled.layout import ProtoForm, ProtoKind, ProtoLabel
from starrocks_txn_sink.compiled.rewrites import write_protobuf
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.avro import JsonRoom, real
from starrocks_txn_sink.sources.formats.connect_values import clock_text, date_text, day_of, decimal_text
from starrocks_txn_sink.sources.formats.protobuf_schemas import Field, LostNulls, Schema, read_schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

    from starrocks_txn_sink.sources.formats.protobuf_files import ProtobufFile

Numbers = np.ndarray[Any, np.dtype[np.int32]]
_DEEPEST: Final = 100  # levels of one value, as Google's parsers have it
_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5
_UINT32, _UINT64 = 1 << 32, 1 << 64
_DAY: Final = 86_400
_MOST_SECONDS: Final = 9_300_000_000_000_000  # more than 64 bits of milliseconds have
_MOST_SCALE: Final = 1 << 14
_GREGORIAN: Final = 15_821_015  # the first day of Java's calendar that is not Julian, as a number of its digits
_LONGEST_NAME: Final = 512


# --- which message of a file ---

_LOST_NULLS_HINT: Final = (
    "Set optional.for.nullables=true for key.converter and value.converter (ProtobufConverter): messages that were "
    "written without it have lost the difference."
)


@dataclass(slots=True)
class File:
    """A schema of the registry, whose messages stand behind `header` bytes; `named` says that their name comes first.

    `before_size` is about that of the text in front of a value.
    """

    number: int
    compiled: ProtobufFile
    wrapped: bool
    header: int
    named: bool
    before_size: int
    schemas: dict[bytes, Schema | InputError] = field(default_factory=dict)

    def split(self, messages: pa.Array, of_file: Bools) -> Iterator[tuple[Schema | InputError, Bools]]:
        """The schemas of these messages, each with a mask of its messages; one whose front names no message has none.

        In place of a schema that cannot be read stands the error that says why.
        """
        remainder = of_file.copy()
        for front, schema in [*self.schemas.items()]:  # another thread may add one
            if remainder.any():
                members = remainder & self._begin_with(messages, front)
                remainder &= ~members
                yield schema, members
        while remainder.any():
            first = int(remainder.argmax())
            new_front = self._front(messages[first].as_buffer().to_pybytes()[self.header :])
            remainder[first] = False
            if new_front is not None:
                members = remainder & self._begin_with(messages, new_front)
                members[first] = True
                remainder &= ~members
                yield self.schemas[new_front], members

    def _begin_with(self, messages: pa.Array, front: bytes) -> Bools:
        content = pc.binary_slice(messages, self.header, self.header + len(front))
        members: Bools = pc.equal(content, pa.scalar(front, messages.type)).fill_null(False).to_numpy(False)
        return members

    def _front(self, content: bytes) -> bytes | None:
        """The front of a message's content, whose schema is known from here on; None for one that names no message."""
        for read in (self._by_name, self._by_place)[:: 1 if self.named else -1]:
            try:
                message, size = read(content)
            except (IndexError, ValueError, KeyError):
                continue
            front = content[:size]
            if front not in self.schemas:
                self.schemas[front] = self._schema(message, self.header + size)
            return front
        return None

    def _schema(self, message: Descriptor, header: int) -> Schema | InputError:
        try:
            return read_schema(self.compiled, message, wrapped=self.wrapped, header=header)
        except ValueError as error:
            hint = _LOST_NULLS_HINT if isinstance(error, LostNulls) else None
            return InputError(f"Schema {self.number} of the schema registry is {error}.", hint=hint)

    def _by_place(self, content: bytes) -> tuple[Descriptor, int]:
        """Confluent's: the number of places, and a place in each level; zero alone is the first message."""
        reader = _Reader(content[:_LONGEST_NAME])
        count = _zigzag(reader.varint())
        places = [_zigzag(reader.varint()) for _ in range(count)] or [0]
        if min(count, *places) < 0:
            raise IndexError(places)
        message = self.compiled.messages[places[0]]
        for place in places[1:]:
            message = [nested for nested in message.nested_types if not nested.GetOptions().map_entry][place]
        return message, reader.at

    def _by_name(self, content: bytes) -> tuple[Descriptor, int]:
        """Apicurio's: a message with the name as field 1, behind its size."""
        reader = _Reader(content[:_LONGEST_NAME])
        inner = _Reader(reader.take(reader.varint()))
        if inner.varint() != 1 << 3 | _SIZED:
            raise ValueError("no name")
        name = inner.take(inner.varint()).decode()
        return {message.name: message for message in self.compiled.messages}[name], reader.at


def write_json(messages: pa.Array, schemas: Sequence[Schema], schema_numbers: Numbers) -> tuple[pa.Array, Bools]:
    """The messages as JSON by their schemas (`schema_numbers`, -1: empty), and a mask of those that fit them."""

    def judge(number: int) -> bytes | None:
        return message_json(messages[number].as_buffer().to_pybytes(), schemas[schema_numbers[number]])

    return write_protobuf(messages, [schema.flat for schema in schemas], schema_numbers, judge)


# --- one message ---


def message_json(message: bytes, schema: Schema) -> bytes | None:
    """One message as JSON; None if it does not fit its schema."""
    try:
        if len(message) < schema.header:
            return None
        text = _Values(schema.fields, JsonRoom.of(message)).message(schema.fields[0], message[schema.header :], 0)
    except (IndexError, ValueError, KeyError, struct.error):
        return None
    return schema.before + text + b"}" if schema.before else text


@dataclass(slots=True)
class _Reader:
    """Reads bytes; raises IndexError or ValueError behind their end, and for a number of more than 64 bits."""

    content: bytes
    at: int = 0

    def varint(self) -> int:
        bits = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                if bits >= _UINT64:
                    break
                return bits
        raise ValueError(bits)

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.content) - self.at:
            raise IndexError(size)
        self.at += size
        return self.content[self.at - size : self.at]

    def scalar(self, wire: int) -> int:
        """The bits of a number."""
        if wire == _VARINT:
            return self.varint()
        return int.from_bytes(self.take(8 if wire == _EIGHT else 4), "little")

    def fields(self) -> Iterator[tuple[int, int, int | bytes]]:
        """The number, the wire's type and the bits or the content of each field."""
        while self.at < len(self.content):
            tag = self.varint()
            number, wire = tag >> 3, tag & 7
            if not 8 <= tag < _UINT32 or wire not in (_VARINT, _EIGHT, _SIZED, _FOUR):
                raise ValueError(tag)
            yield number, wire, self.take(self.varint()) if wire == _SIZED else self.scalar(wire)


@dataclass(slots=True)
class _Values:
    """Writes the values of one schema; raises as _Reader does, or KeyError, for bytes that do not fit it."""

    all_fields: Sequence[Field]
    room: JsonRoom

    def message(self, own: Field, content: bytes, depth: int) -> bytes:
        """The JSON of a message."""
        if depth > _DEEPEST:
            raise ValueError(depth)
        fields = self._parts(own)
        values = self._read(fields, content)
        self.room.taken(b"{}")
        members = (self.room.taken(part.text) + self._member(part, values[part.number], depth) for part in fields)
        return b"{" + b",".join(members) + b"}"

    def _parts(self, own: Field) -> Sequence[Field]:
        return self.all_fields[own.first : own.first + own.count]

    def _read(self, fields: Sequence[Field], content: bytes) -> dict[int, list[int | bytes]]:
        """The values of each field, by its number. Of a field that does not repeat the last one counts.

        A message in several parts is that of all bytes. Of a oneof the last field counts.
        """
        by_number = {part.number: part for part in fields}
        values: dict[int, list[int | bytes]] = {part.number: [] for part in fields}
        for number, wire, value in _Reader(content).fields():
            part = by_number[number]
            if part.label in (ProtoLabel.REPEATED, ProtoLabel.MAP):
                values[number] += self._items(part, wire, value)
                continue
            if wire != _wire_of(part):
                raise ValueError(wire)
            for other in fields:
                if part.oneof and other.oneof == part.oneof and other is not part:
                    values[other.number] = []
            earlier = values[number][:1] if part.kind >= ProtoKind.MESSAGE else []
            values[number] = [_bytes(earlier[0]) + _bytes(value)] if earlier else [value]
        return values

    def _items(self, part: Field, wire: int, value: int | bytes) -> list[int | bytes]:
        """The items of one occurrence of a repeated field; those of numbers may be packed."""
        if wire == _wire_of(part):
            return [value]
        if wire != _SIZED or part.kind >= ProtoKind.STRING:
            raise ValueError(wire)
        packed, items = _Reader(_bytes(value)), list[int | bytes]()
        while packed.at < len(packed.content):
            items.append(packed.scalar(_wire_of(part)))
        return items

    def _member(self, part: Field, values: list[int | bytes], depth: int) -> bytes:
        if part.label is ProtoLabel.REPEATED:
            return b"[" + b",".join(self._value(part, value, depth) for value in values) + b"]"
        if part.label is ProtoLabel.MAP:
            return self._map(part, values, depth)
        if values:
            return self._value(part, values[0], depth)
        if part.label is ProtoLabel.REQUIRED:
            raise ValueError(part.number)
        return b"null" if part.label is ProtoLabel.OPTIONAL else self._zero(part, depth)

    def _zero(self, part: Field, depth: int) -> bytes:
        """The value of an absent field without presence."""
        return self._value(part, b"" if part.kind >= ProtoKind.STRING else 0, depth)

    def _map(self, part: Field, values: list[int | bytes], depth: int) -> bytes:
        key, inner = self._parts(part)
        pairs: dict[bytes, bytes] = {}
        for entry in values:
            read = self._read((key, inner), _bytes(entry))
            name = self._member(key, read[key.number], depth)
            pairs[name] = self._member(inner, read[inner.number], depth)
        named = (name if key.kind is ProtoKind.STRING else b'"' + name + b'"' for name in pairs)
        return b"{" + b",".join(name + b":" + value for name, value in zip(named, pairs.values(), strict=True)) + b"}"

    def _value(self, part: Field, value: int | bytes, depth: int) -> bytes:
        if isinstance(value, int):
            return self.room.taken(self._scalar(part, value))
        match part.kind:
            case ProtoKind.STRING:
                return self.room.taken(orjson.dumps(value.decode()))
            case ProtoKind.BYTES:
                return self.room.taken(b'"' + base64.b64encode(value) + b'"')
            case ProtoKind.MESSAGE:
                return self.message(part, value, depth + 1)
            case ProtoKind.WRAPPER:
                (inner,) = self.all_fields[part.first : part.first + 1]
                values = self._read((inner,), value)[inner.number]
                return self._value(inner, values[0], depth) if values else self._zero(inner, depth)
            case ProtoKind.DECIMAL:
                return self.room.taken(self._decimal(part, value))
            case _:
                text = self._time(part, value)
                return f'"{text}"'.encode()

    def _scalar(self, part: Field, bits: int) -> bytes:
        signed = bits - _UINT64 if bits >= _UINT64 >> 1 else bits
        match part.kind:
            case ProtoKind.BOOL:
                return (b"false", b"true")[bits]
            case ProtoKind.ENUM:
                return {symbol.number: symbol.text for symbol in reversed(self._parts(part))}[signed]
            case ProtoKind.INT32 | ProtoKind.SFIXED32:
                number = signed - _UINT32 if _UINT32 >> 1 <= signed < _UINT32 else signed
                return b"%d" % _within(number, -(_UINT32 >> 1), _UINT32 >> 1)
            case ProtoKind.INT64 | ProtoKind.SFIXED64:
                return b"%d" % signed
            case ProtoKind.SINT32 | ProtoKind.SINT64:
                return b"%d" % _zigzag(_within(bits, 0, _UINT32 if part.kind is ProtoKind.SINT32 else _UINT64))
            case ProtoKind.FLOAT:
                return real(struct.unpack("<f", bits.to_bytes(4, "little"))[0], narrow=True)
            case ProtoKind.DOUBLE:
                return real(struct.unpack("<d", bits.to_bytes(8, "little"))[0], narrow=False)
            case _:
                return b"%d" % _within(
                    bits, 0, _UINT32 if part.kind in (ProtoKind.UINT32, ProtoKind.FIXED32) else _UINT64
                )

    def _decimal(self, part: Field, content: bytes) -> bytes:
        """A confluent.type.Decimal: a number in two's complement, its digits' count, and its scale."""
        values = self._read(_DECIMAL_FIELDS, content)
        scale = int(self._value(_DECIMAL_FIELDS[2], values[3][0], 0)) if values[3] else 0
        text = base64.b64encode(_bytes(values[1][0])).decode()
        if not text or not -_MOST_SCALE <= scale <= _MOST_SCALE:
            raise ValueError(scale)
        if part.count == ProtoForm.OWN_SCALE:
            return f'{{"scale":{scale},"value":"{text}"}}'.encode()
        if part.count == ProtoForm.PLAIN:
            return f'"{decimal_text(text, scale)}"'.encode()
        if scale != part.first:
            raise ValueError(scale)
        return f'"{text}"'.encode()

    def _time(self, part: Field, content: bytes) -> str:
        """A google.type.Date or TimeOfDay, or a google.protobuf.Timestamp."""
        fields = _COUNTS[: {ProtoKind.DATE: 3, ProtoKind.TIME: 4}.get(part.kind, 2)]
        values = self._read(fields, content).values()
        numbers = [int(self._value(_COUNTS[0], value[0], 0)) if value else 0 for value in values]
        plain = part.count == ProtoForm.PLAIN
        zone = "" if plain else "Z"
        if part.kind is ProtoKind.DATE:
            year, month, day = numbers
            return date_text(_calendar_day(year, month, day, julian=not plain)) + zone
        if part.kind is ProtoKind.TIME:
            hour, minute, second, nanos = numbers
            if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
                raise ValueError(numbers)
            return clock_text((hour * 60 + minute) * 60 + second, _within(nanos, 0, 10**9)) + zone
        seconds, nanos = numbers
        days, remainder = divmod(_within(seconds, -_MOST_SECONDS, _MOST_SECONDS + 1), _DAY)
        return date_text(days) + (" " if plain else "T") + clock_text(remainder, _within(nanos, 0, 10**9)) + zone


_DECIMAL_FIELDS: Final = tuple(
    Field(number, kind) for number, kind in enumerate((ProtoKind.BYTES, ProtoKind.UINT32, ProtoKind.INT32), 1)
)
_COUNTS: Final = tuple(Field(number, ProtoKind.INT64) for number in range(1, 5))


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)  # as the wire's type says
    return value


def _wire_of(part: Field) -> int:
    if part.kind <= ProtoKind.ENUM:
        return _VARINT
    return _SIZED if part.kind >= ProtoKind.STRING else _EIGHT if part.kind >= ProtoKind.FIXED64 else _FOUR


def _within(number: int, minimum: int, beyond: int) -> int:
    if not minimum <= number < beyond:
        raise ValueError(number)
    return number


def _zigzag(bits: int) -> int:
    return bits >> 1 ^ -(bits & 1)


def _calendar_day(year: int, month: int, day: int, *, julian: bool) -> int:
    """The day of a date, counted from 1970-01-01; with `julian` as Java's calendar has it, Julian until 1582-10-04."""
    if not (0 < year < 10**9 and 0 < month <= 12 and 0 < day <= _LENGTHS[month - 1] + (month == 2)):
        raise ValueError(year)
    order = (year * 100 + month) * 100 + day
    julian = julian and order < _GREGORIAN
    leap = year % 4 == 0 and (julian or year % 100 != 0 or year % 400 == 0)
    if (julian and order > _GREGORIAN - 11) or (month == 2 and day == 29 and not leap):
        raise ValueError(order)
    if not julian:
        return day_of(year, month, day)
    shifted = year - (month <= 2)
    return shifted * 365 + shifted // 4 + (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1 - 719_470


_LENGTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
