"""The body of a load: the last row of each key, as a JSON array, possibly compressed.

**Rows.** The server promises no order between rows of one key in one StarRocks transaction (wire contract 4.10). So a
load leaves out each row that a later row of the load replaces. It cannot replace a row that an earlier load of the same
label has sent: if the key of such a row comes again, the load raises KeyRepeated. The coordinator then repeats the
transaction when all of its rows are there, newest load first, and each load leaves out the keys that were sent before.

**Bytes.** The JVM makes the JSON, and Python never touches a single row: a body is a sequence of slices of Arrow
buffers. So every row comes with the separator in front (`,{"a":1}`): the first comma becomes the opening bracket,
whereas a trailing comma would stay inside the array.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.coordinator.model import SEPARATOR, Chunk, Ints, LoadAction
from starrocks_txn_sink.errors import KeyRepeated
from starrocks_txn_sink.options.enums import Compression
from starrocks_txn_sink.protocol.label import ReplacedRows
from starrocks_txn_sink.protocol.wire import Body
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.keys import ROOM, TableKey, of_one_type, read_keys
from starrocks_txn_sink.rows.segments import Bools, Octets, layout
from starrocks_txn_sink.rows.unchanged import MARK, UnchangedValues, histories_of, refuse_unchanged


@dataclass(frozen=True, slots=True)
class LoadBody:
    """A body of these pieces; can be iterated again, and copies nothing."""

    pieces: Sequence[memoryview | bytes]

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[memoryview | bytes]:
        return iter(self.pieces)


@dataclass(frozen=True, slots=True)
class ReleasedBody:
    """A body in pieces of at most `part_bytes`; calls `release` whenever so many are sent."""

    body: Body
    release: Callable[[], None]
    part_bytes: int = 1 << 20

    def __len__(self) -> int:
        return len(self.body)

    def __iter__(self) -> Iterator[memoryview]:
        sent_bytes = 0
        for piece in self.body:
            for low in range(0, len(piece), self.part_bytes):
                part = memoryview(piece)[low : low + self.part_bytes]
                yield part
                sent_bytes += part.nbytes
                if sent_bytes >= self.part_bytes:
                    self.release()
                    sent_bytes = 0
        self.release()


def load_body(pieces: Sequence[memoryview], compression: str) -> LoadBody:
    """The body of a load for one table; `pieces` are runs of rows that each begin with their separator.

    `compression` is a value of Compression.
    """
    first, *more_pieces = pieces
    rows = LoadBody((b"[", first[len(SEPARATOR) :], *more_pieces, b"]"))
    if compression == Compression.NONE.value:
        return rows
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, Compression(compression).codec) as stream:
        for piece in rows:
            stream.write(piece)
    return LoadBody((memoryview(sink.getvalue()),))


# --- the last row of each key ---


_DELETE: Final = (SEPARATOR + columns.DELETING).encode()
_GROUP_BYTES: Final = 4 << 20
_LARGE_PIECE: Final = 1 << 20


def last_of_each(keys: pa.Array) -> Bools | None:
    """Mask of the rows that no later row replaces; None if no row is replaced."""
    if keys.type == pa.int64() and not keys.null_count:
        numbers = keys.to_numpy()
        if bool((numbers[1:] > numbers[:-1]).all()):
            return None
        ordered = np.sort(numbers)
        if bool((ordered[1:] != ordered[:-1]).all()):
            return None
    encoded = pc.dictionary_encode(keys)
    if len(encoded.dictionary) == len(keys) - keys.null_count:
        return None
    codes = encoded.indices.fill_null(-1).to_numpy()
    last = np.empty(len(encoded.dictionary) + 1, dtype=np.int64)
    rows = np.arange(len(codes))
    last[codes] = rows  # for equal codes NumPy keeps the last row; rows without a key share the last place
    survivors: Bools = (codes < 0) | (last[codes] == rows)
    return survivors


def without_replaced(pieces: Sequence[memoryview], key: TableKey) -> Sequence[memoryview]:
    """The `pieces`, each one row with its separator, without rows that a later row of the same key replaces."""
    content = bytearray().join(pieces)
    content.extend(bytes(ROOM))
    starts = np.cumsum([0, *(piece.nbytes for piece in pieces)])
    survivors = last_of_each(read_keys(np.frombuffer(content, dtype=np.uint8), starts, key))
    return pieces if survivors is None else [pieces[row] for row in np.flatnonzero(survivors).tolist()]


def with_unchanged_values(
    pieces: Sequence[memoryview], table: str, key: TableKey, unchanged: UnchangedValues
) -> Sequence[memoryview]:
    """The `pieces`, each one row with its separator, with the values that rows leave out; `UnchangedValues.complete`.

    Raises InputError without a key, and as `UnchangedValues.complete`.
    """
    rows = [bytes(piece) for piece in pieces]
    marked = [number for number, row in enumerate(rows) if MARK in row]
    if not marked:
        return pieces
    if not key:
        refuse_unchanged(table, rows[marked[0]], "")
    content = np.frombuffer(b"".join((*rows, bytes(ROOM))), dtype=np.uint8)
    keys = read_keys(content, np.cumsum([0, *map(len, rows)]), key)
    histories = histories_of(pa.array(rows, pa.large_binary()), keys, marked)
    completed = dict(zip(marked, unchanged.complete(table, key, histories), strict=True))
    whole = (completed.get(number, row) for number, row in enumerate(rows))
    return [memoryview(row) for row in whole if row is not None]


@dataclass(slots=True)
class SentKeys:
    """The keys that a lane has sent to one table, by chunk.

    Integer keys mostly grow from chunk to chunk, or stay in a range of their source partition. So a search skips each
    chunk whose range does not meet the range of the new keys.
    """

    _chunks: list[pa.Array] = field(default_factory=list)
    _ranges: list[tuple[int, int]] = field(default_factory=list)

    def contain(self, keys: Sequence[pa.Array]) -> Bools | None:
        """Mask of the `keys` (by chunk) that have been sent; None if none has."""
        masks = [self._contain(chunk) for chunk in keys]
        if all(mask is None for mask in masks):
            return None
        return np.concatenate(
            [np.zeros(len(chunk), bool) if mask is None else mask for chunk, mask in zip(keys, masks, strict=True)]
        )

    def _contain(self, keys: pa.Array) -> Bools | None:
        low, high = _range_of(keys)
        near = [
            chunk
            for chunk, (lowest, highest) in zip(self._chunks, self._ranges, strict=True)
            if low <= highest and lowest <= high
        ]
        if not near:
            return None
        *chunks, new = of_one_type(*near, keys)
        # Mostly nothing is found. So the first search has the smaller hash table, which is that of the new keys.
        if not pc.any(pc.is_in(pa.chunked_array(chunks), value_set=new, skip_nulls=True)).as_py():
            return None
        hits: Bools = pc.is_in(new, value_set=pa.chunked_array(chunks), skip_nulls=True).to_numpy(zero_copy_only=False)
        return hits

    def add(self, keys: Sequence[pa.Array]) -> None:
        """Remember the keys that are sent, by chunk."""
        for chunk in keys:
            if len(chunk):
                self._chunks.append(chunk)
                self._ranges.append(_range_of(chunk))


_ANYWHERE: Final = (-(1 << 63), (1 << 63) - 1)


def _range_of(keys: pa.Array) -> tuple[int, int]:
    """The lowest and the highest integer; for texts _ANYWHERE, because a text may be an integer in another spelling."""
    if keys.type != pa.int64() or keys.null_count == len(keys):
        return _ANYWHERE
    bounds = pc.min_max(keys).as_py()
    return bounds["min"], bounds["max"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a load to send, as pieces of its body; `replaced` counts the rows left out by source partition."""

    pieces: Sequence[memoryview]
    replaced: Mapping[str, ReplacedRows] = field(default_factory=dict)


