"""The data of lanes and coordinator: segments come in, regions and chunks are inside, actions and receipts go out.

**In.** A segment is either rows of one region as ready bytes, or ends of source transactions.

**Inside.** A region holds segments until a load takes them. It has one *active* chunk, which takes rows; freezing makes
it *inactive*, and only inactive chunks are sent. A chunk is frozen

- at a clean boundary, once the mini interval has passed since the region's last freeze: small source transactions then
  share a load;
- by size, also inside a source transaction: memory stays bounded. Loading a part of a source transaction is harmless,
  because only a commit makes rows visible and a commit needs a clean boundary.

**Out.** Actions are steps of a label; `said` names one in errors. A receipt exists only for a StarRocks
transaction that was confirmed VISIBLE. Executors are short-lived, so receipts also carry counts to the driver's
metrics: each committed row is counted once, however often its task was repeated.

See docs/inside/architecture.md, "The life of a StarRocks transaction", step 2. Pure: time is an argument; pieces are
opaque byte buffers and are never copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import orjson

from starrocks_txn_sink import typed_json
from starrocks_txn_sink.errors import RowsRejected, StarRocksSinkError
from starrocks_txn_sink.protocol.label import Begun, Loaded, Outcome

Ints = npt.NDArray[np.int64]

SEPARATOR: Final = ","
"""Stands in front of each JSON row: behind the last row it would end up inside the JSON array (`rows.body`)."""

_TYPE_MARK: Final = "="
_FILLED: Final = "filled"


@dataclass(frozen=True, slots=True)
class ColumnNeeds:
    """What rows need of a column that their table lacks, or has with too narrow a type.

    `kinds` of their values, by name (`rows.value_kinds`); the column's `types` by the source's schema. `filled`: the
    source fills the column in rows that it has, and writes no change of them.
    """

    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    filled: bool = False

    def __or__(self, other: ColumnNeeds) -> ColumnNeeds:
        """The needs of both, in an order of their own."""
        kinds, types = {*self.kinds, *other.kinds}, {*self.types, *other.types}
        return ColumnNeeds(tuple(sorted(kinds)), tuple(sorted(types)), self.filled or other.filled)

    def to_words(self) -> list[str]:
        """The form of messages and checkpoints: types with a mark, `filled` as a word."""
        return [*self.kinds, *(_TYPE_MARK + type_ for type_ in self.types), *([_FILLED] if self.filled else [])]

    @classmethod
    def of_words(cls, words: Sequence[str]) -> ColumnNeeds:
        """The needs that `to_words` has written."""
        kinds = tuple(word for word in words if not word.startswith(_TYPE_MARK) and word != _FILLED)
        types = tuple(word.removeprefix(_TYPE_MARK) for word in words if word.startswith(_TYPE_MARK))
        return cls(kinds, types, _FILLED in words)


MissingColumns = Mapping[str, Mapping[str, ColumnNeeds]]
"""Columns that rows need and tables lack, by table and name."""


def words_of_missing(missing: MissingColumns) -> dict[str, dict[str, list[str]]]:
    """`missing` in JSON's types."""
    return {table: {name: needs.to_words() for name, needs in columns.items()} for table, columns in missing.items()}


def missing_of_words(words: Mapping[str, Mapping[str, Sequence[str]]]) -> MissingColumns:
    """The columns that `words_of_missing` has written."""
    return {
        table: {name: ColumnNeeds.of_words(of_column) for name, of_column in columns.items()}
        for table, columns in words.items()
    }


@dataclass(frozen=True, slots=True)
class RowIndex:
    """Where the rows of a piece begin; for dead letters, and for the rows' keys.

    `positions` has each row's position, ascending; `offsets` has the byte at which each row begins, then the end.
    """

    positions: Ints
    offsets: npt.NDArray[np.integer]

    def cut(self, piece: memoryview, low: int, high: int) -> tuple[memoryview, RowIndex]:
        """Slice rows `low` to `high` (exclusive) out of `piece`; returns the slice and its index."""
        start = int(self.offsets[0])
        part = piece[int(self.offsets[low]) - start : int(self.offsets[high]) - start]
        return part, RowIndex(self.positions[low:high], self.offsets[low : high + 1])

    def rows(self, piece: memoryview) -> list[bytes]:
        """Bytes of each row, separator included."""
        start = int(self.offsets[0])
        ends = [int(offset) - start for offset in self.offsets]
        return [bytes(piece[low:high]) for low, high in itertools.pairwise(ends)]


