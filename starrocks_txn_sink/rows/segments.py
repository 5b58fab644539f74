"""Segmenter: cuts Arrow batches into segments, slices of one string buffer, without the rows of earlier runs.

Rows arrive ordered by (source partition, position, seq). No Python code runs per row: ends of source transactions are
index arrays, one stable sort and one `take` bring the rows of a table together, and a segment is a slice of the result.

Torn input raises an error before anything is committed: a source transaction without an end row or with rows after it,
or a NULL. Rows that Spark cuts off, because a task is stopped or its JVM dies, never get that far: then Spark has no
result of the task, and the driver commits nothing without one.

**Replay.** Rows at or below the ledger's position of their source partition are visible already, so the Segmenter
leaves them out, wherever this micro-batch begins and ends (docs/inside/exactly-once.md, "How it works"). A recreated
source may have other rows at these positions: then the lane must fail, because leaving rows out would lose them. Two
rules detect such a source:

- The source transaction at the ledger's position must have the ledger's fingerprint.
- A source that repeats earlier rows must also repeat a source transaction that ends exactly at the ledger's position. A
  recreated source rarely has one. Such a *skip* may span Arrow batches and micro-batches: the lane reports the skip,
  and the driver passes it to the next lanes.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.coordinator.model import Ints, PositionSpan, RegionRows, RowIndex, Segment
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.options.sink_options import OWN_TABLES, is_own_table
from starrocks_txn_sink.protocol.label import epoch_of
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.admission import PartitionRun, TableAdmission, TaggedRows
from starrocks_txn_sink.rows.places import PLACE_AND_TABLE, place_of

Octets = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

CheckRows = Callable[[pa.RecordBatch], None]
"""Raises an error for a batch that may not be written."""


class SetAside(Protocol):
    """Finds the source transactions that are set aside, and turns their rows into others."""

    def __call__(
        self, batch: pa.RecordBatch, runs: Sequence[PartitionRun], positions: Ints, begun: tuple[str, int] | None, /
    ) -> tuple[pa.RecordBatch, Bools | None]:
        """The batch with other rows in place of those set aside, and the mask of these; None for none.

        Segments with rows of the source transaction that has `begun` are out already.
        """


FitRows = Callable[[pa.RecordBatch], pa.RecordBatch]
"""The batch with its rows as they are sent; raises an error for a row that may not be sent."""


def as_they_are(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`FitRows` that changes and refuses nothing."""
    return batch


PIN_LIMIT: Final = 4
"""A piece smaller than 1/PIN_LIMIT of its buffer is copied: a slice keeps the whole buffer in memory, but counts in the
write buffer with its own bytes only. Rows of a rare table wait there while many batches of a busy table pass."""
SLICE_BYTES: Final = 16 << 20
"""Larger batches (Spark sends up to 64 MiB at once) are split into slices, because their rows are copied by table."""

_CHANGED_HINT: Final = (
    "If the source is new, give the query another `job` and a new checkpoint, or delete this job's position rows from "
    "the ledger (starrocks-txn-sink recover shows them). If the query computes values that differ from run to run, set "
    "check_replays=False."
)

_FIRST: Final = ", first at "
_DIGEST: Final = "crc1:"  # begins a fingerprint; a digest that begins otherwise is not compared


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Arrays of a batch of rows: `bounds` are the byte offsets of each row's payload in `data`, then the end."""

    positions: Ints
    ends: Bools
    bounds: Ints
    data: memoryview

    def fingerprint(self, low: int, high: int, start: int) -> int:
        """Checksum of rows `low` to `high` (exclusive), continued from `start`."""
        return zlib.crc32(self.data[self.bounds[low] : self.bounds[high]], start)


@dataclass(frozen=True, slots=True)
class Skip:
    """Rows that were left out up to the ledger's `position` of a source partition.

    `met` says whether a source transaction has ended exactly there.
    """

    position: int
    met: bool


