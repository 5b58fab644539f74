"""Kafka's messages as columns, by the compiled loops over librdkafka's structs."""

import ctypes
from typing import Any, Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.compiled.layout import Column, Message
from starrocks_txn_sink.compiled.library import Buffers, library

HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])


class UnreadableHeaders(Exception):
    """The headers of a message are not what Kafka's format has; `args` has the Message."""


def _binary(column: Column) -> int:
    """The address of the struct Binary in a column."""
    return ctypes.addressof(column) + Column.ends.offset


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
        self._rows = library().txn_sink_messages(self._start, len(addresses), spare.ctypes.data, values, keys)
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
        texts = [Buffers(pa.binary(), self._rows, size) for size in self._sizes[: 1 + keys]]
        structs = [text.column() for text in texts]
        pointers = [*map(_binary, structs), *[None] * (not keys)]
        function = ctypes.cast(timestamp, ctypes.c_void_p)
        columns = (array.ctypes.data for array in numbers)
        library().txn_sink_take(self._start, self._rows, function, *columns, *pointers)
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
        readable = library().txn_sink_headers(*arguments, None, None, None)
        if readable < self._rows:
            raise UnreadableHeaders(Message.from_address(int(self._at[readable])))
        count, *texts = sizes.tolist()
        buffers = [Buffers(pa.binary(), rows, size) for rows, size in ((self._rows, 0), *((count, n) for n in texts))]
        structs = [buffer.column() for buffer in buffers]
        library().txn_sink_headers(*arguments, *map(_binary, structs))
        names, values = (
            buffer.array(struct.nulls, count) for buffer, struct in zip(buffers[1:], structs[1:], strict=True)
        )
        entries = pa.StructArray.from_arrays([_text(names), values], fields=list(HEADER))
        return buffers[0].lists(structs[0].nulls, self._rows, entries)

    def destroy(self, destroy: Any) -> None:
        """Free the messages with librdkafka's function `destroy`."""
        library().txn_sink_destroy(self._start, len(self._at), ctypes.cast(destroy, ctypes.c_void_p))