@dataclass(frozen=True, slots=True)
class RegionRows:
    """Rows of one region: `piece` holds the ready bytes of `rows` rows.

    `row_index` is None unless the segmenter makes one.
    """

    partition: str
    table: str
    piece: memoryview
    rows: int
    row_index: RowIndex | None = None


@dataclass(frozen=True, slots=True)
class PositionSpan:
    """First and last position of a source partition in the transaction, with its number of source transactions.

    `digest` fingerprints the content of the last source transaction. As a segment a span says that its source
    transactions end with the rows written last for their partition; a span without source transactions ends an
    unpositioned batch.
    """

    partition: str
    first: int
    last: int
    source_transactions: int
    digest: str = ""


Segment = RegionRows | PositionSpan


@dataclass(slots=True)
class Chunk:
    """Rows of one region in arrival order: `pieces` are buffers of ready bytes, `bytes` is their total length.

    `row_indexes` has an entry for each piece; None for pieces without a row index. The pieces of a `spilled` chunk are
    in a file.
    """

    partition: str
    table: str
    pieces: list[memoryview] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    row_indexes: list[RowIndex | None] = field(default_factory=list)
    spilled: bool = False

    def append(self, piece: memoryview, rows: int, row_index: RowIndex | None = None) -> None:
        """Add the ready bytes of `rows` rows behind those that are here; keeps `piece`, without a copy."""
        self.pieces.append(piece)
        self.row_indexes.append(row_index)
        self.rows += rows
        self.bytes += piece.nbytes

    @property
    def memory(self) -> int:
        """Bytes of its rows in memory."""
        return 0 if self.spilled else self.bytes


@dataclass(slots=True)
class Region:
    """Rows of one (source partition, table), with the active chunk.

    `clean_boundary` is False while a source transaction is half written here. `last_freeze` is None before the first
    freeze: the first source transaction is frozen at once, so that loading starts early.
    """

    partition: str
    table: str
    active: Chunk = field(init=False)
    last_freeze: float | None = None
    clean_boundary: bool = True

    def __post_init__(self) -> None:
        self.active = Chunk(self.partition, self.table)

    def write(self, rows: RegionRows) -> None:
        """Take rows; the region stays inside a source transaction until `end_transaction`."""
        self.active.append(rows.piece, rows.rows, rows.row_index)
        self.clean_boundary = False

    def end_transaction(self) -> None:
        """End the source transaction whose rows were written last."""
        self.clean_boundary = True

    def freeze_due(self, now: float, mini_interval: float) -> bool:
        """Whether to freeze the active chunk now: clean boundary, not empty, mini interval over."""
        if not self.clean_boundary or not self.active.rows:
            return False
        return self.last_freeze is None or now >= self.last_freeze + mini_interval

    def freeze(self, now: float) -> Chunk | None:
        """Start a new active chunk and return the old one, now inactive; None if it is empty."""
        if not self.active.rows:
            return None
        inactive, self.active = self.active, Chunk(self.partition, self.table)
        self.last_freeze = now
        return inactive


@dataclass(slots=True)
class OpenRegions:
    """Regions whose active chunk has rows, in the order of their first rows; a heap finds the regions that are due."""

    _regions: dict[tuple[str, str], Region] = field(default_factory=dict)
    _tables: dict[str, dict[str, Region]] = field(default_factory=dict)
    _schedule: list[tuple[float, str, str]] = field(default_factory=list)  # heap of (due time, partition, table)

    def __bool__(self) -> bool:
        return bool(self._regions)

    def add(self, region: Region) -> None:
        """Add a region whose active chunk has rows; one that is here keeps its place."""
        self._regions[(region.partition, region.table)] = region
        self._tables.setdefault(region.partition, {})[region.table] = region

    def remove(self, region: Region) -> None:
        """Take out a region whose active chunk was frozen; KeyError for one that is not here."""
        del self._regions[(region.partition, region.table)]
        del self._tables[region.partition][region.table]

    def all(self) -> list[Region]:
        """The regions in a list of its own, so that the caller may remove some meanwhile."""
        return list(self._regions.values())

    def in_partition(self, partition: str) -> list[Region]:
        """The regions of a source partition, in a list of its own; empty for one without rows."""
        return list(self._tables.get(partition, {}).values())

    def schedule(self, region: Region, mini_interval: float) -> None:
        """Note when `region`, at a clean boundary now, becomes due."""
        if region.last_freeze is not None:
            heappush(self._schedule, (region.last_freeze + mini_interval, region.partition, region.table))

    def due(self, now: float, mini_interval: float) -> Iterator[Region]:
        """Yield the scheduled regions that are due; a region inside a new source transaction is not due."""
        while self._schedule and self._schedule[0][0] <= now:
            _, partition, table = heappop(self._schedule)
            region = self._regions.get((partition, table))
            if region is not None and region.freeze_due(now, mini_interval):
                yield region