@dataclass(slots=True)
class Replay:
    """Finds the rows of one lane that are in StarRocks already; the batches must come in order.

    `committed` has the ledger's positions by source partition; `compare` turns the comparison on. `skips`, by source
    partition, starts with the skips of earlier micro-batches; `changed` names the partitions whose skip this lane has
    set. `epoch` is the driver's run, "" if unknown. Spark repeats a micro-batch only in another run: if an earlier
    micro-batch of this run wrote a higher position, a row is no replay, but proof that the source's positions do not
    grow. `partitions` are the source partitions that the lane has met.
    """

    committed: Mapping[str, Position] = field(default_factory=dict)
    compare: bool = True
    epoch: str = ""
    batch: int = 0
    skips: dict[str, Skip] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    skipped_rows: int = 0
    skipped_transactions: int = 0
    partitions: set[str] = field(default_factory=set)
    _partition: str | None = None
    _open_checksum: int = 0  # of the source transaction that the batch before left unfinished

    def fingerprints(self, runs: Sequence[PartitionRun], rows: BatchRows) -> dict[str, str]:
        """Fingerprint of the last source transaction that each run ends; call it for every batch, in order.

        Raises SourceChanged if the contents of the source transaction at the ledger's position have changed.
        """
        digests: dict[str, str] = {}
        for partition, low, high in runs:
            start = self._open_checksum if partition == self._partition else 0
            self._compare(partition, low, high, start, rows)
            self._partition = partition
            ends = np.flatnonzero(rows.ends[low:high]) + low
            if not ends.size:
                self._open_checksum = rows.fingerprint(low, high, start)
                continue
            # The last ended source transaction of the run may have begun in the batch before.
            begin, seed = (int(ends[-2]) + 1, 0) if ends.size > 1 else (low, start)
            end = int(ends[-1]) + 1
            digests[partition] = _digest_text(rows.fingerprint(begin, end, seed))
            self._open_checksum = rows.fingerprint(end, high, 0)
        return digests

    def new_rows(self, runs: Sequence[PartitionRun], rows: BatchRows) -> Bools | None:
        """Mask of the rows that are not in StarRocks yet; None if all are new, the usual case.

        Raises SourceChanged for new rows after a skip without a source transaction that ends at the ledger's position.
        """
        keep: Bools | None = None
        for partition, low, high in runs:
            position = self.committed.get(partition)
            if position is None:
                continue
            if rows.positions[low] > position.position:
                self._refuse_passing(position, int(rows.positions[low]))
                continue
            self._refuse_going_back(position, int(rows.positions[low]))
            if keep is None:
                keep = np.ones(len(rows.positions), np.bool_)
            cut = low + int(np.searchsorted(rows.positions[low:high], position.position, side="right"))
            self._follow_skip(position, low, cut, rows)
            if cut < high:
                self._refuse_passing(position, int(rows.positions[cut]))
            keep[low:cut] = False
            self.skipped_rows += cut - low
            self.skipped_transactions += int(rows.ends[low:cut].sum())
        return keep

    def _follow_skip(self, entry: Position, low: int, cut: int, rows: BatchRows) -> None:
        """Remember that rows `low` to `cut` (exclusive) were left out, unless a known skip goes on without its end."""
        is_met = bool(rows.positions[cut - 1] == entry.position and rows.ends[cut - 1])
        part = self._skip_to(entry)
        if is_met or (part is None and rows.positions[low] < entry.position):
            self.skips[entry.partition] = Skip(entry.position, is_met)
            self.changed.add(entry.partition)

    def _skip_to(self, entry: Position) -> Skip | None:
        """The partition's skip to the position `entry`; a skip to an older position does not count any more."""
        skip = self.skips.get(entry.partition)
        return skip if skip is not None and skip.position == entry.position else None

    def _refuse_passing(self, entry: Position, position: int) -> None:
        skip = self._skip_to(entry)
        if skip is None or skip.met or not self.compare:
            return
        raise SourceChanged(
            f"Source partition {entry.partition} went on to position {position} without a source transaction that ends "
            f"at position {entry.position}, the last one that was written (label {entry.label}): the source was "
            "recreated or rewound, or the query leaves other rows out now. Rows up to there were left out as written.",
            hint=_CHANGED_HINT,
        )

    def _refuse_going_back(self, entry: Position, position: int) -> None:
        if self.epoch and epoch_of(entry.label) == self.epoch and entry.batch < self.batch:
            raise InputError(
                f"Source partition {entry.partition} went back to position {position}, after position {entry.position} "
                f"was written in micro-batch {entry.batch}.",
                hint="Give each source transaction a position that grows within its partition, over all micro-batches.",
            )

    def _compare(self, partition: str, low: int, high: int, start: int, rows: BatchRows) -> None:
        entry = self.committed.get(partition)
        if entry is None or not self.compare or not entry.digest.startswith(_DIGEST):
            return
        first, end = (
            low + int(np.searchsorted(rows.positions[low:high], entry.position, side=side))
            for side in ("left", "right")
        )
        if end == first or not rows.ends[end - 1]:
            return
        if _digest_text(rows.fingerprint(first, end, start if first == low else 0)) != entry.digest:
            raise source_changed(f"source partition {partition}, position {entry.position}", entry)


