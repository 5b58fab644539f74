"""The compiled loops over raw TxnEvents and over Kafka's messages (`compiled.c`), where the installation has them.

The loops are optional: a wheel for a platform brings them, and a source tree with a C compiler builds them
(`tools/compile.py`). Without them everything works more slowly, with the same results: the C parser takes only plain
values, and leaves the judgement of all others to Python (`sources.txn_lines`). ctypes releases the GIL while C runs.
"""

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.rows.segments import bounds_of

LIBRARY: Final = Path(__file__).with_name("_compiled.so")
PURE: Final = "STARROCKS_TXN_SINK_PURE"
"""The environment variable that turns the compiled loops off, with the value 1."""
_ABI: Final = 1  # that of compiled.c; a library with another number is not used
_MOST_BYTES: Final = (1 << 31) - (1 << 16)  # offsets of 32 bits
_TEXTS: Final = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


Functions = Mapping[str, tuple[Any, Sequence[Any]]]
"""The functions of a C library by name: the type of the result, and those of the arguments."""


class _Column(ctypes.Structure):
    """The struct `Column` of compiled.c, which ends with the fields of its struct `Binary` (`ends` to `nulls`)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
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
        found = ctypes.CDLL(str(LIBRARY))
        abi = found.txn_sink_abi()
    except (OSError, AttributeError):  # not there, in a zip file, or of another platform
        return None
    if abi != _ABI:
        return None
    declare(found, "txn_sink_", _FUNCTIONS)
    return found


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS: Final[Functions] = {
    "read": (_NUMBER, (_POINTER, ctypes.c_int32, _POINTER, _NUMBER, ctypes.POINTER(_Column), _NUMBER)),
    "messages": (_NUMBER, (_POINTER, _NUMBER, *[_POINTER] * 3)),
    "take": (None, (_POINTER, _NUMBER, *[_POINTER] * 7)),
    "destroy": (None, (_POINTER, _NUMBER, _POINTER)),
}


def declare(library: ctypes.CDLL, prefix: str, functions: Functions) -> None:
    """Tell ctypes the types of a library's functions; AttributeError for a function that it does not have."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, prefix + name)
        function.restype, function.argtypes = result, arguments


def read_events(values: pa.Array, fields: pa.Schema) -> pa.Table | None:
    """The `fields`, texts and whole numbers, of values that are one JSON object each.

    None without the compiled loop, and if a value is not plain: malformed, with an escape in a name or a lone
    surrogate, nested deeper than 64, or NULL.
    """
    if not is_available() or values.null_count or not len(values) or values.type not in _TEXTS:
        return None
    bounds, data = bounds_of(values), values.buffers()[2]
    size = int(bounds[-1] - bounds[0])
    if data is None or size > _MOST_BYTES:
        return None
    room = size + _library().txn_sink_slack()
    made = [_Buffers(kind, len(values), room) for kind in fields.types]
    columns = (_Column * len(made))(
        *(each.column(name.encode()) for each, name in zip(made, fields.names, strict=True))
    )
    wide = bounds.itemsize == 8
    read = _library().txn_sink_read(bounds.ctypes.data, wide, data.address, len(values), columns, len(made))
    if read != len(values):
        return None
    arrays = [each.array(column.nulls) for each, column in zip(made, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=fields)


class _Buffers:
    """Buffers for a column of whole numbers, or of texts of `size` bytes; pyarrow.ArrowCapacityError for 2 GiB."""

    def __init__(self, kind: pa.DataType, rows: int, size: int) -> None:
        self._kind, self._rows, self._number = kind, rows, kind == pa.int64()
        if size > _MOST_BYTES:
            raise pa.ArrowCapacityError(f"{size} bytes in one column")
        self._valid = pa.py_buffer(bytearray((rows + 7) // 8))
        self._ends = None if self._number else pa.allocate_buffer(4 * (rows + 1))
        self._data = pa.allocate_buffer(8 * rows if self._number else size, resizable=True)

    def column(self, name: bytes = b"") -> _Column:
        ends = self._ends and self._ends.address
        return _Column(name, len(name), int(self._number), ends, self._data.address, self._valid.address, 0)

    def array(self, nulls: int) -> pa.Array:
        """The filled column, with `nulls` NULLs; frees the unused part of its buffer."""
        valid = self._valid if nulls else None
        if self._ends is None:
            return pa.Array.from_buffers(self._kind, self._rows, [valid, self._data], nulls)
        used = int.from_bytes(self._ends[4 * self._rows :], sys.byteorder)
        if used < self._data.size:
            self._data.resize(used, shrink_to_fit=True)
        return pa.Array.from_buffers(self._kind, self._rows, [valid, self._ends, self._data], nulls)


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
        made = [each.column() for each in texts]
        pointers = [ctypes.addressof(each) + _Column.ends.offset for each in made] + [None] * (not keys)
        function = ctypes.cast(timestamp, ctypes.c_void_p)
        columns = (each.ctypes.data for each in numbers)
        _library().txn_sink_take(self._start, self._rows, function, *columns, *pointers)
        arrays = [each.array(column.nulls) for each, column in zip(texts, made, strict=True)]
        return [*numbers, *arrays, *([] if keys else [None])]

    def destroy(self, destroy: Any) -> None:
        """Free the messages with librdkafka's function `destroy`."""
        _library().txn_sink_destroy(self._start, len(self._at), ctypes.cast(destroy, ctypes.c_void_p))