RECYCLE_AT = 0.8
"""Part of its timeout after which the driver recycles a StarRocks transaction: lanes stop, the driver commits, and the
lanes go on under the next label. The rest is time to reach a clean boundary, for the last loads, and for the commit."""


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Limits of a lane: sizes in bytes, times in seconds; see SinkOptions for their meaning."""

    mini_interval: float
    timeout: float
    buffer_bytes: int
    chunk_bytes: int
    load_bytes: int
    load_parallelism: int
    body_bytes: int = 64 << 20


# --- out: receipts and actions ---


@dataclass(frozen=True, slots=True)
class RegionCount:
    """Rows and bytes of one region in the transaction.

    `compacted` rows were not sent, because a later row of the transaction has their key.
    """

    partition: str
    table: str
    rows: int
    bytes: int
    compacted: int = 0


_SPANS_NAMED = 5


TablesAhead = Mapping[str, Sequence[Sequence[str]]]
"""By source partition the tables of its next source transactions, in order: those that each one has first."""


@dataclass(frozen=True, slots=True)
class LaneShare:
    """What one lane has loaded under the label, and all source partitions that it has met.

    For rows without positions `rows` is their number, and `sum` the sum of their hashes (`rows.unpositioned`). A lane
    that has `stopped` has more rows, for the next round. For a quarantine, `cuts` has positions at which source
    transactions of this share end that may have bad rows, by source partition: all of them, or some that are spread
    evenly, and the last one. `left` has the tables of source transactions that have no room under the label.
    `set_aside` says why the lane itself has set the first source transaction aside; "" if it has none.
    """

    loaded: tuple[Receipt, ...] = ()
    partitions: tuple[str, ...] = ()
    rows: int = 0
    sum: int = 0
    stopped: bool = False
    cuts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    left: TablesAhead = field(default_factory=dict)
    set_aside: str = ""


def name_spans(spans: Sequence[PositionSpan]) -> str:
    """The first source partitions with their positions, and how many more there are."""
    texts = [f"{span.partition} {span.first} to {span.last}" for span in spans[:_SPANS_NAMED]]
    rest = [f"{len(spans) - _SPANS_NAMED} more source partitions"] if len(spans) > _SPANS_NAMED else []
    return "; ".join([*texts, *rest])


def name_source(error: StarRocksSinkError, spans: Sequence[PositionSpan]) -> StarRocksSinkError:
    """`error`; RowsRejected also gets the source's positions in the batch, because the server names none."""
    if isinstance(error, RowsRejected) and spans:
        error.context["source_positions"] = name_spans(spans)
    return error