def source_changed(place: str, entry: Position) -> SourceChanged:
    """The error for other contents at a place that the ledger has."""
    return SourceChanged(
        f"The rows at {place} differ from those that were written there before (label {entry.label}): the source was "
        "recreated or rewound, or the query computes other values now.",
        hint=_CHANGED_HINT,
    )


def _digest_text(checksum: int) -> str:
    return f"{_DIGEST}{checksum:08x}"


@dataclass(slots=True)
class Segmenter:
    """Splits the batches of one lane into segments; keeps its place between batches to detect torn input.

    Leaves out rows that are in StarRocks already (`replay`). `with_row_index` adds row indexes, for the quarantine and
    for the rows' keys. `check` gets the remaining rows of each batch, without those that `admission` lets wait, or that
    are `set_aside`. Cuts are of those source transactions with rows of the `suspected` tables; none: of all that are
    not set aside. Then `fit` writes the rows as they are sent.
    """

    replay: Replay = field(default_factory=Replay)
    with_row_index: bool = False
    check: CheckRows | None = None
    admission: TableAdmission | None = None
    set_aside: SetAside | None = None
    suspected: frozenset[str] = frozenset()
    fit: FitRows = as_they_are
    _partition: str | None = None
    _position: int = -1
    _inside: bool = False
    _ended: dict[str, list[Ints]] = field(default_factory=dict)  # positions of source transactions, for `cuts`
    _candidates: dict[str, list[Ints]] = field(default_factory=dict)  # of those that may have bad rows

    def split(self, batch: pa.RecordBatch) -> Iterator[Segment]:
        """Yield the segments of a batch, in order within each source partition.

        Raises InputError for NULLs, positions that go back, rows after the end of their source transaction, and rows
        of a new position before the end of the last one. The message names the place and no contents of a row.
        """
        for rows in slices_of(batch):
            yield from self._split(rows)

    def _split(self, batch: pa.RecordBatch) -> Iterator[Segment]:
        refuse_nulls(batch)
        runs, rows = list_runs(runs_of(batch)), _batch_rows(batch)
        begun = (str(self._partition), self._position) if self._inside else None
        for name, low, high in runs:
            self.replay.partitions.add(name)
            self._check_run(name, rows.positions[low:high], rows.ends[low:high])
        tables = pc.dictionary_encode(batch.column(columns.TABLE))
        if self.admission is not None:
            tagged = TaggedRows(
                rows.positions, tables.indices.to_numpy(zero_copy_only=False), tables.dictionary.to_pylist()
            )
            admitted = self.admission.admit(runs, tagged)
            if admitted is not None:
                tables, batch = None, batch.filter(pa.array(admitted))
                runs, rows = list_runs(runs_of(batch)), _batch_rows(batch)
        digests = self.replay.fingerprints(runs, rows)  # before rows are left out: the ledger's are compared
        new = self.replay.new_rows(runs, rows)
        if new is not None:
            tables, batch = None, batch.filter(pa.array(new))
            runs, rows = list_runs(runs_of(batch)), _batch_rows(batch)
        if not batch.num_rows:
            return
        aside: Bools | None = None
        rest = batch
        if self.set_aside is not None:
            batch, aside = self.set_aside(batch, runs, rows.positions, begun)
        if aside is not None:
            rest, rows, tables = rest.filter(pa.array(~aside)), _batch_rows(batch), None
            _refuse_own_tables(rest, pc.dictionary_encode(rest.column(columns.TABLE)))
        if self.check is not None and rest.num_rows:
            self.check(rest)
        if self.set_aside is not None:
            self._note_ends(batch, runs, rows, aside)
        batch = self.fit(batch)
        yield from segments_of(batch, runs, rows, digests, self.with_row_index, tables, own_tables=aside is not None)

    @property
    def knows_enough(self) -> bool:
        """Whether the next label's tables are known, with all of the source transaction that was read last."""
        return self.admission is not None and self.admission.knows_enough and not self._inside

    def _note_ends(
        self, batch: pa.RecordBatch, runs: Sequence[PartitionRun], rows: BatchRows, aside: Bools | None
    ) -> None:
        """Keep the positions at which source transactions end, for `cuts`."""
        candidates = np.ones(batch.num_rows, dtype=bool) if aside is None else ~aside
        if self.suspected:
            suspected = pc.is_in(batch.column(columns.TABLE), value_set=pa.array(sorted(self.suspected), pa.string()))
            candidates &= suspected.to_numpy(zero_copy_only=False)
        for name, low, high in runs:
            self._ended.setdefault(name, []).append(rows.positions[low:high][rows.ends[low:high]])
            self._candidates.setdefault(name, []).append(np.unique(rows.positions[low:high][candidates[low:high]]))

    def cuts(self, limit: int, reached: Mapping[str, int]) -> dict[str, list[int]]:
        """Positions at which source transactions end that may have bad rows, by source partition; needs `set_aside`.

        They are not behind those that the lane has `reached`: it may have read more. At most `limit` (and at least two)
        of each source partition, spread evenly, and the last one.
        """
        cuts: dict[str, list[int]] = {}
        for name in self._ended.keys() & reached.keys():
            positions, candidates = np.concatenate(self._ended[name]), np.concatenate(self._candidates[name])
            positions = positions[np.isin(positions, candidates) & (positions <= reached[name])]
            if positions.size > limit:
                positions = positions[np.linspace(0, positions.size - 1, limit).astype(np.int64)]
            if positions.size:
                cuts[name] = positions.tolist()
        return cuts

    def _check_run(self, partition: str, positions: Ints, ends: Bools) -> None:
        if partition != self._partition and self._inside:
            raise _torn_error(self._partition, self._position)
        same = partition == self._partition
        # Position of the row before each row, and whether a source transaction ended with it; the first row of a
        # partition follows an imagined one.
        previous = np.concatenate(([self._position if same else positions[0] - 1], positions[:-1]))
        is_start = np.concatenate(([not self._inside if same else True], ends[:-1]))
        has_moved = positions != previous
        if (back := np.flatnonzero(positions < previous)).size:
            raise InputError(
                f"The rows of source partition {partition} are not in the order of their positions: "
                f"{positions[back[0]]} came after {previous[back[0]]}.",
                hint="Give each source transaction a position of its own that grows within its partition.",
            )
        if (torn_rows := np.flatnonzero(has_moved & ~is_start)).size:
            raise _torn_error(partition, int(previous[torn_rows[0]]))
        if (late := np.flatnonzero(~has_moved & is_start)).size:
            raise InputError(
                f"Rows of source partition {partition}, position {positions[late[0]]}, come after the row that is "
                "marked as the end of that source transaction.",
                hint="transaction_end belongs on the last row of a source transaction only, and seq must grow.",
            )
        self._partition, self._position, self._inside = partition, int(positions[-1]), not bool(ends[-1])


