"""The JSON of Debezium's messages, read over Arrow: a value is exactly one object, and rows keep their own spelling.

The compiled loop reads a batch, and asks Python about each value that is not plain. Without the loop pyarrow reads all
values of the batch at once, and Python cuts out the texts of the rows; if either refuses a value, all are read one by
one. The way changes neither which values are valid nor what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.verified.intake import COLLECTION_COUNTS
from starrocks_txn_sink.compiled import objects
from starrocks_txn_sink.rows.json_members import members, value_at
from starrocks_txn_sink.rows.json_objects import checked_text, read_objects
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.json_text import (
    members_of,
    read_members,
    read_one_by_one,
    strict_text,
    text_of,
    with_origins,
)

_ROWS: Final = ("before", "after")
_TEXT, _WHOLE = pa.string(), pa.int64()
_FEW: Final = pa.dictionary(pa.int32(), pa.string())
"""Texts of which a batch has few different ones."""
Indexes = np.ndarray[Any, np.dtype[np.int64]]
_SOURCE: Final = pa.struct(
    [
        *((name, _FEW) for name in ("name", "db", "schema", "table", "file", "snapshot")),
        ("lsn", _WHOLE),
        ("pos", _WHOLE),
        ("ts_ms", _WHOLE),
    ]
)

CHANGE: Final = pa.schema(
    [
        *((name, _TEXT) for name in _ROWS),
        ("op", _FEW),
        ("source", _SOURCE),
        ("transaction", pa.struct([("id", _TEXT), ("total_order", _WHOLE)])),
    ]
)
MARKER: Final = pa.schema(
    [("status", _TEXT), ("id", _TEXT), ("event_count", _WHOLE), ("data_collections", COLLECTION_COUNTS)]
)

PAYLOAD: Final = "payload"
_FIRST, _SECOND, _WRAPPED = '{"before":', ',"after":', ',"payload":'
_SCHEMAS: Final = 256


def read_values(values: pa.Array, fields: pa.Schema) -> tuple[pa.Table, Bools]:
    """The `fields` (CHANGE or MARKER) of values that are not NULL, or of their payloads; a mask of the sound values.

    The column ORIGIN has the number of a value with the same schema.
    """
    return read_members(values, fields, PAYLOAD, _read_without_loop)


def _read_without_loop(values: pa.Array, fields: pa.Schema, wrapper: str | None) -> tuple[pa.Table, Bools]:
    read, valid = _read_at_once(values, fields), np.ones(len(values), dtype=bool)
    return read_one_by_one(values, fields, wrapper) if read is None else (with_origins(read, valid), valid)


def _read_at_once(values: pa.Array, fields: pa.Schema) -> pa.Table | None:
    """The fields; None if a value is malformed, or only some values have the converter's schema."""
    by_arrow = [member for member in fields if member.name not in _ROWS]
    lines = strict_text(values)
    if lines is None:
        return None
    read = read_objects(lines, pa.schema([*by_arrow, pa.field(PAYLOAD, pa.struct(by_arrow))]))
    if read is None:
        return None
    values_by_name = {member.name: read[member.name].combine_chunks() for member in by_arrow}
    payload = read[PAYLOAD].combine_chunks()
    wrapped = payload.null_count == 0
    if wrapped:
        values_by_name = dict(zip(values_by_name, payload.flatten(), strict=True))
    elif payload.null_count < len(payload):
        return None
    if "before" in fields.names:
        rows = _RowTexts()
        try:
            texts = [rows.texts_of(text, wrapped=wrapped) for text in lines.to_pylist()]
        except (ValueError, IndexError):
            return None
        values_by_name |= {name: pa.array([pair[index] for pair in texts], _TEXT) for index, name in enumerate(_ROWS)}
    return pa.table([values_by_name[name] for name in fields.names], schema=fields)


def read_keys(keys: pa.Array) -> tuple[pa.Array, Bools, Indexes]:
    """The rows of messages' keys, which are not NULL, without the converter's schema; and a mask of the sound keys.

    The last array has the number of a key with the same schema, -1 for a key without one or that is not sound.
    """
    read = objects.read_objects(keys, pa.schema([(PAYLOAD, _TEXT)]), lambda _: None)
    if read is None or not read[1].all():
        rows = [_row_of_key(key) for key in keys.cast(pa.large_binary()).to_pylist()]
        sound = np.fromiter((row is not None for row in rows), dtype=bool, count=len(rows))
        return pa.array(rows, _TEXT), sound, np.where(sound, np.arange(len(rows)), -1)
    texts = checked_text(keys).cast(_TEXT)
    wrapped: Bools = pc.match_substring(texts, f'"{PAYLOAD}"').to_numpy(zero_copy_only=False)
    if not wrapped.any():
        return texts, ~wrapped, np.full(len(keys), -1, dtype=np.int64)
    return _unwrapped_keys(texts, read[0][PAYLOAD].combine_chunks(), wrapped)


