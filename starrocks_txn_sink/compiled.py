"""Compiled loops over JSON, and messages of Kafka, Avro and Protobuf (`compiled.c`), where the installation has them.

The loops are optional: a wheel for a platform brings them, and a source tree with a C compiler builds them
(`tools/compile.py`). Without them everything works more slowly, with the same results: the C parser takes only plain
values, and leaves the judgement of all others to Python (`sources.formats`). ctypes releases the GIL while C runs.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from starrocks_txn_sink.rows.segments import Bools, bounds_of

LIBRARY: Final = Path(__file__).with_name("_compiled.so")
PURE: Final = "STARROCKS_TXN_SINK_PURE"
"""The environment variable that turns the compiled loops off, with the value 1."""
_ABI: Final = 13  # that of compiled.c; a library with another number is not used
_MOST_BYTES: Final = (1 << 31) - (1 << 16)  # offsets of 32 bits
_FREE_JUDGEMENTS: Final = 64
_VALUES_A_JUDGEMENT: Final = 16
"""Python judges a value at 50 times the cost of the loop. Where it would judge more than one in 16, a batch is read
faster without the loop; the first 64 say nothing yet about the share."""


def most_judgements(values: int) -> int:
    """How many judgements by Python are worth it among so many values."""
    return _FREE_JUDGEMENTS + values // _VALUES_A_JUDGEMENT


_SHAPES: Final = 1 << 13  # many more than a micro-batch has, unless rows leave members out at random
ORIGIN: Final = "origin"
TEXTS: Final = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_TEXT, _WHOLE, _STRING, _OBJECT, _LIST = range(5)  # the kinds of compiled.c
LIST_TEXT: Final = pa.binary()
"""The type of a field that is the JSON of an array, for `read_objects`."""


Functions = Mapping[str, tuple[Any, Sequence[Any]]]
"""The functions of a C library by name: the type of the result, and those of the arguments."""


class _Column(ctypes.Structure):
    """The struct `Column` of compiled.c, which ends with the fields of its struct `Binary` (`ends` to `nulls`)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("members", ctypes.c_int64),
        ("ends", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("nulls", ctypes.c_int64),
    )


def is_available() -> bool:
    """Whether this process uses the compiled loops."""
    return os.environ.get(PURE) != "1" and _library() is not None


@cache
def _library() -> Any:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        abi = library.txn_sink_abi()
    except (OSError, AttributeError):  # not there, in a zip file, or of another platform
        return None
    if abi != _ABI:
        return None
    declare(library, "txn_sink_", _FUNCTIONS)
    return library


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_REWRITE: Final = (
    *(_POINTER, ctypes.c_int32, *[_POINTER] * 3, _NUMBER),
    *(_POINTER, _NUMBER, ctypes.POINTER(_NUMBER), _POINTER, _NUMBER),
)
_FUNCTIONS: Final[Functions] = {
    "read": (
        _NUMBER,
        (
            *(_POINTER, ctypes.c_int32, *[_POINTER] * 2, _NUMBER, ctypes.POINTER(_Column), _NUMBER, _NUMBER),
            *(ctypes.c_char_p, _POINTER, _NUMBER, _POINTER),
        ),
    ),
    "convert": (_NUMBER, _REWRITE),
    "apply_rules": (_NUMBER, _REWRITE),
    "avro": (_NUMBER, _REWRITE),
    "protobuf": (_NUMBER, _REWRITE),
    "new_shapes": (
        _NUMBER,
        (
            *(_POINTER, ctypes.c_int32, _POINTER, _POINTER, ctypes.c_int32, _POINTER, _NUMBER),
            *(_POINTER, _NUMBER, _POINTER, _POINTER),
        ),
    ),
    "messages": (_NUMBER, (_POINTER, _NUMBER, *[_POINTER] * 3)),
    "take": (None, (_POINTER, _NUMBER, *[_POINTER] * 7)),
    "headers": (_NUMBER, (_POINTER, _NUMBER, *[_POINTER] * 6)),
    "destroy": (None, (_POINTER, _NUMBER, _POINTER)),
}


