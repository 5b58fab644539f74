"""Compiled loops over JSON, and messages of Kafka, Avro and Protobuf, where the installation has them.

The loops are optional: a wheel for a platform brings them, and a source tree with a C compiler builds them
(`tools/compile.py`). Without them everything works more slowly, with the same results: the C parser takes only plain
values, and leaves the judgement of all others to Python (`sources.formats`). ctypes releases the GIL while C runs.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from starrocks_txn_sink.compiled.layout import Column, MemberKind, Text, Texts
from starrocks_txn_sink.compiled.sources import number_of, sources

LIBRARY: Final = Path(__file__).parents[1] / "_compiled.so"
PURE: Final = "STARROCKS_TXN_SINK_PURE"
"""The environment variable that turns the compiled loops off, with the value 1."""
MOST_BYTES: Final = (1 << 31) - (1 << 16)  # offsets of 32 bits
_FREE_JUDGEMENTS: Final = 64
_VALUES_A_JUDGEMENT: Final = 16
"""Python judges a value at 50 times the cost of the loop. Where it would judge more than one in 16, a batch is read
faster without the loop; the first 64 say nothing yet about the share."""


def most_judgements(values: int) -> int:
    """How many judgements by Python are worth it among so many values."""
    return _FREE_JUDGEMENTS + values // _VALUES_A_JUDGEMENT


TEXTS: Final = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())

Functions = Mapping[str, tuple[Any, Sequence[Any]]]
"""The functions of a C library by name: the type of the result, and those of the arguments."""


def is_available() -> bool:
    """Whether this process uses the compiled loops."""
    return os.environ.get(PURE) != "1" and library() is not None


@cache
def library() -> Any:
    """The compiled loops; None where this process cannot use them.

    In a source tree the library has to be built from the C files that are there: one of other files would read memory
    in another way than Python writes it. A wheel has no C files, and its library came with its modules.
    """
    try:
        loops = ctypes.CDLL(str(LIBRARY))
        declare(loops, "txn_sink_", _FUNCTIONS)
        built_from = loops.txn_sink_sources()
    except (OSError, AttributeError):  # not there, in a zip file, or of another platform
        return None
    files = sources(Path(__file__).parent)
    return None if files and built_from != number_of(files) else loops


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_REWRITE: Final = (
    *(_POINTER, ctypes.c_int32, *[_POINTER] * 3, _NUMBER),
    *(_POINTER, _NUMBER, ctypes.POINTER(_NUMBER), _POINTER, _NUMBER),
)
_FUNCTIONS: Final[Functions] = {
    "sources": (_NUMBER, ()),
    "slack": (ctypes.c_int32, ()),
    "read": (
        _NUMBER,
        (
            *(_POINTER, ctypes.c_int32, *[_POINTER] * 2, _NUMBER, ctypes.POINTER(Column), _NUMBER, _NUMBER),
            *(ctypes.c_char_p, _POINTER, _NUMBER, _POINTER),
        ),
    ),
    "convert": (_NUMBER, _REWRITE),
    "apply_rules": (_NUMBER, _REWRITE),
    "fit": (_NUMBER, _REWRITE),
    "avro": (_NUMBER, _REWRITE),
    "protobuf": (_NUMBER, _REWRITE),
    "find": (
        None,
        (_POINTER, ctypes.c_int32, *[_POINTER] * 6, _NUMBER, ctypes.POINTER(_NUMBER), _NUMBER, *[_POINTER] * 2),
    ),
    "long_keys": (_NUMBER, (_POINTER, ctypes.c_int32, *[_POINTER] * 3, _NUMBER, _POINTER)),
    "find_texts": (_NUMBER, (ctypes.POINTER(Texts), _NUMBER, _POINTER, _NUMBER, *[_POINTER] * 4)),
    "copy_texts": (None, (*[_POINTER] * 2, _NUMBER, _POINTER)),
    "search": (_NUMBER, (_POINTER, _NUMBER, ctypes.POINTER(Text), _NUMBER)),
    "pairs": (_NUMBER, (_POINTER, ctypes.c_int32, _POINTER, _NUMBER, *[_POINTER] * 3)),
    "messages": (_NUMBER, (_POINTER, _NUMBER, *[_POINTER] * 3)),
    "take": (None, (_POINTER, _NUMBER, *[_POINTER] * 7)),
    "headers": (_NUMBER, (_POINTER, _NUMBER, *[_POINTER] * 6)),
    "destroy": (None, (_POINTER, _NUMBER, _POINTER)),
}


_memmove: Final = ctypes.CDLL(None).memmove  # without the GIL, which ctypes.memmove holds
_memmove.restype, _memmove.argtypes = None, (_POINTER, _POINTER, ctypes.c_size_t)


def declare(library: ctypes.CDLL, prefix: str, functions: Functions) -> None:
    """Tell ctypes the types of a library's functions; AttributeError for a function that it does not have."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, prefix + name)
        function.restype, function.argtypes = result, arguments


