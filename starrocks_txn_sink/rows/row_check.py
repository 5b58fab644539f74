"""The text of rows: each is one JSON object without `__op`.

A lane puts rows unread into the array of a load's body. There the server does not find a torn row: it drops the rows
behind it without a count, or refuses the whole load as it does in trouble of its own (wire contract 4.7). A row of two
objects would be two rows that are counted as one, and a row with the member `__op` another operation than the event
says.

The compiled loop reads every row. Without it a few passes over the bytes of a batch find the rows that may be more than
one object, or valid only together with others, and one parser reads the whole batch. Only rows that are not cleared are
judged alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.coordinator.model import SEPARATOR, Ints
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.bad_rows import BadRow
from starrocks_txn_sink.rows.segments import Bools, Octets, layout

DoubtfulRows = Callable[[pa.RecordBatch], list[int] | None]
"""Numbers of the rows that may be something else than one object; None without the compiled loop."""


def no_loop(_batch: pa.RecordBatch) -> None:
    """`DoubtfulRows` without the compiled loop: Python then looks at each batch."""


_OPEN, _CLOSE, _COMMA, _COLON, _BACKSLASH, _QUOTE, _BRACKET = (ord(letter) for letter in '{},:\\"[')
_SPACES: Final = np.frombuffer(b" \t\r\n", dtype=np.uint8)
_AFTER_STRING: Final = b",:}] \t\r\n"
_MAY_FOLLOW: Final = np.isin(np.arange(256, dtype=np.uint8), np.frombuffer(_AFTER_STRING, dtype=np.uint8))
_OP: Final = columns.OWN_OP.encode()
_UNDERSCORES, _NUMBERED = (np.frombuffer(pair, dtype=np.uint16)[0] for pair in (_OP[:2], b"\\u"))
_OP_OF_DELETE: Final = len(SEPARATOR) + columns.DELETING.index(columns.OWN_OP)  # place of `__op` in a delete
_PIECE: Final = 1 << 17  # bytes that fit into the processor's cache
_ESCAPED: Final = r"(?i)\\u00(?:5f|6f|70)"  # a letter of `__op` in another spelling
_FAULTS: Final = {  # by the parser's words
    "depth limit": f"is nested deeper than {1_023:,} levels",
    "UTF-8": "is not exactly one JSON object (it is not UTF-8)",
    "surrogate": "is not exactly one JSON object (it has half of a pair of surrogates)",
    "control character": "is not exactly one JSON object (it has a control character that is not escaped)",
}


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Finds the rows of a batch whose payload is not one JSON object without `__op`, but for the sink's in a delete."""

    doubtful: DoubtfulRows = no_loop

    def __call__(self, batch: pa.RecordBatch) -> list[BadRow]:
        """The rows at fault; a `bad_rows.Judge`."""
        payload = batch.column(columns.PAYLOAD)
        numbers = self.doubtful(batch)
        if numbers is not None and not numbers:
            return []
        deletes = batch.column(columns.DELETED).fill_null(False) if columns.DELETED in batch.schema.names else None
        if numbers is None:
            numbers = self._by_python(payload, deletes)
        return [BadRow(row, fault) for row, fault in _faults(payload, deletes, numbers)]

    def _by_python(self, payload: pa.Array, deletes: pa.Array | None) -> list[int]:
        deleted = None if deletes is None else deletes.to_numpy(zero_copy_only=False)
        odd: list[int] = _odd_rows(payload, deleted).tolist()
        if not any(True for _ in _faults(payload, deletes, odd)) and _is_body(payload):
            return []
        return list(range(len(payload)))  # a torn row may have cleared another one


def _is_body(payload: pa.Array) -> bool:
    """Whether the payloads are the inside of one JSON array."""
    bounds, data = layout(payload)
    text = bytes(memoryview(data)[bounds[0] + len(SEPARATOR) : bounds[-1]])
    try:
        orjson.loads(b"[%b]" % text)
    except orjson.JSONDecodeError:
        return False
    return True


def _faults(payload: pa.Array, deletes: pa.Array | None, numbers: list[int]) -> Iterable[tuple[int, str]]:
    """The rows at fault among those of `numbers`, and what is wrong with them."""
    texts = _rows_of(payload, deletes, pa.array(numbers, pa.int64())).to_pylist() if numbers else []
    for number, text in zip(numbers, texts, strict=True):
        fault = _fault(text)
        if fault is not None:
            yield number, fault


def _fault(text: bytes) -> str | None:
    """What is wrong with a row, without its separator; None if nothing is."""
    try:
        values = orjson.loads(b"[%b]" % text)
    except orjson.JSONDecodeError as error:
        if "infinity" in error.msg:  # JSON all the same, and one value of it for the server to judge
            return _fault_of(json.loads(f"[{text.decode()}]"))
        return next((fault for words, fault in _FAULTS.items() if words in error.msg), NOT_ONE_OBJECT)
    return _fault_of(values)


def _fault_of(values: list[object]) -> str | None:
    if len(values) != 1 or not isinstance(values[0], dict):
        return NOT_ONE_OBJECT
    if columns.OWN_OP in values[0]:
        return f"has the column {columns.OWN_OP}, which belongs to the sink"
    return None