def declare(library: ctypes.CDLL, prefix: str, functions: Functions) -> None:
    """Tell ctypes the types of a library's functions; AttributeError for a function that it does not have."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, prefix + name)
        function.restype, function.argtypes = result, arguments


Judge = Callable[[pa.Scalar], Mapping[str, Any] | None]
"""Reads one value by Python: its fields, or None if it is malformed."""


def read_objects(
    values: pa.Array, fields: pa.Schema, judge: Judge, wrapper: str | None = None
) -> tuple[pa.Table, Bools] | None:
    """The members `fields` of the values that are one JSON object each, and which values these are.

    A field is a whole number, or a text: the content of a string, or the JSON of another value; with LIST_TEXT the JSON
    of an array. A struct is an object with such members, of which a text is a string. If a value has an object under
    the name `wrapper`, the fields are this object's members. With a wrapper the table has a further column ORIGIN: the
    number of a value that has the same text around its object, -1 for a value without such an object.

    Left out are NULL and the values that `judge` refuses. It is asked about each value that is not plain: malformed,
    with an escape in a name or a lone surrogate, or nested deeper than 64. None without the compiled loop, if so many
    values are not plain that another way is faster, and for a list without room.
    """
    if not is_available() or not len(values) or values.type not in TEXTS:
        return None
    bounds, data = bounds_of(values), values.buffers()[2]
    size = int(bounds[-1] - bounds[0])
    if data is None or size > _MOST_BYTES:
        return None
    reading = _Reading(fields, len(values), size + _library().txn_sink_slack(), wrapper)
    events: Bools = np.ones(len(values), dtype=bool)
    if values.null_count:
        events = values.is_valid().to_numpy(zero_copy_only=False).copy()
    place = bounds.ctypes.data, bounds.itemsize == 8, data.address, events.ctypes.data, len(values)
    at = judgements = 0
    while (at := reading.read(*place, at)) < len(values):
        judgements += 1
        if judgements > most_judgements(at):
            return None
        event = judge(values[at])
        if event is None:
            events[at] = False
        elif not reading.add(event, at, int(bounds[at + 1] - bounds[at])):
            return None
        at += 1
    return reading.table(), events


class _Reading:
    """The columns of `fields` with room for `rows` rows, and for `size` bytes in each column of texts."""

    def __init__(self, fields: pa.Schema, rows: int, size: int, wrapper: str | None) -> None:
        self._fields, self._rows, self._wrapper = fields, 0, wrapper and wrapper.encode()
        self._lists = [field.name for field in fields if field.type == LIST_TEXT]
        self._tree = _tree_of(fields)
        self._buffers = [_Buffers(field.type, rows, size) for field, _, _ in self._tree]
        columns = list[_Column]()
        for number, ((field, first, members), buffers) in enumerate(zip(self._tree, self._buffers, strict=True)):
            columns.append(buffers.column(_kind(field.type, number < len(fields)), field.name.encode(), first, members))
        self._columns = (_Column * len(columns))(*columns)
        self._origins = np.empty(rows if wrapper else 0, dtype=np.int64)

    def read(self, bounds: Any, wide: bool, data: Any, fields_wanted: Any, values: int, at: int) -> int:
        """Add the `fields_wanted` of `values` from number `at` on; returns the first value that is not plain."""
        place = ctypes.c_int64(at)
        columns = self._columns, len(self._columns), len(self._fields), self._wrapper, self._origins.ctypes.data
        arguments = bounds, wide, data, fields_wanted, values, *columns, self._rows
        self._rows = _library().txn_sink_read(*arguments, ctypes.byref(place))
        return place.value

    def add(self, event: Mapping[str, Any], number: int, size: int) -> bool:
        """Add the fields of value `number` of the batch, which has `size` bytes.

        False for one without room, and for a list that is not plain. A text is never longer than its value. A list may
        be: in the event its objects have all members. It may also be its own JSON.
        """
        lists = {name: event.get(name) for name in self._lists}
        texts = {name: orjson.Fragment(text) for name, text in lists.items() if isinstance(text, str)}
        if any(len(orjson.dumps(value)) > size for value in (lists | texts).values()):
            return False
        plain = orjson.dumps({**event, **texts})
        if self.read((ctypes.c_int64 * 2)(0, len(plain)), True, plain, b"\1", 1, 0) != 1:
            if texts:
                return False
            raise AssertionError("The compiled loop refuses the plain form of an event.")
        if self._wrapper:
            self._origins[self._rows - 1] = number
        return True

    def table(self) -> pa.Table:
        arrays = [self._array(number) for number in range(len(self._fields))]
        table = pa.Table.from_arrays(arrays, schema=self._fields)
        return table.append_column(ORIGIN, pa.array(self._origins[: self._rows])) if self._wrapper else table

    def _array(self, number: int) -> pa.Array:
        _, first, members = self._tree[number]
        children = [self._array(first + member) for member in range(members)]
        return self._buffers[number].array(self._columns[number].nulls, self._rows, children)


def _tree_of(fields: pa.Schema) -> list[tuple[pa.Field, int, int]]:
    """The fields, then their members, then the members of these; each with the place and the number of its members."""
    tree = [(field, 0, 0) for field in fields]
    number = 0
    while number < len(tree):
        field = tree[number][0]
        if pa.types.is_struct(field.type):
            tree[number] = field, len(tree), len(field.type)
            tree += [(member, 0, 0) for member in field.type]
        number += 1
    return tree


def _kind(kind: pa.DataType, outermost: bool) -> int:
    """The kind in compiled.c of a column of this type."""
    if pa.types.is_struct(kind):
        return _OBJECT
    if kind == LIST_TEXT:
        return _LIST
    return _WHOLE if kind == pa.int64() else _TEXT if outermost else _STRING


class _Buffers:
    """Buffers of a column of whole numbers, structs or texts of `size` bytes; pyarrow.ArrowCapacityError for 2 GiB."""

    def __init__(self, kind: pa.DataType, rows: int, size: int) -> None:
        self._kind = kind
        texts = kind != pa.int64() and not pa.types.is_struct(kind)
        if texts and size > _MOST_BYTES:
            raise pa.ArrowCapacityError(f"{size} bytes in one column")
        self._valid = pa.py_buffer(bytearray((rows + 7) // 8))
        self._ends = pa.allocate_buffer(4 * (rows + 1)) if texts else None
        self._data = pa.allocate_buffer(size if texts else 8 * rows, resizable=True)

    def column(self, kind: int = _TEXT, name: bytes = b"", first: int = 0, members: int = 0) -> _Column:
        ends = self._ends and self._ends.address
        return _Column(name, len(name), kind, first, members, ends, self._data.address, self._valid.address, 0)

    def array(self, nulls: int, rows: int, children: Sequence[pa.Array] = ()) -> pa.Array:
        """The column filled with `rows` values, `nulls` of them NULL; frees the unused part of its buffer."""
        valid = self._valid if nulls else None
        if pa.types.is_struct(self._kind):
            return pa.Array.from_buffers(self._kind, rows, [valid], nulls, children=list(children))
        if self._ends is None:
            return pa.Array.from_buffers(self._kind, rows, [valid, self._data], nulls)
        used_bytes = int.from_bytes(self._ends[4 * rows : 4 * rows + 4], sys.byteorder)
        if used_bytes < self._data.size:
            self._data.resize(used_bytes, shrink_to_fit=True)
        return pa.Array.from_buffers(self._kind, rows, [valid, self._ends, self._data], nulls)

    def lists(self, nulls: int, rows: int, entries: pa.Array) -> pa.Array:
        """The column filled with the ends of `rows` lists of `entries`, `nulls` of them NULL."""
        valid = self._valid if nulls else None
        return pa.Array.from_buffers(pa.list_(entries.type), rows, [valid, self._ends], nulls, children=[entries])


class _Conversion(ctypes.Structure):
    """The struct `Conversion` of compiled.c."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("array", ctypes.c_int64),
        ("bare", ctypes.c_int64),
    )