class UniqueRows:
    """Leaves rows out of the loads of one try at a lane, so that its StarRocks transaction has one row of each key.

    `keys` has the primary keys by table; rows of other tables are sent as they are. `unchanged` completes rows that
    leave values out. Several threads may call it, if a table has one load at a time. `repeated` says whether a key has
    come in two loads of a label; `replaced_deletes` counts deletes that were not sent, by label and table.
    """

    def __init__(self, keys: Mapping[str, TableKey], unchanged: UnchangedValues | None = None) -> None:
        self._keys = keys
        self._unchanged = unchanged
        self._sent: dict[str, SentKeys] = {}
        self.repeated = False
        self.replaced_deletes: Counter[tuple[str, str]] = Counter()

    def select(self, action: LoadAction) -> Selection:
        """Choose the rows of `action` to send, and remember their keys as sent.

        A key that an earlier load has sent raises KeyRepeated; if loads come newest first, its row is left out instead.
        """
        key = self._keys.get(action.table)
        if key is None:
            return Selection(action.pieces)
        sent_keys = self._sent.setdefault(action.table, SentKeys())  # by table: other loads may run in other threads
        groups = list(_groups(action.chunks))
        by_chunk = _keys_by_chunk(groups, key)
        repeats, survivors = sent_keys.contain(by_chunk), last_of_each(_concat(by_chunk))
        if repeats is not None:
            self.repeated = True
            if not action.newest_first:
                raise KeyRepeated(
                    "A key came again in a later load of the StarRocks transaction.",
                    hint="Free space in the executor's directory for temporary files, so that the transaction can be "
                    "repeated, or set compact=False.",
                    table=action.table,
                    label=action.label,
                )
            survivors = ~repeats if survivors is None else survivors & ~repeats
        completed = self._complete(action, groups, key, _concat(by_chunk), survivors)
        sent_keys.add(by_chunk)
        if survivors is None and not completed:
            return Selection(action.pieces)
        return self._select(action, groups, survivors, completed)

    def _complete(
        self,
        action: LoadAction,
        groups: Sequence[Sequence[_Part]],
        key: TableKey,
        keys: pa.Array,
        survivors: Bools | None,
    ) -> dict[int, bytes | None]:
        """The rows of the load that leave values out by their numbers, as `UnchangedValues.complete` returns them."""
        if self._unchanged is None or action.table not in self._unchanged.tables:
            return {}
        rows = _rows_of(groups)
        marked = pc.match_substring(rows, MARK).to_numpy(zero_copy_only=False)
        marked_rows = np.flatnonzero(marked if survivors is None else marked & survivors)
        if not len(marked_rows):
            return {}
        older = list(_groups(action.older))
        if older:
            keys = _concat([*_keys_by_chunk(older, key), keys])
            rows = pa.concat_arrays([_rows_of(older), rows])
        count = len(keys) - len(marked)
        histories = histories_of(
            rows, keys, (marked_rows + count).tolist(), partial(_place_in, (*action.older, *action.chunks))
        )
        return dict(zip(marked_rows.tolist(), self._unchanged.complete(action.table, key, histories), strict=True))

    def _select(
        self,
        action: LoadAction,
        groups: Sequence[Sequence[_Part]],
        survivors: Bools | None,
        completed: Mapping[int, bytes | None],
    ) -> Selection:
        if survivors is None:
            survivors = np.ones(sum(part.rows for group in groups for part in group), dtype=bool)
        as_they_are = survivors
        if completed:
            as_they_are, survivors = survivors.copy(), survivors.copy()
            as_they_are[list(completed)] = False
            survivors[[number for number, row in completed.items() if row is None]] = False
        pieces: list[memoryview] = [memoryview(row) for row in completed.values() if row is not None]
        replaced: dict[str, ReplacedRows] = {}
        low = 0
        for group in groups:
            high = low + sum(part.rows for part in group)
            if as_they_are[low:high].all():
                pieces += [part.piece for part in group]
            else:
                piece, deletes = _GroupRows.of(group).select(as_they_are[low:high], survivors[low:high], replaced)
                pieces += [piece] if len(piece) else []
                self.replaced_deletes[(action.label, action.table)] += deletes
            low = high
        return Selection(pieces, replaced)


