"""Rows as they reach a lane: their order, and the check of their text.

**Order.** Lanes that are the source's own tasks get rows as they arrive, and so does the one lane of a small
micro-batch, for which a shuffle would be the larger part of its time. Here `ArrivalOrder` sorts such rows if they are
few, and checks them if they are many. Its output looks sorted: each batch has whole source
transactions, one source partition after the other; only the last source transaction may go on in the next batch.

**Text.** A lane puts rows unread into the array of a load's body. A row of two objects would be two rows that are
counted as one, and a row with the member `__op` would be another operation than the event says. `RowCheck` makes a few
passes over the bytes of a batch, and parses only the rows that these passes cannot clear.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.coordinator.model import SEPARATOR, Ints
from starrocks_txn_sink.errors import InputError, Unordered
from starrocks_txn_sink.rows import columns, segments
from starrocks_txn_sink.rows.columns import PARTITION, POSITION, SEQ, TRANSACTION_END
from starrocks_txn_sink.rows.json_objects import checked_text, read_objects

SMALL_ROWS: Final = 100_000  # up to so many rows are collected and sorted, so any order will do
SMALL_BYTES: Final = 32 << 20
HELD_BYTES: Final = 32 << 20  # of unfinished source transactions that wait while other source partitions go on

_NULL: Final = -(2**63)


Piece = TypeVar("Piece", pa.RecordBatch, pa.Table)


@dataclass(slots=True)
class ArrivalOrder:
    """Brings the rows of one attempt at a lane into order; the rows have COLUMNS and SEQ.

    With `small_only` more than `small_rows` rows are Unordered, whatever their order.
    """

    small_rows: int = SMALL_ROWS
    small_only: bool = False
    held_bytes: int = HELD_BYTES
    _latest: dict[str, tuple[int, int]] = field(default_factory=dict)  # position and seq by source partition
    _held: list[pa.RecordBatch] = field(default_factory=list)  # unfinished source transactions, one a batch
    _unfinished: str | None = None  # source partition of the source transaction that the lane has read in part

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, each source partition's by position and seq.

        Raises Unordered if many rows are out of order, or if source partitions come so mixed that their unfinished
        source transactions do not fit `held_bytes`; InputError for NULLs.
        """
        lane = filter(len, batches)
        first, small = take_first(lane, self.small_rows, SMALL_BYTES)
        if small:
            if first:
                yield _sort(_concat(first))
            return
        if self.small_only:
            raise Unordered(f"These are more than {self.small_rows} rows, or {SMALL_BYTES} bytes.")
        for batch in chain(first, lane):
            segments.refuse_nulls(batch)
            yield from self._release(batch)
        yield from self._held  # Segmenter rejects these: their source transactions have no END

    def _release(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Check `batch`; yield those rows of it and of the held ones that the lane can read next, and hold the rest."""
        rows = _concat([*self._held, batch])
        runs = segments.runs_of(rows)
        if len(pc.unique(runs.values)) < len(runs.values):
            rows = rows.take(pc.array_sort_indices(pa.array(_codes(rows)[0])))
            runs = segments.runs_of(rows)
        parts = [_PartitionRows(name, rows.slice(low, high - low)) for name, low, high in segments.list_runs(runs)]
        held_rows = {batch.column(PARTITION)[0].as_py(): batch.num_rows for batch in self._held}
        for part in parts:
            self._check(part, held_rows.get(part.name, 0))
        self._held = []
        if len(parts) == 1 and self._unfinished in (None, parts[0].name):
            self._unfinished = None if parts[0].ended else parts[0].name
            yield parts[0].rows
        else:
            yield from self._in_turn(parts)

    def _in_turn(self, parts: list[_PartitionRows]) -> Iterator[pa.RecordBatch]:
        """Yield the partition that the lane has read in part, then whole source transactions of the other partitions.

        While the lane is inside a source transaction, all rows of other partitions are held.
        """
        waiting = [part for part in parts if part.name != self._unfinished]
        for part in (part for part in parts if part.name == self._unfinished):
            whole, remainder = part.split()
            if whole:
                self._unfinished = None
                waiting += remainder
            yield from whole or [part.rows]
        if self._unfinished is None:
            parts, waiting = waiting, []
            for part in parts:
                whole, remainder = part.split()
                yield from whole
                waiting += remainder
        yield from self._hold(waiting)

    def _hold(self, tails: list[_PartitionRows]) -> Iterator[pa.RecordBatch]:
        """Hold rows for the next batch; of unfinished source transactions yield the only one, or the largest of many.

        The lane may read one source transaction in part: its chunks leave memory, and the commit waits for its end.
        """
        size = sum(tail.rows.nbytes for tail in tails)
        if self._unfinished is None and tails and (len(tails) == 1 or size > self.held_bytes):
            largest = max(tails, key=lambda tail: tail.rows.nbytes)
            tails = [tail for tail in tails if tail is not largest]
            size -= largest.rows.nbytes
            self._unfinished = largest.name
            yield largest.rows
        if size > self.held_bytes:
            raise Unordered(
                f"Rows of {len(tails) + 1} source partitions came mixed: {size} bytes of unfinished source "
                f"transactions wait for the end of the one of source partition {self._unfinished}.",
                hint='Leave shuffle at "auto" or set it to true, so that rows are sorted first.',
            )
        self._held = [tail.rows for tail in tails]

    def _check(self, part: _PartitionRows, held_rows: int) -> None:
        """Raise Unordered if rows of `part` are not by position and seq; its first `held_rows` are checked already."""
        positions, seqs = _ints(part.rows, POSITION), _ints(part.rows, SEQ)
        if held_rows < part.rows.num_rows and part.name in self._latest:
            last, seq = self._latest[part.name]
            positions = np.concatenate(([last], positions[held_rows:]))
            seqs = np.concatenate(([seq], seqs[held_rows:]))
        back = (positions[1:] < positions[:-1]) | ((positions[1:] == positions[:-1]) & (seqs[1:] < seqs[:-1]))
        if back.any():
            at = int(np.argmax(back))
            raise Unordered(
                f"The rows of source partition {part.name} did not come in order: position {positions[at + 1]} came "
                f"after {positions[at]}."
                if positions[at + 1] != positions[at]
                else f"The rows of source partition {part.name}, position {positions[at]}, did not come by seq.",
                hint='Leave shuffle at "auto" or set it to true, so that rows are sorted first.',
            )
        self._latest[part.name] = (int(positions[-1]), int(seqs[-1]))


@dataclass(frozen=True, slots=True)
class _PartitionRows:
    """Rows of one source partition."""

    name: str
    rows: pa.RecordBatch

    @property
    def ended(self) -> bool:
        """Whether the last source transaction is whole."""
        return bool(self.rows.column(TRANSACTION_END)[-1].as_py())

    def split(self) -> tuple[list[pa.RecordBatch], list[_PartitionRows]]:
        """Split into whole source transactions and the unfinished one; each list has at most one entry."""
        ends = np.flatnonzero(self.rows.column(TRANSACTION_END).to_numpy(zero_copy_only=False))
        cut = int(ends[-1]) + 1 if ends.size else 0
        whole = [self.rows.slice(0, cut)] if cut else []
        return whole, [_PartitionRows(self.name, self.rows.slice(cut))] if cut < self.rows.num_rows else []


def take_first(pieces: Iterator[Piece], rows: int, size: int) -> tuple[list[Piece], bool]:
    """Take pieces until they exceed `rows` rows or `size` bytes; the bool says whether these are all pieces."""
    first: list[Piece] = []
    for piece in pieces:
        first.append(piece)
        rows, size = rows - piece.num_rows, size - piece.nbytes
        if rows < 0 or size < 0:
            return first, False
    return first, True


def _sort(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Sort by source partition's name, position and seq; raises InputError for NULLs."""
    segments.refuse_nulls(rows)
    codes, names = _codes(rows)
    ranks = np.argsort(np.argsort(np.array(names, dtype=object)))
    return rows.take(pa.array(np.lexsort((_ints(rows, SEQ), _ints(rows, POSITION), ranks[codes]))))


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (whole,) = batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _codes(rows: pa.RecordBatch) -> tuple[Ints, list[str]]:
    """A number for each row's source partition, which is the place of its name in the list."""
    encoded = pc.dictionary_encode(rows.column(PARTITION))
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def _ints(rows: pa.RecordBatch, name: str) -> Ints:
    column = rows.column(name)
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64()), _NULL)  # NULL comes first, as in a sort
    values: Ints = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


