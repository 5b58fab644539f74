"""Raw values, judged by pure Python: strict JSON (RFC 8259) in UTF-8, of any depth, numbers in their own digits.

The compiled loop (`compiled.objects.read_objects`) reads a subset of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules.intake import one_array
from starrocks_txn_sink.compiled.library import most_judgements
from starrocks_txn_sink.compiled.objects import LIST_TEXT, ORIGIN, read_objects
from starrocks_txn_sink.rows.json_members import Number, members
from starrocks_txn_sink.rows.json_objects import checked_text
from starrocks_txn_sink.rows.segments import Bools, layout

_LARGEST: Final = 2**63
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_CONSTANT: Final = r"[:,\[][ \t\r\n]*-?(?:NaN|Inf)"


OtherWay = Callable[[pa.Array, pa.Schema, str | None], tuple[pa.Table, Bools]]
"""Reads what `read_members` reads without the compiled loop."""


def read_members(
    values: pa.Array, fields: pa.Schema, wrapper: str | None = None, other_way: OtherWay | None = None
) -> tuple[pa.Table, Bools]:
    """The members `fields` of the values that are one JSON object each, and a mask of these values.

    The terms are those of `compiled.objects.read_objects`, also the column ORIGIN; a field may also be a list. Without
    the compiled loop `other_way` reads the values, or Python one by one.
    """
    plain = pa.schema([field.with_type(LIST_TEXT) if pa.types.is_list(field.type) else field for field in fields])
    texts = pa.schema([field.with_type(_without_dictionary(field.type)) for field in fields])
    read = read_objects(values, plain, lambda value: judge_object(value, fields, wrapper), wrapper)
    table = None if read is None else _with_lists(read[0], fields)
    if read is not None and table is not None:
        return table, read[1]
    table, valid = (other_way or read_one_by_one)(values, texts, wrapper)
    for number, field in enumerate(fields):
        column = _encoded(one_array(table.column(number)), field.type)
        table = table.set_column(number, field, column)
    return table, valid


def _without_dictionary(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(_without_dictionary(member.type)) for member in kind])
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _encoded(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column with the dictionaries of `kind`."""
    if pa.types.is_struct(kind):
        members = [_encoded(column.field(number), member.type) for number, member in enumerate(kind)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=column.is_null())
    return column.dictionary_encode() if pa.types.is_dictionary(kind) else column


def _with_lists(table: pa.Table, fields: pa.Schema) -> pa.Table | None:
    """The table with its lists in place of their texts; None for one of another type, and for too many different ones.

    Python reads each text once: the lists in a source's messages are mostly the same few.
    """
    for number, field in enumerate(fields):
        if pa.types.is_list(field.type):
            texts = one_array(table.column(number)).cast(pa.string()).dictionary_encode()
            if len(texts.dictionary) > most_judgements(len(texts)):
                return None
            try:
                lists = [_list_of(text, field.type) for text in texts.dictionary.to_pylist()]
            except (ValueError, IndexError):
                return None
            table = table.set_column(number, field, pa.array(lists, field.type).take(texts.indices))
    return table


@lru_cache(maxsize=4096)
def _list_of(text: str, kind: pa.DataType) -> Any:
    return _nested(kind, members(f'{{"list":{text}}}')["list"][0])


def read_one_by_one(values: pa.Array, fields: pa.Schema, wrapper: str | None = None) -> tuple[pa.Table, Bools]:
    """`read_members` by Python alone."""
    judgements = [judge_object(value, fields, wrapper) for value in values]
    valid = np.fromiter((event is not None for event in judgements), dtype=bool, count=len(judgements))
    table = pa.Table.from_pylist([event for event in judgements if event is not None], schema=fields)
    return with_origins(table, valid) if wrapper else table, valid


def with_origins(table: pa.Table, valid: Bools) -> pa.Table:
    """The table of the `valid` values with the column ORIGIN: the number of each value itself."""
    return table.append_column(ORIGIN, pa.array(np.flatnonzero(valid)))


def judge_object(value: pa.Scalar, fields: pa.Schema, wrapper: str | None = None) -> dict[str, Any] | None:
    """The `fields` of one value (`read_members`); None for NULL and a malformed value."""
    content = value.as_buffer()
    if content is None:
        return None
    try:
        parts = members_of(content.to_pybytes().decode(), wrapper)
        return {field.name: _field(field.type, *parts.get(field.name, (None, ""))) for field in fields}
    except (ValueError, IndexError):
        return None


def members_of(text: str, wrapper: str | None = None) -> dict[str, tuple[Any, str]]:
    """`members` of the text, or of the value under the name `wrapper` that is not null."""
    parts = members(text)
    value, raw = parts.get(wrapper, (None, "")) if wrapper else (None, "")
    return parts if value is None else members(raw)


def _field(kind: pa.DataType, value: Any, raw: str) -> Any:
    if kind == LIST_TEXT:
        return _list_text(value, raw)
    return text_of(value, raw) if _without_dictionary(kind) == pa.string() else _nested(kind, value)


def _list_text(value: Any, raw: str) -> str | None:
    """The JSON of an array; ValueError for another value."""
    if value is not None and not raw.startswith("["):
        raise ValueError(raw)
    return text_of(value, raw)


def _nested(kind: pa.DataType, value: Any) -> Any:
    """A value as `kind`; ValueError for a value of another type."""
    if value is None:
        return None
    if kind == pa.int64():
        return whole_number(value)
    if _without_dictionary(kind) == pa.string() and isinstance(value, str):
        return text_of(value, value)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {member.name: _nested(member.type, value.get(member.name)) for member in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_nested(kind.value_type, element) for element in value]
    raise ValueError(kind)


def strict_text(values: pa.Array) -> pa.Array | None:
    """Strings or binaries as UTF-8 for `read_objects`; None if they have bytes that are no UTF-8, or perhaps NaN."""
    try:
        lines = checked_text(values)
    except pa.ArrowInvalid:
        return None
    return None if _may_have_constants(lines) else lines


def _may_have_constants(lines: pa.Array) -> bool:
    """Whether a value may have NaN or Infinity outside of a string: no JSON, but pyarrow's reader accepts them."""
    offsets, data = layout(lines)
    content = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
    if not any(_has_pair(content, *pair) for pair in (b"Na", b"In")):  # numpy finds them 5 times as fast as `re`
        return False
    return bool(pc.any(pc.match_substring_regex(lines, _CONSTANT)).as_py())


def _has_pair(content: np.ndarray[Any, np.dtype[np.uint8]], first: int, second: int) -> bool:
    places = np.flatnonzero(content[:-1] == first)
    return bool((content[places + 1] == second).any())


def text_of(value: Any, raw: str) -> str | None:
    """A member as text: the content of a string, else the `raw` JSON.

    Raises UnicodeEncodeError, which is a ValueError, for a lone surrogate: UTF-8 has none.
    """
    content: str | None = value if value is None or isinstance(value, str) else raw
    if content is not None:
        content.encode()
    return content


def whole_number(value: Any) -> int | None:
    """A member as a number of 64 bits; ValueError for anything else but null."""
    if value is None:
        return None
    if (
        not isinstance(value, Number)
        or not _WHOLE.fullmatch(value)
        or not -_LARGEST <= (number := int(value)) < _LARGEST
    ):
        raise ValueError(value)
    return number
