"""Whole columns of texts, by the compiled loop: texts of several columns, a search, pairs of numbers."""

import ctypes
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.compiled.layout import Text, Texts
from starrocks_txn_sink.compiled.library import TEXTS, is_available, library
from starrocks_txn_sink.coordinator.model import Ints
from starrocks_txn_sink.rows.segments import bounds_of


def gather(columns: Sequence[tuple[int, pa.Array]], numbers: Ints) -> pa.Array | None:
    """The texts `numbers`, as strings; each column comes with the number of its first text, ascending.

    None without the compiled loop, for other types, and for 2 GiB.
    """
    columns = [(first, column) for first, column in columns if len(column)]
    if not is_available() or not columns or any(column.type not in TEXTS for _, column in columns):
        return None
    pieces = (Texts * len(columns))()
    for piece, (first, column) in zip(pieces, columns, strict=True):
        valid, _, data = column.buffers()
        bounds = bounds_of(column)
        piece.bounds, piece.wide = bounds.ctypes.data, bounds.itemsize == 8
        piece.first, piece.bit = first, column.offset
        piece.data = data.address if data is not None else bounds.ctypes.data
        piece.valid = valid.address if valid is not None and column.null_count else None
    rows, numbers = len(numbers), np.ascontiguousarray(numbers, dtype=np.int64)
    places, nulls = np.empty(rows, dtype=np.uintp), ctypes.c_int64()
    valid, ends = pa.py_buffer(bytearray((rows + 7) // 8)), pa.allocate_buffer(4 * (rows + 1))
    found = pieces, len(pieces), numbers.ctypes.data, rows, places.ctypes.data
    size = library().txn_sink_find_texts(*found, ends.address, valid.address, ctypes.byref(nulls))
    if size < 0:
        return None
    data = pa.allocate_buffer(size)
    library().txn_sink_copy_texts(places.ctypes.data, ends.address, rows, data.address)
    return pa.Array.from_buffers(pa.string(), rows, [valid if nulls.value else None, ends, data], nulls.value)


def search(values: pa.Array, texts: Sequence[bytes]) -> bool | None:
    """Whether one of the texts, of two bytes at least, is in the values behind one another; None without the loop."""
    data = values.buffers()[2]
    if not is_available() or values.type not in TEXTS or data is None or any(len(text) < 2 for text in texts):
        return None
    bounds = bounds_of(values)
    wanted = (Text * len(texts))(*(Text(text, len(text)) for text in texts))
    start, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    return bool(library().txn_sink_search(data.address + start, size, wanted, len(texts)) >= 0)


def pairs(values: pa.Array) -> tuple[pa.Array, Ints] | None:
    """Of values that are each NULL or `number:number`: the first number as text, and the second one, 0 for NULL.

    None for other values, for numbers of more than 64 bits behind the colon, and without the compiled loop.
    """
    data = values.buffers()[2]
    if not is_available() or values.type not in TEXTS or data is None:
        return None
    rows, bounds = len(values), bounds_of(values)
    ends, second = pa.allocate_buffer(4 * (rows + 1)), np.zeros(rows, dtype=np.int64)
    first = pa.allocate_buffer(int(bounds[-1] - bounds[0]), resizable=True)
    place = bounds.ctypes.data, bounds.itemsize == 8, data.address, rows
    if library().txn_sink_pairs(*place, ends.address, first.address, second.ctypes.data) != values.null_count:
        return None
    first.resize(int.from_bytes(ends[4 * rows : 4 * rows + 4], sys.byteorder), shrink_to_fit=True)
    valid = values.is_valid().buffers()[1] if values.null_count else None
    return pa.Array.from_buffers(pa.string(), rows, [valid, ends, first], values.null_count), second
