"""JSON rows rewritten, and messages of Avro and Protobuf written as JSON, by the compiled loops."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.compiled import layout
from starrocks_txn_sink.compiled.library import MOST_BYTES, TEXTS, is_available, library, most_judgements
from starrocks_txn_sink.rows.segments import Bools, bounds_of


def _conversion(member: tuple[bytes, int, int, bool, bool]) -> layout.Conversion:
    name, *numbers = member
    return layout.Conversion(name, len(name), *numbers)


def _rule(member: tuple[bytes, int, int, bytes, bytes]) -> layout.Rule:
    name, kind, number, text, to = member
    return layout.Rule(name, len(name), kind, number, text, len(text), to, len(to))


Conversions = Sequence[tuple[bytes, int, int, bool, bool]]
"""The members of rows: the name, its ConversionKind, its number, whether it is an array, and whether it is bare."""

Rules = Sequence[tuple[bytes, int, int, bytes, bytes]]
"""The members of rows: the name, its RuleKind, its number, its text, and the new name with a colon."""

ValueRule = tuple[int, int, int, bool, tuple[tuple[str, "ValueRule"], ...]]
"""A ColumnRule: the kind, its number, `whole`, whether NULL is kept, and the rules of parts by name."""

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
        "convert", rows, _plans(layout.Conversion, (map(_conversion, plan) for plan in plans)), plan_numbers, judge
    )


def apply_rules(
    rows: pa.Array, plans: Sequence[Rules], plan_numbers: _Numbers, judge: _JudgeRow, *, only_named: bool = False
) -> tuple[pa.Array, Bools] | None:
    """JSON rows with their members left out, renamed and masked, or `only_named` ones; see `convert_rows`."""
    all_plans = _plans(layout.Rule, (map(_rule, plan) for plan in plans), only_named=only_named)
    return _rewrite("apply_rules", rows, all_plans, plan_numbers, judge)


def _plans(
    kind: type[ctypes.Structure], plans: Iterable[Iterable[ctypes.Structure]], *, only_named: bool = False
) -> Any:
    """The plans, each with its members."""
    members = [(kind * len(plan))(*plan) for plan in map(tuple, plans)]
    plan_array: Any = (layout.Plan * len(members))(
        *(layout.Plan(ctypes.addressof(plan), len(plan), only_named) for plan in members)
    )
    plan_array.members = members  # they live as long as what points to them
    return plan_array


Column = tuple[str, ValueRule, int, str, int]
"""A column: its name and rule, `needed`, the member that a row without it gets ("": none), and its `base`."""


class ColumnRules:
    """The rules of tables (the columns of each) for the loops that judge values; a table without columns has none."""

    def __init__(self, tables: Sequence[Sequence[Column]]) -> None:
        self._kept: list[object] = []  # lives as long as what points to it
        plans = [(self._array(columns), len(columns), sum(column[2] & 1 for column in columns)) for columns in tables]
        self.plans: Any = (layout.Plan * len(plans))(
            *(layout.Plan(ctypes.addressof(array), count, need) for array, count, need in plans)
        )

    def fit(self, rows: pa.Array, tables: _Numbers, judge: _JudgeRow) -> tuple[pa.Array, Bools] | None:
        """The rows as their columns keep them, and which ones have such a form; see `convert_rows`."""
        return _rewrite("fit", rows, self.plans, tables, judge)

    def _array(self, columns: Iterable[Column]) -> Any:
        rules = [self._rule(*column) for column in columns]
        array = (layout.ColumnRule * len(rules))(*rules)
        self._kept.append(array)
        return array

    def _rule(self, name: str, rule: ValueRule, need: int, filler: str, base: int) -> layout.ColumnRule:
        *numbers, parts = rule
        text, filling = f'"{name}":'.encode(), filler.encode()
        inner = self._array((*part, 0, "", 0) for part in parts) if parts else None
        address = None if inner is None else ctypes.addressof(inner)
        place = ctypes.create_string_buffer(filling, len(filling)) if filling else None  # the loop writes into it
        self._kept.append(place)
        place_address = None if place is None else ctypes.addressof(place)
        return layout.ColumnRule(text, len(text), *numbers, need, address, place_address, len(filling), base)


AvroTypes = Sequence[tuple[int, int, int, bytes]]
"""The types of a schema: the AvroKind, the number of the first part, the count of parts, and the text."""

AvroSchema = tuple[AvroTypes, bytes, int]
"""The types, the text in front of the JSON (an object that ends behind it), and the bytes in front of a value."""


def write_avro(
    messages: pa.Array, schemas: Sequence[AvroSchema], schema_numbers: _Numbers, judge: _JudgeRow
) -> tuple[pa.Array, Bools]:
    """Messages of Avro behind a schema's number, as JSON, and which of them fit their schemas; the others are empty.

    A message with -1 gives an empty text. `judge` is asked as `convert_rows` does, without the compiled loop about all.
    """
    return _write_by_schemas("avro", layout.AvroType, messages, schemas, schema_numbers, judge)


ProtobufSchema = tuple[Sequence[tuple[int, int, int, int, int, int, bytes]], bytes, int]
"""The fields as `ProtoField` has them; the text in front and the bytes in front as in AvroSchema."""


def write_protobuf(
    messages: pa.Array, schemas: Sequence[ProtobufSchema], schema_numbers: _Numbers, judge: _JudgeRow
) -> tuple[pa.Array, Bools]:
    """Messages of Protobuf as JSON; the terms are those of `write_avro`."""
    return _write_by_schemas("protobuf", layout.ProtoField, messages, schemas, schema_numbers, judge)


def _write_by_schemas(
    function: str,
    kind_of_part: type[ctypes.Structure],
    messages: pa.Array,
    schemas: Sequence[tuple[Sequence[tuple[Any, ...]], bytes, int]],
    schema_numbers: _Numbers,
    judge: _JudgeRow,
) -> tuple[pa.Array, Bools]:
    """What a loop, or `judge` alone, writes for messages by schemas of such parts, which end in a text."""
    parts = [
        (kind_of_part * len(parts))(*(kind_of_part(*numbers, text, len(text)) for *numbers, text in parts))
        for parts, *_ in schemas
    ]
    pairs = zip(parts, schemas, strict=True)
    schema_array = (layout.MessageSchema * len(schemas))(
        *(
            layout.MessageSchema(ctypes.addressof(part), prefix_bytes, len(prefix_bytes), header)
            for part, (_, prefix_bytes, header) in pairs
        )
    )
    prefix_bytes = sum(len(text) for _, text, _ in schemas) // max(len(schemas), 1)
    room = 3 * messages.nbytes + prefix_bytes * len(messages)
    output = _rewrite(function, messages, schema_array, schema_numbers, judge, room)
    if output is not None:
        return output
    texts = [b"" if schema < 0 else judge(number) for number, schema in enumerate(schema_numbers.tolist())]
    fits: Bools = np.fromiter((text is not None for text in texts), dtype=bool, count=len(texts))
    return pa.array([(text or b"").decode() for text in texts], pa.string()), fits


def _rewrite(
    function: str, rows: pa.Array, plan_array: Any, plan_numbers: _Numbers, judge: _JudgeRow, room: int = 0
) -> tuple[pa.Array, Bools] | None:
    """What a loop writes for each row; `room` bytes may be enough."""
    if not is_available() or not len(rows) or rows.type not in TEXTS:
        return None
    bounds, data = bounds_of(rows), rows.buffers()[2]
    size = int(bounds[-1] - bounds[0])
    if data is None or size > MOST_BYTES:
        return None
    rewrite = getattr(library(), f"txn_sink_{function}")
    plan_numbers = np.ascontiguousarray(plan_numbers, dtype=np.int32)
    room, used_bytes = min(max(room, size + size // 4) + _LEAST_ROOM, MOST_BYTES), ctypes.c_int64()
    output, ends = pa.allocate_buffer(room, resizable=True), np.zeros(len(rows) + 1, dtype=np.int32)
    fits: Bools = np.ones(len(rows), dtype=bool)
    text = bounds.ctypes.data, bounds.itemsize == 8, data.address, plan_array, plan_numbers.ctypes.data, len(rows)
    start = judgements = 0
    while True:
        start = rewrite(*text, output.address, room, ctypes.byref(used_bytes), ends.ctypes.data, start)
        if start == len(rows):
            break
        if start < 0:
            start, room = -1 - start, _more_room(output, room + 1)
            continue
        judgements += 1
        if judgements > most_judgements(start):
            return None
        row = judge(start)
        fits[start] = row is not None
        if row:
            room = _more_room(output, used_bytes.value + len(row))
            ctypes.memmove(output.address + used_bytes.value, row, len(row))
            used_bytes.value += len(row)
        start += 1
        ends[start] = used_bytes.value
    output.resize(used_bytes.value, shrink_to_fit=True)
    valid = pa.array(rows.is_valid()).buffers()[1] if rows.null_count else None
    buffers = [valid, pa.py_buffer(ends), output]
    return pa.Array.from_buffers(pa.string(), len(rows), buffers, rows.null_count), fits


_LEAST_ROOM: Final = 1 << 12  # more than a loop needs for one value


def _more_room(buffer: pa.ResizableBuffer, minimum: int) -> int:
    """Make the buffer large enough for `minimum` bytes and keep what it has; returns its size. It doubles at least."""
    if minimum > MOST_BYTES:
        raise pa.ArrowCapacityError(f"{minimum} bytes in one column")
    if minimum > buffer.size:
        buffer.resize(min(max(2 * buffer.size, minimum), MOST_BYTES))
    return int(buffer.size)
