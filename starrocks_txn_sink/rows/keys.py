"""Primary keys of rows, read from the rows' own text by the types of the table's key columns.

Integers are read as numbers. For other types all texts that the server takes for the same value get one form; a text
outside the type's form is compared as it is. A row whose key is missing or NULL has no key. JSON rows are read by the
first way that works: with their key in front by NumPy, else by Arrow, else by Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from starrocks_txn_sink.coordinator.model import SEPARATOR, Ints
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.json_objects import BLOCK_BYTES, read_lines
from starrocks_txn_sink.rows.segments import Bools, Octets

_NUMBER: Final = re.compile(r"[ \t]*([+-]?)0*([0-9]*?)(?:\.([0-9]*?)0*)?[ \t]*")
_DAY: Final = re.compile(r"[ \t]*([0-9]{4})([0-9]{2})([0-9]{2})[ \t]*")
_MOMENT: Final = re.compile(r"[ \t]*([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})[ \t]*")
_TIME: Final = re.compile(
    r"[ \t]*([0-9]{4})[-/]([0-9]{1,2})[-/]([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?)?[ \t]*"
)
_TRUTHS: Final = {"true": "1", "false": "0"}
_DELETING: Final = f"{columns.DELETING},".encode()
_NUMBER_BYTES: Final = 19  # 18 digits, which surely fit 64 bits, and the next sign
_TEXT_BYTES: Final = 66  # a number of 65 characters or a string of 63, and the next sign
_BLOCK_ROWS: Final = 1 << 12
_JSON_NUMBER: Final = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
ROOM: Final = 256  # bytes behind the last row, so that windows of one size fit behind the start of each row
_LINE_BREAK, _QUOTE, _BACKSLASH = map(ord, '\n"\\')


class KeyType(Enum):
    """A group of column types that compare alike; the value is a pattern of texts in the common form."""

    BOOLEAN = "[01]"
    INTEGER = "0|-?[1-9][0-9]*"
    DECIMAL = r"0|-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9]|-?[1-9][0-9]*"
    DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
    DATETIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}"
    TEXT = "(?s:.*)"


_KEY_TYPES: Final = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT"), KeyType.INTEGER),
    **{kind.name: kind for kind in (KeyType.BOOLEAN, KeyType.DECIMAL, KeyType.DATE, KeyType.DATETIME)},
}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a primary key; `scale` counts the digits behind a decimal's point (None: not known).

    `field` is the column's member in a row.
    """

    name: str
    key_type: KeyType
    scale: int | None = None
    field: str = ""

    @classmethod
    def of(cls, name: str, type_name: str, scale: int | None) -> KeyColumn:
        """A column of the SQL type `type_name`, without its length."""
        key_type = _KEY_TYPES.get(type_name, KeyType.TEXT)
        return cls(name, key_type, scale if key_type is KeyType.DECIMAL else None, name)

    def comparable(self, text: str) -> str | None:
        """The form of all texts that the server takes for the same value; None for a text outside the type's form."""
        match self.key_type:
            case KeyType.TEXT:
                return text
            case KeyType.BOOLEAN:
                number = self._number(text.lower())
                return number and ("0" if number == "0" else "1")
            case KeyType.DATE | KeyType.DATETIME:
                return self._time(text)
            case _:
                return self._number(text)

    def _number(self, text: str) -> str | None:
        if self.key_type is not KeyType.DECIMAL:
            text = _TRUTHS.get(text, text)
        match = _NUMBER.fullmatch(text)
        if match is None or not any(map(str.isdigit, text)):
            return None
        sign, whole, fraction = match[1], match[2] or "0", match[3] or ""
        digits_kept = self.scale if self.key_type is KeyType.DECIMAL else 0
        if digits_kept is not None and len(fraction) > digits_kept:
            return None
        digits = whole + (f".{fraction}" if fraction else "")
        return f"-{digits}" if sign == "-" and digits != "0" else digits

    def _time(self, text: str) -> str | None:
        plain = _MOMENT.sub(r"\1-\2-\3 \4:\5:\6", _DAY.sub(r"\1-\2-\3", text) if _DAY.fullmatch(text) else text)
        match = _TIME.fullmatch(plain)
        if match is None:
            return None
        year, month, day, *clock = (match[group] or "" for group in range(1, 7))
        date = f"{year}-{month:0>2}-{day:0>2}"
        if self.key_type is KeyType.DATE:
            return date
        return f"{date} {':'.join(part.rjust(2, '0') for part in clock)}.{(match[7] or '').ljust(6, '0')}"


TableKey = Sequence[KeyColumn]


# --- keys of rows ---


