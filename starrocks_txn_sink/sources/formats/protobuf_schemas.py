"""Protobuf's schemas: the fields by which a message is read, and Kafka Connect's schema of the same values.

Confluent's `ProtobufConverter` has types for Connect's own Decimal, Date, Time and Timestamp alone; the names of all
other logical types are lost, and `connect.type` says that a number was a narrower one. A field says whether it may be
NULL if the converter's `optional.for.nullables` or `wrapper.for.nullables` is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from starrocks_txn_sink.compiled.layout import ProtoForm, ProtoKind, ProtoLabel
from starrocks_txn_sink.compiled.rewrites import ProtobufSchema
from starrocks_txn_sink.sources.formats.schema_text import schema_text

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

    from starrocks_txn_sink.sources.formats.protobuf_files import ProtobufFile


@dataclass(slots=True)
class Field:
    """A field, or a value of an enum; the fields of its message, or an enum's values, are `count` ones from `first` on.

    A decimal, a date or a time has a ProtoForm as `count`, and a decimal its scale as `first`. `text` stands in front
    of the value, or is a symbol. Of the fields with the same `oneof`, unless it is 0, a message has one at most.
    """

    number: int = 0
    kind: ProtoKind = ProtoKind.MESSAGE
    label: ProtoLabel = ProtoLabel.OPTIONAL
    first: int = 0
    count: int = 0
    oneof: int = 0
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a schema, of which number 0 is the whole message; the rest are those of Avro's Schema."""

    fields: tuple[Field, ...]
    before: bytes = b""
    header: int = 6

    @property
    def flat(self) -> ProtobufSchema:
        """The schema for `compiled.rewrites.write_protobuf`."""
        fields = [
            (field.number, field.kind, field.label, field.first, field.count, field.oneof, field.text)
            for field in self.fields
        ]
        return fields, self.before, self.header


_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_VARIABLE: Final = "VariableScaleDecimal"
_DECIMAL: Final = "confluent.type.Decimal"
_LOGICAL: Final = {
    "google.type.Date": (ProtoKind.DATE, _TIME + "IsoDate"),
    "google.type.TimeOfDay": (ProtoKind.TIME, _TIME + "IsoTime"),
    "google.protobuf.Timestamp": (ProtoKind.TIMESTAMP, _TIME + "IsoTimestamp"),
}
"""Messages that are one value; as texts they have all their digits, whatever their source counts."""

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_KINDS: Final = {
    1: (ProtoKind.DOUBLE, "double"),
    2: (ProtoKind.FLOAT, "float"),
    3: (ProtoKind.INT64, "int64"),
    4: (ProtoKind.UINT64, "int64"),
    5: (ProtoKind.INT32, "int32"),
    6: (ProtoKind.FIXED64, "int64"),
    7: (ProtoKind.FIXED32, "int64"),
    8: (ProtoKind.BOOL, "boolean"),
    9: (ProtoKind.STRING, "string"),
    11: (ProtoKind.MESSAGE, "struct"),
    12: (ProtoKind.BYTES, "bytes"),
    13: (ProtoKind.UINT32, "int64"),
    14: (ProtoKind.ENUM, "string"),
    15: (ProtoKind.SFIXED32, "int32"),
    16: (ProtoKind.SFIXED64, "int64"),
    17: (ProtoKind.SINT32, "int32"),
    18: (ProtoKind.SINT64, "int64"),
}
"""By the number of a type in a descriptor: what it is, and Connect's name. Groups have none."""

_KEYS: Final = frozenset(
    (
        *range(ProtoKind.ENUM),
        *range(ProtoKind.FIXED32, ProtoKind.FLOAT),
        ProtoKind.FIXED64,
        ProtoKind.SFIXED64,
        ProtoKind.STRING,
    )
)
"""The types of a map's keys."""

_NARROW: Final = ("int8", "int16")
_ENVELOPE: Final = frozenset(("before", "after", "source", "op", "ts_ms"))


def read_schema(file: ProtobufFile, message: Descriptor, *, wrapped: bool, header: int) -> Schema:
    """The schema of a message in a file; `wrapped`: the messages get Connect's schema.

    Raises ValueError for a message that cannot be read or, wrapped, refers to itself or is too large, and LostNulls.
    """
    reader = _MessageReader(file, wrapped)
    reader.fields.append(Field())
    connect = reader.message(0, message)
    if not wrapped:
        return Schema(tuple(reader.fields), header=header)
    _check_nulls(message)
    prefix = b'{"schema":' + schema_text({**connect, "optional": False}) + b',"payload":'
    return Schema(tuple(reader.fields), prefix, header)


class LostNulls(ValueError):
    """A change event of a converter that writes NULL as zero."""


def _check_nulls(message: Descriptor) -> None:
    """The time of an envelope is optional: where a schema does not say so, it says so of no column either."""
    members = message.fields_by_name
    if _ENVELOPE.issubset(members) and not members["ts_ms"].has_presence:
        raise LostNulls("that of a converter that writes NULL as zero")