def rows_of_part(batch: pa.RecordBatch, starts: Mapping[str, int], upto: Mapping[str, int] | None) -> pa.RecordBatch:
    """The rows behind the position that `starts` has for their source partition, up to the one that `upto` has.

    With `upto` there are none of source partitions that it does not name.
    """
    if starts:
        later = pc.fill_null(pc.greater(batch.column(columns.POSITION), _limits(batch, starts)), True)
        batch = batch.filter(later)
    if upto is not None:
        within = pc.fill_null(pc.less_equal(batch.column(columns.POSITION), _limits(batch, upto)), False)
        batch = batch.filter(within)
    return batch


def _limits(batch: pa.RecordBatch, positions: Mapping[str, int]) -> pa.Array:
    """For each row the position of its source partition in `positions`, or NULL."""
    names = pa.array(list(positions), pa.string())
    return pa.array(list(positions.values()), pa.int64()).take(pc.index_in(batch.column(columns.PARTITION), names))


def slices_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a batch, cut to about SLICE_BYTES each; nothing for a batch without rows."""
    step = batch.num_rows * SLICE_BYTES // max(batch.nbytes, 1) + 1
    return (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def runs_of(batch: pa.RecordBatch) -> pa.RunEndEncodedArray:
    """Runs of equal source partitions; the column has no NULL."""
    names = batch.column(columns.PARTITION)
    if all_equal(names):
        kind = pa.run_end_encoded(pa.int32(), names.type)
        return pa.RunEndEncodedArray.from_arrays([len(names)], names[:1], kind)  # a list: PyArrow 14 takes no array
    return pc.run_end_encode(names)


def all_equal(names: pa.Array) -> bool:
    """Whether all names, none of them NULL, are equal. Of texts: same lengths, and the buffer equals itself shifted."""
    if len(names) < 2:
        return bool(len(names))
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        return bool(pc.all(pc.equal(names, names[0])).as_py())
    bounds = bounds_of(names)
    first, size, last = int(bounds[0]), int(bounds[1] - bounds[0]), int(bounds[-1])
    if last - first != size * len(names) or not np.all(np.diff(bounds) == size):
        return False
    data = names.buffers()[2]
    return not size or data.slice(first, last - size - first).equals(data.slice(first + size, last - size - first))


def list_runs(runs: pa.RunEndEncodedArray) -> list[PartitionRun]:
    """Each run's value, first row, and row after the last."""
    bounds = pairwise([0, *runs.run_ends.to_pylist()])
    return [(name, low, high) for name, (low, high) in zip(runs.values.to_pylist(), bounds, strict=True)]