class _Rule(ctypes.Structure):
    """The struct `Rule` of compiled.c."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_int64),
        ("to", ctypes.c_char_p),
        ("to_size", ctypes.c_int64),
    )


class _Plan(ctypes.Structure):
    """The struct `Plan` of compiled.c."""

    _fields_ = (("members", ctypes.c_void_p), ("count", ctypes.c_int64), ("only_named", ctypes.c_int64))


def _conversion(member: tuple[bytes, int, int, bool, bool]) -> _Conversion:
    name, *numbers = member
    return _Conversion(name, len(name), *numbers)


def _rule(member: tuple[bytes, int, int, bytes, bytes]) -> _Rule:
    name, kind, number, text, to = member
    return _Rule(name, len(name), kind, number, text, len(text), to, len(to))


Conversions = Sequence[tuple[bytes, int, int, bool, bool]]
"""The members of rows: the name, the kind in compiled.c, its number, whether it is an array, and whether it is bare."""

Rules = Sequence[tuple[bytes, int, int, bytes, bytes]]
"""The members of rows: the name, the kind in compiled.c, its number, its text, and the new name with a colon."""

_Numbers = np.ndarray[Any, np.dtype[np.int32]]
_JudgeRow = Callable[[int], bytes | None]


def convert_rows(
    rows: pa.Array, plans: Sequence[Conversions], plan_numbers: _Numbers, judge: _JudgeRow
) -> tuple[pa.Array, Bools] | None:
    """JSON rows with their values rewritten, and which rows fit their plans; the others are empty.

    `plan_numbers` has each row's plan, -1 for a row that stays as it is, also for NULL. `judge` is asked about
    each row that is not plain, by its number: the row rewritten, None if it does not fit. None as in `read_objects`.
    """
    return _rewrite(
        "convert", rows, _plans(_Conversion, (map(_conversion, plan) for plan in plans)), plan_numbers, judge
    )


def apply_rules(
    rows: pa.Array, plans: Sequence[Rules], plan_numbers: _Numbers, judge: _JudgeRow, *, only_named: bool = False
) -> tuple[pa.Array, Bools] | None:
    """JSON rows with their members left out, renamed and masked, or `only_named` ones; see `convert_rows`."""
    all_plans = _plans(_Rule, (map(_rule, plan) for plan in plans), only_named=only_named)
    return _rewrite("apply_rules", rows, all_plans, plan_numbers, judge)


def _plans(
    kind: type[ctypes.Structure], plans: Iterable[Iterable[ctypes.Structure]], *, only_named: bool = False
) -> Any:
    """The structs `Plan` of compiled.c, each with its members."""
    members = [(kind * len(plan))(*plan) for plan in map(tuple, plans)]
    plan_array: Any = (_Plan * len(members))(
        *(_Plan(ctypes.addressof(plan), len(plan), only_named) for plan in members)
    )
    plan_array.members = members  # they live as long as what points to them
    return plan_array


class _AvroType(ctypes.Structure):
    """The struct `AvroType` of compiled.c."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_int64),
    )