def read_keys(text: Octets, starts: Ints, key: TableKey) -> pa.Array:
    """The keys of rows, one each: int64 for one integer column, else large strings; NULL for a row without a key.

    `text` holds the rows, each with a separator of one byte in front; `starts` has the place of each separator, then
    the end. Nothing is copied if rows begin with their key and `text` goes on for ROOM bytes behind them.
    """
    parts = _read_first_members(text, starts, key) or _read_members(text, starts, key) or _parse_rows(text, starts, key)
    if len(parts) == 1 and parts[0].type == pa.int64():
        return parts[0]
    texts = [_in_one_form(column, values) for column, values in zip(key, parts, strict=True)]
    return texts[0] if len(texts) == 1 else _joined(texts)


def of_one_type(*arrays: pa.Array | pa.ChunkedArray) -> list[pa.Array | pa.ChunkedArray]:
    """The arrays as they are if they have one type, else as texts: an integer's text is its form as a key."""
    if len({array.type for array in arrays}) == 1:
        return list(arrays)
    return [array.cast(pa.large_string()) for array in arrays]


def _joined(parts: Iterable[pa.Array]) -> pa.Array:
    """One text for each key, every part behind its length: else two keys could be one text."""
    colon, nothing = (pa.scalar(text, pa.large_string()) for text in (":", ""))
    pieces = [piece for part in parts for piece in (pc.binary_length(part).cast(pa.large_string()), colon, part)]
    return pc.binary_join_element_wise(*pieces, nothing)


# --- members that rows begin with ---


def _read_first_members(text: Octets, starts: Ints, key: TableKey) -> list[pa.Array] | None:
    """The key's members of JSON rows, if all rows begin with the members in the key's order; else None.

    Rows mostly begin with their key, and a few passes over the key's bytes cost a fifth of Arrow's parser. A block of
    rows fits into the processor's cache.
    """
    room = max(ROOM, *(_TEXT_BYTES + len(_DELETING) + 8 * len(column.field) for column in key))
    if len(text) < starts[-1] + room:
        text = np.concatenate((text[starts[0] : starts[-1]], np.zeros(room, np.uint8)))
        starts = starts - starts[0]
    chunks: list[list[pa.Array]] = [[] for _ in key]
    for low in range(0, len(starts) - 1, _BLOCK_ROWS):
        places = starts[low : min(low + _BLOCK_ROWS, len(starts) - 1)] + len(SEPARATOR)
        for column, parts in zip(key, chunks, strict=True):
            start = b"{" if column is key[0] else b","
            skipped = _skip_name(text, places, start, f'"{column.field}":'.encode())
            if skipped is None:
                return None
            read = _read_values(text, places + skipped, column)
            if read is None:
                return None
            parts.append(read[0])
            places = places + skipped + read[1]
    return [pa.concat_arrays(of_one_type(*parts)) for parts in chunks]


def _read_values(text: Octets, places: Ints, column: KeyColumn) -> tuple[pa.Array, Ints] | None:
    """The values at these places and the lengths of their JSON; None unless all are strings, or all are numbers."""
    if column.key_type is KeyType.INTEGER:
        numbers = _parse_numbers(sliding_window_view(text, _NUMBER_BYTES)[places].T)
        if numbers is not None:
            return pa.array(numbers[0]), numbers[1]
    heads = sliding_window_view(text, _TEXT_BYTES)[places].T
    quotes = int(heads[0, 0] == _QUOTE)
    lengths = _find_quotes(heads) if quotes else _find_delimiters(heads)
    if lengths is None:
        return None
    values = _cut_out(text, places + quotes, places + lengths - quotes)
    is_read = quotes or pc.all(pc.match_substring_regex(values, _JSON_NUMBER)).as_py()
    return (values, lengths) if is_read else None


def _skip_name(text: Octets, places: Ints, start: bytes, name: bytes) -> Ints | None:
    """The length of `start` and `name` at each place, in a delete with the sink's member after a brace; else None."""
    heads = sliding_window_view(text, len(_DELETING) + len(name))[places].T
    plain = _begins_with(heads, start + name)
    if not plain.all() and not (start == b"{" and (plain | _begins_with(heads, _DELETING + name)).all()):
        return None
    return np.where(plain, len(start), len(_DELETING)) + len(name)


def _begins_with(heads: npt.NDArray[np.uint8], prefix: bytes) -> Bools:
    """Mask of the texts that begin with `prefix`; `heads` has a text in each column."""
    hits: Bools = heads[0] == prefix[0]
    for letter, byte in zip(heads[1:], prefix[1:], strict=False):
        if hits.any():
            hits &= letter == byte
    return hits


