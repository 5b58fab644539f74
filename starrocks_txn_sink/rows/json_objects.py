"""Texts that are one JSON object each: many read at once with Arrow, and the check of a lane's rows.

A lane puts rows into the array of a load's body unread. A row of two objects would be two rows that are counted as one,
and a row with the member `__op` would be another operation than the event says. The check of a batch is a few passes
over its bytes, and looks closer only at rows that it cannot clear.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from starrocks_txn_sink.coordinator.model import SEPARATOR, Ints, RegionRows, Segment
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows import columns

Octets = np.ndarray[Any, np.dtype[np.uint8]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

BLOCK_BYTES: Final = 4 << 20
_OPEN, _CLOSE, _COMMA, _COLON, _BACKSLASH, _QUOTE, _BRACKET = (ord(each) for each in '{},:\\"[')
_JSON: Final = SEPARATOR.encode()[0]  # first byte of a row in JSON; rows in CSV are the sink's own work
_SPACES: Final = np.frombuffer(b" \t\r\n", dtype=np.uint8)
_AFTER_STRING: Final = b",:}] \t\r\n"
_MAY_FOLLOW: Final = np.isin(np.arange(256, dtype=np.uint8), np.frombuffer(_AFTER_STRING, dtype=np.uint8))
_CLEAN_START: Final = re.compile(r'[ \t\r\n]*\{[ \t\r\n]*"[^,:}\] \t\r\n]')
_OP: Final = b"__op"
_UNDERSCORES, _NUMBERED = (np.frombuffer(each, dtype=np.uint16)[0] for each in (_OP[:2], b"\\u"))
_OWN_OP: Final = len(SEPARATOR) + columns.DELETING.index(_OP.decode())  # its place in a delete
_PIECE: Final = 1 << 17
_ESCAPED: Final = r"(?i)\\u00(?:5f|6f|70)"  # a letter of `__op` in another spelling


# --- many texts at once ---


def layout(values: pa.Array) -> tuple[Ints, pa.Buffer]:
    """Offsets of strings or binaries in their data buffer, then the end of the last one; and that buffer."""
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    buffers = values.buffers()
    offsets = np.frombuffer(buffers[1], dtype=np.int64 if wide else np.int32)
    return offsets[values.offset : values.offset + len(values) + 1].astype(np.int64), buffers[2] or pa.py_buffer(b"")


def checked_text(values: pa.Array) -> pa.Array:
    """Strings or binaries as checked UTF-8: ArrowInvalid for other bytes, which the JSON reader would accept."""
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    unchecked, text = (pa.large_binary(), pa.large_string()) if wide else (pa.binary(), pa.string())
    return values.cast(unchecked).cast(text)


def read_objects(lines: pa.Array, fields: pa.Schema) -> pa.Table | None:
    """The members `fields` of texts that are one JSON object each; None if pyarrow refuses one or finds more objects.

    pyarrow accepts NaN and Infinity as numbers, which are no JSON.
    """
    if not _one_object_each(lines):
        return None
    reading = pj.ReadOptions(use_threads=False, block_size=_block_bytes(lines))
    parsing = pj.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")
    try:
        one = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(one, pa.scalar("\n", lines.type)).buffers()[2]
        read = pj.read_json(pa.BufferReader(text), reading, parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return read if read.num_rows == len(lines) else None


def _one_object_each(values: pa.Array) -> bool:
    """Whether every value starts and ends with a brace, so that parsed objects and values cannot get out of step.

    Then no well-formed object can run over into the next value: a brace would follow a brace, or a line break would be
    inside a string. So every value gives at least one object, and equal counts mean exactly one each.
    """
    if len(values) == 0 or values.null_count:
        return False
    offsets, data = layout(values)
    if (offsets[1:] - offsets[:-1]).min() < 2:
        return False
    content = np.frombuffer(data, dtype=np.uint8)
    return bool((content[offsets[:-1]] == _OPEN).all() and (content[offsets[1:] - 1] == _CLOSE).all())


def _block_bytes(values: pa.Array) -> int:
    """Bytes of a block: all values if few, fit for the processor's cache, but always longer than the longest value."""
    offsets, _ = layout(values)
    total = int(offsets[-1] - offsets[0]) + len(values)
    return max(min(BLOCK_BYTES, total), 2 * int((offsets[1:] - offsets[:-1]).max()))