# --- the check of their text ---

_OPEN, _CLOSE, _COMMA, _COLON, _BACKSLASH, _QUOTE, _BRACKET = (ord(letter) for letter in '{},:\\"[')
_SPACES: Final = np.frombuffer(b" \t\r\n", dtype=np.uint8)
_AFTER_STRING: Final = b",:}] \t\r\n"
_MAY_FOLLOW: Final = np.isin(np.arange(256, dtype=np.uint8), np.frombuffer(_AFTER_STRING, dtype=np.uint8))
_CLEAN_START: Final = re.compile(r'[ \t\r\n]*\{[ \t\r\n]*"[^,:}\] \t\r\n]')
_OP: Final = columns.OWN_OP.encode()
_UNDERSCORES, _NUMBERED = (np.frombuffer(pair, dtype=np.uint16)[0] for pair in (_OP[:2], b"\\u"))
_OP_OF_DELETE: Final = len(SEPARATOR) + columns.DELETING.index(columns.OWN_OP)  # place of `__op` in a delete
_PIECE: Final = 1 << 17  # bytes that fit into the processor's cache
_ESCAPED: Final = r"(?i)\\u00(?:5f|6f|70)"  # a letter of `__op` in another spelling


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Checks that each payload of a lane is one JSON object without `__op`, but for the sink's own in a delete.

    With `allow_torn` text that is no JSON passes, unless it may be valid together with other rows: the server rejects
    it, and the quarantine finds its row.
    """

    allow_torn: bool = False

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Raise InputError with the place of the first row at fault, never its content.

        Text that is no JSON may pass if no other row can make it valid: the server refuses the load.
        """
        payload = batch.column(columns.PAYLOAD)
        deleted = batch.column(columns.DELETED).fill_null(False) if columns.DELETED in batch.schema.names else None
        doubtful = _doubtful_rows(payload, None if deleted is None else deleted.to_numpy(zero_copy_only=False))
        if not len(doubtful):
            return
        rows = _rows_of(payload, deleted, pa.array(doubtful))
        read = _read_rows(rows)
        if read is not None and read[columns.OWN_OP].null_count == read.num_rows:
            return
        for row, text in zip(doubtful.tolist(), rows.cast(pa.large_binary()).to_pylist(), strict=True):
            fault = _fault(text, allow_torn=self.allow_torn)
            if fault is not None:
                raise InputError(
                    f"A row {fault}{segments.place_of(batch, row, ' at ')}.",
                    hint="Correct the source: a row is the text of one JSON object, and `op` alone says what is done.",
                )