@dataclass(frozen=True, slots=True)
class _Part:
    """Successive rows in `text`, a piece of `chunk`; `starts` has the place of each row in it, then the end."""

    chunk: Chunk
    text: memoryview
    starts: Ints

    @property
    def piece(self) -> memoryview:
        return self.text[self.starts[0] : self.starts[-1]]

    @property
    def rows(self) -> int:
        return len(self.starts) - 1

    @property
    def in_place(self) -> bool:
        """Whether the rows are read without a copy: the piece is large, and has ROOM bytes behind the last row."""
        return self.text.nbytes >= _LARGE_PIECE and int(self.starts[-1]) + ROOM <= self.text.nbytes


def _parts(chunk: Chunk) -> Iterator[_Part]:
    """The rows of a chunk. The last rows of a large piece, without ROOM behind them, are a part of their own."""
    for piece, index in zip(chunk.pieces, chunk.row_indexes, strict=True):
        if index is None:
            raise TypeError("The rows of a table whose keys are known need a row index.")
        starts = np.subtract(index.offsets, index.offsets[0], dtype=np.int64)
        in_place = 0
        if piece.nbytes >= _LARGE_PIECE:
            in_place = max(0, int(np.searchsorted(starts, piece.nbytes - ROOM, side="right")) - 1)
            if in_place:
                yield _Part(chunk, piece, starts[: in_place + 1])
        yield _Part(chunk, piece, starts[in_place:])


