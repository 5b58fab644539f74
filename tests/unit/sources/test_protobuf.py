"""Messages of Protobuf as JSON: what Google's package writes is read, with the loop and without; else it is refused."""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("grpc_tools")

from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from starrocks_txn_sink.sources.formats import protobuf
from starrocks_txn_sink.sources.formats.protobuf_files import compile_file
from starrocks_txn_sink.sources.formats.protobuf_schemas import Schema, read_schema
from tests.support.both_ways import both_ways
from tests.support.depth import scaled

TEXTS = ("", "plain", 'q"\\/\b\f\n\r\t\x00\x1f\x7f', "größe €", "𝄞 x", "a" * 70, "\u2028")
INT32, INT64 = (0, 1, -1, 300, 2**31 - 1, -(2**31)), (0, 127, -(2**63), 2**63 - 1, 2**59 + 12345)
UINT32, UINT64 = (0, 1, 2**31, 2**32 - 1), (0, 1, 2**63, 2**64 - 1)
REALS = (0.0, 0.1, 1e22, 5.0, -0.0, 1e-7, 123456789012345680.0, math.inf, -math.inf, math.nan)
VALUES: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), INT32),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), INT64),
    **dict.fromkeys(("uint32", "fixed32"), UINT32),
    **dict.fromkeys(("uint64", "fixed64"), UINT64),
    "float": (0.0, 0.5, -2.25, 3.4028234663852886e38, math.inf, math.nan),
    "double": REALS,
    "string": TEXTS,
    "bytes": (b"", b"\0\xff", b"123456789"),
    "E": (0, 7, -3),
}
WRAPPERS = ("Int32", "Int64", "UInt32", "UInt64", "Bool", "Float", "Double", "String", "Bytes")
KEYS = ("string", "int32", "uint64", "bool", "sint64", "fixed32")


class Feed:
    """Random schemas of Protobuf."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = 0

    def text(self) -> str:
        return (
            'syntax = "proto3";\nimport "google/protobuf/wrappers.proto";\n'
            f"enum E {{ ZERO = 0; SEVEN = 7; LESS = -3; }}\n{self.message('M', 0)}"
        )

    def message(self, name: str, depth: int) -> str:
        numbers = self.random.sample((*range(1, 40), 100, 5000, 2**29 - 1), self.random.randrange(7))
        if self.random.random() < 0.7:  # as converters number them
            numbers.sort()
        lines = [self.field(f"f{place}", number, depth) for place, number in enumerate(numbers)]
        if self.random.random() < 0.3:
            lines.append("oneof one { string a = 60; int32 b = 61; E c = 62; }")
        return f"message {name} {{\n{chr(10).join(lines)}\n}}\n"

    def field(self, name: str, number: int, depth: int) -> str:
        kinds = [*VALUES, *(f"google.protobuf.{wrapper}Value" for wrapper in WRAPPERS), "M"]
        inner = ""
        if depth < 2 and self.random.random() < 0.3:
            self.numbers += 1
            kind = f"N{self.numbers}"
            inner = self.message(kind, depth + 1)
        else:
            kind = self.random.choice(kinds)
        label = self.random.choice(("", "", "optional ", "repeated ", "map"))
        if label == "map":
            return f"{inner}map<{self.random.choice(KEYS)}, {kind}> {name} = {number};"
        return f"{inner}{label}{kind} {name} = {number};"

    def fill(self, message: Any, depth: int = 0) -> Any:
        """Set about two thirds of a message's fields."""
        for field in message.DESCRIPTOR.fields:
            if self.random.random() < 0.35 or (depth > 3 and field.message_type is not None):
                continue
            if is_map(field):
                key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
                for _ in range(self.random.randrange(4)):
                    name = self.scalar(key)
                    if value.message_type is not None:
                        self.fill(getattr(message, field.name)[name], depth + 1)
                    else:
                        getattr(message, field.name)[name] = self.scalar(value)
            elif field.is_repeated:
                for _ in range(self.random.randrange(4)):
                    items = getattr(message, field.name)
                    if field.message_type is not None:
                        self.fill(items.add(), depth + 1)
                    else:
                        items.append(self.scalar(field))
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self.scalar(field))
        return message

    def scalar(self, field: Any) -> Any:
        return self.random.choice(VALUES["E" if field.enum_type is not None else NAMES[field.type]])