def _doubtful_rows(payload: pa.Array, deleted: segments.Bools | None) -> Ints:
    """Indexes of the rows that may be something else than one object without `__op`.

    Doubtful are rows that do not begin and end with a brace, rows with `__op`, and rows with a brace where a second
    object may begin: after a comma. Torn rows can be valid together in two ways. A row that closes the string of an
    earlier row has, after its first quote, a byte that may follow a string. A row that ends inside an open array also
    ends with a brace, so an object in the array begins after `[` or a comma.
    """
    bounds, data = segments.layout(payload)
    content = np.frombuffer(data, dtype=np.uint8)
    starts, ends = bounds[:-1], bounds[1:]
    empty: Ints = np.flatnonzero(starts == ends)
    if len(empty):  # not even a separator: no projection of the sink makes such a row
        return empty
    odd_ends = np.flatnonzero((content[starts + (ends - starts > 1)] != _OPEN) | (content[ends - 1] != _CLOSE))
    first, after = content.take(starts + 2, mode="clip"), content.take(starts + 3, mode="clip")
    places = [odd_ends, np.flatnonzero((first != _QUOTE) | _MAY_FOLLOW[after])]
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


def _count_signs(content: segments.Octets) -> tuple[int, int, int]:
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


def _second_braces(content: segments.Octets, starts: Ints) -> Ints:
    """Places of opening braces that come after a comma or a bracket, or after blanks that do not follow a colon."""
    at = _without(np.flatnonzero(content[starts[0] :] == _OPEN) + starts[0], starts + 1)
    before = content[at - 1]
    blank = np.isin(before, _SPACES) & (content[at - 2] != _COLON)
    second: Ints = at[(before == _COMMA) | (before == _BRACKET) | blank]
    return second


def _op_places(content: segments.Octets, first: int) -> Ints:
    """Places of `__op`, ascending."""
    at = np.flatnonzero(content[first : len(content) + 1 - len(_OP)] == _OP[0]) + first
    for number, letter in enumerate(_OP):
        at = at[content[at + number] == letter]
    return at


def _without(places: Ints, excluded: Ints) -> Ints:
    """`places` without `excluded`, both ascending."""
    places_left = np.ones(len(places), dtype=bool)
    at = np.searchsorted(places, excluded)
    inside = at < len(places)
    at, excluded = at[inside], excluded[inside]
    places_left[at[places[at] == excluded]] = False
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


def _read_rows(rows: pa.Array) -> pa.Table | None:
    try:
        return read_objects(checked_text(rows), pa.schema([(columns.OWN_OP, pa.string())]))
    except pa.ArrowInvalid:
        return None


def _fault(text: bytes, *, allow_torn: bool) -> str | None:
    """What is wrong with a row, by Python's `json`; None if nothing is."""
    try:
        names = _DECODER.decode(text.decode())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        extra = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        is_torn = allow_torn and not extra and not _may_join(text.decode(errors="replace"))
        return None if is_torn else "is not exactly one JSON object"
    except RecursionError:
        return "is not exactly one JSON object"
    if not isinstance(names, tuple):
        return "is not exactly one JSON object"
    return f"has the column {columns.OWN_OP}, which belongs to the sink" if columns.OWN_OP in names else None


def _may_join(text: str) -> bool:
    """Whether text that is no JSON may be valid with the rows around it: it may close a string of an earlier row, or
    leave a string or an array open, in which a comma and the next object may stand."""
    if not _CLEAN_START.match(text):
        return True
    try:
        _DECODER.decode(text + ",{")
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string") or error.pos >= len(text) + 2
    except RecursionError:
        return True
    return False


def _names(members: list[tuple[str, Any]]) -> tuple[str, ...]:
    return tuple(name for name, _ in members)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_names, parse_int=str, parse_float=str)
"""Makes a tuple of its members' names from an object, and a tuple from nothing else."""
