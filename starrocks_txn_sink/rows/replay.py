"""Replay: leaves out rows that are in StarRocks already, and compares their contents with the ledger.

Positions decide: rows at or below the ledger's position of their source partition are visible and are left out, however
the micro-batch is cut this time (docs/inside/exactly-once.md, "How it works"). A source that starts again with other
contents must be an error and no skipped row, so two rules hold:

- a fingerprint compares the source transaction at the ledger's position;
- a source that repeats rows below that position has to repeat the source transaction that ends exactly there before it
  goes on. A recreated source rarely has one. Such a *skip* may span Arrow batches, and micro-batches: the lane reports
  it, and the driver gives it to the next lanes.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from starrocks_txn_sink.coordinator.model import Ints
from starrocks_txn_sink.errors import InputError, SourceChanged
from starrocks_txn_sink.protocol.label import epoch_of, run_of
from starrocks_txn_sink.protocol.ledger import Position

_CHANGED_HINT: Final = (
    "If the source is new, give the query another `job` and a new checkpoint, or delete this job's position rows from "
    "the ledger (starrocks-txn-sink recover shows them). If the query computes values that differ from run to run, set "
    "check_replays=False."
)

_KIND: Final = "crc1:"  # of a fingerprint; those of another kind are not compared

Bools = npt.NDArray[np.bool_]
PartitionRun = tuple[str, int, int]  # source partition, first row, row after the last


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
    """Follows the rows of one lane through its batches.

    `committed` has the ledger's positions by source partition; `compare` turns the comparison on. `skips` are those of
    earlier micro-batches by source partition, and then also this lane's; `changed` names the latter. `epoch` is the
    driver's run, "" if unknown: Spark repeats a micro-batch only in another run, so rows below a position that an
    earlier micro-batch of this run has written are no replay but an error: the source's positions do not grow.
    `partitions` are the source partitions that the lane has met.
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
        found: dict[str, str] = {}
        for partition, low, high in runs:
            start = self._open_checksum if partition == self._partition else 0
            self._compare(partition, low, high, start, rows)
            ended = np.flatnonzero(rows.ends[low:high]) + low
            if not ended.size:
                self._partition, self._open_checksum = partition, rows.fingerprint(low, high, start)
                continue
            begin, seed = (int(ended[-2]) + 1, 0) if ended.size > 1 else (low, start)
            after = int(ended[-1]) + 1
            found[partition] = _digest_text(rows.fingerprint(begin, after, seed))
            self._partition, self._open_checksum = partition, rows.fingerprint(after, high, 0)
        return found

    def new_rows(self, runs: Sequence[PartitionRun], rows: BatchRows) -> Bools | None:
        """Mask of the rows that are not in StarRocks yet; None if all are new, the usual case.

        Raises SourceChanged for new rows after a skip that has not met the end of the ledger's source transaction.
        """
        keep: Bools | None = None
        for partition, low, high in runs:
            known = self.committed.get(partition)
            if known is None:
                continue
            if rows.positions[low] > known.position:
                self._refuse_passing(known, int(rows.positions[low]))
                continue
            self._refuse_going_back(known, int(rows.positions[low]))
            if keep is None:
                keep = np.ones(len(rows.positions), np.bool_)
            cut = low + int(np.searchsorted(rows.positions[low:high], known.position, side="right"))
            self._follow_skip(known, low, cut, rows)
            if cut < high:
                self._refuse_passing(known, int(rows.positions[cut]))
            keep[low:cut] = False
            self.skipped_rows += cut - low
            self.skipped_transactions += int(rows.ends[low:cut].sum())
        return keep

    def _follow_skip(self, known: Position, low: int, cut: int, rows: BatchRows) -> None:
        """Remember that rows `low` to `cut` (exclusive) were left out."""
        met = bool(rows.positions[cut - 1] == known.position and rows.ends[cut - 1])
        before = self._skip_to(known)
        if met or (before is None and rows.positions[low] < known.position):
            self.skips[known.partition] = Skip(known.position, met)
            self.changed.add(known.partition)

    def _skip_to(self, known: Position) -> Skip | None:
        """The skip that ends at this very position: one to an older position says nothing any more."""
        skip = self.skips.get(known.partition)
        return skip if skip is not None and skip.position == known.position else None

    def _refuse_passing(self, known: Position, position: int) -> None:
        skip = self._skip_to(known)
        if skip is None or skip.met or not self.compare:
            return
        raise SourceChanged(
            f"Source partition {known.partition} went on to position {position} without a source transaction that ends "
            f"at position {known.position}, the last one that was written (label {known.label}): the source was "
            "recreated or rewound, or the query leaves other rows out now. Rows up to there were left out as written.",
            hint=_CHANGED_HINT,
        )

    def _refuse_going_back(self, known: Position, position: int) -> None:
        if self.epoch and run_of(epoch_of(known.label)) == self.epoch and known.batch < self.batch:
            raise InputError(
                f"Source partition {known.partition} went back to position {position}, after position {known.position} "
                f"was written in micro-batch {known.batch}.",
                hint="Give each source transaction a position that grows within its partition, over all micro-batches.",
            )

    def _compare(self, partition: str, low: int, high: int, start: int, rows: BatchRows) -> None:
        known = self.committed.get(partition)
        if known is None or not self.compare or not known.digest.startswith(_KIND):
            return
        first, after = (
            low + int(np.searchsorted(rows.positions[low:high], known.position, side=side))
            for side in ("left", "right")
        )
        if after == first or not rows.ends[after - 1]:
            return
        if _digest_text(rows.fingerprint(first, after, start if first == low else 0)) != known.digest:
            raise source_changed(f"source partition {partition}, position {known.position}", known)


def source_changed(place: str, known: Position) -> SourceChanged:
    """The error for other contents at a place that the ledger has."""
    return SourceChanged(
        f"The rows at {place} differ from those that were written there before (label {known.label}): the source was "
        "recreated or rewound, or the query computes other values now.",
        hint=_CHANGED_HINT,
    )


def _digest_text(checksum: int) -> str:
    return f"{_KIND}{checksum:08x}"