NOT_ONE_OBJECT: Final = "is not exactly one JSON object"


def _odd_rows(payload: pa.Array, deleted: Bools | None) -> Ints:
    """Indexes of the rows that may be something else than one object without `__op`.

    Doubtful are rows that do not begin and end with a brace, rows with `__op`, and rows with a brace where a second
    object may begin: after a comma. Torn rows can be valid together in two ways. A row that closes the string of an
    earlier row has, after its first quote, a byte that may follow a string. A row that ends inside an open array also
    ends with a brace, so an object in the array begins after `[` or a comma.
    """
    bounds, data = layout(payload)
    content = np.frombuffer(data, dtype=np.uint8)
    starts, ends = bounds[:-1], bounds[1:]
    empty: Ints = np.flatnonzero(starts == ends)
    if len(empty):  # not even a separator: no projection of the sink makes such a row
        return empty
    odd_ends = np.flatnonzero((content[starts + (ends - starts > 1)] != _OPEN) | (content[ends - 1] != _CLOSE))
    first, second = content.take(starts + 2, mode="clip"), content.take(starts + 3, mode="clip")
    places = [odd_ends, np.flatnonzero((first != _QUOTE) | _MAY_FOLLOW[second])]
    own_ops = starts[:0] if deleted is None else starts[deleted] + _OP_OF_DELETE
    content = content[: ends[-1]]
    # Counting is cheaper than finding, and for flat rows the counts are mostly the expected ones.
    braces, underscores, escapes = _count_signs(content[starts[0] :])
    if braces != len(starts) or len(odd_ends):
        places.append(np.searchsorted(starts, _second_braces(content, starts), side="right") - 1)
    if underscores != len(own_ops):
        foreign_ops = _without(_op_places(content, starts[0]), own_ops)
        places.append(np.searchsorted(starts, foreign_ops, side="right") - 1)
    if escapes:
        places.append(np.flatnonzero(pc.match_substring_regex(payload, _ESCAPED).to_numpy(zero_copy_only=False)))
    return np.unique(np.concatenate(places))


def _count_signs(content: Octets) -> tuple[int, int, int]:
    """Count opening braces, pairs of underscores, and backslashes that escape a character by its number.

    Two bytes are compared as one number, from even and from odd places: the cheapest way to find a rare pair.
    """
    braces = underscores = escapes = 0
    marks = np.empty(_PIECE, dtype=bool)
    for start in range(0, len(content), _PIECE):
        piece = content[start : start + _PIECE + 1]
        marks_here = marks[: min(len(piece), _PIECE)]
        braces += int(np.count_nonzero(np.equal(piece[:_PIECE], _OPEN, out=marks_here)))
        backslash = np.equal(piece[:_PIECE], _BACKSLASH, out=marks_here).any()
        for odd in (0, 1):
            words = piece[odd : odd + (len(piece) - odd) // 2 * 2].view(np.uint16)
            words = words[: _PIECE // 2]
            half = marks[: len(words)]
            underscores += int(np.count_nonzero(np.equal(words, _UNDERSCORES, out=half)))
            if backslash:
                escapes += int(np.count_nonzero(np.equal(words, _NUMBERED, out=half)))
    return braces, underscores, escapes


def _second_braces(content: Octets, starts: Ints) -> Ints:
    """Places of opening braces that come after a comma or a bracket, or after blanks that do not follow a colon."""
    braces = _without(np.flatnonzero(content[starts[0] :] == _OPEN) + starts[0], starts + 1)
    previous = content[braces - 1]
    blank = np.isin(previous, _SPACES) & (content[braces - 2] != _COLON)
    second: Ints = braces[(previous == _COMMA) | (previous == _BRACKET) | blank]
    return second


def _op_places(content: Octets, first: int) -> Ints:
    """Places of `__op`, ascending."""
    starts = np.flatnonzero(content[first : len(content) + 1 - len(_OP)] == _OP[0]) + first
    for number, letter in enumerate(_OP):
        starts = starts[content[starts + number] == letter]
    return starts


def _without(places: Ints, excluded: Ints) -> Ints:
    """`places` without `excluded`, both ascending."""
    places_left = np.ones(len(places), dtype=bool)
    places_in = np.searchsorted(places, excluded)
    inside = places_in < len(places)
    places_in, excluded = places_in[inside], excluded[inside]
    places_left[places_in[places[places_in] == excluded]] = False
    return places[places_left]


def _rows_of(payload: pa.Array, deleted: pa.Array | None, doubtful: pa.Array) -> pa.Array:
    """The users' rows: payloads without their separator and, of deletes, without the sink's `__op`."""
    doubtful_rows = payload.take(doubtful).cast(pa.large_binary())
    rows = pc.binary_replace_slice(doubtful_rows, 0, len(SEPARATOR), b"")
    if deleted is None:
        return rows
    size = len(columns.DELETING)
    followed = pc.starts_with(rows, columns.DELETING + ",")
    cut = (pc.binary_replace_slice(rows, 0, stop, b"{") for stop in (size + 1, size))
    return pc.if_else(deleted.take(doubtful), pc.if_else(followed, *cut), rows)