def _unwrapped_keys(texts: pa.Array, payloads: pa.Array, wrapped: Bools) -> tuple[pa.Array, Bools, Indexes]:
    """`read_keys` of valid JSON objects, some of which may be `wrapped`, with their members `payload` as text.

    The keys of a table have the same text around the payload, so Python reads it once for all of them.
    """
    origins: Indexes = np.full(len(texts), -1, dtype=np.int64)
    objects = pc.if_else(pc.starts_with(payloads, "{"), payloads, pa.scalar(None, _TEXT))
    rows, single, waiting = texts, np.zeros(len(texts), dtype=bool), wrapped.copy()
    for _ in range(_SCHEMAS):
        if not waiting.any():
            break
        first = int(waiting.argmax())
        single[first], waiting[first] = True, False
        front = _front_of_key(texts[first].as_py())
        if front is not None:
            alike = pc.equal(pc.binary_join_element_wise(front, objects, "}", ""), texts)
            same = wrapped & pc.fill_null(alike, False).to_numpy(zero_copy_only=False)
            rows = pc.if_else(pa.array(same), payloads, rows)
            origins[same] = first
            single, waiting = single & ~same, waiting & ~same
    unread = np.flatnonzero(single | waiting)
    if len(unread):
        key_rows = [_row_of_key(text.encode()) for text in texts.take(pa.array(unread)).to_pylist()]
        rows = pc.replace_with_mask(rows, pa.array(single | waiting), pa.array(key_rows, _TEXT))
        origins[unread] = unread
    sound: Bools = rows.is_valid().to_numpy(zero_copy_only=False)
    return rows, sound, np.where(sound, origins, -1)


def _front_of_key(text: str) -> str | None:
    """The text in front of the row of a key that ends with it and has nothing but a schema besides; None for others."""
    parts = members(text)
    raw = parts[PAYLOAD][1] if parts.keys() == {"schema", PAYLOAD} else ""
    return text[: -len(raw) - 1] if raw.startswith("{") and text.endswith(raw + "}") else None


def _row_of_key(key: bytes) -> str | None:
    """The row of a key; None for a malformed key."""
    try:
        text = key.decode()
        parts = members(text)
        if parts.keys() != {"schema", PAYLOAD}:
            return text
        raw = parts[PAYLOAD][1]
        members(raw)
    except (ValueError, IndexError):
        return None
    return raw


@dataclass(slots=True)
class _RowTexts:
    """Finds the texts of `before` and `after` in values that are valid JSON.

    The texts are cut out of a value if its members have the order and spacing that Debezium writes; otherwise all
    members are read. The converter's schema is most of a value, but is the same for all values of a table, so its text
    is checked once and then recognised.
    """

    schemas: set[str] = field(default_factory=set)  # texts in front of a payload

    def texts_of(self, text: str, *, wrapped: bool) -> tuple[str | None, str | None]:
        """The two texts, None for null. Raises ValueError or IndexError for a value that only pyarrow accepts."""
        start = self._payload_start(text) if wrapped else 0
        cut = None if start is None else _cut_rows(text, start)
        if cut is not None:
            return cut
        parts = members_of(text, PAYLOAD)
        before, after = (text_of(*parts.get(name, (None, ""))) for name in _ROWS)
        return before, after

    def _payload_start(self, text: str) -> int | None:
        """The start of the payload if the text in front of it is known; None otherwise, but learns this text."""
        start = text.find(_WRAPPED) + len(_WRAPPED)
        head = text[:start]
        if head in self.schemas:
            return None if text.find('"payload"', start) >= 0 else start
        raw = members(text)[PAYLOAD][1]
        if text[start:] == raw + "}":
            if len(self.schemas) >= _SCHEMAS:
                self.schemas.clear()
            self.schemas.add(head)
        return None


def _cut_rows(text: str, start: int) -> tuple[str | None, str | None] | None:
    """`before` and `after` of the object at `start`; None unless they are its first two members and come only once."""
    is_ambiguous = text.count('"before"', start) != 1 or text.count('"after"', start) != 1
    if (
        is_ambiguous or not text.startswith(_FIRST, start) or text.find("\\u", start) >= 0
    ):  # a name may be spelled with escapes
        return None
    before, end = _row_at(text, start + len(_FIRST))
    if not end or not text.startswith(_SECOND, end):
        return None
    after, end = _row_at(text, end + len(_SECOND))
    return (before, after) if end else None


def _row_at(text: str, start: int) -> tuple[str | None, int]:
    """The text of the object at `start`, or None for null, and the end of it; the end is 0 for any other value."""
    if text.startswith("null", start):
        return None, start + 4
    if not text.startswith("{", start):
        return None, 0
    _, end = value_at(text, start)
    return text[start:end], end