def _batch_rows(batch: pa.RecordBatch) -> BatchRows:
    positions = batch.column(columns.POSITION).to_numpy(zero_copy_only=False)
    ends = batch.column(columns.TRANSACTION_END).to_numpy(zero_copy_only=False)
    offsets, data = layout(batch.column(columns.PAYLOAD))
    return BatchRows(positions, ends, offsets, memoryview(data))


def segments_of(
    batch: pa.RecordBatch,
    runs: list[PartitionRun],
    rows: BatchRows,
    digests: Mapping[str, str],
    with_row_index: bool = False,
    tables: pa.DictionaryArray | None = None,
    *,
    own_tables: bool = False,
) -> Iterator[Segment]:
    """Yield segments of checked rows: the whole source transactions of each run, their ends, then its open rest.

    `tables` is the encoded column of the rows' tables, if it is known. Raises InputError for a table of the sink,
    unless rows may be for `own_tables`.
    """
    parts = [part for run in runs for part in _split_run(*run, rows.ends)]
    tables = pc.dictionary_encode(batch.column(columns.TABLE)) if tables is None else tables
    names = tables.dictionary.to_pylist()
    if not own_tables:
        _refuse_own_tables(batch, tables)
    groups = tables.indices.to_numpy(zero_copy_only=False)
    if len(parts) > 1:  # a number for each (part, table), so that a sort by table leaves the parts in order
        groups = groups + np.repeat(np.arange(len(parts)) * len(names), [high - low for _, low, high, _ in parts])
    payload, groups, order = _sort_by_group(batch.column(columns.PAYLOAD), groups)
    positions = rows.positions if order is None or not with_row_index else rows.positions[order]
    offsets, buffer = layout(payload)
    data = memoryview(buffer)
    bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    group = 0
    for partition, low, high, complete in parts:
        while group < len(bounds) - 1 and bounds[group] < high:
            first, last = bounds[group], bounds[group + 1]
            table, piece = names[groups[first] % len(names)], data[offsets[first] : offsets[last]]
            row_index = RowIndex(positions[first:last], offsets[first : last + 1]) if with_row_index else None
            yield unpin(RegionRows(partition, table, piece, last - first, row_index), data.nbytes)
            group += 1
        if complete:
            place = rows.positions[low:high][rows.ends[low:high]]
            yield PositionSpan(partition, int(place[0]), int(place[-1]), len(place), digests.get(partition, ""))


