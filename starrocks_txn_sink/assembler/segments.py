"""The events of a micro-batch as segments between markers: pure index arithmetic, no Python per row.

A segment is a run of DATA events. What *opens* it (a BEGIN, an END, or what was carried from the micro-batch before)
and what *closes* it (an END, a BEGIN, or nothing yet) decide its fate together, so a whole micro-batch is judged with a
few array operations. When source transactions are interleaved, events are first grouped by transaction; each
group is then read as if it were alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from starrocks_txn_sink.assembler.intake import Indexes, Kind


class Opener(IntEnum):
    """What the DATA events of a segment belong to."""

    NOTHING = 0  # no BEGIN was seen
    LIVE = 1  # an open transaction
    DROPPED = 2  # a transaction that was given up and is skipped to its END


class Closer(IntEnum):
    """What comes after the DATA events of a segment."""

    TAIL = 0  # nothing yet: the micro-batch ended
    BEGIN = 1
    END = 2


@dataclass(frozen=True, slots=True)
class Segments:
    """Parallel arrays, one entry per segment, in the order of (group, position).

    DATA events are `start:stop` in grouped order; the closing event, if any, is at `stop`. `opener` of a group's first
    segment comes from what was carried; `first` marks it.
    """

    start: Indexes
    stop: Indexes
    group: Indexes
    closer: npt.NDArray[np.int8]
    opener: npt.NDArray[np.int8]
    first: npt.NDArray[np.bool_]

    @property
    def rows(self) -> Indexes:
        return self.stop - self.start


def cut(kinds: npt.NDArray[np.int8], group_ends: Indexes, carried: npt.NDArray[np.int8]) -> Segments:
    """Cut events into segments.

    `kinds` are in grouped order; `group_ends` holds each group's exclusive end, ascending, the last one equal to
    len(kinds); `carried` holds each group's Opener. Every group yields one segment per marker and a tail, which may be
    empty.
    """
    markers = np.flatnonzero(kinds != Kind.DATA)
    stops = np.concatenate([group_ends, markers])
    closers = np.concatenate([np.full(len(group_ends), Closer.TAIL, np.int8), kinds[markers]])
    order = np.argsort(stops, kind="stable")  # a group's tail comes before a marker that opens the next group
    stop, closer = stops[order], closers[order]
    after = stop + (closer != Closer.TAIL)
    start = np.concatenate([np.zeros(1, np.int64), after[:-1]])
    first = np.concatenate([np.ones(1, bool), closer[:-1] == Closer.TAIL])
    group = np.cumsum(first) - 1
    before = np.concatenate([np.zeros(1, np.int8), closer[:-1]])
    opener = np.where(first, carried[group], np.where(before == Closer.BEGIN, Opener.LIVE, Opener.NOTHING))
    return Segments(start, stop, group, closer, opener.astype(np.int8), first)


def spread(start: Indexes, rows: Indexes) -> Indexes:
    """Concatenate the ranges `start[i] : start[i] + rows[i]`."""
    before = np.cumsum(rows) - rows
    return np.repeat(start - before, rows) + np.arange(int(rows.sum()), dtype=np.int64)