@dataclass(slots=True)
class _MessageReader:
    file: ProtobufFile
    wrapped: bool
    fields: list[Field] = field(default_factory=list)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    connect: dict[str, dict[str, Any]] = field(default_factory=dict)

    def message(self, place: int, message: Descriptor) -> dict[str, Any]:
        """Set the field at `place` to a message's fields; returns Connect's schema."""
        name = message.full_name
        if name not in self.places:
            members: list[FieldDescriptor] = list(message.fields)
            first = self._room(len(members))
            self.places[name] = first, len(members)
            described = [self._member(first + number, member) for number, member in enumerate(members)]
            logical = {"name": f"io.debezium.data.{_VARIABLE}"} if message.name == _VARIABLE else {"name": name}
            self.connect[name] = {"type": "struct", "fields": described, **logical}
        elif self.wrapped and name not in self.connect:
            raise ValueError("a schema that refers to itself, which Connect has no form for")
        self.fields[place].first, self.fields[place].count = self.places[name]
        return self.connect.get(name, {})

    def _room(self, count: int) -> int:
        first = len(self.fields)
        self.fields += (Field() for _ in range(count))
        return first

    def _member(self, place: int, member: FieldDescriptor) -> dict[str, Any]:
        own = self.fields[place]
        own.number, own.text = member.number, orjson.dumps(member.name) + b":"
        own.label = ProtoLabel.MAP if self._is_map(member) else _label(member)
        union = member.containing_oneof
        own.oneof = 0 if union is None or len(union.fields) < 2 else 1 + union.index
        connect = self._map(own, member) if own.label is ProtoLabel.MAP else self._value(place, member)
        optional = own.label is not ProtoLabel.IMPLICIT and own.label is not ProtoLabel.REQUIRED
        if own.label is ProtoLabel.REPEATED:
            connect = {"type": "array", "items": {**connect, "optional": True}}
        return {**connect, "optional": optional, "field": member.name}

    def _is_map(self, member: FieldDescriptor) -> bool:
        """Whether a field is a map; Connect's converter writes one as messages whose name says so."""
        if not member.is_repeated or member.message_type is None:
            return False
        entry = member.message_type
        if entry.GetOptions().map_entry or not self.wrapped or not entry.name.endswith("Entry"):
            return bool(entry.GetOptions().map_entry)
        parts: list[FieldDescriptor] = list(entry.fields)
        return (
            [(part.name, part.number) for part in parts] == [("key", 1), ("value", 2)]
            and not any(part.is_repeated for part in parts)
            and _KINDS.get(parts[0].type, (ProtoKind.MESSAGE, ""))[0] in _KEYS
            and not parts[0].has_presence
        )

    def _map(self, own: Field, member: FieldDescriptor) -> dict[str, Any]:
        """A map is an object, whose names are texts. Connect's has NULL where an entry has no value."""
        own.first, own.count = self._room(2), 2
        key, value = (member.message_type.fields_by_name[name] for name in ("key", "value"))
        self._member(own.first, key)
        values = self._member(own.first + 1, value)
        if member.message_type.GetOptions().map_entry:
            for place in (own.first, own.first + 1):  # proto2's have presence, too
                self.fields[place].label = ProtoLabel.IMPLICIT
        return {"type": "map", "keys": {"type": "string", "optional": False}, "values": values}

    def _value(self, place: int, member: FieldDescriptor) -> dict[str, Any]:
        own = self.fields[place]
        if member.type not in _KINDS:
            raise ValueError(f"a schema with a group ({member.full_name}), which is not read")
        own.kind, connect = _KINDS[member.type]
        if member.message_type is not None:
            return self._of_message(place, member)
        if member.enum_type is not None:
            own.first, own.count = self._room(len(member.enum_type.values)), len(member.enum_type.values)
            for number, symbol in enumerate(member.enum_type.values):
                self.fields[own.first + number] = Field(symbol.number, text=orjson.dumps(symbol.name))
        return {"type": self._narrowed(connect, member)}

    def _narrowed(self, kind: str, member: FieldDescriptor) -> str:
        """Connect's type of a number, which the converter leaves beside Protobuf's wider one."""
        narrow = self.file.params(member).get("connect.type", "")
        return narrow if kind == "int32" and narrow in _NARROW else kind

    def _of_message(self, place: int, member: FieldDescriptor) -> dict[str, Any]:
        own, name = self.fields[place], member.message_type.full_name
        if name in _WRAPPERS:
            own.kind, own.first, own.count = ProtoKind.WRAPPER, self._room(1), 1
            wrapped = self._member(own.first, member.message_type.fields_by_name["value"])
            return {"type": self._narrowed(wrapped["type"], member)}
        if name == _DECIMAL:
            return self._decimal(own, self.file.params(member))
        if name in _LOGICAL:
            own.kind, logical = _LOGICAL[name]
            own.count = ProtoForm.CONNECT if self.wrapped else ProtoForm.PLAIN
            return {"type": "string", "name": logical}
        return self.message(place, member.message_type)

    def _decimal(self, own: Field, params: Mapping[str, str]) -> dict[str, Any]:
        own.kind, scale = ProtoKind.DECIMAL, params.get("scale", "")
        if not self.wrapped:
            own.count = ProtoForm.PLAIN
        elif scale.removeprefix("-").isdecimal():
            own.first, own.count = int(scale), ProtoForm.CONNECT
            precision = {"connect.decimal.precision": params["precision"]} if "precision" in params else {}
            return {"type": "bytes", "name": _CONNECT + "Decimal", "parameters": {"scale": scale, **precision}}
        else:
            own.count = ProtoForm.OWN_SCALE
        return {"type": "struct", "name": f"io.debezium.data.{_VARIABLE}"}


def _label(member: FieldDescriptor) -> ProtoLabel:
    if member.is_repeated:
        return ProtoLabel.REPEATED
    if member.is_required:
        return ProtoLabel.REQUIRED
    return ProtoLabel.OPTIONAL if member.has_presence else ProtoLabel.IMPLICIT