def _parse_numbers(heads: npt.NDArray[np.uint8]) -> tuple[Ints, Ints] | None:
    """The JSON integers that texts begin with, and their lengths; None if one begins with anything else."""
    negative = heads[0] == ord("-")
    if negative.any():  # the minus goes, and the rest moves up
        heads = np.where(negative, np.vstack((heads[1:], np.zeros_like(heads[:1]))), heads)
    numbers, lengths = np.zeros((2, heads.shape[1]), np.int64)
    going = np.ones(len(numbers), dtype=bool)  # the texts without an end so far
    for place, letter in enumerate(heads):
        digit = letter - np.uint8(ord("0"))
        still = going & (digit <= 9)
        is_end = going & ~still
        if is_end.any():
            if not place or not _ends_values(letter[is_end]).all():
                return None
            lengths[is_end] = place
        if place == 1 and (still & (heads[0] == ord("0"))).any():  # a leading zero is no JSON
            return None
        going = still
        if not going.any():
            return (np.where(negative, -numbers, numbers), lengths + negative) if negative.any() else (numbers, lengths)
        longer = numbers * 10 + digit
        numbers = longer if going.all() else np.where(going, longer, numbers)
    return None


def _find_delimiters(heads: npt.NDArray[np.uint8]) -> Ints | None:
    """The bytes before the first comma or closing brace of each text; None if a text has none."""
    lengths: Ints = np.argmax(_ends_values(heads), axis=0)
    return lengths if lengths.all() else None


def _find_quotes(heads: npt.NDArray[np.uint8]) -> Ints | None:
    """The lengths of the JSON strings that texts begin with, with their quotes; None if one is escaped or too long."""
    last: Ints = np.argmax(heads[1:-1] == _QUOTE, axis=0) + 1
    rows = np.arange(len(last))
    if not (heads[0] == _QUOTE).all() or not (heads[last, rows] == _QUOTE).all():
        return None
    escapes = heads[: int(last.max())] == _BACKSLASH
    if escapes.any() and (escapes.any(axis=0) & (np.argmax(escapes, axis=0) < last)).any():
        return None
    return last + 1 if _ends_values(heads[last + 1, rows]).all() else None


def _ends_values(letters: npt.NDArray[np.uint8]) -> Bools:
    is_end: Bools = (letters == ord(",")) | (letters == ord("}"))
    return is_end


# --- members anywhere ---


def _read_members(text: Octets, starts: Ints, key: TableKey) -> list[pa.Array] | None:
    """The key's members of JSON rows; None if Arrow cannot read them by type, or finds another number of rows."""
    fields = pa.schema(
        (column.field, pa.int64() if column.key_type is KeyType.INTEGER else pa.string()) for column in key
    )
    block_bytes = max(BLOCK_BYTES, 2 * int(np.diff(starts).max()))  # a row must fit into a block
    tables = []
    for low, high in _cut_rows(starts):
        block = text[starts[low] : starts[high]].copy()
        block[starts[low:high] - starts[low]] = _LINE_BREAK
        read = read_lines(pa.py_buffer(block), fields, high - low, block_bytes)
        if read is None:
            return None
        tables.append(read)
    table = pa.concat_tables(tables)
    return [table[column.field].combine_chunks() for column in key]


def _cut_rows(starts: Ints) -> Iterator[tuple[int, int]]:
    """Runs of rows that have at most BLOCK_BYTES together, or are one row."""
    low = 0
    while low < len(starts) - 1:
        high = max(int(np.searchsorted(starts, starts[low] + BLOCK_BYTES, side="right")) - 1, low + 1)
        yield low, high
        low = high


def _parse_rows(text: Octets, starts: Ints, key: TableKey) -> list[pa.Array]:
    """The key's members as texts, row by row: for the few sources that write one type in several ways."""
    bounds = starts.tolist()
    members = [_members(text[low + 1 : high].tobytes()) for low, high in pairwise(bounds)]
    return [pa.array([_plain(row.get(column.field)) for row in members], pa.large_string()) for column in key]


def _members(row: bytes) -> Mapping[str, object]:
    try:
        members = json.loads(row, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return {}
    return members if isinstance(members, dict) else {}


def _plain(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else None


def _cut_out(text: Octets, starts: Ints, ends: Ints) -> pa.Array:
    """The texts from `starts` to `ends`, as large strings."""
    lengths = ends - starts
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text[places])]
    return pa.Array.from_buffers(pa.large_string(), len(starts), buffers)


def _in_one_form(column: KeyColumn, values: pa.Array) -> pa.Array:
    """Each value as `KeyColumn.comparable`; a text outside the type's form with a mark in front."""
    if values.type == pa.int64():
        return values.cast(pa.large_string())
    texts = values.cast(pa.large_string())
    if column.key_type is KeyType.TEXT:
        return texts
    plain = pc.match_substring_regex(texts, f"^(?:{column.key_type.value})$")
    if pc.all(plain).as_py() is not False:
        return texts
    encoded = pc.dictionary_encode(texts)
    forms = [column.comparable(text) for text in encoded.dictionary.to_pylist()]
    pairs = zip(forms, encoded.dictionary.to_pylist(), strict=True)
    marked = [f"?{text}" if form is None else form for form, text in pairs]
    return pa.array(marked, pa.large_string()).take(encoded.indices)