def _groups(chunks: Sequence[Chunk]) -> Iterator[Sequence[_Part]]:
    """Parts to read at once: one large part in place, or small parts that are copied into one buffer together."""
    group: list[_Part] = []
    size = 0
    for part in (part for chunk in chunks for part in _parts(chunk)):
        if group and (part.in_place or size + part.piece.nbytes > _GROUP_BYTES):
            yield group
            group, size = [], 0
        if part.in_place:
            yield [part]
        else:
            group.append(part)
            size += part.piece.nbytes
    if group:
        yield group


def _rows_of(groups: Iterable[Sequence[_Part]]) -> pa.Array:
    return pa.concat_arrays([_GroupRows.of(group).rows for group in groups])


def _place_in(chunks: Iterable[Chunk], row: int) -> str:
    """Where a row of the chunks came from, by its number."""
    for chunk in chunks:
        if row < chunk.rows:
            positions = np.concatenate([index.positions for index in chunk.row_indexes if index is not None])
            return f" at source_partition={chunk.partition} position={positions[row]}"
        row -= chunk.rows
    return ""


def _keys_by_chunk(groups: Iterable[Sequence[_Part]], key: TableKey) -> list[pa.Array]:
    """The keys of each chunk's rows."""
    by_chunk: dict[int, list[pa.Array]] = {}
    for group in groups:
        for part, keys in zip(group, _GroupRows.of(group).keys(key), strict=True):
            by_chunk.setdefault(id(part.chunk), []).append(keys)
    return list(map(_concat, by_chunk.values()))


def _concat(keys: Sequence[pa.Array]) -> pa.Array:
    return keys[0] if len(keys) == 1 else pa.concat_arrays(of_one_type(*keys))


@dataclass(frozen=True, slots=True)
class _GroupRows:
    """The rows of a group in one buffer; `starts` has the place of each row, then the end."""

    group: Sequence[_Part]
    text: Octets
    starts: Ints

    @classmethod
    def of(cls, group: Sequence[_Part]) -> _GroupRows:
        if group[0].in_place:
            return cls(group, np.frombuffer(group[0].text, np.uint8), group[0].starts)
        content = bytearray().join((*(part.piece for part in group), bytes(ROOM)))
        previous = accumulate((part.piece.nbytes for part in group), initial=0)
        starts = [part.starts[:-1] + (low - part.starts[0]) for part, low in zip(group, previous, strict=False)]
        return cls(group, np.frombuffer(content, np.uint8), np.concatenate((*starts, [len(content) - ROOM])))

    def keys(self, key: TableKey) -> list[pa.Array]:
        """The keys of each part's rows."""
        keys = read_keys(self.text, self.starts, key)
        return [keys.slice(low, high - low) for low, high in self._bounds()]

    def _bounds(self) -> Iterator[tuple[int, int]]:
        return pairwise([0, *accumulate(part.rows for part in self.group)])

    @property
    def rows(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self.starts), pa.py_buffer(self.text)]
        return pa.Array.from_buffers(pa.large_binary(), len(self.starts) - 1, buffers)

    def select(
        self, rows_to_send: Bools, survivors: Bools, replaced: dict[str, ReplacedRows]
    ) -> tuple[memoryview, int]:
        """The `rows_to_send`, and the number of deletes among those that are not `kept`; adds these to `replaced`."""
        rows = self.rows
        offsets, data = layout(rows.filter(pa.array(rows_to_send)))
        sizes = np.diff(self.starts)
        for part, (low, high) in zip(self.group, self._bounds(), strict=True):
            left_out = ~survivors[low:high]
            if left_out.any():
                former = replaced.get(part.chunk.partition, ReplacedRows())
                count, size = int(np.count_nonzero(left_out)), int(sizes[low:high][left_out].sum())
                replaced[part.chunk.partition] = ReplacedRows(former.rows + count, former.bytes + size)
        return memoryview(data)[int(offsets[0]) : int(offsets[-1])], _count_deletes(rows.filter(pa.array(~survivors)))


def _count_deletes(rows: pa.Array) -> int:
    return int(pc.sum(pc.starts_with(rows, _DELETE)).as_py() or 0)