class _AvroSchema(ctypes.Structure):
    """The struct `AvroSchema` of compiled.c."""

    _fields_ = (
        ("types", ctypes.POINTER(_AvroType)),
        ("before", ctypes.c_char_p),
        ("before_size", ctypes.c_int64),
        ("header", ctypes.c_int64),
    )


AvroTypes = Sequence[tuple[int, int, int, bytes]]
"""The types of a schema: the kind in compiled.c, the number of the first part, the count of parts, and the text."""

AvroSchema = tuple[AvroTypes, bytes, int]
"""The types, the text in front of the JSON (an object that ends behind it), and the bytes in front of a value."""


def write_avro(
    messages: pa.Array, schemas: Sequence[AvroSchema], schema_numbers: _Numbers, judge: _JudgeRow
) -> tuple[pa.Array, Bools] | None:
    """Messages of Avro behind a schema's number, as JSON, and which of them fit their schemas; the others are empty.

    A message with -1 gives an empty text. The other terms are those of `convert_rows`.
    """
    return _write_by_schemas("avro", _AvroType, _AvroSchema, messages, schemas, schema_numbers, judge)


class _ProtoField(ctypes.Structure):
    """The struct `ProtoField` of compiled.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("number", "kind", "label", "first", "count", "oneof")),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_int64),
    )


class _ProtoSchema(ctypes.Structure):
    """The struct `ProtoSchema` of compiled.c."""

    _fields_ = (
        ("fields", ctypes.POINTER(_ProtoField)),
        ("before", ctypes.c_char_p),
        ("before_size", ctypes.c_int64),
        ("header", ctypes.c_int64),
    )


ProtobufSchema = tuple[Sequence[tuple[int, int, int, int, int, int, bytes]], bytes, int]
"""The fields as `ProtoField` has them; the text in front and the bytes in front as in AvroSchema."""


def write_protobuf(
    messages: pa.Array, schemas: Sequence[ProtobufSchema], schema_numbers: _Numbers, judge: _JudgeRow
) -> tuple[pa.Array, Bools] | None:
    """Messages of Protobuf as JSON; the terms are those of `write_avro`."""
    return _write_by_schemas("protobuf", _ProtoField, _ProtoSchema, messages, schemas, schema_numbers, judge)


def _write_by_schemas(
    function: str,
    kind_of_part: type[ctypes.Structure],
    kind: type[ctypes.Structure],
    messages: pa.Array,
    schemas: Sequence[tuple[Sequence[tuple[Any, ...]], bytes, int]],
    schema_numbers: _Numbers,
    judge: _JudgeRow,
) -> tuple[pa.Array, Bools] | None:
    """What a loop writes for messages by schemas of such parts, which end in a text."""
    parts = [
        (kind_of_part * len(parts))(*(kind_of_part(*numbers, text, len(text)) for *numbers, text in parts))
        for parts, *_ in schemas
    ]
    pairs = zip(parts, schemas, strict=True)
    schema_array = (kind * len(schemas))(
        *(kind(part, before, len(before), header) for part, (_, before, header) in pairs)
    )
    before = sum(len(text) for _, text, _ in schemas) // max(len(schemas), 1)
    room = 3 * messages.nbytes + before * len(messages)
    return _rewrite(function, messages, schema_array, schema_numbers, judge, room)


def _rewrite(
    function: str, rows: pa.Array, plan_array: Any, plan_numbers: _Numbers, judge: _JudgeRow, room: int = 0
) -> tuple[pa.Array, Bools] | None:
    """What a loop writes for each row; `room` bytes may be enough."""
    if not is_available() or not len(rows) or rows.type not in TEXTS:
        return None
    bounds, data = bounds_of(rows), rows.buffers()[2]
    size = int(bounds[-1] - bounds[0])
    if data is None or size > _MOST_BYTES:
        return None
    rewrite = getattr(_library(), f"txn_sink_{function}")
    plan_numbers = np.ascontiguousarray(plan_numbers, dtype=np.int32)
    room, used_bytes = min(max(room, size + size // 4) + _LEAST_ROOM, _MOST_BYTES), ctypes.c_int64()
    output, ends = pa.allocate_buffer(room, resizable=True), np.zeros(len(rows) + 1, dtype=np.int32)
    fits: Bools = np.ones(len(rows), dtype=bool)
    text = bounds.ctypes.data, bounds.itemsize == 8, data.address, plan_array, plan_numbers.ctypes.data, len(rows)
    at = judgements = 0
    while True:
        at = rewrite(*text, output.address, room, ctypes.byref(used_bytes), ends.ctypes.data, at)
        if at == len(rows):
            break
        if at < 0:
            at, room = -1 - at, _more_room(output, room + 1)
            continue
        judgements += 1
        if judgements > most_judgements(at):
            return None
        row = judge(at)
        fits[at] = row is not None
        if row:
            room = _more_room(output, used_bytes.value + len(row))
            ctypes.memmove(output.address + used_bytes.value, row, len(row))
            used_bytes.value += len(row)
        at += 1
        ends[at] = used_bytes.value
    output.resize(used_bytes.value, shrink_to_fit=True)
    valid = pa.array(rows.is_valid()).buffers()[1] if rows.null_count else None
    buffers = [valid, pa.py_buffer(ends), output]
    return pa.Array.from_buffers(pa.string(), len(rows), buffers, rows.null_count), fits


_LEAST_ROOM: Final = 1 << 12  # more than compiled.c needs for one value


def _more_room(buffer: pa.ResizableBuffer, least: int) -> int:
    """Make the buffer large enough for `least` bytes and keep what it has; returns its size. It doubles at least."""
    if least > _MOST_BYTES:
        raise pa.ArrowCapacityError(f"{least} bytes in one column")
    if least > buffer.size:
        buffer.resize(min(max(2 * buffer.size, least), _MOST_BYTES))
    return int(buffer.size)


class Shapes:
    """The shapes of JSON rows that were met: a row's table and its names, in their order and spelling.

    Beyond half of `most` (a power of 2) no further shape is remembered, so its rows are new each time.
    """

    def __init__(self, most: int = _SHAPES) -> None:
        self._seen, self._used = np.zeros(most, dtype=np.uint64), ctypes.c_int64()

    def new_rows(self, tables: pa.Array, payload: pa.Array) -> list[int] | None:
        """Numbers of the rows with a new shape, and of those that are not one plain object; None without the loop."""
        if not is_available() or payload.type not in TEXTS or tables.type not in TEXTS:
            return None
        texts = [(bounds_of(column), column.buffers()[2]) for column in (payload, tables)]
        if any(data is None for _, data in texts):
            return None
        places = np.empty(len(payload), dtype=np.int64)
        arguments = (
            part for bounds, data in texts for part in (bounds.ctypes.data, bounds.itemsize == 8, data.address)
        )
        table_arguments = self._seen.ctypes.data, len(self._seen) - 1, ctypes.byref(self._used)
        count = _library().txn_sink_new_shapes(*arguments, len(payload), *table_arguments, places.ctypes.data)
        numbers: list[int] = places[:count].tolist()
        return numbers


# --- Kafka's messages ---


class Message(ctypes.Structure):
    """`rd_kafka_message_t` of librdkafka."""

    _fields_ = (
        ("error", ctypes.c_int32),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("value", ctypes.c_void_p),
        ("value_size", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("of_librdkafka", ctypes.c_void_p),
    )


HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])


class UnreadableHeaders(Exception):
    """The headers of a message are not what Kafka's format has; `args` has the Message."""