# --- the rows of a lane ---


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Checks that each payload of a lane is one JSON object without `__op`, but for the sink's own in a delete.

    With `allow_torn` text that is no JSON passes, for the server to reject (the quarantine finds its row), unless it
    may be valid together with other rows.
    """

    allow_torn: bool = False

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Raise InputError with the place of the first row at fault, never its content.

        Text that is no JSON may pass where no other row can make it valid: the server refuses the load.
        """
        payload = batch.column(columns.PAYLOAD)
        deleted = batch.column(columns.DELETED).fill_null(False) if columns.DELETED in batch.schema.names else None
        doubtful = _doubtful_rows(payload, None if deleted is None else deleted.to_numpy(zero_copy_only=False))
        if not len(doubtful):
            return
        rows = _rows_of(payload, deleted, pa.array(doubtful))
        read = _read_rows(rows)
        if read is not None and read[_OP.decode()].null_count == read.num_rows:
            return
        for row, text in zip(doubtful.tolist(), rows.cast(pa.large_binary()).to_pylist(), strict=True):
            fault = _fault(text, allow_torn=self.allow_torn)
            if fault is not None:
                raise InputError(
                    f"A row {fault}{_place(batch, row)}.",
                    hint="Correct the source: a row is the text of one JSON object, and `op` alone says what is done.",
                )


def _doubtful_rows(payload: pa.Array, deleted: Bools | None) -> Ints:
    """The rows that may be something else than one object without `__op`; a row with other ends is always doubtful.

    A second object begins with a brace after a comma, and flat rows have no further brace at all. Torn rows are valid
    together in two ways. A row that closes the string of an earlier row begins with a quote that something may follow
    which follows strings. A row that ends in an open array has an object in it, which begins after `[` or a comma.
    """
    bounds, data = layout(payload)
    content = np.frombuffer(data, dtype=np.uint8)
    starts, ends, there = bounds[:-1], bounds[1:], np.arange(len(payload))
    empty: Ints = np.flatnonzero(starts == ends)
    if len(empty):  # not even a separator: no projection of the sink makes such a row
        return empty
    if (content[starts] != _JSON).any():
        there = np.flatnonzero(content[starts] == _JSON)
        starts, ends = starts[there], ends[there]
    if not len(there):
        return there
    odd_ends = np.flatnonzero((content[starts + (ends - starts > 1)] != _OPEN) | (content[ends - 1] != _CLOSE))
    first, after = content.take(starts + 2, mode="clip"), content.take(starts + 3, mode="clip")
    found = [odd_ends, np.flatnonzero((first != _QUOTE) | _MAY_FOLLOW[after])]
    own = starts[:0] if deleted is None else starts[deleted[there]] + _OWN_OP
    content = content[: ends[-1]]
    braces, pairs, backslashes = _count_signs(content[starts[0] :])
    if braces != len(there) or len(odd_ends):
        found.append(np.searchsorted(starts, _second_braces(content, starts), side="right") - 1)
    if pairs != len(own):
        signs = _without(_op_places(content, starts[0]), own)
        found.append(np.searchsorted(starts, signs, side="right") - 1)
    if backslashes:
        escaped = pc.match_substring_regex(payload, _ESCAPED).to_numpy(zero_copy_only=False)
        found.append(np.flatnonzero(escaped[there]))
    doubtful = np.concatenate(found)
    return there[np.unique(doubtful)] if len(doubtful) else doubtful