NAMES = dict(
    zip(
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 18),
        ("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32",
         "sfixed32", "sfixed64", "sint32", "sint64"),
        strict=True,
    )
)  # fmt: skip


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def meaning(message: Any) -> Any:
    """What the JSON of a message means; KeyError for an enum's number without a name."""
    return {field.name: _of_field(message, field) for field in message.DESCRIPTOR.fields}


def _of_field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        of_value = field.message_type.fields_by_name["value"]
        return {_name(key): _of_value(value[key], of_value) for key in value}
    if field.is_repeated:
        return [_of_value(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _of_value(value, field)


def _name(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _of_value(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.file.name == "google/protobuf/wrappers.proto":
            return _of_value(value.value, field.message_type.fields_by_name["value"])
        return meaning(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return _narrow(value) if NAMES[field.type] == "float" else value
    return value


def _narrow(value: float) -> float:
    """The number that the shortest text of at least six digits has, which reads as the same float."""
    texts = (f"{value:.{digits}g}" for digits in range(6, 10))
    return next(float(text) for text in texts if np.float32(text) == np.float32(value))


def written(messages: list[bytes], schema: Schema) -> list[str | None]:
    """The JSON of messages; None for one that does not fit."""

    def texts() -> list[str | None]:
        texts, fits = protobuf.write_json(pa.array(messages, pa.binary()), [schema], np.zeros(len(messages), np.int32))
        return [text if fit else None for text, fit in zip(texts.to_pylist(), fits.tolist(), strict=True)]

    return both_ways(texts)


def schema_of(text: str, *, wrapped: bool = False) -> tuple[Schema, Any]:
    """The schema of the last message in a text, without a header, and Google's class."""
    file = compile_file(text)
    message = file.messages[-1]
    return read_schema(file, message, wrapped=wrapped, header=0), message_factory.GetMessageClass(message)


def feeds() -> Iterator[tuple[Feed, Schema, Any]]:
    for seed in range(scaled(200)):
        feed = Feed(seed)
        yield feed, *schema_of(feed.text())


def test_what_google_s_package_writes_is_read() -> None:
    for feed, schema, kind in feeds():
        messages = [feed.fill(kind()) for _ in range(30)]
        texts = written([message.SerializeToString() for message in messages], schema)
        for message, text in zip(messages, texts, strict=True):
            assert text is not None
            assert json.loads(text) == meaning(message)


def test_corrupt_bytes_are_refused_or_mean_what_google_s_package_reads() -> None:
    """A field without a name, which that package keeps apart, is refused."""
    refused = agreed = 0
    for feed, schema, kind in feeds():
        messages = list[bytes]()
        for _ in range(30):
            content = bytearray(feed.fill(kind()).SerializeToString() or b"\x08\x01")
            for _ in range(feed.random.randint(1, 2)):
                content[feed.random.randrange(len(content))] = feed.random.randrange(256)
            if feed.random.random() < 0.3:
                del content[feed.random.randrange(len(content)) :]
            messages.append(bytes(content))
        for corrupt, text in zip(messages, written(messages, schema), strict=True):
            refused += text is None
            if text is not None:
                agreed += 1
                assert json.loads(text) == meaning(kind.FromString(corrupt))
    assert refused > agreed > 0


def test_messages_in_parts_and_fields_that_come_again_count_as_google_s_package_has_it() -> None:
    for feed, schema, kind in feeds():
        pairs = [(feed.fill(kind()), feed.fill(kind())) for _ in range(10)]
        messages = [first.SerializeToString() + second.SerializeToString() for first, second in pairs]
        for content, text in zip(messages, written(messages, schema), strict=True):
            assert text is not None
            assert json.loads(text) == meaning(kind.FromString(content))


HEAD = 'syntax = "proto3";\n'


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ("int32 x = 1;", b"\x10\x01"),  # an unknown field
        ("int32 x = 1;", b"\x0d\0\0\0\0"),  # another type on the wire
        ("int32 x = 1;", b"\x08"),
        ("int32 x = 1;", b"\x08" + b"\xff" * 9 + b"\x02"),  # more than 64 bits
        ("int32 x = 1;", b"\x08\x80\x80\x80\x80\x80\x01"),  # more than 32 bits
        ("bool x = 1;", b"\x08\x02"),
        ("string x = 1;", b"\x0a\x01\xff"),
        ("string x = 1;", b"\x0a\x05abc"),
        ("repeated int32 x = 1;", b"\x0a\x01\x80"),
        ("repeated string x = 1;", b"\x08\x01"),
        ("int32 x = 1;", b"\x0b\x0c"),  # a group
        ("int32 x = 1;", b"\0\0"),  # the number 0
        ("E x = 1; enum E { A = 0; }", b"\x08\x05"),
        ("map<string, int32> x = 1;", b"\x0a\x04\x0a\x01\xff\x10"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(fields: str, content: bytes) -> None:
    schema, _ = schema_of(f"{HEAD}message M {{ {fields} }}")
    assert written([content, b"", content], schema)[::2] == [None, None]


def test_a_required_field_of_proto2_must_be_there() -> None:
    schema, _ = schema_of('syntax = "proto2"; message M { required int32 x = 1; optional int32 y = 2 [default = 5]; }')
    assert written([b"\x08\x01", b"\x10\x01"], schema) == ['{"x":1,"y":null}', None]


def test_a_map_s_key_that_comes_twice_has_the_last_value() -> None:
    schema, kind = schema_of(f"{HEAD}message M {{ map<string, int32> x = 1; }}")
    content = kind(x={"a": 1}).SerializeToString() + kind(x={"b": 2}).SerializeToString()
    twice = content + kind(x={"a": 3}).SerializeToString()
    assert written([content, twice], schema) == ['{"x":{"a":1,"b":2}}', '{"x":{"a":3,"b":2}}']
    many = kind(x={str(number): number for number in range(200)})
    assert json.loads(str(written([many.SerializeToString()], schema)[0])) == meaning(many)


@pytest.mark.parametrize("head", [HEAD, 'syntax = "proto2";\n'])
def test_a_map_s_entry_without_a_key_has_the_key_s_zero(head: str) -> None:
    schema, _ = schema_of(f"{head}message M {{ map<string, int32> x = 1; map<int32, string> y = 2; }}")
    once = b"\x0a\x02\x10\x05\x12\x03\x12\x01a"
    assert written([once, once + once], schema) == ['{"x":{"":5},"y":{"0":"a"}}'] * 2


def test_the_first_of_two_names_of_a_number_counts() -> None:
    schema, _ = schema_of(f"{HEAD}message M {{ E x = 1; enum E {{ option allow_alias = true; A = 0; B = 0; }} }}")
    assert written([b"", b"\x08\0"], schema) == ['{"x":"A"}'] * 2


def test_a_message_that_refers_to_itself_is_read_to_a_depth() -> None:
    schema, kind = schema_of(f"{HEAD}message M {{ M m = 1; int32 x = 2; }}")
    message = kind(x=1)
    for _ in range(80):
        message = kind(m=message)
    assert json.loads(str(written([message.SerializeToString()], schema)[0])) == meaning(message)
    content = b""
    for _ in range(300):
        content = b"\x0a" + _varint(len(content)) + content
    assert written([content], schema) == [None]
    with pytest.raises(ValueError, match="refers to itself"):
        schema_of(f"{HEAD}message M {{ M m = 1; }}", wrapped=True)


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, *_varint(number >> 7)]) if number > 0x7F else bytes([number])


LOGICAL = f"""{HEAD}
import "google/type/date.proto";
import "google/type/timeofday.proto";
import "google/protobuf/timestamp.proto";
import "confluent/type/decimal.proto";
message M {{
  google.type.Date day = 1;
  google.type.TimeOfDay time = 2;
  google.protobuf.Timestamp at = 3;
  confluent.type.Decimal any = 4;
  confluent.type.Decimal price = 5 [(confluent.field_meta) = {{ params: [{{ key: "scale", value: "2" }}] }}];
  int32 small = 6 [(confluent.field_meta) = {{ params: {{ key: "connect.type", value: "int16" }} }}];
}}"""


LONG = b"\x7f" * 70  # more bytes than the loop writes
LONG_TEXT = f"{int.from_bytes(LONG, 'big') // 1000}.{int.from_bytes(LONG, 'big') % 1000:03}"


def logical(**values: Any) -> Callable[[bool], dict[str, Any] | None]:
    def read(wrapped: bool) -> dict[str, Any] | None:
        schema, kind = schema_of(LOGICAL, wrapped=wrapped)
        (text,) = written([kind(**values).SerializeToString()], schema)
        value = None if text is None else json.loads(text)
        return value["payload"] if wrapped and value else value

    return read


@pytest.mark.parametrize(
    ("values", "wrapped", "plain"),
    [
        ({"day": {"year": 2024, "month": 2, "day": 29}}, "2024-02-29Z", "2024-02-29"),
        ({"day": {"year": 10000, "month": 1, "day": 1}}, "+10000-01-01Z", "+10000-01-01"),
        # Java's calendar, which Confluent's converter asks, is Julian until 1582-10-04
        ({"day": {"year": 1582, "month": 10, "day": 15}}, "1582-10-15Z", "1582-10-15"),
        ({"day": {"year": 1582, "month": 10, "day": 4}}, "1582-10-14Z", "1582-10-04"),
        ({"day": {"year": 1500, "month": 2, "day": 29}}, "1500-03-10Z", None),
        ({"day": {"year": 1, "month": 1, "day": 3}}, "0001-01-01Z", "0001-01-03"),
        ({"day": {"year": 2023, "month": 2, "day": 29}}, None, None),
        ({"day": {"year": 2023, "month": 13, "day": 1}}, None, None),
        ({"day": {}}, None, None),
        ({"time": {"hours": 23, "seconds": 59, "nanos": 1}}, "23:00:59.000000001Z", "23:00:59.000000001"),
        ({"time": {"hours": 24}}, None, None),
        ({"time": {}}, "00:00:00Z", "00:00:00"),
        ({"at": {"seconds": -1, "nanos": 999_000_000}}, "1969-12-31T23:59:59.999000Z", "1969-12-31 23:59:59.999000"),
        ({"at": {"seconds": 253402300799}}, "9999-12-31T23:59:59Z", "9999-12-31 23:59:59"),
        ({"at": {"seconds": 1, "nanos": -1}}, None, None),
        ({"any": {"value": b"\xff\x85", "scale": 1}}, {"scale": 1, "value": "/4U="}, "-12.3"),
        ({"any": {"value": b"\x04", "scale": -2}}, {"scale": -2, "value": "BA=="}, "400"),
        ({"any": {"value": LONG, "scale": 3}}, {"scale": 3, "value": base64.b64encode(LONG).decode()}, LONG_TEXT),
        ({"any": {"scale": 1}}, None, None),
        ({"price": {"value": b"\x04\xd2", "scale": 2, "precision": 4}}, "BNI=", "12.34"),
        ({"price": {"value": b"\x04\xd2", "scale": 3}}, None, "1.234"),
        ({"small": -5}, -5, -5),
    ],
)  # fmt: skip
def test_types_that_are_one_value(values: dict[str, Any], wrapped: Any, plain: Any) -> None:
    """In front of Connect's schema a value is as its converter has it; alone it is a text that StarRocks reads."""
    (name,) = values
    for form, expected in ((True, wrapped), (False, plain)):
        read = logical(**values)(form)
        assert (None if read is None else read[name]) == expected


def test_connect_s_schema_has_what_the_converter_says() -> None:
    schema, _ = schema_of(LOGICAL, wrapped=True)
    fields = json.loads(schema.before + b"null}")["schema"]["fields"]
    assert [(field["field"], field["type"], field.get("name"), field["optional"]) for field in fields] == [
        ("day", "string", "io.debezium.time.IsoDate", True),
        ("time", "string", "io.debezium.time.IsoTime", True),
        ("at", "string", "io.debezium.time.IsoTimestamp", True),
        ("any", "struct", "io.debezium.data.VariableScaleDecimal", True),
        ("price", "bytes", "org.apache.kafka.connect.data.Decimal", True),
        ("small", "int16", None, False),
    ]
    assert fields[4]["parameters"] == {"scale": "2"}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("int32 key = 1; string value = 2;", {"0": "a"}),
        ("int32 key = 1; optional string value = 2;", {"0": "a"}),
        ("optional int32 key = 1; string value = 2;", [{"key": None, "value": "a"}]),
        ("bytes key = 1; string value = 2;", [{"key": "", "value": "a"}]),
        ("M key = 1; string value = 2;", None),
        ("int32 key = 1; string value = 2; int32 more = 3;", [{"key": 0, "value": "a", "more": 0}]),
        ("int32 key = 1; repeated string value = 2;", [{"key": 0, "value": ["a"]}]),
    ],
)
def test_connect_s_map_is_told_by_its_entry(entry: str, expected: Any) -> None:
    text = f"{HEAD}message M {{ repeated ConnectDefault1Entry x = 1; message ConnectDefault1Entry {{ {entry} }} }}"
    if expected is None:
        with pytest.raises(ValueError, match="refers to itself"):
            schema_of(text, wrapped=True)
        return
    schema, _ = schema_of(text, wrapped=True)
    (row,) = written([b"\x0a\x03\x12\x01a"], schema)
    assert json.loads(str(row))["payload"] == {"x": expected}


def test_an_entry_of_connect_s_without_a_value_is_null_and_of_another_map_zero() -> None:
    inner = "google.protobuf.Int32Value"
    imports = f'{HEAD}import "google/protobuf/wrappers.proto";\n'
    entry = f"message AEntry {{ string key = 1; {inner} value = 2; }}"
    for fields, expected in ((f"repeated AEntry x = 1; {entry}", None), (f"map<string, {inner}> x = 1;", 0)):
        schema, _ = schema_of(f"{imports}message M {{ {fields} }}", wrapped=True)
        (row,) = written([b"\x0a\x03\x0a\x01a"], schema)
        assert json.loads(str(row))["payload"] == {"x": {"a": expected}}


@pytest.mark.parametrize("text", ["message", "message M { string x = 1; string x = 2; }", 'import "none.proto";'])
def test_a_text_that_is_no_schema(text: str) -> None:
    with pytest.raises(ValueError, match="no schema of Protobuf"):
        compile_file(HEAD + text)


@pytest.mark.parametrize("line", ["", "import '{0}';", 'import "{0}";', 'package p; import "{0}";', '// import "{0}"'])
def test_the_converter_s_options_are_known_with_and_without_their_import(line: str) -> None:
    option = '(confluent.field_meta) = { params: [{ key: "connect.type", value: "int16" }] }'
    file = compile_file(f"{HEAD}{line.format('confluent/meta.proto')}\nmessage M {{ int32 x = 1 [{option}]; }}")
    assert file.params(file.messages[0].fields[0]) == {"connect.type": "int16"}


def test_a_reference_leads_to_no_file_outside() -> None:
    with pytest.raises(ValueError, match="another folder"):
        compile_file(f"{HEAD}message M {{}}", [("../../evil.proto", HEAD)])


def test_google_s_package_refuses_what_is_refused_here() -> None:
    """The property above would prove nothing if it accepted all bytes."""
    _, kind = schema_of(f"{HEAD}message M {{ string x = 1; }}")
    with pytest.raises(DecodeError):
        kind.FromString(b"\x0a\x01\xff")


def test_items_of_a_few_bytes_that_would_be_a_text_without_bounds_do_not_fit() -> None:
    """Each item has all names of its message, which 2 bytes stand for: 40 KB would be 500 MB of JSON."""
    names = "\n".join(f"optional int32 column_{number} = {number};" for number in range(1, 1001))
    schema, _ = schema_of(f'syntax = "proto3";\nmessage N {{ {names} }}\nmessage M {{ repeated N items = 1; }}')
    texts = written([b"\n\0" * 5_000, b"\n\0" * 3], schema)
    assert texts[0] is None
    assert len(json.loads(texts[1] or "")["items"]) == 3


def test_a_number_of_many_zeros_is_counted() -> None:
    schema, kind = schema_of(
        'syntax = "proto3";\nimport "confluent/type/decimal.proto";\n'
        "message M { repeated confluent.type.Decimal n = 1; }"
    )
    message = kind()
    for _ in range(1000):
        message.n.add(value=b"\1", scale=16_000)
    assert written([message.SerializeToString()], schema) == [None]


def test_names_that_stand_for_names_are_refused_before_they_are_written_out() -> None:
    """Forty messages, each with two of the one before: some KB, of which Connect's schema would have 2**40 parts."""
    texts = ["message M0 { int32 a = 1; }"]
    texts += (f"message M{number} {{ M{number - 1} a = 1; M{number - 1} b = 2; }}" for number in range(1, 40))
    with pytest.raises(ValueError, match="too large: it has more than 300,000 parts"):
        schema_of('syntax = "proto3";\n' + "\n".join(texts), wrapped=True)