def _binary(column: _Column) -> int:
    """The address of the struct Binary in a column."""
    return ctypes.addressof(column) + _Column.ends.offset


def _text(names: pa.Array) -> pa.Array:
    """Names of headers as text; like Java's client, U+FFFD for what is not UTF-8."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


class Messages:
    """Messages of librdkafka, at `addresses` (unsigned integers of a pointer's size); moves errors behind the rows."""

    def __init__(self, addresses: np.ndarray[Any, np.dtype[np.uintp]]) -> None:
        self._at, self._arrived = addresses, addresses.copy()
        spare, sizes = np.empty_like(addresses), np.zeros(2, dtype=np.int64)
        values, keys = sizes.ctypes.data, sizes.ctypes.data + sizes.itemsize
        self._rows = _library().txn_sink_messages(self._start, len(addresses), spare.ctypes.data, values, keys)
        self._sizes: list[int] = sizes.tolist()

    @property
    def _start(self) -> int:
        return int(self._at.ctypes.data)

    def errors(self) -> list[Message]:
        """The messages that are errors; they are valid until `destroy`."""
        return [Message.from_address(address) for address in self._at[self._rows :].tolist()]

    def rows_before_errors(self) -> list[int]:
        """How many rows came before each of the errors."""
        places = np.flatnonzero(np.isin(self._arrived, self._at[self._rows :]))
        return [int(place) - number for number, place in enumerate(places)]

    def columns(self, timestamp: Any, keys: bool) -> list[Any]:
        """The rows' topic (its address), partition, offset, time in milliseconds, value, and key (None without `keys`).

        `timestamp` is librdkafka's function. Raises pyarrow.ArrowCapacityError for 2 GiB and more.
        """
        numbers = [np.empty(self._rows, dtype=np.int64) for _ in range(4)]
        texts = [_Buffers(pa.binary(), self._rows, size) for size in self._sizes[: 1 + keys]]
        structs = [text.column() for text in texts]
        pointers = [*map(_binary, structs), *[None] * (not keys)]
        function = ctypes.cast(timestamp, ctypes.c_void_p)
        columns = (array.ctypes.data for array in numbers)
        _library().txn_sink_take(self._start, self._rows, function, *columns, *pointers)
        arrays = [text.array(column.nulls, self._rows) for text, column in zip(texts, structs, strict=True)]
        return [*numbers, *arrays, *([] if keys else [None])]

    def headers(self, headers: Any, header: Any) -> pa.Array:
        """The rows' headers, as lists of HEADER; NULL for a row without any.

        `headers` and `header` are librdkafka's functions. Raises UnreadableHeaders, and ArrowCapacityError as `columns`
        does.
        """
        sizes = np.zeros(3, dtype=np.int64)
        functions = [ctypes.cast(function, ctypes.c_void_p) for function in (headers, header)]
        arguments = self._start, self._rows, *functions, sizes.ctypes.data
        readable = _library().txn_sink_headers(*arguments, None, None, None)
        if readable < self._rows:
            raise UnreadableHeaders(Message.from_address(int(self._at[readable])))
        count, *texts = sizes.tolist()
        buffers = [_Buffers(pa.binary(), rows, size) for rows, size in ((self._rows, 0), *((count, n) for n in texts))]
        structs = [buffer.column() for buffer in buffers]
        _library().txn_sink_headers(*arguments, *map(_binary, structs))
        names, values = (
            buffer.array(struct.nulls, count) for buffer, struct in zip(buffers[1:], structs[1:], strict=True)
        )
        entries = pa.StructArray.from_arrays([_text(names), values], fields=list(HEADER))
        return buffers[0].lists(structs[0].nulls, self._rows, entries)

    def destroy(self, destroy: Any) -> None:
        """Free the messages with librdkafka's function `destroy`."""
        _library().txn_sink_destroy(self._start, len(self._at), ctypes.cast(destroy, ctypes.c_void_p))