def _count_signs(content: Octets) -> tuple[int, int, int]:
    """Opening braces, pairs of underscores, and backslashes that escape a character by its number.

    Pairs of bytes are compared as one number, from even and from odd places: the cheapest way to find a word that is
    hardly ever there. In pieces that fit into the processor's cache.
    """
    braces = pairs = escapes = 0
    marks = np.empty(_PIECE, dtype=bool)
    for start in range(0, len(content), _PIECE):
        piece = content[start : start + _PIECE + 1]
        here = marks[: min(len(piece), _PIECE)]
        braces += int(np.count_nonzero(np.equal(piece[:_PIECE], _OPEN, out=here)))
        backslash = np.equal(piece[:_PIECE], _BACKSLASH, out=here).any()
        for odd in (0, 1):
            words = piece[odd : odd + (len(piece) - odd) // 2 * 2].view(np.uint16)
            words = words[: _PIECE // 2]
            half = marks[: len(words)]
            pairs += int(np.count_nonzero(np.equal(words, _UNDERSCORES, out=half)))
            if backslash:
                escapes += int(np.count_nonzero(np.equal(words, _NUMBERED, out=half)))
    return braces, pairs, escapes


def _second_braces(content: Octets, starts: Ints) -> Ints:
    """Places of opening braces that come after a comma or a bracket, or after blanks that do not follow a colon."""
    at = _without(np.flatnonzero(content[starts[0] :] == _OPEN) + starts[0], starts + 1)
    before = content[at - 1]
    blank = np.isin(before, _SPACES) & (content[at - 2] != _COLON)
    second: Ints = at[(before == _COMMA) | (before == _BRACKET) | blank]
    return second


def _op_places(content: Octets, first: int) -> Ints:
    """Places of `__op`, ascending."""
    at = np.flatnonzero(content[first : len(content) + 1 - len(_OP)] == _OP[0]) + first
    for number, letter in enumerate(_OP):
        at = at[content[at + number] == letter]
    return at


def _without(places: Ints, excluded: Ints) -> Ints:
    """`places` without `excluded`, both ascending."""
    left = np.ones(len(places), dtype=bool)
    at = np.searchsorted(places, excluded)
    inside = at < len(places)
    at, excluded = at[inside], excluded[inside]
    left[at[places[at] == excluded]] = False
    return places[left]


def _rows_of(payload: pa.Array, deleted: pa.Array | None, doubtful: pa.Array) -> pa.Array:
    """The users' rows: payloads without their separator and, of deletes, without the sink's `__op`."""
    chosen = payload.take(doubtful).cast(pa.large_binary())
    rows = pc.binary_replace_slice(chosen, 0, len(SEPARATOR), b"")
    if deleted is None:
        return rows
    size = len(columns.DELETING)
    followed = pc.starts_with(rows, columns.DELETING + ",")
    cut = (pc.binary_replace_slice(rows, 0, stop, b"{") for stop in (size + 1, size))
    return pc.if_else(deleted.take(doubtful), pc.if_else(followed, *cut), rows)


def _read_rows(rows: pa.Array) -> pa.Table | None:
    try:
        return read_objects(checked_text(rows), pa.schema([(_OP.decode(), pa.string())]))
    except pa.ArrowInvalid:
        return None


def _fault(text: bytes, *, allow_torn: bool) -> str | None:
    """What is wrong with a row, by Python's `json`; None if nothing is."""
    try:
        members = _DECODER.decode(text.decode())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        extra = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        torn = allow_torn and not extra and not _may_join(text.decode(errors="replace"))
        return None if torn else "is not exactly one JSON object"
    except RecursionError:
        return "is not exactly one JSON object"
    if not isinstance(members, _Members):
        return "is not exactly one JSON object"
    return f"has the column {_OP.decode()}, which belongs to the sink" if _OP.decode() in members.names else None


def _may_join(torn: str) -> bool:
    """Whether text that is no JSON may be valid with rows before or after it: it may close a string of theirs, or a
    comma and another object may follow in its own open string or array."""
    if not _CLEAN_START.match(torn):
        return True
    try:
        _DECODER.decode(torn + ",{")
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string") or error.pos >= len(torn) + 2
    except RecursionError:
        return True
    return False


class _Members:
    """The members of an object; only their names matter."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.names = [name for name, _ in pairs]


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Members, parse_int=str, parse_float=str)


_NAMED_ROWS: Final = 100
_NAMED_BYTES: Final = 1 << 20
_BETWEEN: Final = re.compile(rf"[ \t\r\n{SEPARATOR}]*")


@dataclass(slots=True)
class MemberNames:
    """The names of members in the first rows of each table, so that the driver can compare them with the columns.

    The server drops a member without a column, and a column that a row does not name is NULL (wire contract 5.4).
    `wants` says whether a table is of interest; it is asked once a table. At most 100 rows and 1 MiB of a table are
    read. Deletes do not count: only their key matters.
    """

    wants: Callable[[str], bool]
    _found: dict[str, set[str]] = field(default_factory=dict)
    _left: dict[str, int] = field(default_factory=dict)  # rows to read, by table

    @property
    def by_table(self) -> dict[str, tuple[str, ...]]:
        """The names by table, of tables with a row that is no delete."""
        return {table: tuple(sorted(names)) for table, names in self._found.items()}

    def read(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        """The segments unchanged; reads the first rows on the way."""
        for segment in segments:
            if isinstance(segment, RegionRows) and self._left.get(segment.table, 1):
                self._read_rows(segment.table, segment.piece)
            yield segment

    def _read_rows(self, table: str, piece: memoryview) -> None:
        left = self._left.get(table)
        if left is None:
            left = _NAMED_ROWS if self.wants(table) else 0
        rows = list(_first_rows(piece, left))
        self._left[table] = left - len(rows) if rows else 0
        upserts = [row.names for row in rows if _OP.decode() not in row.names]
        if upserts:
            names = {name.encode("utf-8", "replace").decode() for row in upserts for name in row}
            self._found.setdefault(table, set()).update(names)


def _first_rows(piece: memoryview, most: int) -> Iterator[_Members]:
    """The first rows of a piece of a body; ends before a row that cannot be read."""
    text, at = bytes(piece[:_NAMED_BYTES]).decode(errors="replace") if most else "", 0
    for _ in range(most):
        between = _BETWEEN.match(text, at)
        try:
            row, at = _DECODER.raw_decode(text, between.end() if between else at)
        except (json.JSONDecodeError, RecursionError):
            return
        if isinstance(row, _Members):
            yield row


def _place(batch: pa.RecordBatch, row: int) -> str:
    names = [each for each in (columns.PARTITION, columns.POSITION, columns.TABLE) if each in batch.schema.names]
    return " at " + ", ".join(f"{name.replace('_', ' ')} {batch.column(name)[row].as_py()}" for name in names)