def unpin(rows: RegionRows, buffer_bytes: int) -> RegionRows:
    """The rows, copied if they are a small part of a buffer of `buffer_bytes`."""
    if rows.piece.nbytes * PIN_LIMIT >= buffer_bytes:
        return rows
    index = rows.row_index
    copied = index and RowIndex(index.positions.copy(), index.offsets.copy())
    return replace(rows, piece=memoryview(bytes(rows.piece)), row_index=copied)


def _refuse_own_tables(batch: pa.RecordBatch, tables: pa.DictionaryArray) -> None:
    """Raise InputError for a table of the sink. Every way into the sink passes here, so no row reaches the ledger."""
    for code, name in enumerate(tables.dictionary.to_pylist()):
        if is_own_table(name):
            row = pc.index(tables.indices, code).as_py()
            place = place_of(batch, row, _FIRST)
            raise InputError(
                f"A row is for the table {name}, which belongs to the sink{place}.",
                hint=f"Names that begin with {OWN_TABLES} are reserved: correct the source, or filter such rows out.",
            )


def _split_run(partition: str, low: int, high: int, ends: Bools) -> Iterator[tuple[str, int, int, bool]]:
    """Yield a run's whole source transactions, then its open rest: (partition, first row, row after last, whole)."""
    last_rows = np.flatnonzero(ends[low:high])
    cut = low + int(last_rows[-1]) + 1 if last_rows.size else low
    if cut > low:
        yield partition, low, cut, True
    if high > cut:
        yield partition, cut, high, False


def _sort_by_group(payload: pa.Array, groups: Ints) -> tuple[pa.Array, Ints, Ints | None]:
    """Payload and groups, stably sorted by group, and the order; copies nothing (order None) if they are sorted."""
    if np.all(groups[1:] >= groups[:-1]):
        return payload, groups, None
    order = pc.array_sort_indices(pa.array(groups))  # a stable sort, and a counting one where groups are few
    return payload.take(order), groups[order], order.to_numpy()


def layout(values: pa.Array) -> tuple[Ints, pa.Buffer]:
    """Offsets of strings or binaries in their data buffer, then the end of the last one; and that buffer."""
    return bounds_of(values).astype(np.int64), values.buffers()[2] or pa.py_buffer(b"")


def bounds_of(values: pa.Array) -> np.ndarray[Any, Any]:
    """The offsets of `layout` without a copy: int32, or int64 for large strings and binaries."""
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    bounds = np.frombuffer(values.buffers()[1], dtype=np.int64 if wide else np.int32)
    return bounds[values.offset : values.offset + len(values) + 1]


def refuse_nulls(batch: pa.RecordBatch, names: tuple[str, ...] = columns.COLUMNS) -> None:
    """Raise InputError with the first NULL in a column of `names`."""
    for name in names:
        column = batch.column(name)
        if column.null_count:
            place = place_of(batch, pc.index(column.is_null(), True).as_py(), _FIRST, PLACE_AND_TABLE)
            raise InputError(
                f"Column {name} is NULL in {column.null_count} of {batch.num_rows} rows{place}.",
                hint="Every row needs a source partition, a position, a table, transaction_end and its content.",
            )


def _torn_error(partition: str | None, position: int) -> InputError:
    return InputError(
        f"The source transaction at position {position} of source partition {partition} has no row marked as its end.",
        hint="Give the sink whole source transactions: the output of assemble_transactions, unfiltered.",
    )