class Scratch(threading.local):
    """Room of this thread for texts of unknown sizes, by column: what is used of it is copied out.

    Buffers as large as all messages, for each column and piece, would be touched at their beginnings alone and leave a
    heap of holes.
    """

    def __init__(self) -> None:
        self._free: dict[int, pa.Buffer] = {}

    def take(self, column: int, size: int) -> pa.Buffer:
        """At least `size` bytes, until they are given back."""
        room = self._free.pop(column, None)
        if room is not None and room.size >= size:
            return room
        return pa.allocate_buffer(size if size > _LARGEST_ROOM else min(1 << size.bit_length(), _LARGEST_ROOM))

    def give(self, column: int, room: pa.Buffer) -> None:
        """Keep `room` for the next texts of the column, unless it is very large."""
        if room.size <= _LARGEST_ROOM:
            self._free[column] = room


_LARGEST_ROOM: Final = 32 << 20


class Buffers:
    """Buffers of a column of whole numbers, structs or texts of `size` bytes; pyarrow.ArrowCapacityError for 2 GiB.

    With `data` that is where texts are written.
    """

    def __init__(self, kind: pa.DataType, rows: int, size: int, data: pa.Buffer | None = None) -> None:
        self._kind, self._room = kind, data
        texts = kind != pa.int64() and not pa.types.is_struct(kind)
        size += 4 * rows if pa.types.is_dictionary(kind) else 0
        if texts and size > MOST_BYTES:
            raise pa.ArrowCapacityError(f"{size} bytes in one column")
        self._valid = pa.py_buffer(bytearray((rows + 7) // 8))
        self._ends = pa.allocate_buffer(4 * (rows + 1)) if texts else None
        self._data = pa.allocate_buffer(size if texts else 8 * rows, resizable=True) if data is None else data

    def column(self, kind: int = MemberKind.TEXT, name: bytes = b"", first: int = 0, members: int = 0) -> Column:
        """How C finds the buffers, which this object keeps alive; see Column for `first` and `members` of an OBJECT."""
        ends = self._ends and self._ends.address
        coded = pa.types.is_dictionary(self._kind)
        return Column(name, len(name), kind, first, members, coded, ends, self._data.address, self._valid.address, 0)

    def array(self, nulls: int, rows: int, children: Sequence[pa.Array] = ()) -> pa.Array:
        """The column filled with `rows` values, `nulls` of them NULL; frees the unused part of its buffer."""
        valid = self._valid if nulls else None
        if pa.types.is_struct(self._kind):
            return pa.Array.from_buffers(self._kind, rows, [valid], nulls, children=list(children))
        if self._ends is None:
            return pa.Array.from_buffers(self._kind, rows, [valid, self._data], nulls)
        used_bytes = int.from_bytes(self._ends[4 * rows : 4 * rows + 4], sys.byteorder)
        data = self._data
        if self._room is not None:
            data = pa.allocate_buffer(used_bytes)
            _memmove(data.address, self._room.address, used_bytes)
        elif used_bytes < data.size:
            data.resize(used_bytes, shrink_to_fit=True)
        return pa.Array.from_buffers(self._kind, rows, [valid, self._ends, data], nulls)

    def coded(self, column: Column, rows: int) -> pa.DictionaryArray:
        """The coded `column` filled with `rows` values."""
        content, texts, at = memoryview(self._data)[: column.first], list[str](), 0
        for _ in range(column.members):
            size = int.from_bytes(content[at : at + 4], sys.byteorder)
            texts.append(str(content[at + 4 : at + 4 + size], "utf-8"))
            at += 4 + size
        valid = self._valid if column.nulls else None
        codes = pa.Array.from_buffers(pa.int32(), rows, [valid, self._ends], column.nulls)
        distinct = dict(zip(dict.fromkeys(texts), range(len(texts)), strict=False))
        if len(distinct) < len(texts):
            codes = pa.array([distinct[text] for text in texts], pa.int32()).take(codes)
        return pa.DictionaryArray.from_arrays(codes, pa.array([*distinct], pa.string()))

    def lists(self, nulls: int, rows: int, entries: pa.Array) -> pa.Array:
        """The column filled with the ends of `rows` lists of `entries`, `nulls` of them NULL."""
        valid = self._valid if nulls else None
        return pa.Array.from_buffers(pa.list_(entries.type), rows, [valid, self._ends], nulls, children=[entries])
