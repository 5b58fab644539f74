"""The members of JSON objects as columns, by the compiled loop."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from starrocks_txn_sink.compiled.layout import Column, MemberKind
from starrocks_txn_sink.compiled.library import (
    MOST_BYTES,
    TEXTS,
    Buffers,
    Scratch,
    is_available,
    library,
    most_judgements,
)
from starrocks_txn_sink.rows.segments import Bools, bounds_of

ORIGIN: Final = "origin"
_SCRATCH: Final = Scratch()
LIST_TEXT: Final = pa.binary()
"""The type of a field that is the JSON of an array, for `read_objects`."""

Judge = Callable[[pa.Scalar], Mapping[str, Any] | None]
"""Reads one value by Python: its fields, or None if it is malformed."""


def read_objects(
    values: pa.Array, fields: pa.Schema, judge: Judge, wrapper: str | None = None
) -> tuple[pa.Table, Bools] | None:
    """The members `fields` of the values that are one JSON object each, and which values these are.

    A field is a whole number, or a text: the content of a string, or the JSON of another value; with LIST_TEXT the JSON
    of an array. A text with a dictionary is one of few. A struct is an object with such members, of which a text is a
    string. If a value has an object under the name `wrapper`, the fields are this object's members. With a wrapper the
    table has a further column ORIGIN: the number of a value that has the same text around its object, -1 for a value
    without such an object.

    Left out are NULL and the values that `judge` refuses. It is asked about each value that is not plain: malformed,
    with an escape in a name or a lone surrogate, or nested deeper than 64. None without the compiled loop, if so many
    values are not plain that another way is faster, and for a list without room.
    """
    if not is_available() or not len(values) or values.type not in TEXTS:
        return None
    bounds, data = bounds_of(values), values.buffers()[2]
    size = int(bounds[-1] - bounds[0])
    if data is None or size > MOST_BYTES:
        return None
    reading = _Reading(fields, len(values), size + library().txn_sink_slack(), wrapper)
    events: Bools = np.ones(len(values), dtype=bool)
    if values.null_count:
        events = values.is_valid().to_numpy(zero_copy_only=False).copy()
    place = bounds.ctypes.data, bounds.itemsize == 8, data.address, events.ctypes.data, len(values)
    start = judgements = 0
    while (start := reading.read(*place, start)) < len(values):
        judgements += 1
        if judgements > most_judgements(start):
            return None
        event = judge(values[start])
        if event is None:
            events[start] = False
        elif not reading.add(event, start, int(bounds[start + 1] - bounds[start])):
            return None
        start += 1
    return reading.table(), events


class _Reading:
    """The columns of `fields` with room for `rows` rows, and for `size` bytes in each column of texts."""

    def __init__(self, fields: pa.Schema, rows: int, size: int, wrapper: str | None) -> None:
        self._fields, self._rows, self._wrapper = fields, 0, wrapper and wrapper.encode()
        self._lists = [field.name for field in fields if field.type == LIST_TEXT]
        self._tree = _tree_of(fields)
        self._rooms = {
            number: _SCRATCH.take(number, size + 4 * rows)
            for number, (field, _, _) in enumerate(self._tree)
            if field.type != pa.int64() and not pa.types.is_struct(field.type)
        }
        self._buffers = [
            Buffers(field.type, rows, size, self._rooms.get(number)) for number, (field, _, _) in enumerate(self._tree)
        ]
        columns = list[Column]()
        for number, ((field, first, members), buffers) in enumerate(zip(self._tree, self._buffers, strict=True)):
            columns.append(buffers.column(_kind(field.type, number < len(fields)), field.name.encode(), first, members))
        self._columns = (Column * len(columns))(*columns)
        self._origins = np.empty(rows if wrapper else 0, dtype=np.int64)

    def read(self, bounds: Any, wide: bool, data: Any, fields_wanted: Any, values: int, start: int) -> int:
        """Add the `fields_wanted` of `values` from number `start` on; returns the first value that is not plain."""
        place = ctypes.c_int64(start)
        columns = self._columns, len(self._columns), len(self._fields), self._wrapper, self._origins.ctypes.data
        arguments = bounds, wide, data, fields_wanted, values, *columns, self._rows
        self._rows = library().txn_sink_read(*arguments, ctypes.byref(place))
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
        for number, room in self._rooms.items():
            _SCRATCH.give(number, room)
        table = pa.Table.from_arrays(arrays, schema=self._fields)
        return table.append_column(ORIGIN, pa.array(self._origins[: self._rows])) if self._wrapper else table

    def _array(self, number: int) -> pa.Array:
        _, first, members = self._tree[number]
        if pa.types.is_dictionary(self._tree[number][0].type):
            return self._buffers[number].coded(self._columns[number], self._rows)
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
    """The kind of a column of this type."""
    if pa.types.is_struct(kind):
        return MemberKind.OBJECT
    if kind == LIST_TEXT:
        return MemberKind.LIST
    return MemberKind.WHOLE if kind == pa.int64() else MemberKind.TEXT if outermost else MemberKind.STRING
