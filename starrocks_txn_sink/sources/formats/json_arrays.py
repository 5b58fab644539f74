"""The objects in JSON arrays, as texts of their own: passes over bytes, without Python for each array or object."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.rows.segments import Bools, layout

Counts = np.ndarray[Any, np.dtype[np.int64]]

_SEVERAL: Final = r"\}[\s,]"
_QUOTE, _BACKSLASH, _COMMA = ord('"'), ord("\\"), ord(",")
_STEPS: Final = np.zeros(256, dtype=np.int8)
"""By character: one level of nesting more or fewer."""
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1
_IS_MARK: Final = (_STEPS != 0).astype(np.uint8)
_IS_MARK[_COMMA] = 1


def objects_of(arrays: pa.Array) -> tuple[pa.Array, Counts, Bools]:
    """The elements of well-formed JSON arrays (strings, none NULL), one array after the other; how many each array has;
    and a mask of the arrays with nothing but objects, and at least one."""
    plain = pc.and_(pc.starts_with(arrays, "[{"), pc.ends_with(arrays, "}]"))
    plain = pc.and_not(plain, pc.match_substring_regex(arrays, _SEVERAL))
    is_plain: Bools = plain.to_numpy(zero_copy_only=False)
    counts = np.ones(len(arrays), dtype=np.int64)
    if is_plain.all():
        return pc.utf8_slice_codeunits(arrays, 1, -1), counts, is_plain
    elements, counts[~is_plain] = _elements_of(arrays.filter(pa.array(~is_plain)))
    if is_plain.any():
        single = pc.utf8_slice_codeunits(arrays.filter(plain), 1, -1)
        order = np.argsort(
            np.concatenate([np.flatnonzero(is_plain), np.repeat(np.flatnonzero(~is_plain), counts[~is_plain])]),
            kind="stable",
        )
        elements = pa.concat_arrays([single, elements]).take(pa.array(order))
    if not pc.all(_are_objects(elements), min_count=0).as_py():
        elements = pc.utf8_trim(elements, " \t\r\n")
    other: Bools = pc.invert(_are_objects(elements)).to_numpy(zero_copy_only=False)
    sound = counts > 0
    sound[np.repeat(np.arange(len(arrays)), counts)[other]] = False
    return elements, counts, sound


def _are_objects(elements: pa.Array) -> pa.Array:
    return pc.and_(pc.starts_with(elements, "{"), pc.ends_with(elements, "}"))


def _elements_of(arrays: pa.Array) -> tuple[pa.Array, Counts]:
    """The elements of the arrays, and how many each has; an empty array has one empty element."""
    bounds, data = layout(arrays)
    content = np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]
    quotes = content == _QUOTE
    backslashes = content == _BACKSLASH
    if backslashes.any():
        quotes &= ~_escaped(backslashes)
    inside = np.cumsum(quotes, dtype=np.uint8) & 1  # the lowest bit is right, however often the sum wraps around
    marks = np.flatnonzero(_IS_MARK[content] > inside)
    kinds = content[marks]
    depth = np.cumsum(_STEPS[kinds], dtype=np.int32)
    commas = (kinds == _COMMA) & (depth == 1)
    starts = marks[commas | ((depth == 1) & (_STEPS[kinds] == 1))] + 1
    ends = marks[commas | (depth == 0)]
    offsets = np.zeros(len(starts) + 1, dtype=np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    within = np.zeros(len(content) + 1, dtype=np.int8)
    within[starts] = 1
    within[ends] -= 1
    inner = content[np.cumsum(within[:-1], dtype=np.int8) == 1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(inner)]
    counts = np.bincount(np.searchsorted(bounds - bounds[0], starts - 1, side="right") - 1, minlength=len(arrays))
    return pa.Array.from_buffers(pa.string(), len(starts), buffers, 0), counts


def _escaped(backslashes: Bools) -> Bools:
    """A mask of the characters behind an odd number of backslashes."""
    places = np.arange(len(backslashes))
    last = np.maximum.accumulate(np.where(backslashes, -1, places))  # the last character that is no backslash
    escaped = np.zeros(len(backslashes), dtype=bool)
    escaped[1:] = (places[:-1] - last[:-1]) % 2 == 1
    return escaped
