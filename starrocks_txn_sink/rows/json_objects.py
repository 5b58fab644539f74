"""Texts that are one JSON object each: many of them read at once, with Arrow."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from starrocks_txn_sink.rows.segments import layout

BLOCK_BYTES: Final = 4 << 20
_OPEN, _CLOSE = b"{}"


def checked_text(values: pa.Array) -> pa.Array:
    """Strings or binaries as checked UTF-8: ArrowInvalid for other bytes, which the JSON reader would accept."""
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    unchecked, text = (pa.large_binary(), pa.large_string()) if wide else (pa.binary(), pa.string())
    return values.cast(unchecked).cast(text)


def read_objects(lines: pa.Array, fields: pa.Schema) -> pa.Table | None:
    """The members `fields` of texts that are one JSON object each; None if pyarrow refuses one or finds more objects.

    Accepts NaN and Infinity, which are no JSON, as pyarrow does.
    """
    if not _one_object_each(lines):
        return None
    try:
        whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(whole, pa.scalar("\n", lines.type)).buffers()[2]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return read_lines(text, fields, len(lines), _block_bytes(lines))


def read_lines(text: pa.Buffer, fields: pa.Schema, rows: int, block_bytes: int) -> pa.Table | None:
    """The members `fields` of `rows` lines; no line may be longer than a block. None as in `read_objects`."""
    reading = pj.ReadOptions(use_threads=False, block_size=block_bytes)
    parsing = pj.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")
    try:
        read = pj.read_json(pa.BufferReader(text), reading, parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return read if read.num_rows == rows else None


def _one_object_each(values: pa.Array) -> bool:
    """Whether every value starts and ends with a brace.

    Then no well-formed object can go on in the next value: a brace would follow a brace, or a line break would be
    inside a string. So every value gives at least one object, and equal counts mean exactly one object each.
    """
    if len(values) == 0 or values.null_count:
        return False
    offsets, data = layout(values)
    if (offsets[1:] - offsets[:-1]).min() < 2:
        return False
    content = np.frombuffer(data, dtype=np.uint8)
    return bool((content[offsets[:-1]] == _OPEN).all() and (content[offsets[1:] - 1] == _CLOSE).all())


def _block_bytes(values: pa.Array) -> int:
    """Bytes of a block, which holds all values if they fit BLOCK_BYTES, and always the longest value."""
    offsets, _ = layout(values)
    total = int(offsets[-1] - offsets[0]) + len(values)
    return max(min(BLOCK_BYTES, total), 2 * int((offsets[1:] - offsets[:-1]).max()))