@dataclass(frozen=True, slots=True)
class Receipt:
    """One committed StarRocks transaction.

    The server has confirmed it as VISIBLE. Times are seconds.

    Args:
        label: The label of the transaction.
        txn_id: The server's number of the transaction, if it is known.
        job: The job that wrote it.
        batch_id: The number of the micro-batch.
        regions: Rows and bytes for each source partition and table.
        positions: First and last position of each source partition.
        loads: The number of loads.
        attempts: The number of attempts, each under a label of its own.
        retries: The number of retries in all attempts.
        recycled: Whether the sink committed it early, because of the age of its label: more of the micro-batch follows.
        phase_seconds: Seconds of begin, load, check, commit (the request), publish (until VISIBLE) and, after an
            unknown outcome, recover; summed over all attempts.
        committed_at: The time of the commit, in seconds since the Unix epoch.
        open_seconds: The age of the last attempt's label when it became VISIBLE.
        dead_lettered: Rows that the server rejected. They are in the dead-letter table, and not in `regions`.
        dead_lettered_positions: First and last position of the dead-lettered source transactions of each source
            partition. They are in `positions` too, because they are done.
    """

    label: str
    txn_id: int | None
    job: str
    batch_id: int
    regions: tuple[RegionCount, ...]
    positions: tuple[PositionSpan, ...]
    loads: int
    attempts: int
    retries: int
    recycled: bool
    phase_seconds: dict[str, float] = field(default_factory=dict)
    committed_at: float = 0.0
    open_seconds: float = 0.0
    dead_lettered: tuple[RegionCount, ...] = ()
    dead_lettered_positions: tuple[PositionSpan, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of all regions."""
        return sum(region.rows for region in self.regions)

    @property
    def dead_lettered_rows(self) -> int:
        """Rows of dead letters; input rows = `rows` + `compacted` + `dead_lettered_rows`."""
        return sum(region.rows for region in self.dead_lettered)

    @property
    def compacted(self) -> int:
        """Rows that a later row replaced before the load."""
        return sum(region.compacted for region in self.regions)

    @property
    def bytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.bytes for region in self.regions)

    @property
    def source_transactions(self) -> int:
        """Source transactions of all source partitions, dead-lettered ones not counted."""
        return sum(span.source_transactions for span in self.positions) - self.dead_lettered_transactions

    @property
    def dead_lettered_transactions(self) -> int:
        """Source transactions that are dead letters."""
        return sum(span.source_transactions for span in self.dead_lettered_positions)

    @property
    def tables(self) -> dict[str, int]:
        """Rows per table."""
        rows: dict[str, int] = {}
        for region in self.regions:
            rows[region.table] = rows.get(region.table, 0) + region.rows
        return rows

    def to_json(self) -> str:
        """The receipt as one line of JSON; see `from_json`."""
        return orjson.dumps(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """The receipt that `to_json` has written.

        Args:
            text: One line of JSON.
        """
        return typed_json.read(cls, orjson.loads(text))


@dataclass(frozen=True)
class _LabelAction:
    label: str


class BeginAction(_LabelAction):
    """Open a StarRocks transaction."""

    phrase: ClassVar = "begin"


@dataclass(frozen=True)
class LoadAction(_LabelAction):
    """Send chunks of one table under the label.

    With `newest_first` the table's earlier loads had newer chunks; the `older` ones wait for later loads.
    """

    table: str
    chunks: tuple[Chunk, ...]
    newest_first: bool = False
    older: tuple[Chunk, ...] = ()

    @property
    def phrase(self) -> str:
        """The action in errors, as in "after … failed"."""
        return f"the load into {self.table}"

    @property
    def pieces(self) -> list[memoryview]:
        """The ready bytes of all chunks, in the order of the rows; those of spilled chunks are read from their file."""
        return [piece for chunk in self.chunks for piece in chunk.pieces]

    @property
    def bytes(self) -> int:
        """The length of all `pieces`, in memory or in a file."""
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def memory(self) -> int:
        """Bytes of its rows in memory."""
        return sum(chunk.memory for chunk in self.chunks)


class CheckAction(_LabelAction):
    """Read the owner of the job again: it must still be this driver."""

    phrase: ClassVar = "the owner check"


@dataclass(frozen=True)
class RecoverAction(_LabelAction):
    """Settle an unknown outcome: end the label for good, and read the ledger.

    The rows are visible exactly if the ledger has `label` at the last positions of `spans`.
    """

    phrase: ClassVar = "the look into the ledger after the commit"
    spans: tuple[PositionSpan, ...]


@dataclass(frozen=True)
class CommitAction(_LabelAction):
    """Commit, and confirm that the rows are VISIBLE; `attempt` counts the labels for the same rows, from 1."""

    phrase: ClassVar = "the commit"
    attempt: int = 1


class RollbackAction(_LabelAction):
    """Roll the label back."""

    phrase: ClassVar = "the rollback"


Action = BeginAction | LoadAction | CheckAction | CommitAction | RecoverAction | RollbackAction

Result = Begun | Loaded | Outcome | StarRocksSinkError | None
"""The value that the steps of an action returned, or the error they raised."""
